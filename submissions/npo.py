"""Negative preference optimisation with a retain term (NPO + retain NLL)."""

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
class NPO:
    """gamma x NPO on sequence sums + alpha x a retain term; the starting model is the reference.

    Defaults are the authors' for TOFU (licong-lin/negative-preference-optimization, TOFU/config/forget.yaml). `retain`:
    `nll`, or `kl` for KL(starting model || model) over answer tokens (public code: over prompt and padding too). MUSE's
    public NPO puts differences of raw logits in place of log-probabilities (swj0419/muse_bench); this does not.
    """

    beta: float = 0.1
    gamma: float = 1.0
    alpha: float = 1.0
    retain: Literal["nll", "kl"] = "nll"

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError("beta must be above 0")

    def unlearn(self, job: Job) -> None:
        """Note the starting model's log-probabilities once, then train."""
        noted = job.sequence_logp(job.forget)
        reference = job.frozen_reference() if self.retain == "kl" else None

        def loss(batch: Batch) -> Tensor:
            forget, retain = job.forward(batch.forget), job.forward(batch.retain)
            logp = losses.sequence_sum(token_logp(forget), forget.mask)
            away = losses.npo(logp, noted[batch.forget.index], self.beta)
            if reference is None:
                keep = losses.nll(token_logp(retain), retain.mask)
            else:
                keep = losses.kl_to_reference(retain.logits, reference(batch.retain).logits, retain.mask)
            return self.gamma * away + self.alpha * keep

        fit(job, loss)


submission = Submission(
    method=NPO(), title="NPO", paper="Zhang et al. 2024, Negative Preference Optimization (arXiv 2404.05868)",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01), search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
)  # fmt: skip
