"""SCRUB: a student that leaves its teacher on the forget rows and stays with it on the retain rows, by turns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.job import Job
from harness.loop import fit
from harness.scoring import Inputs, Outputs, token_logp


@dataclass(frozen=True)
class Scrub:
    """Epochs over forget rows (away from the teacher) and over retain rows (towards it), then retain rows alone.

    An away step minimises - KL_T(teacher || student) on forget rows; a stay step gamma x NLL + alpha x KL_T on retain
    rows. KL_T is the divergence at temperature T, times T squared. `away_epochs` times one epoch over the forget rows
    is followed by one over the retain rows; after that all steps are stay steps, until the budget ends.

    Defaults are those of the public notebook (meghdadk/SCRUB, large_scale_unlearning.ipynb): alpha .001, gamma .99,
    T 4, 2 away epochs; there is no warm-up, which the away steps would fall into.
    """

    alpha: float = 0.001
    gamma: float = 0.99
    temperature: float = 4.0
    away_epochs: int = 2

    def unlearn(self, job: Job) -> None:
        """Train by turns; the phase is a function of the number of updates made."""
        teacher = job.frozen_reference()
        size = job.plan.batching.effective
        lengths = [1 if size == "full" else -(-len(rows) // int(size)) for rows in (job.forget, job.retain)]

        def divergence(inputs: Inputs) -> tuple[Tensor, Outputs]:
            out, aim = job.forward(inputs), teacher(inputs)
            t = self.temperature
            return t**2 * losses.kl_to_reference(out.logits / t, aim.logits / t, out.mask), out

        def loss(batch: Batch) -> Tensor:
            if self.away(job.clock.updates, *lengths):
                return -divergence(batch.forget)[0]
            close, out = divergence(batch.retain)
            return self.gamma * losses.nll(token_logp(out), out.mask) + self.alpha * close

        fit(job, loss)

    def away(self, update: int, forget: int, retain: int) -> bool:
        """Whether an update is an away step, with epochs of so many updates.

        >>> [Scrub(away_epochs=2).away(k, 1, 2) for k in range(8)]
        [True, False, False, True, False, False, False, False]
        """
        turn, place = divmod(update, forget + retain)
        return turn < self.away_epochs and place < forget


submission = Submission(
    method=Scrub(), title="SCRUB", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.0, warmup=0.0),
    paper="Kurmanji et al. 2023, Towards Unbounded Machine Unlearning (arXiv 2302.09880), algorithm 1",
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4], "away_epochs": [1, 2, 3]},
)  # fmt: skip
