"""A run as files: `runs/<run_id>/run.json` says what is to be done, each stage writes its own outputs beside it.

::

    run.json         RunSpec: everything a stage needs to know
    clock.bin        the clock, readable from outside and after a kill
    checkpoint/      weights (and optimizer state) from which a run goes on
    unlearn.json     what training did; model/ the weights; points/ weights along the way
    answers/         one Parquet file a probe; points/<k>/answers likewise
    scores.json      metrics; rows.parquet per-row values; trajectory.parquet the curve
    <stage>.log      what the stage printed
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.specs import SHOWN_ONLY, Board, Spec, TaskRef, content_hash
from harness.types import Case, Probe, Suite


class Source(Spec):
    """Where a submission is loaded from, and the hash its file must still have."""

    name: str
    source: str
    code: str


class RunSpec(Spec):
    """Everything that the stages of one run need. Paths are absolute and stay on this machine."""

    run_id: str
    board: Board
    entry: str
    submission: str
    title: str = ""
    reference: bool = False
    sources: tuple[Source, ...] = ()
    overrides: dict[str, Any] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict)
    case: str
    seed: int
    child_seed: int | None = None
    seconds: float | None = None
    updates: int | None = None
    step_s: float | None = None
    data: str = ""
    models: dict[str, str] = Field(default_factory=dict)
    hashes: dict[str, str] = Field(default_factory=dict)
    references: dict[str, str] = Field(default_factory=dict)
    limit: int | None = None
    generator: str = "hf"
    points: tuple[float, ...] = ()
    threads: int = 1
    started: str = ""

    @property
    def train_seed(self) -> int:
        """Seed of rows' order and of the generators; a selector's children differ in it, on the same case."""
        return self.seed if self.child_seed is None else self.child_seed

    @property
    def task_ref(self) -> TaskRef:
        """The board's task with its data where they are on this machine."""
        return self.board.task.model_copy(update={"data": self.data})

    @property
    def start(self) -> str:
        """The weights that training starts from: the target's, or those that the case before has left."""
        return self.models.get("start", self.models["target"])

    @property
    def generator_kind(self) -> str:
        """What of `generator` decides the texts: not a server's address."""
        return self.generator.partition(":")[0]

    def input_hash(self) -> str:
        """Hash of what decides the outputs of the run's stages: contents, not the paths where they are."""
        here = {
            "started",
            "run_id",
            "step_s",
            "seconds",
            "data",
            "models",
            "references",
            "threads",
            "generator",
        }
        left_out = {**dict.fromkeys(here, True), "board": SHOWN_ONLY, "sources": {"__all__": {"source"}}}
        return content_hash(
            {**self.model_dump(mode="json", exclude=left_out), "generator": self.generator_kind}
        )

    def write(self, folder: Path) -> None:
        """Write run.json."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: Path) -> RunSpec:
        """Read run.json."""
        return cls.model_validate(read_json(folder / "run.json"))


def write_json(path: Path, value: Any) -> None:
    """Atomically; refuses NaN and Infinity."""
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text + "\n", encoding="utf-8")
    fresh.replace(path)


def read_json(path: Path) -> Any:
    """A JSON file's value."""
    return json.loads(path.read_text(encoding="utf-8"))


def done(folder: Path, stage: str, key: str) -> bool:
    """Whether `stage` has finished in this folder for the same inputs."""
    mark = folder / f"{stage}.done"
    return mark.exists() and mark.read_text() == key


def mark_done(folder: Path, stage: str, key: str) -> None:
    """Note that `stage` has finished for these inputs."""
    (folder / f"{stage}.done").write_text(key)


def cut_case(case: Case, limit: int | None) -> Case:
    """The first `limit` rows of both sets; the case itself without a limit."""
    return (
        case
        if limit is None
        else dataclasses.replace(case, forget=case.forget[:limit], retain=case.retain[:limit])
    )


def cut_probes(probes: Sequence[Probe], limit: int | None) -> list[Probe]:
    """Every probe's first `limit` rows; of a suite the first questions of each task."""
    return list(probes) if limit is None else [_cut(p, limit) for p in probes]


def _cut(probe: Probe, limit: int) -> Probe:
    if isinstance(probe, Suite):
        return dataclasses.replace(probe, limit=min(limit, probe.limit or limit))
    return dataclasses.replace(probe, rows=probe.rows[:limit])
