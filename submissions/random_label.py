"""Random labels: ordinary training on a wrong answer that is drawn once per forget row (RL)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class RandomLabel:
    """NLL of the task's `random_labels` + alpha x NLL of retain (left out at alpha 0)."""

    alpha: float = 1.0

    def unlearn(self, job: Job) -> None:
        """Train on the wrong answers."""

        def loss(batch: Batch) -> Tensor:
            wrong = job.forward(job.aligned("random_labels", batch.forget))
            total = losses.nll(token_logp(wrong), wrong.mask)
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)


submission = Submission(
    method=RandomLabel(), title="RandomLabel", paper="Golatkar et al. 2020, Eternal Sunshine of the Spotless Net "
    "(arXiv 1911.04933)", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]}, needs=("random_labels",),
)  # fmt: skip
