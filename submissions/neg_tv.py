"""Task-vector negation (NegTV): fine-tune on the forget rows, and go the other way."""

from __future__ import annotations

from dataclasses import dataclass

from harness import OptimizerSpec, Submission
from harness.edits.finetune import fine_tune
from harness.edits.onjob import load_state, refuse_adapters, settle
from harness.edits.task_vectors import norm, state_of, subtracted, task_vector
from harness.job import Job


@dataclass(frozen=True)
class NegTV:
    """theta - alpha tau with tau = theta fine-tuned on the forget rows - theta, all weights alike.

    `alpha` None: the smallest strength at which forget accuracy is at most `wanted`, by a line search over `alphas`
    with `halvings`. MUSE's public code (task_vector.py) fine-tunes for 10 epochs at 1e-5 and takes alpha 5. Here
    `training` is the share of the budget that fine-tuning gets.
    """

    training: float = 0.7
    alpha: float | None = None
    alphas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    wanted: float = 0.1
    halvings: int = 3

    def unlearn(self, job: Job) -> None:
        """Fine-tune, subtract."""
        refuse_adapters(job, "neg_tv")
        start = state_of(job.model)
        fine_tune(job, self.training)
        vector = task_vector(state_of(job.model), start)
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
    method=NegTV(), title="NegTV", paper="Ilharco et al. 2023, Editing Models with Task Arithmetic (arXiv 2212.04089)",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.0), search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4]},
)  # fmt: skip
