"""Halves every weight: a method without gradients, from a package of its own."""

from dataclasses import dataclass

from harness import Submission
from harness.job import Job


@dataclass(frozen=True)
class Halve:
    """Multiplies all weights by `factor`."""

    factor: float = 0.5

    def unlearn(self, job: Job) -> None:
        """Edit the model in place."""
        for parameter in job.model.parameters():
            parameter.data.mul_(self.factor)


submission = Submission(method=Halve(), title="Halve", paper="an example")
