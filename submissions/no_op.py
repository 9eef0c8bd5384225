"""The model as it is: the row that says where everybody starts."""

from __future__ import annotations

from dataclasses import dataclass

from harness import Submission
from harness.job import Job


@dataclass(frozen=True)
class NoOp:
    """Does nothing."""

    def unlearn(self, job: Job) -> None:
        """Leave the model as it is."""


submission = Submission(method=NoOp(), title="Original", reference=True)
