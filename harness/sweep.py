"""Many runs: submissions x boards x a grid of settings x seeds x cases, resumable, in one table.

What is recorded is not run again, so the same command goes on where it was interrupted. A run that failed does not stop
the others. A run that ended as `invalid` is a result; those that `failed` or ended by `timeout` are tried again.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import earlier, preflight, stages
from harness.entries import Entry, parse_set, resolve_spec
from harness.errors import InputError, SubmissionError, near
from harness.flat import Flat, Value
from harness.preflight import Ready
from harness.rank import cell_of, column_of
from harness.runs import RunSpec
from harness.session import Session
from harness.specs import RANKED_STATUSES, RunRecord

RETRIED = ("failed", "timeout")


@dataclass(frozen=True)
class Planned:
    """One run: which point of the grid it belongs to, and what is to be done."""

    ready: Ready
    entry: Entry
    point: Mapping[str, Any]
    spec: RunSpec

    @property
    def label(self) -> str:
        """For a progress line."""
        values = " ".join(f"{k}={v}" for k, v in self.point.items())
        return " ".join(filter(None, [self.entry.name, values, self.spec.case, f"seed {self.spec.seed}"]))


# --- planning -------------------------------------------------------------------------------------------------------
def parse_grid(pairs: Sequence[str]) -> list[dict[str, Any]]:
    """All combinations of `key=value,value...`; values are JSON where they parse as JSON, strings else.

    >>> parse_grid(["optimizer.name=adamw,soap", "optimizer.lr=1e-4"])
    [{'optimizer.name': 'adamw', 'optimizer.lr': 0.0001}, {'optimizer.name': 'soap', 'optimizer.lr': 0.0001}]
    """
    axes: dict[str, list[Any]] = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not found or not key.strip() or not text.strip():
            raise SubmissionError(
                f"--grid {pair!r} is not key=value,value",
                "",
                "write for instance --grid optimizer.lr=1e-5,1e-4",
            )
        if key in axes:
            raise SubmissionError(f"--grid names {key!r} twice", "", "give all its values at once")
        axes[key] = _values(key, text)
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def _values(key: str, text: str) -> list[Any]:
    try:
        values = json.loads(f"[{text}]")
    except json.JSONDecodeError:
        values = [next(iter(parse_set([f"{key}={part}"]).values())) for part in text.split(",")]
    if len({json.dumps(v) for v in values}) != len(values):
        raise SubmissionError(f"--grid {key}={text} names a value twice", "", "give each value once")
    return values


def plan(
    session: Session, ready: Ready, names: Sequence[str], points: Sequence[Mapping[str, Any]],
    overrides: Mapping[str, Any], seeds: Sequence[int], cases: Sequence[str] = (),
) -> list[Planned]:  # fmt: skip
    """Every run of one board, in order; settings, needs and models are checked here, before anything is trained."""
    both = {key for point in points for key in point} & set(overrides)
    if both:
        raise SubmissionError(f"{min(both)} is in both --grid and --set", "", "give it once")
    for case in cases:
        if case not in ready.cases():
            raise InputError(
                f"board {ready.board.name} has no case {case!r}",
                near(case, ready.cases()),
                "name one with --case",
            )
    out = []
    for name in names:
        for point in points:
            entry = resolve_spec(
                name, session.workspace.submissions, ready.board.settings, {**overrides, **point}
            )
            preflight.entry_ready(entry, ready)
            specs = stages.plan_runs(session, ready, entry, seeds)
            out += [Planned(ready, entry, point, spec) for spec in specs if not cases or spec.case in cases]
    return out


def recorded(session: Session, spec: RunSpec) -> RunRecord | None:
    """The record that makes a run needless: a usable one, or one that says that the numbers cannot be used."""
    found = earlier.same_inputs(session, spec)
    usable = next((r for r in found if r.status not in stages.UNUSABLE), None)
    return usable or next((r for r in found if r.status not in RETRIED), None)


# --- running --------------------------------------------------------------------------------------------------------
def run(session: Session, planned: Sequence[Planned], line: Callable[[str], None]) -> list[RunRecord | None]:
    """Every run's record, made where there is none; None for a run that another process is at."""
    records: list[RunRecord | None] = []
    for k, item in enumerate(planned, 1):
        label = f"[{k}/{len(planned)}] {item.label}"
        record = recorded(session, item.spec)
        if record is not None:
            line(f"{label}: already recorded as {record.run_id}")
        else:
            try:
                record = stages.execute(session, item.ready, item.spec)
                line(f"{label}: {summary(record, item.ready.board.rank_by)}")
            except InputError as problem:
                line(f"{label}: not run: {problem}")
        records.append(record)
    return records


def summary(record: RunRecord, metric: str) -> str:
    """How a run ended, in a line."""
    score = record.scores.get(metric)
    number = f"{metric} = {score.value:.4g}" if score is not None and score.value is not None else ""
    why = f" ({record.error})" if record.error else ""
    spent = f"{record.charged_s:.1f} s, {record.updates} updates" if record.charged_s is not None else ""
    return ", ".join(part for part in (f"{record.status}{why}", number, spent) if part)


