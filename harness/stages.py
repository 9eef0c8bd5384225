"""The composer: unlearn -> answer -> score -> record, each stage in a process of its own.

A stage whose outputs exist for the same inputs is skipped, so a run that was interrupted goes on where it stopped,
with the budget it had already spent. A failure is a record with a reason, never a missing row.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import chains, models, preflight
from harness import judge as judging
from harness.asking import ask, references, refuse_same
from harness.earlier import records_of
from harness.entries import Entry
from harness.errors import InputError, RunError, near
from harness.generate import choice
from harness.measures import axes_of, grade, measure, measure_axes
from harness.preflight import Ready
from harness.recording import make_record, save_record
from harness.runs import RunSpec, Source, done, mark_done, read_json, write_json
from harness.session import PATIENT, UNUSABLE, Session, locked
from harness.specs import Board, RunRecord, content_hash
from harness.supervise import Limits, Outcome, run_stage

CALIBRATION_STEPS, DRIFT_STEPS = 12, 6
POINTS = tuple(k / 10 for k in range(1, 11))


def plan_runs(
    session: Session, ready: Ready, entry: Entry, seeds: Sequence[int], cases: Sequence[str] = ()
) -> list[RunSpec]:
    """One spec for every (seed, case); all models are resolved and hashed here, before anything is trained.

    `cases` are some of the task's; the default is the board's.
    """
    specs, needs = [], preflight.needed(entry, ready)
    for seed in seeds:
        ids: dict[str | None, str] = {}
        for case, before in chains.ordered(ready, seed, cases):
            paths = ready.models(case, seed, session.workspace.roots, needs)
            choice.check_models(session.generator, paths.values())
            hashes = {
                **({chains.AFTER: ids[before]} if before in ids else {}),
                "data": ready.task.data_hash(), "code": entry.code,
                "template": content_hash(ready.board.template.model_dump(mode="json")),
                **{f"model.{role}": session.model_hash(path) for role, path in paths.items()},
            }  # fmt: skip
            for role in ready.reference_roles:
                refuse_same(ready.board.name, role, hashes)
            chain = [entry] if entry.base is None else [entry, entry.base]
            spec = RunSpec(
                run_id="", board=ready.board, entry=entry.id, submission=entry.name,
                title=title_of(entry), reference=entry.loaded.submission.reference,
                sources=tuple(Source(name=e.loaded.name, source=e.loaded.source, code=e.loaded.code) for e in chain),
                overrides=dict(entry.overrides), config=dict(entry.config), case=case, seed=seed,
                updates=ready.board.budget.updates, seconds=ready.board.budget.seconds, data=ready.data, models=paths,
                hashes=hashes,
                limit=session.limit, generator=session.generator, points=POINTS if session.trajectory else (),
                threads=preflight.threads(),
                started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )  # fmt: skip
            ids[case] = run_id(spec)
            if not cases or case in cases:
                specs.append(spec.model_copy(update={"run_id": ids[case]}))
    return specs


def title_of(entry: Entry) -> str:
    """Title of the submission; a selector's names its base."""
    own = entry.loaded.submission.title or entry.loaded.name
    return own if entry.base is None else f"{own} of {title_of(entry.base)}"


def run_id(spec: RunSpec) -> str:
    """Readable, and the same for the same inputs: `grad_diff-M4-s17-1a2b3c4d`."""
    name = spec.submission.replace(":", "_of_").replace("/", "_")
    return f"{name}-{spec.case}-s{spec.seed}-{spec.input_hash()[:8]}"


def folder_of(session: Session, spec: RunSpec) -> Path:
    """Where the run works: the folder of its inputs, or the first `-r2`, `-r3` ... that has no record yet.

    A recorded run, good or bad, is never overwritten; one that was interrupted has no record and is gone on with.
    """
    base = session.workspace.runs / spec.board.name
    taken = {r.run_id for r in session.store.load_records(spec.board.name)}
    names = itertools.chain([spec.run_id], (f"{spec.run_id}-r{k}" for k in itertools.count(2)))
    return next(base / n for n in names if n not in taken and not (base / n / "record.json").exists())


