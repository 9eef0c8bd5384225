"""One invocation of the harness: what its runs share."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import models
from harness.errors import InputError
from harness.store import Store
from harness.supervise import Limits
from harness.workspace import Workspace

PATIENT = Limits(hang_s=24 * 3600.0)
"""Of stages that answer and score: they say nothing while they work."""
UNUSABLE = ("failed", "timeout", "invalid")
"""Statuses of runs that have no scores to use."""

Progress = Callable[..., None]
"""Called with a text, a clock's state or None, and the budget where there is one; see `harness.progress.Show`."""


@dataclass
class Session:
    """One invocation: the workspace, the store, and what is worked out once and shared by its runs."""

    workspace: Workspace
    store: Store
    progress: Progress = lambda _text, _state, _budget=None: None
    limit: int | None = None
    trajectory: bool = False
    again: bool = False
    keep_model: bool | None = None
    generator: str = "hf"
    robustness: str | None = None
    judge: str = ""
    hashes: dict[str, str] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)

    def model_hash(self, path: str) -> str:
        """Content hash of a model, worked out once."""
        if path not in self.hashes:
            self.hashes[path] = models.weights_hash(path)
        return self.hashes[path]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process a run: a second one is told at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"run {folder.name} is in progress in another process",
                "",
                "wait for it, or use --again for a new run",
            ) from None
        yield
