"""The tables of a comparison, made from its file, its records and their trajectories. Pure: no database, no files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness import curves
from harness.comparisons import USABLE, Comparison, Measured, Pair
from harness.curves import FAMILIES, Spent, TimeCheck
from harness.flat import Flat, Value
from harness.intervals import estimate
from harness.preflight import JSD
from harness.rank import cell_of, column_of, value_of
from harness.specs import RunRecord
from harness.tables import Cell, Column, heading
from harness.types import MetricInfo, Trajectory


@dataclass(frozen=True)
class Compared:
    """A comparison with everything that its tables are made from.

    Attributes:
        comparison: as stored.
        records: by run id.
        metrics: by metric id.
        trajectories: by run id; empty where none were asked for.
    """

    comparison: Comparison
    records: Mapping[str, RunRecord]
    metrics: Mapping[str, MetricInfo]
    trajectories: Mapping[str, Trajectory]

    def runs(self, run_ids: Sequence[str]) -> list[RunRecord]:
        """The usable records among these runs."""
        found = [self.records[run] for run in run_ids if run in self.records]
        return [r for r in found if r.status in USABLE]

    @property
    def columns(self) -> list[Column]:
        """The board's columns."""
        return [column_of(name, self.metrics) for name in self.comparison.board.columns]

    @property
    def budget_text(self) -> str:
        """What every run was given."""
        c = self.comparison
        if c.slowest:
            given = ", ".join(
                f"{s.seconds:.3f} s for {loss} ({s.optimizer})" for loss, s in c.slowest.items()
            )
            return f"until the slowest optimizer's end: {given}"
        if c.seconds is not None:
            steps = c.board.budget.reference_steps
            return f"{c.seconds:.3f} s" + (f" = {steps} reference steps" if steps else "")
        return f"{c.board.budget.updates} updates, which is not equal time"


def tables(compared: Compared) -> dict[str, Flat]:
    """All tables by name, in order."""
    made = [main(compared), cost(compared), ledger(compared), rates(compared), widths(compared),
            families(compared), progress(compared), time_table(compared)]  # fmt: skip
    if compared.comparison.slowest:
        made.insert(1, main(compared, longer=False))
    return {t.name: t for t in made}


def main(compared: Compared, *, longer: bool = True) -> Flat:
    """A line a pair: the picked rate, and mean and deviation over the seeds of the board's columns.

    `longer` False gives the runs before the quicker optimizers were continued.
    """
    c, columns = compared.comparison, compared.columns
    with_jsd = JSD not in c.board.columns and any(m.jsd is not None for m in c.measured.values())
    rows = []
    for pair in c.pairs:
        named = pair.final if longer else pair.runs
        good = compared.runs(named)
        row: dict[str, Value] = {"loss": pair.loss, "optimizer": pair.optimizer, "lr": pair.picked}
        row |= {"runs": f"{len(good)}/{len(c.seeds) * len(c.cases)}", "note": _note(compared, pair, named)}
        row |= {heading(column): cell_of(column, good) for column in columns if good}
        if with_jsd:
            row[f"{JSD} ↓"] = _jsd(compared, named)
        rows.append(row | {"total_s": pair.total.charged_s})
    heads = ("loss", "optimizer", "lr", "runs", *(heading(x) for x in columns),
             *((f"{JSD} ↓",) if with_jsd else ()), "total_s", "note")  # fmt: skip
    first = "comparison" if longer else "comparison_before"
    given = (
        compared.budget_text
        if longer
        else f"{c.board.budget.updates} updates, before the quicker were continued"
    )
    notes = [
        "mean ± standard deviation between seeds",
        f"the rates were picked with seed {c.seeds[0]}, whose runs are among the rows, by the proxy on rows that the "
        "method may see",
        "total_s: charged seconds of all runs behind a row, tuning included",
    ]
    if not c.complete:
        notes.insert(0, "incomplete: the same command goes on with what is missing")
    if longer and (check := checked(compared)) is not None:
        notes += _time_notes(check)
    title = f"{c.base}: {len(c.losses)} x {len(c.optimizers)}, {len(c.seeds)} seeds, each {given}"
    return Flat(first, title, heads, tuple(rows), tuple(notes))


def _note(compared: Compared, pair: Pair, named: Sequence[str]) -> str:
    if pair.picked is None:
        return f"no rate can be picked: {pair.why}"
    counts = Counter(r.status for run in named if (r := compared.records.get(run)))
    odd = [f"{n} {status}" for status, n in sorted(counts.items()) if status not in ("ok", "limited")]
    absent = sum(run not in compared.records for run in named)
    ends = [rate.lr for rate in pair.rates]
    edge = (
        ["the picked rate is at the end of the grid"]
        if len(ends) > 2 and pair.picked in (ends[0], ends[-1])
        else []
    )
    return "; ".join([*odd, *([f"{absent} without a record"] if absent else []), *edge])


