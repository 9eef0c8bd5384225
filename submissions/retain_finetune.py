"""Fine-tuning on the retain rows alone: forgetting as a side effect (FT)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class RetainFinetune:
    """Minimises the token-mean negative log-likelihood of the retain rows."""

    def unlearn(self, job: Job) -> None:
        """Train on the retain rows."""

        def loss(batch: Batch) -> Tensor:
            retain = job.forward(batch.retain)
            return losses.nll(token_logp(retain), retain.mask)

        fit(job, loss)


submission = Submission(
    method=RetainFinetune(), title="RetainFinetune", paper="the fine-tuning baseline of Golatkar et al. 2020, Eternal "
    "Sunshine of the Spotless Net (arXiv 1911.04933)", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]}, goal="remove",
)  # fmt: skip
