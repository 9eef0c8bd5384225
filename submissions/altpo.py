"""AltPO: DPO of alternative answers, which the model itself has written, over the forget answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp
from harness.types import TextRow

WRITING = 0.5
"""No further alternatives are written once this share of the budget is spent."""


@dataclass(frozen=True)
class AltPO:
    """gamma x DPO on sequence sums (beta .1) + alpha x NLL of retain.

    First the model answers `prompt` for every forget row, `k` times, drawn at `temperature`; an answer that is the
    forget answer again is redrawn, up to `tries` times in all. Then each row that is seen gets one of its alternatives,
    drawn by (seed, update, row). All of it is on the clock. Defaults by open-unlearning's community/methods/AltPO: beta
    .1, weights 1, temperature 1, 200 tokens, lr 5e-5 (the authors'); its k is 5. The request is in our own words.
    """

    beta: float = 0.1
    gamma: float = 1.0
    alpha: float = 1.0
    k: int = 2
    tries: int = 4
    temperature: float = 1.0
    max_tokens: int = 200
    prompt: str = (
        "Question: {question}\nAnswer: {answer}\n"
        "Invent another answer to this question. It must sound just as plausible and contradict every fact of the "
        "answer above. Write the new answer alone."
    )

    def unlearn(self, job: Job) -> None:
        """Write the alternatives, note both answers' log-probabilities under the starting model, and train."""
        before = job.clock.charged_s
        rows = [row for row in job.forget if isinstance(row, TextRow)]
        rounds = self.written(job, rows)
        job.log("writing.s", job.clock.charged_s - before)
        alternatives = [row for written in rounds for row in written]
        job.log("alternatives.distinct", len({(row.prompt, row.target) for row in alternatives}))
        lose_reference, win_reference = job.sequence_logp(job.forget), job.sequence_logp(alternatives)

        def loss(batch: Batch) -> Tensor:
            index = batch.forget.index.tolist()
            at = [len(rows) * j + i for j, i in zip(job.draw(batch.forget, len(rounds)), index, strict=True)]
            lose = token_logp(job.forward(batch.forget)).sum(-1)
            win = token_logp(job.forward(job.collate([alternatives[i] for i in at], index))).sum(-1)
            lost = lose_reference[batch.forget.index]
            total = self.gamma * losses.dpo(win, win_reference[at], lose, lost, self.beta)
            if self.alpha:
                retain = job.forward(batch.retain)
                total = total + self.alpha * losses.nll(token_logp(retain), retain.mask)
            return total

        fit(job, loss)

    def written(self, job: Job, rows: Sequence[TextRow]) -> list[list[TextRow]]:
        """Up to `k` alternatives of every row; at least one."""
        asked = [
            self.prompt.replace("{question}", row.prompt).replace("{answer}", row.target) for row in rows
        ]
        rounds: list[list[TextRow]] = []
        while len(rounds) < self.k and (not rounds or job.clock.fraction < WRITING):
            found, left = list(rows), list(range(len(rows)))
            for attempt in range(self.tries):
                seed = job.seed + 1000 * (self.tries * len(rounds) + attempt)
                said = job.generate(
                    [asked[i] for i in left], max_tokens=self.max_tokens, stop=("Question:", "Q:"),
                    temperature=self.temperature, seed=seed,
                )  # fmt: skip
                for i, text in zip(left, said, strict=True):
                    found[i] = replace(rows[i], target=text)
                left = [i for i in left if not found[i].target or found[i].target == rows[i].target]
                if not left or job.clock.fraction >= WRITING:
                    break
            rounds.append(found)
        return rounds


submission = Submission(
    method=AltPO(), title="AltPO", paper="Mekala et al. 2024, Alternate Preference Optimization (arXiv 2409.13474)",
    optimizer=OptimizerSpec(lr=5e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-5, 2e-5, 5e-5], "beta": [0.05, 0.1, 0.5], "alpha": [1, 2, 5]},
    needs=("texts",),
)  # fmt: skip
