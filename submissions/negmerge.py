"""NegMerge: several models fine-tuned on the forget rows; what all of them moved the same way is negated."""

from __future__ import annotations

from dataclasses import dataclass

from harness import OptimizerSpec, Submission
from harness.edits.finetune import fine_tune
from harness.edits.negmerge import SignMerge
from harness.edits.onjob import load_state, refuse_adapters, settle
from harness.edits.task_vectors import norm, state_of, subtracted, task_vector
from harness.job import Job


@dataclass(frozen=True)
class NegMerge:
    """theta - alpha tau, tau the mean of the models' task vectors where all signs agree, 0 elsewhere.

    One model per number in `rates`, which multiplies the learning rate; each has its own order of rows and an equal
    part of the share `training` of the budget. The paper merges 10 to 30 models of different hyper-parameters, each
    trained in full; on one budget fewer fit. Strength as in NegTV: `alpha`, or a line search down to `wanted`.
    """

    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    training: float = 0.7
    alpha: float | None = None
    alphas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    wanted: float = 0.1
    halvings: int = 3

    def unlearn(self, job: Job) -> None:
        """Fine-tune several times from the same start, merge, subtract."""
        refuse_adapters(job, "negmerge")
        start, begin, merge = state_of(job.model), job.clock.fraction, SignMerge()
        for k, rate in enumerate(self.rates):
            load_state(job, start)
            share = (k + 1) / len(self.rates)
            fine_tune(job, begin + (self.training - begin) * share, stream=k, rate=rate)
            merge.add(task_vector(state_of(job.model), start))
        vector = merge.merged()
        job.log("signs.agree", merge.agreement)
        job.log("tau.norm", norm(vector))
        settle(
            job,
            lambda a: load_state(job, subtracted(start, vector, a)),
            self.alpha,
            self.alphas,
            self.wanted,
            self.halvings,
        )


submission = Submission(
    method=NegMerge(), title="NegMerge",
    paper="Kim et al. 2024, NegMerge: Sign-Consensual Weight Merging for Machine Unlearning (arXiv 2410.05583)",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.0), search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
)  # fmt: skip
