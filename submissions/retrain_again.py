"""A second retraining, from the same start on rows in another order: how far two models without the forget rows are.

No method needs to come closer to the retrained model than this row does (Unmerge paper, App. E.8).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness import Submission
from harness.job import Job


@dataclass(frozen=True)
class RetrainAgain:
    """Takes the weights of the board's role `again`."""

    def unlearn(self, job: Job) -> None:
        """Copy them into the model."""
        job.model.load_state_dict(job.resource("model.again").state_dict())


submission = Submission(
    method=RetrainAgain(), title="Retrain again", paper="Unmerge paper, App. E.8", goal="remove",
    needs=("model.again",), reference=True,
)  # fmt: skip
