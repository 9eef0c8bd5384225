"""Bootstrapping by tokens: ascent on the answer and on what the model itself believes (BS-T)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class BST:
    """gamma x BS-T (mean of sequence means) + alpha x NLL of retain.

    `lam`, the belief's share, is .2 in the first author's configuration and .5 in the class it configures; `top_k` is
    20 in both (kemoulee/open-unlearning, configs/trainer/BST.yaml and src/trainer/unlearn/bst.py).
    """

    lam: float = 0.2
    top_k: int = 20
    gamma: float = 1.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.lam <= 1 or self.top_k < 1:
            raise ValueError("lam must be from 0 to 1, and top_k at least 1")

    def unlearn(self, job: Job) -> None:
        """Train on both sets."""

        def loss(batch: Batch) -> Tensor:
            forget = job.forward(batch.forget)
            away = losses.bs_t(forget.logits, token_logp(forget), forget.mask, self.lam, self.top_k)
            total = self.gamma * away
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)


submission = Submission(
    method=BST(), title="BS-T", paper="Li et al. 2025, LLM Unlearning with LLM Beliefs (arXiv 2510.19422)",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4], "lam": [0.2, 0.5]},
)  # fmt: skip