# --- tables ---------------------------------------------------------------------------------------------------------
def tables(planned: Sequence[Planned], records: Sequence[RunRecord | None]) -> list[Flat]:
    """One table a board: a line per entry, its settings in the grid, and mean and deviation of the board's columns."""
    out = []
    for name in dict.fromkeys(p.ready.board.name for p in planned):
        mine = [(p, r) for p, r in zip(planned, records, strict=True) if p.ready.board.name == name]
        ready = mine[0][0].ready
        columns = [column_of(c, ready.metrics) for c in ready.board.columns]
        keys = tuple(mine[0][0].point)
        rows = []
        for entry in dict.fromkeys(p.entry.id for p, _ in mine):
            runs = [(p, r) for p, r in mine if p.entry.id == entry]
            there = [r for _, r in runs if r is not None]
            good = [r for r in there if r.status in (*RANKED_STATUSES, "limited")]
            row: dict[str, Value] = {"submission": runs[0][0].entry.name, "entry": entry}
            row |= {key: _shown(runs[0][0].point[key]) for key in keys}
            row |= {"runs": f"{len(good)}/{len(runs)}", "status": _counts(r.status for r in there)}
            row |= {c.id: cell_of(c, good) for c in columns if good}
            rows.append(row)
        heads = ("submission", "entry", *keys, "runs", "status", *(c.id for c in columns))
        notes = ("mean ± standard deviation between seeds, over the runs that have a usable status",)
        out.append(Flat(name, f"{name}: {len(mine)} runs of {len(rows)} entries", heads, tuple(rows), notes))
    return out


def _shown(value: Any) -> str | int | float | bool | None:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _counts(statuses: Iterable[str]) -> str:
    return ", ".join(f"{n} {status}" for status, n in sorted(Counter(statuses).items()))


# --- before anything runs -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Forecast:
    """What a run of a board takes.

    Attributes:
        charged_s: its budget in seconds; None where it is unknown.
        beside_s: what it takes off the clock (loading, answering, scoring); None where it is unknown.
        runs: earlier runs on this machine that say so.
    """

    charged_s: float | None
    beside_s: float | None
    runs: int

    @property
    def run_s(self) -> float | None:
        """Seconds of one run from begin to end; None where a part is unknown."""
        return None if self.charged_s is None or self.beside_s is None else self.charged_s + self.beside_s


def forecast(session: Session, ready: Ready, base: str = "") -> Forecast:
    """Judged by the medians over earlier runs here of the board, or of the one that it was derived from."""
    board, here = ready.board, preflight.hardware()
    records = [
        r for name in dict.fromkeys([board.name, base or board.name]) for r in session.store.load_records(name)
        if r.env.get("hardware") == here and r.charged_s is not None and r.status in RANKED_STATUSES
    ]  # fmt: skip
    beside = [r.budget["wall_s"] - r.charged_s for r in records if r.budget.get("wall_s") is not None]
    charged = board.budget.seconds
    if board.budget.reference_steps is not None:
        steps = [r.budget["reference_step_s"] for r in records if r.budget.get("reference_step_s")]
        charged = board.budget.reference_steps * statistics.median(steps) if steps else None
    elif board.budget.updates is not None:
        steps = [r.charged_s / r.updates for r in records if r.updates]
        charged = board.budget.updates * statistics.median(steps) if steps else None
    return Forecast(charged, max(0.0, statistics.median(beside)) if beside else None, len(records))


def forecast_line(session: Session, ready: Ready, todo: int, total: int, base: str = "") -> str:
    """What would run and how long, in a line."""
    seen = forecast(session, ready, base)
    head = f"{ready.board.name}: {total} runs, {total - todo} recorded, {todo} to run"
    if not todo:
        return head
    if seen.run_s is None or seen.charged_s is None:
        budget = "" if seen.charged_s is None else f"; {duration(todo * seen.charged_s)} charged in all"
        return f"{head}; how long is unknown: no earlier run of this board on this machine tells{budget}"
    return (
        f"{head}; about {duration(todo * seen.run_s)}: {duration(seen.charged_s)} charged and "
        f"{duration(seen.run_s - seen.charged_s)} beside it a run, by {seen.runs} earlier runs on this machine"
    )


def dry_run(session: Session, planned: Sequence[Planned]) -> list[str]:
    """What `run` would do, a line a run, and how long it would take."""
    lines = []
    for name in dict.fromkeys(p.ready.board.name for p in planned):
        mine = [p for p in planned if p.ready.board.name == name]
        known = [recorded(session, p.spec) for p in mine]
        lines += [
            f"{p.label}: {'would run' if r is None else f'recorded as {r.run_id}'}"
            for p, r in zip(mine, known, strict=True)
        ]
        lines.append(forecast_line(session, mine[0].ready, known.count(None), len(mine)))
    return lines


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, in two or three digits.

    >>> duration(8.25), duration(150), duration(9000)
    ('8.2 s', '2.5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
