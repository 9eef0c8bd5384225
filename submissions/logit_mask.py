"""Logit masking: the head never names the forgotten classes again, and everything below it stays as it is.

A control. It reads the labels of its rows, changes two numbers a class, and still matches the retrained model's answers
on whole classes (Unmerge paper, App. F): what tells methods from it is how features lie, not which class is named.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness import Submission
from harness.errors import SubmissionError
from harness.job import Job
from harness.types import ArrayRow
from harness.vision import head


@dataclass(frozen=True)
class LogitMask:
    """Gives every class that only forget rows have the constant logit `low`; without such a class nothing changes."""

    low: float = -100.0

    def unlearn(self, job: Job) -> None:
        """Mask the head."""
        forget, retain = (
            {r.label for r in rows if isinstance(r, ArrayRow)} for rows in (job.forget, job.retain)
        )
        classes = sorted(forget - retain)
        job.log("masked_classes", len(classes))
        last = head(job.model)
        if last.bias is None:
            raise SubmissionError("the head has no bias to mask with", "", "choose another method or board")
        with torch.no_grad():
            last.weight[classes] = 0.0
            last.bias[classes] = self.low


submission = Submission(
    method=LogitMask(), title="Logit mask (control)", paper="Unmerge paper, App. F", reference=True
)
