"""From a finished (or failed) run folder to its record: the last stage."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness import chains, preflight
from harness.clock import read_journal
from harness.recordtables import COLUMNS
from harness.robustness import report
from harness.runs import RunSpec, read_json, write_json
from harness.specs import Ledger, RunRecord, ScoreRecord, Selection
from harness.store import Store
from harness.supervise import Outcome

DRIFT = 0.2
"""A run whose machine changed speed by more than this share while it was made is marked `drift`."""


def make_record(spec: RunSpec, folder: Path, outcome: Outcome, drift: float | None) -> RunRecord:
    """The record of a run, however it ended."""
    note = _note(folder, "unlearn") or _spent(folder, outcome)
    scored = _note(folder, "scores") if outcome.ok else {}
    status, error = note.get("status", "failed"), note.get("error", "")
    if not outcome.ok:
        status = "timeout" if outcome.kind in ("timeout", "hung") else "failed"
        error = outcome.why
    elif status == "ok" and scored.get("invalid"):
        status, error = "invalid", scored["invalid"]
    elif status == "ok" and spec.limit is not None:
        status, error = "limited", f"only the first {spec.limit} rows of every set"
    elif status == "ok" and drift is not None and abs(drift) > DRIFT:
        status, error = "drift", f"the reference step changed by {drift:+.0%} while the run was made"
    scores = {k: ScoreRecord.model_validate(v) for k, v in scored.get("scores", {}).items()}
    if (folder / "jsd.json").exists():
        scores[preflight.JSD] = ScoreRecord.model_validate(read_json(folder / "jsd.json"))
    axes = report.notes(folder)
    scores |= report.scores(axes)
    tuned, judged = _note(folder, "select"), _note(folder, "lbq")
    ledger = _ledger(note, tuned, judged, bool(scored))
    if (folder / chains.NOTE).exists():
        ledger = chains.joined(ledger, Ledger.model_validate(read_json(folder / chains.NOTE)))
    scores |= {name: ScoreRecord.model_validate(value) for name, value in judged.get("scores", {}).items()}
    scores |= _cost_scores(note, ledger)
    selection = (
        Selection(
            kind=tuned["by"],
            proxy_rows=len(tuned["proxy_rows"]),
            proxy_rows_in_probes=scored.get("proxy_rows_in_probes", 0),
            dropped=tuned["dropped"],
        )
        if tuned.get("evaluations")
        else Selection()
    )
    env = {
        **(_note(folder, "env") or preflight.environment()),
        **{name: found for name in ("encoder", "generator") if (found := _note(folder, name))},
        **report.settings(axes),
        **({"judge": judged["judge"]} if "judge" in judged else {}),
    }
    return RunRecord(
        run_id=spec.run_id, board=spec.board.name, board_version=spec.board.board_version, entry=spec.entry,
        submission=spec.submission, title=spec.title, reference=spec.reference,
        optimizer=str(spec.config.get("optimizer.name") or "") or None, config=spec.config, case=spec.case,
        seed=spec.seed, hashes=spec.hashes, env=env, started=spec.started,
        budget={"kind": spec.board.budget.kind, "seconds": spec.seconds, "updates": spec.updates,
                "reference_step_s": spec.step_s, "drift": drift, "longest_step_s": note.get("longest_step_s"),
                "wall_s": _note(folder, "wall").get("wall_s")},
        lanes_s=note.get("lanes_s", {}), charged_s=note.get("charged_s"), overshoot_s=note.get("overshoot_s"),
        updates=note.get("updates"), examples=note.get("examples"), tokens=note.get("tokens"),
        peak_gib=note.get("peak_gib"), stopped=note.get("stopped", ""), ledger=ledger, selection=selection,
        scores=scores, status=status, optimizer_failures=note.get("optimizer_failures", {}), error=error,
    )  # fmt: skip


def _note(folder: Path, name: str) -> dict[str, Any]:
    """What a stage left as `<name>.json`; empty where it left nothing."""
    path = folder / f"{name}.json"
    return read_json(path) if path.exists() else {}


def _spent(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """What is known of a training that left no note: what its clock showed at the last sign of life, or at its end."""
    state = read_journal(folder / "clock.bin")
    if state is None:
        return {}
    charged = state.spent_s if outcome.charged_s is None else outcome.charged_s
    return {"charged_s": charged, "updates": state.updates}


def _ledger(
    note: Mapping[str, Any], tuned: Mapping[str, Any], judged: Mapping[str, Any], scored: bool
) -> Ledger:
    """What the run cost; `tuned` is what a selector wrote, `judged` what a judge did."""
    by, evaluations = tuned.get("by", "proxy"), tuned.get("evaluations", 0)
    seconds = (note.get("charged_s") or 0.0) + tuned.get("seconds", 0.0)
    full = evaluations if by == "full_metric" else 0
    return Ledger(
        trainings=note.get("trainings", 1), full_evaluations=full or int(scored),
        proxy_evaluations=evaluations if by == "proxy" else 0, charged_s=seconds,
        gpu_hours=seconds / 3600 if note.get("peak_kind") == "cuda" else 0.0,
        judge_calls=judged.get("calls", 0), judge_tokens=judged.get("tokens", 0),
    )  # fmt: skip


def _cost_scores(note: Mapping[str, Any], ledger: Ledger) -> dict[str, ScoreRecord]:
    total = None if note.get("charged_s") is None else ledger.charged_s
    values = {
        "cost.charged_s": note.get("charged_s"),
        "cost.updates": note.get("updates"),
        "cost.peak_gib": note.get("peak_gib"),
        "cost.total_s": total,
    }
    return {
        name: ScoreRecord(value=value, n=1, why="" if value is not None else "the run did not get so far")
        for name, value in values.items()
    }


def save_record(store: Store, record: RunRecord, folder: Path, *, keep_model: bool) -> None:
    """Into leaderboards/ and the database, with the tables that lie beside the record."""
    tables = [pq.read_table(p) if p.exists() else None for p in (folder / name for name in COLUMNS)]
    store.write_record(record, *tables, replace=True)
    write_json(folder / "record.json", record.model_dump(mode="json"))
    if not keep_model:
        for weights in (folder / "model", folder / "original", *folder.glob("children/*/model")):
            shutil.rmtree(weights, ignore_errors=True)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
