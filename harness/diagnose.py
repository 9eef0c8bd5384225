"""`uharness diagnose`: measure what a finished run did to its model, keep it as a table, draw it.

Whatever loads a model or its weights runs in a process of its own, off every clock; reading a trajectory and drawing
are light and happen here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import preflight
from harness.charts import standalone
from harness.diagnostics import table
from harness.diagnostics.asked import STAGES, Asked, check_run, check_start, checked, run_folder
from harness.diagnostics.figures import figures, plane, powers, shared_axes, together
from harness.diagnostics.powers import power_lines
from harness.diagnostics.trace import trace
from harness.errors import InputError, near
from harness.models import reads_text
from harness.recordtables import DIAGNOSTICS
from harness.runs import RunSpec, write_json
from harness.session import PATIENT, Session, locked
from harness.specs import Board, content_hash
from harness.stages import rescore_run
from harness.supervise import prepare, run_stage


@dataclass
class Report:
    """Lines of the table, where figures are, what could not be done (`failed`), and what there is to know."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def diagnose(
    session: Session, names: Sequence[str], asked: Asked, ready_of: Callable[[Board], preflight.Ready]
) -> Report:
    """Diagnose runs that are still on this machine; their records get the table beside them.

    Raises `InputError` when a run is not there, its weights were not kept, or what was asked for cannot be had.
    """
    what = checked(asked, names)
    found = {name: run_folder(session.workspace.runs, name) for name in names}
    specs = {name: RunSpec.read(folder) for name, folder in found.items()}
    for name, folder in found.items():
        check_run(name, folder, specs[name], what, asked)
    if "pca" in what:
        check_start(specs)
    prepare(
        text=any(reads_text(s.models["target"]) for s in specs.values()),
        modules=["harness.diagnostics.work_weights"],
    )
    report, every = Report(), []
    single = [kind for kind in what if kind != "pca"]
    for name, folder in found.items() if single else ():
        if asked.texts:
            _write_texts(session, name, folder, ready_of)
        with locked(folder):
            lines, axes = _measure(session, name, folder, specs[name], single, asked, report)
            report.lines += [{"run_id": name, **n} for n in lines]
            report.files += _draw(figures(lines, axes), folder / "diagnostics")
            every.append(axes)
        _keep(session, specs[name], folder, report)
    if single and len(found) > 1:
        place = session.workspace.build / "diagnostics" / f"runs-{content_hash(sorted(found), 8)}"
        report.files += _draw(together(report.lines, shared_axes(report.lines, every)), place)
    if "pca" in what:
        _displacements(session, found, specs, report)
    return report


# --- one run --------------------------------------------------------------------------------------------------------
def _measure(
    session: Session,
    name: str,
    folder: Path,
    spec: RunSpec,
    what: Sequence[str],
    asked: Asked,
    report: Report,
) -> tuple[list[dict[str, Any]], tuple[str, str]]:
    place = folder / "diagnostics"
    place.mkdir(exist_ok=True)
    write_json(place / "request.json", _request(asked))
    axes = ("", "")
    for kind in what:
        if kind == "path":
            if (folder / "trajectory.parquet").exists():
                made, axes = trace(folder, spec, asked.x, asked.y)
                made.write(place)
            else:
                report.notes.append(f"{name}: no path, for the run was made without --trajectory")
            continue
        session.progress(f"{name}: {kind}", None)
        outcome = run_stage(f"harness.diagnostics.{STAGES[kind]}", place, limits=PATIENT)
        if not outcome.ok:
            (place / f"{kind}.parquet").unlink(missing_ok=True)
            report.failed.append(f"{name}: {kind} could not be measured: {outcome.why}")
    return table.read(place, what), axes


def _request(asked: Asked) -> dict[str, Any]:
    """What the stages are told."""
    return {
        "gradients": asked.gradients,
        "rows": asked.rows,
        "matrices": asked.matrices,
        "limit": asked.limit,
        "rank": asked.rank,
        "grid": asked.grid,
    }


def _write_texts(
    session: Session, name: str, folder: Path, ready_of: Callable[[Board], preflight.Ready]
) -> None:
    with locked(folder):
        place = folder / "diagnostics"
        place.mkdir(exist_ok=True)
        write_json(place / "request.json", {})
        session.progress(f"{name}: texts of the points along the run", None)
        outcome = run_stage("harness.diagnostics.work:texts", place, limits=PATIENT)
    if not outcome.ok:
        raise InputError(f"the points of run {name} gave no texts: {outcome.why}")
    rescore_run(session, name, ready_of)


