"""DPO of an I-don't-know answer that is drawn anew whenever a row is seen (IdkDPO)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import Inputs, token_logp


@dataclass(frozen=True)
class IdkDPO:
    """gamma x DPO on sequence sums (beta .1) + alpha x NLL of retain (left out at alpha 0).

    Which of the task's `idk_answers` a row gets is a function of (seed, update, row); the starting model is asked for
    its log-probability at each update, by a frozen copy. `dpo` has one fixed answer a row and needs no copy.
    Source: open-unlearning, QAwithIdkDataset and configs/trainer/DPO.yaml.
    """

    beta: float = 0.1
    gamma: float = 1.0
    alpha: float = 1.0

    def unlearn(self, job: Job) -> None:
        """Note the starting model's log-probabilities of the forget answers, keep a frozen copy, and train."""
        lose_reference = job.sequence_logp(job.forget)
        reference, pool = job.frozen_reference(), job.resource("idk_answers")

        def loss(batch: Batch) -> Tensor:
            drawn = self.drawn(job, batch.forget, pool)
            lose = token_logp(job.forward(batch.forget)).sum(-1)
            win = token_logp(job.forward(drawn)).sum(-1)
            win_reference = token_logp(reference(drawn)).sum(-1)
            lost = lose_reference[batch.forget.index]
            total = self.gamma * losses.dpo(win, win_reference, lose, lost, self.beta)
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)

    @staticmethod
    def drawn(job: Job, forget: Inputs, pool: tuple[str, ...]) -> Inputs:
        """The forget rows in `forget` with an answer from `pool` each."""
        index = forget.index.tolist()
        rows = [
            replace(job.forget[i], target=pool[k])  # type: ignore[call-arg]
            for i, k in zip(index, job.draw(forget, len(pool)), strict=True)
        ]
        return job.collate(rows, index)


submission = Submission(
    method=IdkDPO(), title="IdkDPO", paper="Maini et al. 2024, TOFU (arXiv 2401.06121); loss: Rafailov et al. 2023 "
    "(arXiv 2305.18290)", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]}, needs=("idk_answers",),
)  # fmt: skip
