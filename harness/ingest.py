"""The tables of the database, and how runs get into them; `store` says when.

The tables:

- `runs`: one line per run. The record's plain fields, `case_id`, its dictionaries as JSON, and `record`, its
  exact text, with its `sha256`; `file`, `file_size`, `file_mtime_ns` say where it was read from.
- `scores`: run_id, metric, value, n, why. `value` is NULL where there is none, and `why` says the reason.
- `rows`: run_id, position, metric, row_id, value, probe, why, prompt, target, answer. Texts are NULL where
  the rows are not public.
- `trajectories`: run_id, step, updates, charged_s, metric, value, why.
- `diagnostics`: run_id, kind, name, block, role, measure, step, updates, charged_s, value, why.
- `ledgers`: run_id, trainings, proxy_evaluations, full_evaluations, charged_s, gpu_hours, judge_calls,
  judge_tokens, selection, proxy_rows, proxy_rows_in_probes, dropped.
- `absent`: run_id, why, file, file_size, file_mtime_ns: what should be here and is not.
- `comparisons`: one line per comparison of optimizers: comparison, board, board_version, hardware, seconds,
  until_slowest, complete, its exact text; of one that cannot be read only `why` and the file.
- `comparison_runs`: comparison, loss, optimizer, lr, role, picked, final, run_id, proxy, jsd.
- `meta`: `schema`, the number of this layout.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import comparisons
from harness.database import Database
from harness.errors import StoreError
from harness.recordfiles import Absent
from harness.recordlines import Batch, stamp

if TYPE_CHECKING:
    import duckdb

SCHEMA = 5
_RUN = "run_id VARCHAR, "
FILE = "file VARCHAR, file_size BIGINT, file_mtime_ns BIGINT"
TABLES = {
    "runs": (
        f"{_RUN} board VARCHAR, board_version VARCHAR, entry VARCHAR, submission VARCHAR, title VARCHAR, "
        "reference BOOLEAN, optimizer VARCHAR, case_id VARCHAR, seed BIGINT, status VARCHAR, error VARCHAR, "
        "started VARCHAR, stopped VARCHAR, charged_s DOUBLE, overshoot_s DOUBLE, updates BIGINT, "
        "examples BIGINT, tokens BIGINT, peak_gib DOUBLE, config JSON, budget JSON, env JSON, hashes JSON, "
        f"lanes_s JSON, record VARCHAR, sha256 VARCHAR, {FILE}"
    ),
    "scores": f"{_RUN} metric VARCHAR, value DOUBLE, n BIGINT, why VARCHAR",
    "rows": (
        f"{_RUN} position BIGINT, metric VARCHAR, row_id VARCHAR, value DOUBLE, probe VARCHAR, why VARCHAR, "
        "prompt VARCHAR, target VARCHAR, answer VARCHAR"
    ),
    "trajectories": (
        f"{_RUN} step BIGINT, updates BIGINT, charged_s DOUBLE, metric VARCHAR, value DOUBLE, why VARCHAR"
    ),
    "diagnostics": (
        f"{_RUN} kind VARCHAR, name VARCHAR, block BIGINT, role VARCHAR, measure VARCHAR, step BIGINT, "
        "updates BIGINT, charged_s DOUBLE, value DOUBLE, why VARCHAR"
    ),
    "ledgers": (
        f"{_RUN} trainings BIGINT, proxy_evaluations BIGINT, full_evaluations BIGINT, charged_s DOUBLE, "
        "gpu_hours DOUBLE, judge_calls BIGINT, judge_tokens BIGINT, selection VARCHAR, proxy_rows BIGINT, "
        "proxy_rows_in_probes BIGINT, dropped BIGINT"
    ),
    "absent": f"{_RUN} why VARCHAR, {FILE}",
}
"""Columns by table: what is known of the runs. A run's lines are replaced together."""
COMPARED = {
    "comparisons": (
        "comparison VARCHAR, board VARCHAR, board_version VARCHAR, hardware VARCHAR, seconds DOUBLE, "
        f"until_slowest BOOLEAN, complete BOOLEAN, text VARCHAR, why VARCHAR, {FILE}"
    ),
    "comparison_runs": (
        "comparison VARCHAR, loss VARCHAR, optimizer VARCHAR, lr DOUBLE, role VARCHAR, picked BOOLEAN, "
        "final BOOLEAN, run_id VARCHAR, proxy DOUBLE, jsd DOUBLE"
    ),
}
"""Few and small: all of them are replaced when one has changed."""
_RUNS_AT_ONCE = 200


def build(
    scratch: Path, *, found: Mapping[str, Path], compared: Mapping[str, Path],
    states: list[tuple[int, tuple[Absent, ...]]],
) -> None:  # fmt: skip
    """Makes the database anew at `scratch` from files by run id and by comparison; `states` gets what `state` tells."""
    with contextlib.closing(Database(scratch).connect(0.0)) as connection:
        for name, columns in {**TABLES, **COMPARED}.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
        connection.execute(f"CREATE TABLE meta AS SELECT {SCHEMA} AS schema")
        paths = sorted(found.values())
        parts = [paths[start : start + _RUNS_AT_ONCE] for start in range(0, len(paths), _RUNS_AT_ONCE)]
        for part, batch in zip(parts, _ahead(Batch.of, parts), strict=True):
            put(connection, batch, part, ())
        put_compared(connection, compared)
        states.append(state(connection))


