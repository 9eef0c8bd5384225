"""What is measured of a run beside its score, off the clock: proxy, divergence, robustness axes, a judge's grades."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import judge as judging
from harness import models
from harness.preflight import Ready
from harness.robustness import report
from harness.runs import RunSpec, done, mark_done, read_json, write_json
from harness.session import PATIENT, UNUSABLE, Session, locked
from harness.specs import Robustness, RunRecord, content_hash
from harness.supervise import run_stage


def measure(
    session: Session, spec: RunSpec, folder: Path, name: str, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`proxy`, `jsd` or a robustness axis of a run's weights, off the clock: what its stage left in `<name>.json`.

    It is made once for the same weights and settings. A stage that fails leaves no value and says why.
    """
    from harness.answers import code_version

    note = folder / f"{name}.json"
    if not (folder / "model").exists():
        return read_json(note) if note.exists() else {"value": None, "why": report.NOT_KEPT}
    told = [] if settings is None else [settings, report.code_hash()]
    key = content_hash([spec.input_hash(), models.weights_hash(str(folder / "model")), code_version(), *told])
    if not done(folder, name, key) or not note.exists():
        if settings is not None:
            request = {"settings": settings, "cache": str(session.workspace.build / "references")}
            write_json(folder / f"{name}.request.json", request)
        session.progress(f"{spec.submission} {spec.case} seed {spec.seed}: {name}", None)
        outcome = run_stage(f"harness.worker:{name}", folder, limits=PATIENT)
        if not outcome.ok:
            (folder / f"{name}.done").unlink(missing_ok=True)
            return {"value": None, "why": f"stage {name}: {outcome.why}"}
        mark_done(folder, name, key)
    return read_json(note)


def axes_of(session: Session, ready: Ready) -> Robustness:
    """The robustness axes that are wanted of a board's runs; none where its rows are no texts."""
    wanted = report.asked(ready.board, session.robustness)
    return wanted if wanted.axes and ready.text else Robustness()


def measure_axes(session: Session, spec: RunSpec, folder: Path, wanted: Robustness) -> None:
    """Measure axes of a run whose weights are there; one that fails is null, with the reason."""
    for name, settings in wanted.axes.items():
        told = measure(session, spec, folder, name, settings.model_dump(mode="json"))
        if "scores" not in told:
            write_json(folder / f"{name}.json", report.lacking(name, settings, told["why"]))


def add_axes(session: Session, ready: Ready, spec: RunSpec, record: RunRecord) -> tuple[RunRecord, str]:
    """A recorded run with the axes that it lacks, measured on its weights without training again; and what was done.

    Where the weights were not kept, the scores are null and say what to do.
    """
    wanted = report.missing(record, axes_of(session, ready))
    if not wanted.axes or record.status in UNUSABLE:
        return record, ""
    folder = session.workspace.runs / record.board / record.run_id
    spec, lines = spec.model_copy(update={"run_id": record.run_id}), None
    if (folder / "model").exists() and (folder / "run.json").exists():
        with locked(folder):
            measure_axes(session, spec, folder, wanted)
            found = {axis: note for axis, note in report.notes(folder).items() if axis in wanted.axes}
        lines, did = report.read_lines(folder), f"measured {', '.join(wanted.axes)}"
    else:
        named = {axis: s for axis, s in wanted.axes.items() if axis not in record.env.get(report.KEY, {})}
        why = f"{report.NOT_KEPT}: submit it with --again and --robustness {','.join(wanted.axes)}"
        found = {axis: report.lacking(axis, s, why) for axis, s in named.items()}
        did = f"{', '.join(wanted.axes)} cannot be measured: {why}"
    fresh = report.added(record, found)
    if fresh == record:
        return record, "" if lines is not None else did
    if (session.workspace.leaderboards[0] / record.board / "results" / f"{record.run_id}.json").exists():
        fresh = session.store.write_record(fresh, diagnostics=lines, replace=True)
        if (folder / "record.json").exists():
            write_json(folder / "record.json", fresh.model_dump(mode="json"))
    return fresh, did


def grade(session: Session, spec: RunSpec, folder: Path) -> None:
    """The `lbq` stage, where a judge is wanted: lbq.json has the grades, or why there are none."""
    if not session.judge or not (folder / "answers").is_dir():
        return
    url, model = judging.parse(session.judge)
    cache = session.workspace.build / "judge"
    write_json(folder / "judge.json", {"url": url, "model": model, "cache": str(cache)})
    session.progress(f"{spec.submission} {spec.case} seed {spec.seed}: judge", None)
    outcome = run_stage("harness.worker:lbq", folder, limits=PATIENT)
    if not outcome.ok:
        write_json(folder / "lbq.json", judging.failed(outcome.why))
