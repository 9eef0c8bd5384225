"""`uharness evaluate`: score a checkpoint that somebody already has. Nothing is trained, nothing is recorded."""

from __future__ import annotations

import datetime
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import asking, measures, models, preflight
from harness.answers import answers_of, read
from harness.errors import InputError, ModelError, ReferenceError_, RunError, near
from harness.generate import choice
from harness.preflight import Ready
from harness.runs import RunSpec, cut_case, cut_probes, read_json
from harness.scores import invalid, score_json, texts
from harness.session import Session
from harness.specs import Board, Budget, Template
from harness.types import Answers, Probe, Score

FORMAT = 1


def ad_hoc_board(
    task: str, split: str, data_dir: str, template: Template, max_length: int, dtype: str
) -> Board:
    """A board for `--task T --split S --data-dir D`: only what scoring needs."""
    ref = {"name": task, "split": split, "data": data_dir}
    return Board.model_validate({
        "name": "adhoc", "task": ref, "models": {"target": "-"}, "budget": Budget(updates=1), "seeds": (0,),
        "columns": ("cost.updates",), "rank_by": "cost.updates", "template": template, "max_length": max_length,
        "dtype": dtype,
    })  # fmt: skip


def evaluate(
    session: Session,
    ready: Ready,
    model: str,
    *,
    case: str = "",
    seed: int | None = None,
    reference: str = "",
) -> dict[str, Any]:
    """Scores and rows of one model, in the shape of `--json`.

    Args:
        session: see `harness.session.Session`; its `limit` cuts every set.
        ready: the checked board.
        model: a folder, a hub id, or `mini:NAME`.
        case: needed when the board has several.
        seed: the board's first one by default.
        reference: a model that was made without the forget rows, or a run whose answers are there; the board's own
            retain model by default.
    """
    path = preflight.path_of(model, session.workspace.roots)
    if models.reads_text(path) != ready.text:
        kinds = {True: "texts", False: "arrays"}
        raise ModelError(
            f"model {model!r} reads {kinds[not ready.text]}",
            f"the rows of task {ready.task.name} are {kinds[ready.text]}",
            "give a model of these rows",
        )
    choice.check_models(session.generator, [path])
    case, seed = _case_of(ready, case), seed if seed is not None else ready.board.seeds[0]
    spec, folders = _compared(session, ready, _spec(session, ready, path, case, seed), reference)
    folder = session.workspace.build / "evaluations" / f"{spec.run_id}-{os.getpid()}"
    try:
        spec.write(folder)
        session.progress(f"{model}: answer", None)
        outcome = asking.ask(spec, folder)
        if not outcome.ok:
            raise RunError(f"the model gave no answers: {outcome.why}")
        measures.grade(session, spec, folder)
        return _report(session, ready, spec, folder, folders)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _case_of(ready: Ready, case: str) -> str:
    cases = list(ready.cases())
    if case and case not in cases:
        raise InputError(f"no case {case!r}", near(case, cases), "name one with --case")
    if not case and len(cases) > 1:
        raise InputError(
            f"board {ready.board.name} has several cases",
            f"they are {', '.join(cases)}",
            "name one with --case",
        )
    return case or cases[0]


