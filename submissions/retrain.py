"""The model that never saw the forget set: the gold standard for removing a training contribution.

Its weights come with the board (role `retain`): training from scratch takes as long as the target did, which no
unlearning budget covers, so the row is shown for orientation and never ranked.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness import Submission
from harness.job import Job


@dataclass(frozen=True)
class Retrain:
    """Takes the board's retrained weights."""

    def unlearn(self, job: Job) -> None:
        """Copy the weights of role `retain` into the model."""
        job.model.load_state_dict(job.resource("model.retain").state_dict())


submission = Submission(
    method=Retrain(), title="Retrain", paper="Bourtoule et al. 2021, Machine Unlearning (arXiv 1912.03817)",
    goal="remove", needs=("model.retain",), reference=True,
)  # fmt: skip
