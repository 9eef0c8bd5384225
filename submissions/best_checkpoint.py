"""The best moment of one training: checkpoints along the way are candidates, as MUSE and UnlearningSoup pick an epoch.

Choosing is part of what a row cost: its ledger counts the evaluations, and its selection says by what was judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness import Submission
from harness.select import By, Child, Pool


@dataclass(frozen=True)
class BestCheckpoint:
    """Keeps the checkpoint that is judged best, of `checkpoints` at even parts of the budget; the latest wins a tie.

    `by` is what judges: the proxy, or the board's own metric (`full_metric`), as in the papers; such rows are ranked
    apart. Schedules that anneal make the last checkpoint special; MUSE keeps its rate constant.
    """

    checkpoints: int = 10
    by: By = "proxy"

    def __post_init__(self) -> None:
        if self.checkpoints < 2:
            raise ValueError("checkpoints is at least 2: the end of the training is one of them")

    def children(self, seed: int) -> Sequence[Child]:
        """One training."""
        return [Child(seed)]

    def choose(self, pool: Pool) -> None:
        """Judge every checkpoint, keep the best."""
        values = [pool.judge({k: 1.0}) for k in range(len(pool))]
        best = min(range(len(pool)), key=lambda k: (values[k], -k))
        pool.put({best: 1.0})


submission = Submission(
    method=BestCheckpoint(),
    title="Best checkpoint",
    paper="Shi et al. 2024, MUSE (arXiv 2407.06460), where an epoch is picked",
)
