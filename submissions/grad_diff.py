"""Gradient difference: ascent on the forget rows, descent on the retain rows (GD, GradDiff)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class GradDiff:
    """gamma x (minus NLL of forget) + alpha x a retain term, token means; weights 1 and 1 as in open-unlearning.

    `retain`: `nll`, or `kl` for KL(starting model || model) over the retain rows' answer tokens. The public code
    (open-unlearning, src/trainer/utils.py) averages that KL over prompt and padding positions too.
    """

    gamma: float = 1.0
    alpha: float = 1.0
    retain: Literal["nll", "kl"] = "nll"

    def unlearn(self, job: Job) -> None:
        """Train on both sets."""
        reference = job.frozen_reference() if self.retain == "kl" else None

        def loss(batch: Batch) -> Tensor:
            forget, retain = job.forward(batch.forget), job.forward(batch.retain)
            away = losses.grad_ascent(token_logp(forget), forget.mask)
            if reference is None:
                keep = losses.nll(token_logp(retain), retain.mask)
            else:
                keep = losses.kl_to_reference(retain.logits, reference(batch.retain).logits, retain.mask)
            return self.gamma * away + self.alpha * keep

        fit(job, loss)


submission = Submission(
    method=GradDiff(), title="GradDiff", paper="Liu et al. 2022, Continual Learning and Private Unlearning "
    "(arXiv 2203.12817); Maini et al. 2024, TOFU (arXiv 2401.06121), section 4",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01), search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
)  # fmt: skip
