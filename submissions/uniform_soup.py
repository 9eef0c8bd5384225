"""Uniform soup: the plain average of several trainings, whatever they are worth. A control: nothing is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import Submission
from harness.select import Child, Pool, spread


@dataclass(frozen=True)
class UniformSoup:
    """`n` trainings and no evaluation. `each` has settings in which the children differ (empty: their seeds)."""

    n: int = 7
    each: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError("n is at least 1")

    def children(self, seed: int) -> Sequence[Child]:
        """`n` trainings."""
        return spread(seed, self.n, self.each)

    def choose(self, pool: Pool) -> None:
        """Average all."""
        pool.put({k: 1.0 / len(pool) for k in range(len(pool))})


submission = Submission(
    method=UniformSoup(), title="Uniform soup", paper="Wortsman et al. 2022, Model soups, arXiv 2203.05482"
)
