"""Direct preference optimisation of an alternative answer over the forget answer (DPO; IdkDPO on text boards)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class DPO:
    """gamma x DPO on sequence sums (beta .1) + alpha x NLL of retain (left out at alpha 0).

    The preferred answers are the task's `alternative_answers`: I-don't-know sentences, or a fixed wrong class.
    """

    beta: float = 0.1
    gamma: float = 1.0
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError("beta must be above 0")

    def unlearn(self, job: Job) -> None:
        """Note the starting model's log-probabilities of both answers once, then train."""
        lose_reference = job.sequence_logp(job.forget)
        win_reference = job.sequence_logp(job.resource("alternative_answers"))

        def loss(batch: Batch) -> Tensor:
            index = batch.forget.index
            lose = token_logp(job.forward(batch.forget)).sum(-1)
            win = token_logp(job.forward(job.aligned("alternative_answers", batch.forget))).sum(-1)
            total = self.gamma * losses.dpo(win, win_reference[index], lose, lose_reference[index], self.beta)
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)


submission = Submission(
    method=DPO(), title="DPO", paper="Rafailov et al. 2023 (arXiv 2305.18290); for unlearning: Maini et al. 2024, "
    "TOFU (arXiv 2401.06121)", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]}, needs=("alternative_answers",),
)  # fmt: skip