def _jsd(compared: Compared, named: Sequence[str]) -> Cell:
    """Mean over cases of the mean over seeds; missing where one of the runs has none."""
    unknown = Measured(jsd_why="it was not measured")
    seen = [(run, compared.comparison.measured.get(run, unknown)) for run in named]
    by_case: dict[str, list[float]] = {}
    for run, measured in seen:
        if measured.jsd is not None and run in compared.records:
            by_case.setdefault(compared.records[run].case, []).append(measured.jsd)
    n = sum(map(len, by_case.values()))
    if not seen or n < len(seen):
        whys = "; ".join(dict.fromkeys(m.jsd_why for _, m in seen if m.jsd is None))
        return Cell(None, n=n, why=whys or "no runs")
    e = estimate(list(by_case.values()))
    return Cell(e.mean, e.sd, e.low, e.high, e.n, e.why)


# --- cost -----------------------------------------------------------------------------------------------------------
def cost(compared: Compared) -> Flat:
    """Time and peak memory of a run, also relative to the first optimizer (Spectral Unlearning, Table 14)."""
    names = {"charged_s": "cost.charged_s", "updates": "cost.updates", "peak_gib": "cost.peak_gib"}
    columns = {head: column_of(metric, compared.metrics) for head, metric in names.items()}
    rows, firsts = [], {}
    for pair in compared.comparison.pairs:
        good = compared.runs(pair.final)
        cells = {head: cell_of(column, good) for head, column in columns.items() if good}
        row: dict[str, Value] = {"loss": pair.loss, "optimizer": pair.optimizer, **cells}
        row["s_per_update"] = _ratio(cells.get("charged_s"), cells.get("updates"))
        first = firsts.setdefault(pair.loss, row)
        row["step / first's"] = _over(row["s_per_update"], first["s_per_update"])
        row["memory / first's"] = _ratio(cells.get("peak_gib"), first.get("peak_gib"))  # type: ignore[arg-type]
        rows.append(row)
    heads = ("loss", "optimizer", *names, "s_per_update", "step / first's", "memory / first's")
    note = (
        "peak memory is that of the whole training process on a processor, and what torch allocated on a GPU"
    )
    return Flat("cost", "Time and peak memory of a run", heads, tuple(rows), (note,))


def _ratio(a: Cell | None, b: Cell | None) -> float | None:
    return _over(a.mean if a is not None else None, b.mean if b is not None else None)


def _over(a: Value, b: Value) -> float | None:
    return a / b if isinstance(a, int | float) and isinstance(b, int | float) and b else None


def ledger(compared: Compared) -> Flat:
    """What picking a rate cost, and what all of a pair's runs cost."""
    rows = []
    for p in compared.comparison.pairs:
        best = next((r.proxy for r in p.rates if r.lr == p.picked), None)
        rows.append({
            "loss": p.loss, "optimizer": p.optimizer, "rates": len(p.rates), "picked": p.picked, "proxy": best,
            "selection": p.selection.kind, "proxy_rows": p.selection.proxy_rows,
            "proxy_rows_in_probes": p.selection.proxy_rows_in_probes,
            **{f"tuning_{k}": getattr(p.tuning, k) for k in ("trainings", "proxy_evaluations", "charged_s")},
            **{f"total_{k}": getattr(p.total, k) for k in ("trainings", "full_evaluations", "charged_s", "gpu_hours")},
        })  # fmt: skip
    heads = tuple(rows[0]) if rows else ("loss", "optimizer")
    note = "tuning counts the runs with the first seed, the picked one among them; total counts every run of the pair"
    return Flat("ledger", "What picking cost", heads, tuple(rows), (note,))


# --- learning-rate curves -------------------------------------------------------------------------------------------
def _curve(compared: Compared, pair: Pair, metric: str) -> list[float | None]:
    """A metric along the rates of a pair, means over the cases; the proxy and the divergence are the comparison's."""
    out: list[float | None] = []
    for rate in pair.rates:
        if metric == "proxy":
            out.append(rate.proxy)
        elif metric == JSD:
            out.append(_jsd(compared, rate.runs).mean)
        else:
            good = compared.runs(rate.runs)
            whole = len(good) == len(rate.runs) and bool(good)
            out.append(cell_of(column_of(metric, compared.metrics), good).mean if whole else None)
    return out


