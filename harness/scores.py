"""From answers to numbers on disk: what the `score` stage and `uharness rescore` do. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import answers as answering
from harness.metrics import suites
from harness.recordtables import rows_table, trajectory_table
from harness.runs import read_json, write_json
from harness.types import (
    Answers,
    ArrayRow,
    Case,
    ClassAnswers,
    Generation,
    GenerationAnswers,
    LikelihoodAnswers,
    Probe,
    RowValues,
    Score,
    SuiteAnswers,
    Task,
    TextRow,
    Trajectory,
)

FEW = 16
"""Inputs of a row that are told as they are, at most."""
MOST_INVALID = 0.01
"""A run is invalid when more than this share of a probe's values are NaN or infinite."""


def score_folder(
    folder: Path,
    task: Task,
    case: Case,
    probes: Sequence[Probe],
    references: Mapping[str, Answers],
    proxy_rows_in_probes: int = 0,
) -> None:
    """Write scores.json, rows.parquet and trajectory.parquet of a run folder.

    `proxy_rows_in_probes` is kept beside the scores: how many rows that a selector judged by are asked here too.
    """
    answers = answering.answers_of(folder)
    scores = task.score(case, answers, references)
    problem = invalid(answers)
    public = texts(probes, answers, getattr(task, "class_names", ())) if task.rows_public else {}
    pq.write_table(rows_table(scores, public), folder / "rows.parquet", compression="zstd")
    curve = _curve(folder, task, case, answers.trajectory)
    if curve is not None:
        pq.write_table(curve, folder / "trajectory.parquet", compression="zstd")
    write_json(
        folder / "scores.json",
        {"scores": score_json(scores), "invalid": problem, "proxy_rows_in_probes": proxy_rows_in_probes},
    )


def score_json(scores: Mapping[str, Score]) -> dict[str, dict[str, Any]]:
    """Scores as JSON values: {id: {value, n, why}}."""
    return {name: {"value": s.value, "n": s.n, "why": s.why} for name, s in scores.items()}


def invalid(answers: Answers) -> str:
    """Why a run's answers cannot be used, or an empty string."""
    for name, answer in answers.probes.items():
        if isinstance(answer, GenerationAnswers | RowValues):
            continue
        if isinstance(answer, SuiteAnswers):
            if problem := suites.invalid(answer):
                return f"probe {name}: {problem}"
            continue
        values = answer.scores.logp if isinstance(answer, LikelihoodAnswers) else answer.logits
        bad = 1.0 - float(np.isfinite(values).mean()) if values.size else 0.0
        if bad > MOST_INVALID:
            return f"{bad:.1%} of the values of probe {name} are NaN or infinite"
        if isinstance(answer, ClassAnswers) and len(values) and (values == values[:, :1]).all():
            return f"all logits of every question of probe {name} tie"
    return ""


def texts(
    probes: Sequence[Probe], answers: Answers, classes: Sequence[str] = ()
) -> dict[str, dict[str, dict[str, str]]]:
    """Prompt, target and answer of every row, by probe and row id: texts, or the class that is meant and the one given.

    Args:
        probes: what was asked.
        answers: to these probes.
        classes: names of the classes of array rows; without them, a class is told by its number.
    """
    out: dict[str, dict[str, dict[str, str]]] = {}
    for probe in probes:
        answer = answers.probes.get(probe.name)
        if arrays := [row for row in probe.rows if isinstance(row, ArrayRow)]:
            given = answer if isinstance(answer, ClassAnswers) else None
            out.setdefault(probe.name, {}).update(_classes(arrays, given, classes))
        rows = [row for row in probe.rows if isinstance(row, TextRow)]
        if not rows:
            continue
        found = out.setdefault(probe.name, {})
        for row in rows:
            found[row.id] = {"prompt": row.prompt, "target": row.target}
        if isinstance(probe, Generation) and isinstance(answer, GenerationAnswers):
            for row_id, text in zip(answer.ids, answer.texts, strict=True):
                found[row_id]["answer"] = text
                base = out.get(probe.name.removesuffix("_text"), {})
                if row_id in base:
                    base[row_id]["answer"] = text
    return out


def _classes(
    rows: Sequence[ArrayRow], answer: ClassAnswers | None, classes: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Label and likeliest class of each row, and its inputs where these are a few numbers."""

    def named(label: int) -> str:
        return classes[label] if label < len(classes) else str(label)

    found = {row.id: {"target": named(int(row.label))} for row in rows}
    for row in rows:
        if row.inputs.ndim == 1 and len(row.inputs) <= FEW:
            found[row.id]["prompt"] = " ".join(str(value) for value in row.inputs.tolist())
    if answer is not None:
        for row_id, label in zip(answer.ids, answer.logits.argmax(axis=1).tolist(), strict=True):
            found[row_id]["answer"] = named(label)
    return found


def _curve(folder: Path, task: Task, case: Case, checks: Trajectory | None) -> pa.Table | None:
    """The checks of the run, and the scores of the weights that were saved along the way."""
    tables = [trajectory_table(checks)] if checks is not None else []
    note = folder / "unlearn.json"
    points = read_json(note)["points"] if note.exists() else []
    series: dict[str, list[float]] = {}
    for k in range(len(points)):
        scored = task.score(case, Answers(answering.read(folder / "points" / str(k) / "answers")), {})
        for name, score in scored.items():
            series.setdefault(name, [np.nan] * len(points))[k] = (
                np.nan if score.value is None else score.value
            )
    series = {name: values for name, values in series.items() if not np.isnan(values).all()}
    if series:
        column = {k: np.array([p[k] for p in points]) for k in ("updates", "charged_s")}
        values = {name: np.array(v) for name, v in series.items()}
        tables.append(trajectory_table(Trajectory(column["updates"], column["charged_s"], values)))
    return pa.concat_tables(tables) if tables else None
