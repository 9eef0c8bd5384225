"""Weighted gradient ascent: likely tokens are pushed down hardest (WGA)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class WGA:
    """gamma x ascent weighed by p^beta + alpha x NLL of retain, token means.

    Defaults are open-unlearning's (configs/trainer/WGA.yaml, 5 epochs there); the authors' own code has beta 5
    (tmlr-group/G-effect).
    """

    beta: float = 1.0
    gamma: float = 1.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ValueError("beta must not be below 0")

    def unlearn(self, job: Job) -> None:
        """Train on both sets."""

        def loss(batch: Batch) -> Tensor:
            forget = job.forward(batch.forget)
            total = self.gamma * losses.wga(token_logp(forget), forget.mask, self.beta)
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)


submission = Submission(
    method=WGA(), title="WGA", paper="Wang et al. 2025, Rethinking LLM Unlearning Objectives: A Gradient Perspective "
    "and Go Beyond (arXiv 2502.19301)", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4], "beta": [1.0, 5.0]},
)  # fmt: skip
