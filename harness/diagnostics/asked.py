"""What `uharness diagnose` is asked for, and whether it can be had; every refusal comes before anything is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError, UharnessError, near
from harness.models import check
from harness.plugins import load_source
from harness.runs import RunSpec, read_json

STAGES = {
    "norms": "work_weights:norms",
    "drift": "work:drift",
    "covariance": "work:covariance",
    "losses": "work:losses_along",
    "request": "work_edits:request",
    "ablation": "work_edits:ablation",
    "ds": "work_soups:curve",
    "mixes": "work_soups:mixes",
    "slice": "work_soups:plane",
}
KINDS = (*STAGES, "path", "pca")
USUAL = ("norms", "drift", "covariance", "losses", "path")
"""What is measured of one run when nothing is named."""
SELECTED = ("mixes", "slice")
"""What only a selector's run has."""
NO_RUN = ("request", "ablation")
"""What starts from the board's target, and looks at no weights of the run."""


@dataclass(frozen=True)
class Asked:
    """What to measure, and how much of it.

    Attributes:
        what: some of `KINDS`; empty is all that one run has (several runs: `pca`).
        gradients, rows: so many gradients, each of so many forget rows and as many retain rows.
        matrices: regular expression on parameter names; empty is the default.
        limit: most forget and most retain rows that drift and losses look at.
        texts: let the points along the run write texts too, so that metrics that need them are in the path.
        x, y: measures of the path's axes; empty is forgetting against utility.
        rank: directions of the two bases whose overlap `request` measures.
        grid: points on a side of a `slice`.
    """

    what: tuple[str, ...] = ()
    gradients: int = 32
    rows: int = 1
    matrices: str = ""
    limit: int = 256
    texts: bool = False
    x: str = ""
    y: str = ""
    rank: int = 16
    grid: int = 7


def checked(asked: Asked, names: Sequence[str]) -> tuple[str, ...]:
    """The kinds to measure of these runs, in order."""
    for kind in asked.what:
        if kind not in KINDS:
            raise InputError(f"no diagnostic {kind!r}", near(kind, KINDS), "choose with --what")
    if len(set(names)) != len(names):
        raise InputError("a run is named twice", ", ".join(names), "name each run once")
    try:
        re.compile(asked.matrices)
    except re.error as error:
        raise InputError(f"--matrices {asked.matrices!r} is no regular expression: {error}") from None
    return asked.what or (("pca",) if len(names) > 1 else USUAL)


def run_folder(runs: Path, run: str) -> Path:
    """Where a run worked on this machine."""
    found = sorted(runs.glob(f"*/{run}/run.json"))
    if not found:
        names = [p.parent.name for p in runs.glob("*/*/run.json")]
        raise InputError(
            f"no run {run!r} under {runs}", near(run, names),
            "diagnose on the machine where it was made, or submit it again",
        )  # fmt: skip
    return found[0].parent


def check_run(name: str, folder: Path, spec: RunSpec, what: Sequence[str], asked: Asked) -> None:
    """Refuse what cannot be measured before anything is loaded."""
    if not (folder / "unlearn.json").exists() or read_json(folder / "unlearn.json")["status"] in (
        "failed",
        "invalid",
    ):
        raise InputError(
            f"run {name} did not finish its training", "its record says why", "choose another run"
        )
    weights = [kind for kind in what if kind not in ("path", *NO_RUN)]
    if weights and not (folder / "model" / "config.json").exists():
        raise InputError(
            f"run {name} has no kept weights", f"looked in {folder / 'model'}; {', '.join(weights)} need them",
            "submit it again with --again and without --no-keep-model",
        )  # fmt: skip
    if weights or any(kind in NO_RUN for kind in what):
        check(spec.models["target"], needs_tokenizer=False)
    if asked.what and "path" in what and not (folder / "trajectory.parquet").exists():
        raise InputError(
            f"run {name} has no trajectory", "it was made without --trajectory, on a board without a stop",
            "submit it again with --again --trajectory",
        )  # fmt: skip
    chosen = [kind for kind in what if kind in SELECTED]
    if chosen and not (folder / "select.json").exists():
        raise InputError(
            f"run {name} is not a selector's", f"mixes of its children are needed for {' and '.join(chosen)}",
            "name a run such as those of efficient_soup:grad_diff",
        )  # fmt: skip
    if "slice" in what:
        children = sorted(folder.glob("children/*/model/config.json"))
        if len(children) < 2:
            raise InputError(
                f"run {name} has {len(children)} children with weights", "a slice goes through two",
                "submit a selector with two trainings, with --again and without --no-keep-model",
            )  # fmt: skip
    if "ablation" in what and not _has_parts(spec):
        raise InputError(
            f"run {name} is of {spec.submission}, which has no ablate(job, rows)", "its parts cannot be left out",
            "name a run of unmerge",
        )  # fmt: skip
    if asked.texts and not (folder / "points").is_dir():
        raise InputError(
            f"run {name} has no points along its way", "--texts asks them for texts",
            "submit it again with --again --trajectory",
        )  # fmt: skip
    if asked.matrices and "covariance" in what:
        names = [n for n, shape in header(folder / "model").items() if len(shape) == 2]
        if not any(re.search(asked.matrices, n) for n in names):
            raise InputError(
                f"--matrices {asked.matrices!r} fits no matrix of {name}", near(asked.matrices, names)
            )


def _has_parts(spec: RunSpec) -> bool:
    """Whether the run's method (a selector's base) can leave parts out; true when its file no longer loads."""
    source = spec.sources[-1]
    try:
        return hasattr(load_source(source.name, source.source).submission.method, "ablate")
    except UharnessError:
        return True


def check_start(specs: Mapping[str, RunSpec]) -> None:
    """Refuse runs whose displacements are from different starts."""
    first = next(iter(specs.values()))
    for name, spec in specs.items():
        if spec.hashes.get("model.target") != first.hashes.get("model.target"):
            raise InputError(
                f"run {name} did not start where {first.run_id} did", "displacements are from one start",
                "choose runs of one board, case and seed",
            )  # fmt: skip


def header(folder: Path) -> dict[str, list[int]]:
    """Parameter names and shapes of a model folder, from the headers of its safetensors files alone."""
    out: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            told = json.loads(file.read(size))
        out |= {name: value["shape"] for name, value in told.items() if name != "__metadata__"}
    return out
