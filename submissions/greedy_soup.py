"""Greedy soup: from the best training on, the next one joins a plain average when that makes it strictly better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import Submission
from harness.select import By, Child, Pool, spread


@dataclass(frozen=True)
class GreedySoup:
    """`n` trainings and 2 `n` - 1 evaluations: every child, and every average that is tried.

    `each` has settings in which the children differ (empty: their seeds); `by` is what judges them.
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
        """Try the children from the best to the worst."""
        found = [pool.judge({k: 1.0}) for k in range(len(pool))]
        order = sorted(range(len(pool)), key=lambda k: (found[k], k))
        members, value = order[:1], found[order[0]]
        for k in order[1:]:
            tried = pool.judge({m: 1.0 / (len(members) + 1) for m in (*members, k)})
            if tried < value:
                members, value = [*members, k], tried
        pool.put({m: 1.0 / len(members) for m in members})


submission = Submission(
    method=GreedySoup(), title="Greedy soup", paper="Wortsman et al. 2022, Model soups, arXiv 2203.05482"
)
