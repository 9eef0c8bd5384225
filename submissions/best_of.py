"""Repeated tuning: train the base method several times and keep the best by the proxy.

The plain way to spend more compute, and the baseline that soups are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import Submission
from harness.select import By, Child, Pool, spread


@dataclass(frozen=True)
class BestOf:
    """Keeps the child that is judged best; the first one wins a tie.

    `each` has settings in which the children differ (empty: their seeds); `by` is what judges them.
    """

    n: int = 3
    each: tuple[dict[str, Any], ...] = ()
    by: By = "proxy"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError("n is at least 1")

    def children(self, seed: int) -> Sequence[Child]:
        """`n` trainings."""
        return spread(seed, self.n, self.each)

    def choose(self, pool: Pool) -> None:
        """Judge each child, keep the best: n evaluations."""
        values = [pool.judge({k: 1.0}) for k in range(len(pool))]
        pool.put({values.index(min(values)): 1.0})


submission = Submission(method=BestOf(), title="Best of n", paper="the baseline of repeated tuning")