def execute(session: Session, ready: Ready, spec: RunSpec, measures: Sequence[str] = ()) -> RunRecord:
    """Run (or go on with) one run, and record it.

    A spec that has its `seconds` keeps them: an interrupted run that was given others is begun anew. `measures` names
    stages of `measure` that are wanted before the record is made.
    """
    folder, began = folder_of(session, spec), time.monotonic()
    spec = spec.model_copy(update={"run_id": folder.name})
    with locked(folder):
        old = RunSpec.read(folder) if (folder / "run.json").exists() else None
        before = records_of(session, spec.board.name, spec.hashes.get(chains.AFTER, "nothing"))
        usable, lost = [r for r in before if r.status not in UNUSABLE], None
        try:
            spec = chains.follow(
                spec, old, usable, [r for r in before if r.status in UNUSABLE], folder.parent
            )
        except RunError as problem:
            lost = problem
        other_time = old is not None and spec.seconds is not None and old.seconds != spec.seconds
        if old is not None and (other_time or old.input_hash() != spec.input_hash()):
            clear(folder)
            old = None
        if old is not None:
            spec = spec.model_copy(
                update={"seconds": old.seconds, "step_s": old.step_s, "started": old.started}
            )
        try:
            if lost is not None:
                raise lost
            if spec.seconds is None and spec.board.budget.kind == "reference_steps":
                step = step_time(session, spec)
                spec = spec.model_copy(
                    update={"step_s": step, "seconds": step * (spec.board.budget.reference_steps or 0)}
                )
            spec = spec.model_copy(update={"references": references(session, ready, spec)})
            spec.write(folder)
            chains.note_ledger(spec, usable, folder)
            if not (folder / "env.json").exists():
                write_json(folder / "env.json", {**preflight.environment(), **preflight.origin(ready.task)})
            outcome = train(session, spec, folder)
            drift = measure_drift(session, spec, folder) if outcome.ok else None
            if outcome.ok:
                outcome = judge(session, spec, folder)
            if outcome.ok:
                grade(session, spec, folder)
            if outcome.ok and (folder / "model").exists():
                for name in measures:
                    measure(session, spec, folder, name)
                measure_axes(session, spec, folder, axes_of(session, ready))
        except RunError as problem:
            outcome, drift = Outcome("died", str(problem)), None
        write_json(folder / "wall.json", {"wall_s": time.monotonic() - began})
        record = make_record(spec, folder, outcome, drift)
        wanted = keeps_weights(session, ready)
        keep = wanted or chains.followed(ready, spec)
        save_record(session.store, record, folder, keep_model=keep)
        if not wanted and record.status not in UNUSABLE:
            chains.release(spec, folder.parent)
        return record


def keeps_weights(session: Session, ready: Ready) -> bool:
    """Whether weights stay once they are scored: as the session says, else as the task has it (default: they do)."""
    if session.keep_model is None:
        return getattr(ready.task, "keeps_weights", True)
    return session.keep_model


def clear(folder: Path) -> None:
    """Empty a run's folder, its lock aside."""
    for path in folder.iterdir():
        if path.name != "lock":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


# --- stages ---------------------------------------------------------------------------------------------------------
def train(session: Session, spec: RunSpec, folder: Path) -> Outcome:
    """The `unlearn` stage; for a selector, its children's and then `select`."""
    key = spec.input_hash()
    if done(folder, "unlearn", key):
        return Outcome("ok")
    outcome = select(session, spec, folder) if len(spec.sources) > 1 else unlearn(session, spec, folder)
    if outcome.ok:
        mark_done(folder, "unlearn", key)
    return outcome


