"""Gradient difference: ascent on the forget rows, descent on the retain rows (GD, GradDiff)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class GradDiff:
    """gamma x (minus NLL of forget) + alpha x NLL of retain, token means; weights 1 and 1 as in open-unlearning."""

    gamma: float = 1.0
    alpha: float = 1.0

    def unlearn(self, job: Job) -> None:
        """Train on both sets."""

        def loss(batch: Batch) -> Tensor:
            forget, retain = job.forward(batch.forget), job.forward(batch.retain)
            away = losses.grad_ascent(token_logp(forget), forget.mask)
            return self.gamma * away + self.alpha * losses.nll(token_logp(retain), retain.mask)

        fit(job, loss)


submission = Submission(
    method=GradDiff(), title="GradDiff", paper="Liu et al. 2022, Continual Learning and Private Unlearning "
    "(arXiv 2203.12817); Maini et al. 2024, TOFU (arXiv 2401.06121), section 4",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01), search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
)  # fmt: skip
