"""Gradient ascent on the forget rows, nothing to keep the rest (GA)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class GradAscent:
    """Minimises minus the token-mean negative log-likelihood of the forget rows."""

    def unlearn(self, job: Job) -> None:
        """Train on the forget rows alone."""

        def loss(batch: Batch) -> Tensor:
            forget = job.forward(batch.forget)
            return losses.grad_ascent(token_logp(forget), forget.mask)

        fit(job, loss)


submission = Submission(
    method=GradAscent(), title="GradAscent", paper="Jang et al. 2023, Knowledge Unlearning (arXiv 2210.01504)",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01), search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
)  # fmt: skip
