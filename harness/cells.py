"""From the runs of one entry to one number of a table: values, repeats, means, intervals. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from harness.bootstrap import PerRow, by_rows, row_parts, together
from harness.intervals import estimate
from harness.specs import RunRecord
from harness.tables import Cell, Column
from harness.types import MetricInfo

T = TypeVar("T")
K = TypeVar("K", bound=tuple)
Key = tuple[str, int]
"""A case and a seed."""
Values = Mapping[Key, tuple[float | None, str]]
"""What each (case, seed) came to, or None and why."""
Points = Mapping[Key, Sequence[RunRecord]]
"""The runs of each (case, seed): repeats of each other."""
Rows = Mapping[str, Mapping[str, PerRow]]
"""Per-row values by run id and metric (`Store.load_row_values`)."""


def value_of(record: RunRecord, metric: str) -> tuple[float | None, str]:
    """A metric's value in a record, or None and why; `cost.*` come from the record itself."""
    score = record.scores.get(metric)
    if score is not None:
        return score.value, score.why or ("" if score.value is not None else "no reason was recorded")
    costs = {
        "cost.charged_s": record.charged_s,
        "cost.updates": record.updates,
        "cost.peak_gib": record.peak_gib,
        **_spent(record),
    }
    if metric in costs:
        cost = costs[metric]
        return (None, "not measured") if cost is None else (float(cost), "")
    return None, record.error or f"{metric} is not in the record"


def _spent(record: RunRecord) -> dict[str, float | None]:
    """What the ledger counts; nobody counted what stands behind an imported row."""
    ledger = record.ledger
    counts = {
        "cost.total_s": ledger.charged_s,
        "cost.trainings": ledger.trainings,
        "cost.proxy_evaluations": ledger.proxy_evaluations,
        "cost.full_evaluations": ledger.full_evaluations,
    }
    return dict.fromkeys(counts) if record.status == "imported" else dict(counts)


def gain(info: MetricInfo, value: float) -> float:
    """The value turned so that more is better: its negative, or minus the distance to the target."""
    if info.direction == "target" and info.target is not None:
        return -min(abs(value - info.target), sys.float_info.max)
    return -value if info.direction == "lower" else value


def column_of(name: str, metrics: Mapping[str, MetricInfo]) -> Column:
    """A board's column: `metric`, or `metric@case`."""
    metric, _, case = name.partition("@")
    unknown = MetricInfo(metric, "none", None, None, "", "This metric has no description.")
    return Column(name, metric, case or None, metrics.get(metric, unknown))


def cell_of(column: Column, runs: Sequence[RunRecord], rows: Rows | None = None) -> Cell:
    """What a column comes to over the runs of one entry; missing, with the reason, where one of them has no value.

    With `rows`, the interval of a metric that is a mean over rows also has what other rows would have changed.
    """
    return cell_at(column, points_of(runs), rows or {})


def cell_at(column: Column, points: Points, rows: Rows) -> Cell:
    """As `cell_of`, from runs that are grouped already."""
    values = values_at(column, points)
    if not values:
        return Cell(None, why=f"no run of case {column.case}")
    there = {key: value for key, (value, _) in values.items() if value is not None}
    if len(there) < len(values):
        text = joined(why for value, why in values.values() if value is None)
        return Cell(None, n=len(there), why=f"{len(values) - len(there)} of {len(values)} runs: {text}")
    e = estimate(strata(there), row_parts(row_sets(column, points, rows)) if rows else ())
    return Cell(e.mean, e.sd, e.low, e.high, e.n, e.why)


def points_of(runs: Iterable[RunRecord]) -> dict[Key, list[RunRecord]]:
    """Runs by case and seed, in order."""
    return grouped(runs, lambda r: (r.case, r.seed))


def values_at(column: Column, points: Points) -> dict[Key, tuple[float | None, str]]:
    """The column's value at each (case, seed): the mean over repeats; missing where one of them is."""
    metric, case = column.metric, column.case
    return {
        key: value_of(repeats[0], metric)
        if len(repeats) == 1
        else _mean([value_of(r, metric) for r in repeats])
        for key, repeats in points.items()
        if case is None or case == key[0]
    }


def row_sets(column: Column, points: Points, rows: Rows) -> dict[tuple[str, ...], np.ndarray]:
    """What each set of shared rows adds to the mean over cases (`bootstrap.by_rows`).

    Nothing comes from a case whose runs lack rows, asked different rows, or are no mean of them.
    """
    mine = grouped(
        ((key[0], run) for key, repeats in points.items() for run in repeats), lambda pair: (pair[0],)
    )
    cases = []
    for (case,), pairs in mine.items():
        if column.case not in (None, case):
            continue
        found = []
        for _, run in pairs:
            values, score = rows.get(run.run_id, {}).get(column.metric), value_of(run, column.metric)[0]
            fits = values is not None and score is not None and values.averages_to(score)
            found.append(values if fits else None)
        cases.append(together(found))
    return by_rows(cases)


def strata(values: Mapping[Key, float]) -> list[list[float]]:
    """One list of values per case, in the order of `values` (`points_of` sorts)."""
    cases: dict[str, list[float]] = {}
    for (case, _), value in values.items():
        cases.setdefault(case, []).append(value)
    return list(cases.values())


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by key, keys sorted; within a key in the order given."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return dict(sorted(groups.items()))


def joined(whys: Iterable[str]) -> str:
    """Distinct reasons in one line, the first three of them."""
    texts = sorted(set(whys))
    return "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more reasons" if len(texts) > 3 else "")


def _mean(found: Sequence[tuple[float | None, str]]) -> tuple[float | None, str]:
    values = []
    for value, why in found:
        if value is None:
            return None, why
        values.append(value)
    return estimate([values]).mean, ""