def rates(compared: Compared) -> Flat:
    """Every metric along the rates, in long form; `share` is the height over that of the curve's peak."""
    rows = []
    names = list(dict.fromkeys(["proxy", JSD, *compared.comparison.board.columns]))
    for pair in compared.comparison.pairs:
        for metric in names:
            info = compared.metrics.get(metric.partition("@")[0])
            values = _curve(compared, pair, metric)
            heights = [curves.height(info, v) if info is not None else None for v in values]
            at, shares = curves.peak(heights), curves.normalised(heights)
            for rate, value, share in zip(pair.rates, values, shares, strict=True):
                over = rate.lr / pair.rates[at].lr if at is not None and share is not None else None
                rows.append({"loss": pair.loss, "optimizer": pair.optimizer, "metric": metric, "lr": rate.lr,
                             "value": value, "share": share, "lr / peak's": over})  # fmt: skip
    heads = ("loss", "optimizer", "metric", "lr", "value", "share", "lr / peak's")
    note = "first seed; share: the value above its worst possible one, over that of the best rate"
    return Flat("rates", "Learning-rate curves", heads, tuple(rows), (note,))


def widths(compared: Compared) -> Flat:
    """Per pair, the plateau of the ranking metric: its peak, and the decades above 90 % of it."""
    c, rows = compared.comparison, []
    info = compared.metrics.get(c.board.rank_by.partition("@")[0])
    for pair in c.pairs:
        values = _curve(compared, pair, c.board.rank_by)
        heights = [curves.height(info, v) if info is not None else None for v in values]
        at, w = curves.peak(heights), curves.width([r.lr for r in pair.rates], heights)
        why = (
            w.why
            if at is not None or any(v is None for v in values)
            else "the metric has no bound to measure from"
        )
        ends = [name for name, is_open in (("low", w.open_low), ("high", w.open_high)) if is_open]
        note = why or (
            f"a lower bound: the curve does not end at its {' and '.join(ends)} side" if ends else ""
        )
        jsds = _curve(compared, pair, JSD)
        rows.append({
            "loss": pair.loss, "optimizer": pair.optimizer, "peak_lr": None if at is None else pair.rates[at].lr,
            "peak": None if at is None else values[at], "decades": w.decades, "low_lr": w.low, "high_lr": w.high,
            JSD: None if at is None else jsds[at],
            f"least {JSD}": min((v for v in jsds if v is not None), default=None), "note": note,
        })  # fmt: skip
    heads = tuple(rows[0]) if rows else ("loss", "optimizer")
    title = f"Width of the plateau of {c.board.rank_by} above 90 % of its peak"
    return Flat("widths", title, heads, tuple(rows), ("first seed; between two rates log-linear",))


# --- families -------------------------------------------------------------------------------------------------------
def families(compared: Compared) -> Flat:
    """Per metric, the means of the families of optimizers, and the cells (loss, case, seed) that each wins."""
    c = compared.comparison
    members = {name: tuple(o for o in c.optimizers if o in own) for name, own in FAMILIES.items()}
    members = {name: own for name, own in members.items() if own}
    others = sorted(set(c.optimizers) - {o for own in members.values() for o in own})
    notes = [f"{name}: {', '.join(own)}" for name, own in members.items()]
    notes += [f"in no family: {', '.join(others)}"] if others else []
    rows: list[dict[str, Value]] = []
    if len(members) < 2:
        notes.append("fewer than two families were compared")
    for column in compared.columns if len(members) > 1 else ():
        found = curves.families(column.info, _cells(compared, column), members)
        row: dict[str, Value] = {"metric": heading(column), "cells": found.cells, "left_out": found.left_out}
        for name in members:
            row[f"{name}: mean"] = found.means[name]
            row[f"{name}: wins"] = found.wins[name] if column.info.direction != "none" else None
        rows.append(row)
    heads = ("metric", *(f"{n}: {k}" for k in ("mean", "wins") for n in members), "cells", "left_out")
    notes.append(
        "a cell is a loss, a case and a seed; a tie is half a win for each; cells without a value are left out"
    )
    return Flat("families", "Families of optimizers", heads, tuple(rows), tuple(notes))


def _cells(compared: Compared, column: Column) -> list[dict[str, float | None]]:
    cells: dict[tuple[str, str, int], dict[str, float | None]] = {}
    c = compared.comparison
    for loss in c.losses:
        for case in c.cases if column.case is None else (column.case,):
            for seed in c.seeds:
                cells[loss, case, seed] = {}
    for pair in c.pairs:
        for record in compared.runs(pair.final):
            key = (pair.loss, record.case, record.seed)
            if key in cells:
                cells[key][pair.optimizer] = value_of(record, column.metric)[0]
    return list(cells.values())