def unlearn(session: Session, spec: RunSpec, folder: Path) -> Outcome:
    """One training process. Ended from outside, it is scored by the last checkpoint that it made in time."""
    label = f"{spec.submission} {spec.case} seed {spec.seed}"
    limits = Limits(spec.seconds, spec.board.budget.hang_s)
    outcome = run_stage(
        "harness.worker:unlearn",
        folder,
        limits=limits,
        progress=lambda s: session.progress(f"{label}: train", s, spec.seconds or -float(spec.updates or 0)),
    )
    if outcome.kind == "timeout" and (kept := checkpoint_in_time(folder, spec)) is not None:
        shutil.copytree(folder / "checkpoint" / "model", folder / "model", dirs_exist_ok=True)
        write_json(folder / "unlearn.json", {
            "status": "over_budget", "error": f"{outcome.why}; scored by its checkpoint of {kept['charged_s']:.3f} s",
            "charged_s": outcome.charged_s, "overshoot_s": (outcome.charged_s or 0.0) - (spec.seconds or 0.0),
            "updates": kept["updates"], "checks": [], "points": [], "log": [], "lanes_s": {}, "stopped": "",
            "examples": None, "tokens": None, "peak_gib": None,
        })  # fmt: skip
        return Outcome("ok")
    return outcome


def checkpoint_in_time(folder: Path, spec: RunSpec) -> dict[str, Any] | None:
    """The note of the last checkpoint, if it was made within the budget."""
    path = folder / "checkpoint" / "checkpoint.json"
    note = read_json(path) if path.exists() else None
    return note if note is not None and note["charged_s"] <= (spec.seconds or float("inf")) else None


def select(session: Session, spec: RunSpec, folder: Path) -> Outcome:
    """Train a selector's children one after the other, each under the full budget, then let it choose."""
    from harness.select import moments_of, selector_of

    base, selector = spec.sources[1], selector_of(spec)
    inner = {k.removeprefix("base."): v for k, v in spec.overrides.items() if k.startswith("base.")}
    notes, places = [], []
    for k, child in enumerate(selector.children(spec.seed)):
        place = folder / "children" / str(k)
        sub = spec.model_copy(update={
            "run_id": f"{spec.run_id}/{k}", "submission": f"{spec.submission} child {k}", "sources": (base,),
            "overrides": {**inner, **child.overrides}, "child_seed": child.seed,
            "points": moments_of(selector),
        })  # fmt: skip
        sub.write(place)
        key = sub.input_hash()
        if not done(place, "unlearn", key):
            outcome = unlearn(session, sub, place)
            if not outcome.ok:
                return dataclasses.replace(outcome, why=f"child {k}: {outcome.why}")
            mark_done(place, "unlearn", key)
        note = read_json(place / "unlearn.json")
        if note["status"] != "ok":
            return Outcome("died", f"child {k} is {note['status']}: {note['error']}")
        notes.append(note)
        along = [place / "points" / str(i) for i in range(len(note["points"]))]
        places += [str(p) for p in (*along, place / "model")]
    write_json(folder / "children.json", places)
    outcome = run_stage("harness.worker:select", folder, limits=PATIENT)
    if outcome.ok:
        summed = {k: sum(n[k] for n in notes) for k in ("charged_s", "updates", "examples", "tokens")}
        lanes: dict[str, float] = {}
        for n in notes:
            for lane, seconds in n["lanes_s"].items():
                lanes[lane] = lanes.get(lane, 0.0) + seconds
        write_json(folder / "unlearn.json", {
            **notes[0], **summed, "lanes_s": lanes, "checks": [], "stopped": "", "log": [],
            "peak_gib": max((n["peak_gib"] for n in notes if n["peak_gib"] is not None), default=None),
            "trainings": len(notes),
            "overshoot_s": max(n["overshoot_s"] for n in notes), "points": [],
        })  # fmt: skip
        for saved in folder.glob("children/*/points"):
            shutil.rmtree(saved)
    return outcome


