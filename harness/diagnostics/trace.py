"""The `path` of a run: what its trajectory holds, as diagnostic lines, with the retain model beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness import answers as answering
from harness.diagnostics.paths import FORGETTING, LIKELIHOOD_UTIL, UTILITIES, likelihood_util, pick
from harness.diagnostics.table import Lines, Moment
from harness.plugins import load_task
from harness.runs import RunSpec, cut_case
from harness.types import Answers

KEPT = ("forget.loss", "retain.loss", "forget.p", "retain.p", "forget.prob", "retain.prob", "priv", "agg",
        "agg.own_fluency", *FORGETTING, *UTILITIES, LIKELIHOOD_UTIL)  # fmt: skip
USUAL_Y = (*UTILITIES, LIKELIHOOD_UTIL, "retain.p")
USUAL_X = (*FORGETTING, "forget.p")


def trace(run: Path, spec: RunSpec, x: str = "", y: str = "") -> tuple[Lines, tuple[str, str]]:
    """Lines of the run and of its retain model, and the measures of the two axes (empty where there is none).

    `util` is drawn where it is known at the points; else the part of it that needs no texts, `util.likelihood`.
    """
    import pyarrow.parquet as pq

    seen: dict[int, dict[str, float]] = {}
    charged: dict[int, float] = {}
    for line in pq.read_table(run / "trajectory.parquet").to_pylist():
        if line["value"] is not None:
            seen.setdefault(line["updates"], {})[line["metric"]] = line["value"]
            charged[line["updates"]] = line["charged_s"]
    places = sorted(seen)
    names = sorted({name for values in seen.values() for name in values})
    series = {name: np.array([seen[u].get(name, np.nan) for u in places]) for name in names}
    combined = likelihood_util(series)
    if combined is not None:
        series[LIKELIHOOD_UTIL] = combined
    axes = pick(x, USUAL_X, series), pick(y, USUAL_Y, series)
    wanted = [name for name in dict.fromkeys([*axes, *KEPT]) if name in series]
    lines = Lines("path")
    for step, updates in enumerate(places):
        moment = Moment(step, updates, charged[updates], "")
        for name in wanted:
            if np.isfinite(series[name][step]):
                lines.add("run", name, float(series[name][step]), moment)
    for name, value in _retain_model(spec).items():
        if name in wanted:
            lines.add("retain model", name, value, Moment(0, None, None, ""))
    return lines, axes


def _retain_model(spec: RunSpec) -> dict[str, float]:
    """Scores of the retain model from its cached answers; empty where they are not kept."""
    place = Path(spec.references.get("retain", ""), "answers")
    if "retain" not in spec.references or not place.is_dir():
        return {}
    task = load_task(spec.task_ref, spec.board.template)
    answers = Answers(answering.read(place))
    case = cut_case(task.case(spec.case, spec.seed), spec.limit)
    scores = task.score(case, answers, {"retain": answers})
    values = {name: score.value for name, score in scores.items() if score.value is not None}
    combined = likelihood_util({name: np.array([value]) for name, value in values.items()})
    return values if combined is None else {**values, LIKELIHOOD_UTIL: float(combined[0])}