def _ahead(read: Callable[[Sequence[Path]], Batch], parts: Sequence[Sequence[Path]]) -> Iterator[Batch]:
    """`read` of each part, in order; the next two are read while one is stored."""
    with ThreadPoolExecutor(2) as pool:
        waiting = deque(pool.submit(read, part) for part in parts[:2])
        for part in [*parts[2:], None, None][: len(parts)]:
            batch = waiting.popleft().result()
            if part is not None:
                waiting.append(pool.submit(read, part))
            yield batch


def put(
    connection: duckdb.DuckDBPyConnection, batch: Batch, paths: Sequence[Path], gone: Sequence[str]
) -> list[str]:
    """Stores a batch; if that fails, its runs one by one. What still fails is absent, and returned."""
    failed: list[str] = []
    try:
        _put_at_once(connection, batch, gone)
    except StoreError:
        if not paths:
            raise
        for path in paths:
            try:
                _put_at_once(connection, Batch.of([path]), gone)
            except StoreError as error:
                only = Batch({path.stem})
                only.lacks(path.stem, stamp(path), f"cannot be stored: {error}")
                _put_at_once(connection, only, gone)
                failed.append(f"{path} cannot be stored: {error}")
    return failed


def _put_at_once(connection: duckdb.DuckDBPyConnection, batch: Batch, gone: Iterable[str]) -> None:
    """Replaces the batch's runs, and deletes those that are gone, in one transaction."""
    import duckdb
    import pyarrow as pa

    try:
        tables = {name: [pa.Table.from_pylist(lines)] for name, lines in batch.lines.items() if lines}
        tables |= {name: given for name, given in batch.tables.items() if given}
        connection.execute("BEGIN")
        which = "WHERE run_id IN (SELECT unnest($1::VARCHAR[]))"
        there = f"SELECT run_id FROM runs {which} UNION SELECT run_id FROM absent {which}"
        out = [run for (run,) in connection.execute(there, [[*sorted(batch.run_ids), *gone]]).fetchall()]
        for name in TABLES if out else ():
            connection.execute(f"DELETE FROM {name} {which}", [out])
        for name, parts in sorted(tables.items()):
            connection.register("batch", pa.concat_tables(parts))
            connection.execute(f"INSERT INTO {name} BY NAME SELECT * FROM batch")
            connection.unregister("batch")
        connection.execute("COMMIT")
    except (duckdb.Error, pa.ArrowException, OverflowError, UnicodeError) as error:
        with contextlib.suppress(duckdb.Error):  # no transaction is open when the tables could not be made
            connection.execute("ROLLBACK")
        raise StoreError(str(error).splitlines()[0]) from error


def put_compared(connection: duckdb.DuckDBPyConnection, found: Mapping[str, Path]) -> None:
    """Replaces all comparisons, in one transaction; one that cannot be read is a line that says why."""
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in COMPARED}
    for name, path in found.items():
        line: dict[str, Any] = dict(zip(names_of(FILE), stamp(path), strict=True)) | {"comparison": name}
        try:
            made = comparisons.read(path)
        except StoreError as error:
            lines["comparisons"].append(line | {"why": str(error).removeprefix(f"{path} ")})
            continue
        told = ("board_version", "hardware", "seconds", "until_slowest", "complete")
        line |= {"board": made.base, "text": path.read_text(encoding="utf-8")}
        lines["comparisons"].append(line | {key: getattr(made, key) for key in told})
        lines["comparison_runs"] += comparisons.lines(made)
    connection.execute("BEGIN")
    for name, columns in COMPARED.items():
        connection.execute(f"DELETE FROM {name}")
        for given in lines[name]:
            values = [given.get(column) for column in names_of(columns)]
            connection.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(values))})", values)
    connection.execute("COMMIT")


def is_current(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether a database has this layout."""
    import duckdb

    try:
        return connection.execute("SELECT schema FROM meta").fetchall() == [(SCHEMA,)]
    except duckdb.CatalogException:
        return False


def state(connection: duckdb.DuckDBPyConnection) -> tuple[int, tuple[Absent, ...]]:
    """How many runs there are, and what should be there and is not, comparisons among it."""
    count = connection.execute("SELECT count(*) FROM runs").fetchall()[0][0]
    compared = "SELECT file, why FROM comparisons WHERE why IS NOT NULL"
    lines = connection.execute(f"SELECT file, why FROM absent UNION ALL {compared} ORDER BY 1, 2").fetchall()
    return count, tuple(Absent(Path(file), why) for file, why in lines)


def names_of(columns: str) -> list[str]:
    """The columns' names in a part of a layout."""
    return [column.split()[0] for column in columns.split(",")]
