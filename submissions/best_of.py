"""Repeated tuning: train the base method several times with different seeds and keep the best by the proxy.

The plain way to spend more compute, and the baseline that soups are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness import Submission
from harness.select import Child, Pool


@dataclass(frozen=True)
class BestOf:
    """Keeps the child with the lowest DS_ES on rows the method may see; the first one wins a tie."""

    n: int = 3

    def children(self, seed: int) -> Sequence[Child]:
        """`n` trainings; child k's seed is 1000 k away from the run's."""
        return [Child(seed + 1000 * k) for k in range(self.n)]

    def choose(self, pool: Pool) -> None:
        """Load each child, ask the proxy, keep the best."""
        scores = []
        for k in range(len(pool.folders)):
            pool.loaded.model.load_state_dict(pool.weights(k))
            scores.append(pool.proxy())
        pool.loaded.model.load_state_dict(pool.weights(scores.index(min(scores))))


submission = Submission(method=BestOf(), title="Best of n", paper="the baseline of repeated tuning")
