"""Self-distillation on adjusted logits: the starting model with the right token's logit lowered (UNDIAL)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class UNDIAL:
    """gamma x cross-entropy to the adjusted starting model + alpha x NLL of retain (none by default, as published).

    Defaults are open-unlearning's (configs/trainer/UNDIAL.yaml; its notes suggest beta 3, 10, 30; the authors' command
    line has 5). The paper trains adapters of rank 8: `--set lora.rank=8`. The public code averages over all positions,
    prompt and padding included; this is the mean over answer tokens, so alpha weighs differently.
    """

    beta: float = 10.0
    gamma: float = 1.0
    alpha: float = 0.0

    def unlearn(self, job: Job) -> None:
        """Keep a frozen copy as the teacher, then train."""
        teacher = job.frozen_reference()

        def loss(batch: Batch) -> Tensor:
            forget, taught = job.forward(batch.forget), teacher(batch.forget)
            away = losses.undial(forget.logits, taught.logits, forget.labels, forget.mask, self.beta)
            total = self.gamma * away
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)


submission = Submission(
    method=UNDIAL(), title="UNDIAL", paper="Dong et al. 2024, UNDIAL: Self-Distillation with Adjusted Logits for "
    "Robust Unlearning in Large Language Models (arXiv 2402.10052)",
    optimizer=OptimizerSpec(lr=1e-4, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-5, 1e-4, 3e-4], "beta": [3.0, 10.0, 30.0], "alpha": [0.0, 1.0, 2.0, 5.0]},
)  # fmt: skip