# --- along the run, and time ----------------------------------------------------------------------------------------
def progress(compared: Compared) -> Flat:
    """Values against charged seconds and updates, in long form: what was seen along the runs, and their ends."""
    rows: list[dict[str, Value]] = []
    for pair in compared.comparison.pairs:
        for record in compared.runs(pair.final):
            head: dict[str, Value] = {"loss": pair.loss, "optimizer": pair.optimizer, "case": record.case,
                                      "seed": record.seed}  # fmt: skip
            seen = compared.trajectories.get(record.run_id)
            for metric, values in sorted(seen.values.items()) if seen is not None else ():
                for updates, charged, value in zip(seen.updates, seen.charged_s, values, strict=True):
                    if np.isfinite(value):
                        rows.append(head | {"metric": metric, "updates": int(updates), "value": float(value),
                                            "charged_s": float(charged), "end": False})  # fmt: skip
            for name in dict.fromkeys(column.metric for column in compared.columns):
                value, _ = value_of(record, name)
                if value is not None and not name.startswith("cost."):
                    rows.append(head | {"metric": name, "updates": record.updates, "value": value,
                                        "charged_s": record.charged_s, "end": True})  # fmt: skip
    heads = ("loss", "optimizer", "case", "seed", "metric", "charged_s", "updates", "value", "end")
    note = "points before the end: with --trajectory, and only metrics that need no generated text"
    return Flat("progress", "Score against charged seconds and updates", heads, tuple(rows), (note,))


def checked(compared: Compared) -> TimeCheck | None:
    """Whether all pairs had the same time; None for a budget in updates, which says nothing of time."""
    c = compared.comparison
    found = [
        curves.time_check(
            s.seconds, {f"{p.loss} {p.optimizer}": _spent(compared, p) for p in c.pairs if p.loss == loss}
        )
        for loss, s in c.slowest.items()
    ]
    if c.seconds is not None:
        found = [
            curves.time_check(c.seconds, {f"{p.loss} {p.optimizer}": _spent(compared, p) for p in c.pairs})
        ]
    if not found:
        return None
    spreads = [t.spread for t in found if t.spread is not None]
    return TimeCheck(
        min((t.low for t in found if t.low is not None), default=None),
        max((t.high for t in found if t.high is not None), default=None),
        max(spreads, default=None),
        {name: why for t in found for name, why in t.apart.items()},
        tuple(name for t in found for name in t.stopped),
    )


def _spent(compared: Compared, pair: Pair) -> list[Spent]:
    return [
        Spent(r.charged_s, _step(r), bool(r.stopped))
        for r in compared.runs(pair.final) if r.charged_s is not None
    ]  # fmt: skip


def _step(record: RunRecord) -> float:
    """A run's longest step in seconds; its mean where the longest was not noted."""
    longest = record.budget.get("longest_step_s")
    mean = (record.charged_s or 0.0) / record.updates if record.updates else math.inf
    return float(longest) if longest else mean


def _time_notes(check: TimeCheck) -> list[str]:
    notes = []
    if check.spread is not None:
        verdict = "within the larger of 2 % and one step" if not check.apart else "not equal"
        notes.append(f"charged seconds of the entries spread by {check.spread:.2%} of the budget: {verdict}")
    notes += [f"not the same time: {name}: {why}" for name, why in check.apart.items()]
    if check.stopped:
        notes.append(f"ended early by the board's threshold: {', '.join(check.stopped)}")
    return notes


def time_table(compared: Compared) -> Flat:
    """Charged seconds of every run that is compared, against its budget."""
    c, rows = compared.comparison, []
    check = checked(compared)
    for pair in c.pairs:
        given = c.slowest[pair.loss].seconds if pair.loss in c.slowest else c.seconds
        for r in compared.runs(pair.final):
            off = None if given is None or r.charged_s is None else r.charged_s / given - 1
            rows.append({
                "loss": pair.loss, "optimizer": pair.optimizer, "case": r.case, "seed": r.seed, "budget_s": given,
                "charged_s": r.charged_s, "off": off, "longest_step_s": r.budget.get("longest_step_s"),
                "drift": r.budget.get("drift"), "updates": r.updates, "stopped": r.stopped, "status": r.status,
                "run": r.run_id,
            })  # fmt: skip
    heads = tuple(rows[0]) if rows else ("loss", "optimizer")
    return Flat("time", "Equal wall-clock", heads, tuple(rows), tuple(_time_notes(check) if check else ()))
