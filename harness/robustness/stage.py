"""The stages of the axes: each measures a finished run and leaves a note, `<axis>.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harness.models import LoadedModel
from harness.robustness import paraphrase, quantise, relearn, report
from harness.robustness.finished import Finished
from harness.runs import RunSpec, read_json
from harness.types import Case, Score, Task

MEASURED: dict[str, Callable[[Finished, Any], tuple[Mapping[str, Score], Mapping[str, Any]]]] = {
    "relearn": relearn.measured,
    "quantise": quantise.measured,
    "paraphrase": paraphrase.measured,
}
"""By axis: (a run, the axis's settings) -> its scores, and facts for the note."""


def run_axis(
    axis: str,
    folder: Path,
    case_of: Callable[[RunSpec], tuple[Task, Case]],
    load: Callable[[RunSpec, str, str], LoadedModel],
    begin: Callable[[RunSpec], None],
) -> None:
    """The stage of one axis: `<axis>.request.json` in the run's folder has the settings and the cache."""
    spec, request = RunSpec.read(folder), read_json(folder / f"{axis}.request.json")
    settings = type(report.DEFAULTS[axis]).model_validate(request["settings"])
    begin(spec)
    run = Finished(folder, spec, *case_of(spec), Path(request["cache"]), partial(load, spec))
    report.write_note(folder, axis, settings, *MEASURED[axis](run, settings))
