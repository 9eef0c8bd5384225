"""Questions of the small world for lm-eval's task files beside this one (`custom_dataset: !function data.load`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHOICES = Path(__file__).parent.parent / "data" / "choices"


def load(subject: str, **_: Any) -> dict[str, Any]:
    """Split `test` of one subject: columns question, choices, answer, subject. No cache is written."""
    import json

    import datasets

    lines = (CHOICES / f"{subject}.json").read_text(encoding="utf-8").splitlines()
    return {"test": datasets.Dataset.from_list([json.loads(line) for line in lines])}
