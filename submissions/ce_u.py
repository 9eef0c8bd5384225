"""Cross-entropy unlearning: learn one's own prediction with the right token left out (CE-U)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class CEU:
    """CE-U, token mean + alpha x NLL of retain (none by default, as published).

    `skip_first`: the first answer tokens of each row that are left alone; 1 is open-unlearning's default
    (configs/trainer/CEU.yaml), after a footnote of the paper. A row that has no more tokens than that, such as a class
    label, is trained on whole; the public code drops it.
    """

    skip_first: int = 1
    alpha: float = 0.0

    def unlearn(self, job: Job) -> None:
        """Train on the forget rows."""

        def loss(batch: Batch) -> Tensor:
            forget = job.forward(batch.forget)
            mask = losses.after_first(forget.mask, self.skip_first)
            total = losses.ce_u(forget.logits, forget.labels, mask)
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)


submission = Submission(
    method=CEU(), title="CE-U", paper="Yang 2025, CE-U: Cross Entropy Unlearning (arXiv 2503.01224)",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01), search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
)  # fmt: skip
