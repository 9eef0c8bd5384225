"""A finished run as an axis finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.models import LoadedModel
from harness.runs import RunSpec
from harness.types import Case, Task


@dataclass(frozen=True)
class Finished:
    """A run whose weights are kept.

    Attributes:
        folder: the run's.
        spec: what was run.
        task: what it was asked, and `case`, the rows that its method saw.
        cache: folder of what depends on no single run.
        weights: loads a model of the board: folder, and dtype, empty for the board's own.
    """

    folder: Path
    spec: RunSpec
    task: Task
    case: Case
    cache: Path
    weights: Callable[[str, str], LoadedModel]

    def model(self, dtype: str = "") -> LoadedModel:
        """The run's own weights, loaded anew."""
        return self.weights(str(self.folder / "model"), dtype)
