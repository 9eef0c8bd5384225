"""Rejection tuning (RT): ordinary training on refusals to questions about what is to be forgotten."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class RejectionTuning:
    """NLL of refusals + alpha x NLL of retain (left out at alpha 0, as published).

    Forget row i stands for the i-th of the task's `refusals`, questions with a refusal each; where there are fewer
    refusals than forget rows, they begin again. RWKU: lr 4e-7, 3 epochs on an 8B model, no retain term.
    """

    alpha: float = 0.0

    def unlearn(self, job: Job) -> None:
        """Train on the refusals."""
        refusals = job.resource("refusals")

        def loss(batch: Batch) -> Tensor:
            index = [i % len(refusals) for i in batch.forget.index.tolist()]
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
    needs=("refusals",),
)  # fmt: skip
