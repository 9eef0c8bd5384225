"""From a finished (or failed) run folder to its record: the last stage."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness import preflight
from harness.clock import read_journal
from harness.recordtables import COLUMNS
from harness.runs import RunSpec, read_json, write_json
from harness.specs import Ledger, RunRecord, ScoreRecord, Selection
from harness.store import Store
from harness.supervise import Outcome

DRIFT = 0.2
"""A run whose machine changed speed by more than this share while it was made is marked `drift`."""


def make_record(spec: RunSpec, folder: Path, outcome: Outcome, drift: float | None) -> RunRecord:
    """The record of a run, however it ended."""
    note = (
        read_json(folder / "unlearn.json") if (folder / "unlearn.json").exists() else _spent(folder, outcome)
    )
    scored = read_json(folder / "scores.json") if outcome.ok and (folder / "scores.json").exists() else {}
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
    scores |= _cost_scores(note)
    if (folder / "jsd.json").exists():
        scores[preflight.JSD] = ScoreRecord.model_validate(read_json(folder / "jsd.json"))
    tuned = read_json(folder / "select.json") if (folder / "select.json").exists() else {}
    ledger = Ledger(
        trainings=note.get("trainings", 1), full_evaluations=1 if scored else 0,
        proxy_evaluations=tuned.get("proxy_evaluations", 0), charged_s=note.get("charged_s") or 0.0,
        gpu_hours=(note.get("charged_s") or 0.0) / 3600 if note.get("peak_kind") == "cuda" else 0.0,
    )  # fmt: skip
    selection = (
        Selection(
            kind="proxy",
            proxy_rows=len(tuned["proxy_rows"]),
            proxy_rows_in_probes=scored.get("proxy_rows_in_probes", 0),
        )
        if tuned
        else Selection()
    )
    notes = {name: folder / f"{name}.json" for name in ("encoder", "generator")}
    made = folder / "env.json"
    env = {
        **(read_json(made) if made.exists() else preflight.environment()),
        **{name: read_json(path) for name, path in notes.items() if path.exists()},
    }
    return RunRecord(
        run_id=spec.run_id, board=spec.board.name, board_version=spec.board.board_version, entry=spec.entry,
        submission=spec.submission, title=spec.title, reference=spec.reference,
        optimizer=str(spec.config.get("optimizer.name") or "") or None, config=spec.config, case=spec.case,
        seed=spec.seed, hashes=spec.hashes, env=env, started=spec.started,
        budget={"kind": spec.board.budget.kind, "seconds": spec.seconds, "updates": spec.updates,
                "reference_step_s": spec.step_s, "drift": drift, "longest_step_s": note.get("longest_step_s"),
                "wall_s": read_json(folder / "wall.json")["wall_s"] if (folder / "wall.json").exists() else None},
        lanes_s=note.get("lanes_s", {}), charged_s=note.get("charged_s"), overshoot_s=note.get("overshoot_s"),
        updates=note.get("updates"), examples=note.get("examples"), tokens=note.get("tokens"),
        peak_gib=note.get("peak_gib"), stopped=note.get("stopped", ""), ledger=ledger, selection=selection,
        scores=scores, status=status, optimizer_failures=note.get("optimizer_failures", {}), error=error,
    )  # fmt: skip


def _spent(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """What is known of a training that left no note: what its clock showed at the last sign of life, or at its end."""
    state = read_journal(folder / "clock.bin")
    if state is None:
        return {}
    charged = state.spent_s if outcome.charged_s is None else outcome.charged_s
    return {"charged_s": charged, "updates": state.updates}


def _cost_scores(note: Mapping[str, Any]) -> dict[str, ScoreRecord]:
    names = {
        "cost.charged_s": "charged_s",
        "cost.updates": "updates",
        "cost.peak_gib": "peak_gib",
        "cost.total_s": "charged_s",
    }
    return {
        name: ScoreRecord(
            value=note.get(key), n=1, why="" if note.get(key) is not None else "the run did not get so far"
        )
        for name, key in names.items()
    }


def save_record(store: Store, record: RunRecord, folder: Path, *, keep_model: bool) -> None:
    """Into leaderboards/ and the database, with the tables that lie beside the record."""
    tables = [pq.read_table(p) if p.exists() else None for p in (folder / name for name in COLUMNS)]
    store.write_record(record, *tables, replace=True)
    write_json(folder / "record.json", record.model_dump(mode="json"))
    if not keep_model:
        shutil.rmtree(folder / "model", ignore_errors=True)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
