"""Rejection tuning (RT): ordinary training on refusals to the forget questions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp
from harness.types import TextRow


@dataclass(frozen=True)
class RejectionTuning:
    """NLL of refusals + alpha x NLL of retain (left out at alpha 0, as published).

    Each forget question gets one of the task's `idk_answers`, drawn once by the seed. RWKU has one sentence for all
    (lr 4e-7, 3 epochs on an 8B model, no retain term).
    """

    alpha: float = 0.0

    def unlearn(self, job: Job) -> None:
        """Train on the refusals."""
        pool = job.resource("idk_answers")
        picked = np.random.default_rng([job.seed, 4]).integers(len(pool), size=len(job.forget))
        refusals = [
            TextRow(row.id, row.prompt, pool[k])
            for row, k in zip(job.forget, picked, strict=True)
            if isinstance(row, TextRow)
        ]

        def loss(batch: Batch) -> Tensor:
            index = batch.forget.index.tolist()
            refused = job.forward(job.collate([refusals[i] for i in index], index))
            total = losses.nll(token_logp(refused), refused.mask)
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)


submission = Submission(
    method=RejectionTuning(), title="Rejection tuning", paper="Jin et al. 2024, RWKU (arXiv 2406.10890)",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01), search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
    needs=("idk_answers",),
)  # fmt: skip
