"""NegGrad+: descent on the retain rows and ascent on the forget rows, as one weighted sum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class NegGradPlus:
    """alpha x NLL of retain - (1 - alpha) x NLL of forget, both over batches of one size.

    The public code (meghdadk/SCRUB, thirdparty/repdistiller/helper/loops.py, train_negrad) takes the forget rows round
    and round while it goes through the retain rows, as batches here do.
    """

    alpha: float = 0.95

    def unlearn(self, job: Job) -> None:
        """Train on both sets."""

        def loss(batch: Batch) -> Tensor:
            forget, retain = job.forward(batch.forget), job.forward(batch.retain)
            away = losses.nll(token_logp(forget), forget.mask)
            keep = losses.nll(token_logp(retain), retain.mask)
            return self.alpha * keep - (1.0 - self.alpha) * away

        fit(job, loss)


submission = Submission(
    method=NegGradPlus(), title="NegGrad+", paper="Kurmanji et al. 2023, Towards Unbounded Machine Unlearning "
    "(arXiv 2302.09880), section 4", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4], "alpha": [0.9, 0.95, 0.99]},
)  # fmt: skip
