"""The long tables that lie beside a run record: per-row values, the trajectory, the diagnostics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.bootstrap import PerRow
from harness.errors import StoreError
from harness.types import Score, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

ROWS, TRAJECTORY, DIAGNOSTICS = "rows.parquet", "trajectory.parquet", "diagnostics.parquet"
COLUMNS = {
    ROWS: ("metric", "row_id", "value", "probe", "why", "prompt", "target", "answer"),
    TRAJECTORY: ("step", "updates", "charged_s", "metric", "value", "why"),
    DIAGNOSTICS: (
        "kind",
        "name",
        "block",
        "role",
        "measure",
        "step",
        "updates",
        "charged_s",
        "value",
        "why",
    ),
}
"""The columns of each file, in order. `why` is empty, or says why `value` is null."""


def rows_table(
    scores: Mapping[str, Score], texts: Mapping[str, Mapping[str, Mapping[str, str]]] | None = None
) -> pa.Table:
    """The long table of all per-row values, in the order in which the scores list them.

    Args:
        scores: metric id to score; scores without `per_row` add nothing.
        texts: probe name to row id to any of `prompt`, `target`, `answer`; none where rows are not public.

    >>> scores = {"forget.prob": Score(0.5, 1, per_row={"f0": 0.5})}
    >>> row = rows_table(scores, {"forget": {"f0": {"answer": "Rome"}}}).to_pylist()[0]
    >>> row["value"], row["answer"], row["prompt"]
    (0.5, 'Rome', None)
    """
    lines = []
    for metric, score in scores.items():
        probe = metric.split(".")[0]
        for row_id, value in (score.per_row or {}).items():
            text = (texts or {}).get(probe, {}).get(row_id, {})
            why = "" if value is not None else "no value for this row"
            line = {"metric": metric, "row_id": row_id, "value": value, "probe": probe, "why": why}
            lines.append({**line, **text})
    return _table(lines, COLUMNS[ROWS])


def trajectory_table(trajectory: Trajectory) -> pa.Table:
    """The long table of a trajectory: one line per check and metric; values not finite become null."""
    lines = [
        {"step": i, "updates": int(trajectory.updates[i]), "charged_s": float(trajectory.charged_s[i]),
         "metric": metric, "value": float(values[i]), "why": ""}
        for i in range(len(trajectory.updates))
        for metric, values in sorted(trajectory.values.items())
    ]  # fmt: skip
    return _table(lines, COLUMNS[TRAJECTORY])


def trajectory_of(metrics: Mapping[str, Sequence[Sequence[Any]]]) -> Trajectory:
    """A trajectory from each metric's columns step, updates, charged_s and value; null values become NaN."""
    seen: dict[int, tuple[int, float]] = {}
    for steps, updates, charged, _ in metrics.values():
        seen.update(zip(steps, zip(updates, charged, strict=True), strict=True))
    order = sorted(seen)
    values = {metric: np.full(len(order), np.nan) for metric in metrics}
    for metric, (steps, _, _, value) in metrics.items():
        values[metric][np.searchsorted(order, steps)] = np.array(value, dtype=np.float64)
    updates, charged = zip(*(seen[step] for step in order), strict=True)
    return Trajectory(np.array(updates, dtype=np.int64), np.array(charged, dtype=np.float64), values)


def _table(lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    unknown = {key for line in lines for key in line} - set(columns)
    if unknown:
        raise StoreError(
            f"a text of a row is one of prompt, target, answer; got {', '.join(sorted(unknown))}"
        )
    data = {c: [line.get(c) for line in lines] for c in columns}
    return checked_table(pa.table(data, schema=_schema(columns)), columns)


def _schema(columns: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    kinds = {
        **dict.fromkeys(("value", "charged_s"), pa.float64()),
        **dict.fromkeys(("step", "updates", "block"), pa.int64()),
    }
    return pa.schema([(c, kinds.get(c, pa.string())) for c in columns])


def checked_table(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """`table` with exactly `columns` in this order, of the right types, and no value that is NaN or infinite.

    Text columns that are not there become null. A value that is not finite becomes null, and `why` tells it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    needed = [c for c in columns if c in ("metric", "row_id", "step", "updates", "charged_s", "value")]
    missing = [c for c in needed if c not in table.column_names]
    unknown = [c for c in table.column_names if c not in columns]
    if missing or unknown:
        raise StoreError(
            f"a table must have the columns {', '.join(needed)} and may have "
            f"{', '.join(c for c in columns if c not in needed)}; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    schema = _schema(columns)
    try:
        here = set(table.column_names)
        data = {
            f.name: table[f.name].cast(f.type) if f.name in here else pa.nulls(len(table), f.type)
            for f in schema
        }
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StoreError(f"a column of the table has the wrong type: {error}") from error
    numbers = pc.drop_null(data["value"])
    if data["why"].null_count or not pc.all(pc.is_finite(numbers), min_count=0).as_py():
        data["value"], data["why"] = _told(data["value"].to_pylist(), data["why"].to_pylist())
    return pa.table(data, schema=schema)


def _told(values: list[float | None], whys: list[str | None]) -> tuple[pa.Array, pa.Array]:
    """Values with null for what is not finite, and why."""
    import pyarrow as pa

    texts = [why or "" for why in whys]
    for i, value in enumerate(values):
        if value is not None and not math.isfinite(value):
            values[i], texts[i] = None, texts[i] or f"the value came out as {value}"
    return pa.array(values, pa.float64()), pa.array(texts, pa.string())


def per_row_values(table: pa.Table) -> dict[str, dict[str, PerRow]]:
    """Values by run id and metric, from the columns run_id, metric, row_id and value, sorted by the first three.

    The same rows of several runs share one tuple of ids.
    """
    runs, metrics, ids = (
        table[name].combine_chunks().dictionary_encode() for name in ("run_id", "metric", "row_id")
    )
    run, metric, row = (column.indices.to_numpy() for column in (runs, metrics, ids))
    values, names = table["value"].to_numpy(), ids.dictionary.to_pylist()
    starts = [0, *np.flatnonzero((np.diff(run) != 0) | (np.diff(metric) != 0)) + 1, len(values)]
    shared: dict[bytes, tuple[str, ...]] = {}
    found: dict[str, dict[str, PerRow]] = {}
    for start, end in itertools.pairwise(starts):
        rows = row[start:end]
        key = rows.tobytes()
        if key not in shared:
            shared[key] = tuple(names[i] for i in rows)
        mine = found.setdefault(runs.dictionary[run[start]].as_py(), {})
        mine[metrics.dictionary[metric[start]].as_py()] = PerRow(shared[key], values[start:end])
    return found
