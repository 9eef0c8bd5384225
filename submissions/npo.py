"""Negative preference optimisation with a retain term (NPO + retain NLL)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class NPO:
    """gamma x NPO on sequence sums (beta .1) + alpha x NLL of retain; the starting model is the reference."""

    beta: float = 0.1
    gamma: float = 1.0
    alpha: float = 1.0

    def unlearn(self, job: Job) -> None:
        """Note the starting model's log-probabilities once, then train."""
        reference = job.sequence_logp(job.forget)

        def loss(batch: Batch) -> Tensor:
            forget, retain = job.forward(batch.forget), job.forward(batch.retain)
            away = losses.npo(token_logp(forget).sum(-1), reference[batch.forget.index], self.beta)
            return self.gamma * away + self.alpha * losses.nll(token_logp(retain), retain.mask)

        fit(job, loss)


submission = Submission(
    method=NPO(), title="NPO", paper="Zhang et al. 2024, Negative Preference Optimization (arXiv 2404.05868)",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01), search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
)  # fmt: skip
