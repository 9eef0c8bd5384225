"""Maximal entropy: push the model's prediction on forget rows to the uniform distribution (ME)."""

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
class MaxEntropy:
    """A loss that is lowest at the uniform distribution + alpha x NLL of retain (left out at alpha 0).

    `form`: `kl_uniform` is KL(uniform || p); `entropy` is the literal sum of p log p, whose gradient dies where the
    model is sure (p near 1), so that training may never start to move.
    """

    form: Literal["kl_uniform", "entropy"] = "kl_uniform"
    alpha: float = 1.0

    def unlearn(self, job: Job) -> None:
        """Train on the forget rows' inputs."""
        away = losses.kl_from_uniform if self.form == "kl_uniform" else losses.negative_entropy

        def loss(batch: Batch) -> Tensor:
            forget = job.forward(batch.forget)
            total = away(forget.logits, forget.mask)
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)


submission = Submission(
    method=MaxEntropy(), title="MaxEntropy", paper="Yuan et al. 2024, A Closer Look at Machine Unlearning for LLMs "
    "(arXiv 2410.08109)", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
)  # fmt: skip
