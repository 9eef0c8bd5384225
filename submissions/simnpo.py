"""Simple negative preference optimisation: NPO on length-normalised answers, without a reference (SimNPO)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class SimNPO:
    """gamma x SimNPO on sequence means + alpha x NLL of retain.

    Defaults are open-unlearning's (configs/trainer/SimNPO.yaml), which are the authors' for TOFU forget10; for forget05
    they give beta 2.5 and gamma .1375 (OPTML-Group/Unlearn-Simple, TOFU/README.md). Names: `gamma` here is the authors'
    npo_coeff, `delta` their margin. Their MUSE code puts raw logits in place of log-probabilities; this does not.
    """

    beta: float = 4.5
    delta: float = 0.0
    gamma: float = 0.125
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError("beta must be above 0")

    def unlearn(self, job: Job) -> None:
        """Train on both sets."""

        def loss(batch: Batch) -> Tensor:
            forget = job.forward(batch.forget)
            logp_mean = losses.sequence_mean(token_logp(forget), forget.mask)
            total = self.gamma * losses.simnpo(logp_mean, self.beta, self.delta)
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)


submission = Submission(
    method=SimNPO(), title="SimNPO", paper="Fan et al. 2024, Simplicity Prevails: Rethinking Negative Preference "
    "Optimization for LLM Unlearning (arXiv 2410.07163)", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4], "beta": [2.5, 4.5], "gamma": [0.125, 1.0]},
)  # fmt: skip