def step_time(session: Session, spec: RunSpec) -> float:
    """Median seconds of the board's reference step on this machine; once per invocation and board."""
    key = f"{spec.board.name} {spec.board.board_version}"
    if key not in session.steps:
        session.progress(f"{spec.board.name}: timing the reference step", None)
        session.steps[key] = _calibrate(session, spec, CALIBRATION_STEPS)
    return session.steps[key]


def _calibrate(session: Session, spec: RunSpec, steps: int) -> float:
    folder = (
        session.workspace.build
        / "calibration"
        / f"{spec.board.name}-{content_hash(spec.started, 6)}-{spec.run_id}"
    )
    spec.write(folder)
    write_json(folder / "steps.json", steps)
    outcome = run_stage("harness.worker:calibrate", folder, limits=Limits(hang_s=spec.board.budget.hang_s))
    if not outcome.ok:
        raise RunError(f"the reference step of board {spec.board.name} could not be timed: {outcome.why}")
    step = float(read_json(folder / "calibrate.json")["step_s"])
    shutil.rmtree(folder)
    return step


def measure_drift(session: Session, spec: RunSpec, folder: Path) -> float | None:
    """Relative change of the reference step since the budget was set; None when nothing was timed, or need be."""
    if spec.step_s is None or spec.reference:
        return None
    note = folder / "drift.json"
    if not note.exists():
        again = spec.model_copy(update={"run_id": f"{spec.run_id}-drift"})
        write_json(note, {"step_s": _calibrate(session, again, DRIFT_STEPS)})
    return read_json(note)["step_s"] / spec.step_s - 1.0


def judge(session: Session, spec: RunSpec, folder: Path) -> Outcome:
    """The `answer` and `score` stages, unless training went wrong."""
    if read_json(folder / "unlearn.json")["status"] in ("failed", "invalid"):
        return Outcome("ok")
    label = f"{spec.submission} {spec.case} seed {spec.seed}"
    from harness.answers import code_version

    key = content_hash(
        [spec.input_hash(), models.weights_hash(str(folder / "model")), code_version(), spec.references]
    )
    if not done(folder, "answer", key):
        session.progress(f"{label}: answer", None)
        outcome = ask(spec, folder)
        if not outcome.ok:
            return Outcome("died", f"stage answer: {outcome.why}")
        mark_done(folder, "answer", key)
    session.progress(f"{label}: score", None)
    outcome = run_stage("harness.worker:score", folder, limits=PATIENT)
    return outcome if outcome.ok else Outcome("died", f"stage score: {outcome.why}")


def rescore_run(session: Session, run: str, ready_of: Callable[[Board], Ready]) -> RunRecord:
    """Metrics of a run from its stored answers; its record is replaced. Needs the run's folder, no model."""
    found = sorted(session.workspace.runs.glob(f"*/{run}/run.json"))
    if not found:
        names = [p.parent.name for p in session.workspace.runs.glob("*/*/run.json")]
        raise InputError(
            f"no run {run!r} under {session.workspace.runs}", near(run, names), "see `uharness run list`"
        )
    folder = found[0].parent
    if not (folder / "answers").is_dir():
        raise InputError(f"run {run} has no stored answers", f"it is in {folder}", "submit it again")
    with locked(folder):
        spec = RunSpec.read(folder)
        ready = ready_of(spec.board)
        if session.judge:
            session.judge = judging.ready(session.judge, ready.task, spec.board.name, session.workspace.build)
        outcome = run_stage("harness.worker:score", folder, limits=PATIENT)
        if outcome.ok:
            grade(session, spec, folder)
        note = folder / "drift.json"
        drift = read_json(note)["step_s"] / spec.step_s - 1.0 if note.exists() and spec.step_s else None
        record = make_record(spec, folder, outcome, drift)
        save_record(session.store, record, folder, keep_model=True)
        return record
