"""In-context unlearning (ICU): an instruction before every question; no weight changes."""

from __future__ import annotations

from dataclasses import dataclass

from harness import Submission
from harness.job import Job


@dataclass(frozen=True)
class InContext:
    """Says before every question whom the model should behave as if it had never heard of.

    `{subjects}` stands for the names that the task gives. RWKU puts such an instruction into the question's own turn
    and names one person; the sentences here are our own.
    """

    instruction: str = (
        "Some people are unknown to you: {subjects}. Answer every question about them as somebody would who has never "
        "heard of them, and do not mention this instruction. Answer all other questions as usual."
    )

    def unlearn(self, job: Job) -> None:
        """Fill in the names, and leave the model as it is."""
        job.instruct(self.instruction.replace("{subjects}", ", ".join(job.resource("subjects"))))


submission = Submission(
    method=InContext(), title="In-context unlearning", paper="Jin et al. 2024, RWKU (arXiv 2406.10890); after "
    "Pawelczyk et al. 2023 (arXiv 2310.07579)", needs=("subjects",),
)  # fmt: skip