def _spec(session: Session, ready: Ready, path: str, case: str, seed: int) -> RunSpec:
    weights = session.model_hash(path)
    return RunSpec(
        run_id=f"{Path(path).name}-{case}-{weights[:8]}", board=ready.board, entry="evaluate", submission="evaluate",
        case=case, seed=seed, updates=1, data=ready.data, models={"target": path}, limit=session.limit,
        generator=session.generator, threads=preflight.threads(),
        hashes={"model.target": weights}, started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def _compared(
    session: Session, ready: Ready, spec: RunSpec, reference: str
) -> tuple[RunSpec, dict[str, Path]]:
    """The spec with the models that metrics compare with, by role, and the folders of these models' answers."""
    refs, needed = ready.board.models.items(), ready.reference_roles
    names: dict[str, str] = {
        role: preflight.filled(ready.board, ref, spec.case, spec.seed) for role, ref in refs if role in needed
    }
    names |= {"retain": reference} if reference else {}
    runs, folders, paths = session.workspace.runs, dict[str, Path](), dict(spec.models)
    found = sorted(runs.glob(f"*/{reference}/answers")) if reference and "/" not in reference else []
    if found:
        del names["retain"]
        run = folders["retain"] = _run_reference(found[0].parent, ready, spec, session)
        paths |= {"retain": str(run / "model")} if (run / "model").is_dir() else {}
    paths |= {role: preflight.path_of(name, session.workspace.roots) for role, name in names.items()}
    spec = spec.model_copy(update={"models": paths})
    return spec, folders | {role: asking.reference(session, ready, spec, role) for role in names}


def _run_reference(folder: Path, ready: Ready, spec: RunSpec, session: Session) -> Path:
    other = RunSpec.read(folder)
    same = {
        "rows": other.hashes.get("data") == ready.task.data_hash() and other.case == spec.case,
        "template": other.board.template == spec.board.template,
        "length": other.board.max_length == spec.board.max_length,
        "limit": other.limit == spec.limit,
    }
    wrong = [name for name, equal in same.items() if not equal]
    if wrong:
        raise ReferenceError_(
            f"run {folder.name} cannot be the reference: it was made with other {' and '.join(wrong)}", "",
            "give the retain model itself as --reference",
        )  # fmt: skip
    if session.model_hash(str(folder / "model")) == spec.hashes["model.target"]:
        raise ReferenceError_(
            f"run {folder.name} has the weights of the model itself", "", "give another reference"
        )
    return folder


def _report(
    session: Session, ready: Ready, spec: RunSpec, folder: Path, folders: Mapping[str, Path]
) -> dict[str, Any]:
    case = cut_case(ready.task.case(spec.case, spec.seed), spec.limit)
    probes = cut_probes(ready.task.probes(case), spec.limit)
    answers = answers_of(folder)
    scores = ready.task.score(
        case, answers, {role: Answers(read(p / "answers")) for role, p in folders.items()}
    )
    judged = read_json(folder / "lbq.json") if (folder / "lbq.json").exists() else {}
    problem = invalid(answers)
    status, why = ("invalid", problem) if problem else ("limited", "") if spec.limit else ("ok", "")
    notes = {name: folder / f"{name}.json" for name in ("encoder", "generator")}
    return {
        "format": FORMAT, "task": ready.task.name, "split": ready.board.task.split, "case": spec.case,
        "status": status, "error": why, "scores": score_json(scores) | judged.get("scores", {}),
        "rows": rows_json(probes, answers, scores) if ready.task.rows_public else {},
        "env": {**preflight.environment(), "model": spec.hashes["model.target"], "data": ready.task.data_hash(),
                **({"judge": judged["judge"]} if "judge" in judged else {}),
                "references": {role: p.name for role, p in folders.items()},
                **{name: read_json(path) if path.exists() else None for name, path in notes.items()}},
    }  # fmt: skip


def rows_json(
    probes: tuple[Probe, ...] | list[Probe], answers: Answers, scores: Mapping[str, Score]
) -> dict[str, list[dict[str, Any]]]:
    """Per probe, its rows in the order of the data file: id, prompt, target, answer, and every per-row value.

    A value belongs to a probe when its metric id begins with the probe's name; one whose id names no probe (such as
    `mia.min_k`) goes to every probe that has the row.
    """
    found = texts(probes, answers)
    names = {p.name for p in probes}
    out: dict[str, list[dict[str, Any]]] = {}
    for probe in probes:
        known = found.get(probe.name, {})
        out[probe.name] = [{"id": row.id, **known.get(row.id, {})} for row in probe.rows]
    places = {name: {row["id"]: row for row in rows} for name, rows in out.items()}
    for metric, score in scores.items():
        first = metric.split(".")[0]
        for target in [first] if first in names else sorted(names):
            for row_id, value in (score.per_row or {}).items():
                if row_id in places[target]:
                    places[target][row_id][metric] = value
    return out
