"""PerformanceSoup: a weighted greedy merge of several trainings.

From the best child on, the next one joins when the mix of all that have joined is then no worse. Weights are
proportional to P = 1 - DS, with DS on the scale of 0 to 1: on the scale of 0 to 100, in which the paper prints it, P is
negative and the worst child weighs most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import Submission
from harness.edits.soups import proportional
from harness.errors import RunError
from harness.select import By, Child, Pool, spread


@dataclass(frozen=True)
class PerformanceSoup:
    """`n` trainings and 2 `n` - 1 evaluations: every child, and every mix that is tried.

    A child whose P is not positive is dropped and counted; a run of which none is left fails. `each` has settings in
    which the children differ (empty: their seeds); `by` is what judges children and mixes.
    """

    n: int = 7
    each: tuple[dict[str, Any], ...] = ()
    by: By = "proxy"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError("n is at least 1")

    def children(self, seed: int) -> Sequence[Child]:
        """`n` trainings."""
        return spread(seed, self.n, self.each)

    def choose(self, pool: Pool) -> None:
        """Try the children from the best to the worst; the weights of a mix are made anew each time."""
        found = {k: pool.judge({k: 1.0}) for k in range(len(pool))}
        order = sorted((k for k in found if found[k] < 1.0), key=lambda k: (found[k], k))
        pool.dropped = len(found) - len(order)
        if not order:
            raise RunError(f"no child has a positive performance: all {len(found)} are judged 1 or worse")

        def mix(members: Sequence[int]) -> dict[int, float]:
            return dict(zip(members, proportional([1.0 - found[k] for k in members]), strict=True))

        members, value = order[:1], found[order[0]]
        for k in order[1:]:
            tried = pool.judge(mix([*members, k]))
            if tried <= value:
                members, value = [*members, k], tried
        pool.put(mix(members))


submission = Submission(
    method=PerformanceSoup(), title="PerformanceSoup", paper="UnlearningSoup, NeurIPS 2026, arXiv 2609.37076"
)