def _draw(charts: Mapping[str, Any], folder: Path) -> list[Path]:
    out = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in charts.items():
        path = folder / f"{name}.svg"
        path.write_text(standalone(chart), encoding="utf-8")
        out.append(path)
    return out


def _keep(session: Session, spec: RunSpec, folder: Path, report: Report) -> None:
    """Everything that was ever measured of the run: beside its record, and so in the database."""
    import pyarrow.parquet as pq

    place = folder / "diagnostics"
    lines = table.read(place, [p.stem for p in sorted(place.glob("*.parquet"))])
    if not lines:
        return
    whole = table.table(lines)
    pq.write_table(whole, folder / DIAGNOSTICS, compression="zstd")
    records = {r.run_id: r for r in session.store.load_records(spec.board.name)}
    if spec.run_id in records:
        session.store.write_record(records[spec.run_id], diagnostics=whole, replace=True)
    else:
        report.notes.append(f"{spec.run_id} has no record; its table is {folder / DIAGNOSTICS}")


# --- several runs ---------------------------------------------------------------------------------------------------
def _displacements(
    session: Session, found: Mapping[str, Path], specs: Mapping[str, RunSpec], report: Report
) -> None:
    key = f"pca-{content_hash(sorted(found), 8)}"
    folder = session.workspace.build / "diagnostics" / key
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "request.json", {"runs": [str(p) for p in found.values()]})
    session.progress(f"principal components of {len(found)} runs", None)
    outcome = run_stage("harness.diagnostics.work_weights:displacements", folder, limits=PATIENT)
    if not outcome.ok:
        report.failed.append(f"the principal components could not be found: {outcome.why}")
        return
    lines = table.read(folder, ["pca"])
    report.lines += [{"run_id": n["name"] if n["name"] in found else "", **n} for n in lines]
    if chart := plane(lines):
        report.files += _draw({"pca": chart}, folder)
    for name, place in found.items():
        (place / "diagnostics").mkdir(exist_ok=True)
        mine = table.Lines("pca", [{**n, "name": key} for n in lines if n["name"] in (name, "all")])
        mine.write(place / "diagnostics")
        _keep(session, specs[name], place, report)


# --- before any run -------------------------------------------------------------------------------------------------
def diagnose_request(
    session: Session, ready: preflight.Ready, asked: Asked, case: str = "", seed: int | None = None
) -> Report:
    """Look at a board's requests before anything is unlearned: overlap, task vectors, separability of each case.

    `case` and `seed` name one, any of the task's; the default is every case of the board, and its first seed.
    """
    board, report = ready.board, Report()
    ready.check_cases([case] if case else [])
    seed = board.seeds[0] if seed is None else seed
    prepare(text=ready.text, modules=["harness.diagnostics.work_edits"])
    for one in [case] if case else ready.cases():
        paths = ready.models(one, seed, session.workspace.roots)
        spec = RunSpec(
            run_id=f"{board.name}-{one}-s{seed}", board=board, entry="", submission="", case=one, seed=seed,
            data=ready.data, models=paths, limit=session.limit, threads=preflight.threads(),
        )  # fmt: skip
        folder = session.workspace.build / "diagnostics" / f"request-{spec.run_id}"
        place = folder / "diagnostics"
        place.mkdir(parents=True, exist_ok=True)
        spec.write(folder)
        write_json(place / "request.json", _request(asked))
        session.progress(f"{spec.run_id}: request", None)
        outcome = run_stage(f"harness.diagnostics.{STAGES['request']}", place, limits=PATIENT)
        if not outcome.ok:
            report.failed.append(f"{spec.run_id}: the request could not be looked at: {outcome.why}")
            continue
        lines = table.read(place, ["request"])
        report.lines += [{"run_id": spec.run_id, **n} for n in lines]
        report.files += _draw(figures(lines), place)
    return report


# --- the power sweep ------------------------------------------------------------------------------------------------
def power_sweep(session: Session, board: Board, metric: str) -> Report:
    """The spectral power sweep of a board, from its records; see `harness.diagnostics.powers`."""
    known = preflight.described(board, session.workspace).metrics
    metric = metric or board.rank_by
    if metric not in known:
        raise InputError(f"no metric {metric!r}", near(metric, known), "see `uharness list metrics`")
    lines = power_lines(session.store.load_records(board.name), known[metric])
    folder = session.workspace.build / "diagnostics" / f"power-{board.name}"
    folder.mkdir(parents=True, exist_ok=True)
    return Report(lines, _draw({f"power-{metric}": powers(lines, metric)}, folder))
