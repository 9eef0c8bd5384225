"""EfficientSoup: two trainings, and a search along two edges of the triangle that they make with the original model.

The better child is drawn back towards the original, and the best point found towards the other child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import Submission
from harness.edits.soups import search_edge
from harness.select import ORIGINAL, By, Child, Pool, spread


@dataclass(frozen=True)
class EfficientSoup:
    """2 trainings and 2 `depth` evaluations: on each edge one child, and `depth` - 1 mixes.

    `each` has one or two settings in which the children differ, a rate or a strength (empty: their seeds); `by` is
    what judges the mixes.
    """

    depth: int = 4
    each: tuple[dict[str, Any], ...] = ()
    by: By = "proxy"

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError("depth is at least 1")

    def children(self, seed: int) -> Sequence[Child]:
        """Two trainings."""
        return spread(seed, 2, self.each)

    def choose(self, pool: Pool) -> None:
        """Search the edge from the better child to the original, then the one from the best point to the other."""
        values = [pool.judge({0: 1.0}), pool.judge({1: 1.0})]
        better, other = (0, 1) if values[0] <= values[1] else (1, 0)
        back, value = search_edge(
            lambda t: pool.judge({better: 1.0 - t, ORIGINAL: t}), values[better], self.depth
        )

        def mix(t: float) -> dict[int, float]:
            return {better: (1.0 - t) * (1.0 - back), ORIGINAL: (1.0 - t) * back, other: t}

        across, _ = search_edge(lambda t: pool.judge(mix(t)), value, self.depth)
        pool.put(mix(across))


submission = Submission(
    method=EfficientSoup(), title="EfficientSoup", paper="UnlearningSoup, NeurIPS 2026, arXiv 2609.37076"
)
