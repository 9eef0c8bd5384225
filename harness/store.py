"""Run records in DuckDB: the one database that tables, pages and queries read.

The files under the leaderboards folders are the truth; the database is derived from them, and can be built
anew at any time. A database belongs to one list of leaderboards folders. Its tables:

- `runs`: one line per run. The record's plain fields, `case_id`, its dictionaries as JSON, and `record`, its
  exact text; `file`, `file_size`, `file_mtime_ns` say where it was read from.
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
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import comparisons
from harness.bootstrap import PerRow
from harness.comparisons import Comparison
from harness.database import Database, UnusableDatabase
from harness.errors import InputError, StoreError
from harness.recordfiles import Absent, find_records, parse_record, remove_leftovers, write_files
from harness.recordlines import Batch, Stamp, stamp
from harness.recordtables import COLUMNS, DIAGNOSTICS, ROWS, TRAJECTORY, trajectory_of
from harness.sparkline import Curve
from harness.specs import RunRecord
from harness.types import Trajectory

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

SCHEMA = 4
_RUN = "run_id VARCHAR, "
_FILE = "file VARCHAR, file_size BIGINT, file_mtime_ns BIGINT"
_TABLES = {
    "runs": (
        f"{_RUN} board VARCHAR, board_version VARCHAR, entry VARCHAR, submission VARCHAR, title VARCHAR, "
        "reference BOOLEAN, optimizer VARCHAR, case_id VARCHAR, seed BIGINT, status VARCHAR, error VARCHAR, "
        "started VARCHAR, stopped VARCHAR, charged_s DOUBLE, overshoot_s DOUBLE, updates BIGINT, "
        "examples BIGINT, tokens BIGINT, peak_gib DOUBLE, config JSON, budget JSON, env JSON, hashes JSON, "
        f"lanes_s JSON, record VARCHAR, {_FILE}"
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
    "absent": f"{_RUN} why VARCHAR, {_FILE}",
}
_COMPARED = {
    "comparisons": (
        "comparison VARCHAR, board VARCHAR, board_version VARCHAR, hardware VARCHAR, seconds DOUBLE, "
        f"until_slowest BOOLEAN, complete BOOLEAN, text VARCHAR, why VARCHAR, {_FILE}"
    ),
    "comparison_runs": (
        "comparison VARCHAR, loss VARCHAR, optimizer VARCHAR, lr DOUBLE, role VARCHAR, picked BOOLEAN, "
        "final BOOLEAN, run_id VARCHAR, proxy DOUBLE, jsd DOUBLE"
    ),
}
"""Few and small: all of them are replaced when one has changed."""
_LEFTOVER_S = 3600.0
_RUNS_AT_ONCE = 200


@dataclass(frozen=True)
class StoreReport:
    """What a rebuild or a catch-up did.

    Attributes:
        records: runs in the database now.
        added: run ids that were read from files just now.
        removed: run ids that are no longer in the files.
        absent: files that should be in the database and are not, with the reason.
    """

    records: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    absent: tuple[Absent, ...]


@dataclass(frozen=True)
class Store:
    """The records of some leaderboards folders, and the database made from them.

    Attributes:
        leaderboards: folders with `<board>/results/`; the first is written to, and wins where two have a run.
        database: the DuckDB file. It is made when it is not there.
        wait_s: how long to wait for another process that has the database open.
    """

    leaderboards: Sequence[Path]
    database: Path
    wait_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.leaderboards:
            raise StoreError("a store needs at least one leaderboards folder")

    def write_record(
        self,
        record: RunRecord,
        rows: pa.Table | None = None,
        trajectory: pa.Table | None = None,
        diagnostics: pa.Table | None = None,
        *,
        replace: bool = False,
    ) -> RunRecord:
        """Writes a run to files, then to the database; returns the record as stored, with its tables' hashes.

        The same content twice is fine. Another run's record is never touched; this run's own only with
        `replace`. When the database cannot be written, the record is safe in its file, and the error says so.

        Args:
            record: its `rows` field is filled in here.
            rows: see `recordtables.rows_table`.
            trajectory: see `recordtables.trajectory_table`.
            diagnostics: see `recordtables.COLUMNS`.
            replace: the scores of this run were computed again.
        """
        tables = {ROWS: rows, TRAJECTORY: trajectory, DIAGNOSTICS: diagnostics}
        path, stored = write_files(self._roots[0], record, tables, replace=replace)
        try:
            if failed := self._ingest([path], ()):
                raise StoreError(failed[0])
        except StoreError as error:
            raise StoreError(
                f"the record is safe in {path}, but it is not in the database yet: {error}; "
                "the next command that catches up with the files will add it"
            ) from error
        return stored

    def rebuild(self) -> StoreReport:
        """Makes the database anew from all files, swapped in whole; one bad file does not stop the rest."""
        remove_leftovers(self._roots[0], time.time() - _LEFTOVER_S)
        with self._file.exclusive() as deadline:
            return self._rebuild(deadline)

    def ingest_missing(self) -> StoreReport:
        """Brings the database up to date: adds, refreshes and removes runs, and reads only what changed."""
        with contextlib.ExitStack() as stack:
            connection = self._open_current(stack)
            if connection is None:
                stack.close()
                return self.rebuild()
            names = ", ".join(_names(_FILE))
            runs = connection.execute(f"SELECT run_id, {names} FROM runs").fetchall()
            lacks = connection.execute(f"SELECT run_id, {names} FROM absent").fetchall()
            compared = set(connection.execute(f"SELECT {names} FROM comparisons").fetchall())
        known: dict[str, list[Stamp]] = {}
        for run_id, *seen in [*runs, *lacks]:
            known.setdefault(run_id, []).append(tuple(seen))
        found, shadowed = find_records(self._roots)
        changed = {r for r, seen in known.items() if any(s != stamp(Path(s[0])) for s in seen)}
        moved = {r for r, path in found.items() if str(path) not in {s[0] for s in known.get(r, [])}}
        todo = tuple(sorted((changed | moved) & set(found)))
        gone = tuple(sorted(set(known) - set(found)))
        if todo or gone or compared != {stamp(p) for p in comparisons.find(self._roots).values()}:
            self._ingest([found[run_id] for run_id in todo], gone)
        with self._reading() as connection:
            count, absent = _state(connection)
        removed = tuple(run_id for run_id in gone if run_id in {r[0] for r in runs})
        return StoreReport(count, _without(todo, absent), removed, (*absent, *shadowed))

    def query(self, sql: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Column names and rows of a statement that reads; one that writes, or wants a file, is refused."""
        import duckdb

        known = f"tables: {', '.join([*_TABLES, *_COMPARED])}"
        with self._reading() as connection:
            try:
                cursor = connection.execute(sql)
                if cursor is None or cursor.description is None:
                    raise InputError("the query is empty", known)
                return tuple(column[0] for column in cursor.description), cursor.fetchall()
            except duckdb.Error as error:
                raise InputError(
                    f"the query does not work: {error}", known, "the database is read-only"
                ) from error

    def load_records(self, board: str | None = None) -> list[RunRecord]:
        """All records or one board's, exactly as in their files; by board, entry, case, seed and run id."""
        order = "board, entry, case_id, seed, run_id"
        sql = f"SELECT record, file FROM runs WHERE $1 IS NULL OR board = $1 ORDER BY {order}"
        with self._reading() as connection:
            lines = connection.execute(sql, [board]).fetchall()
        return [parse_record(text, Path(file)) for text, file in lines]

    def load_stamps(self) -> dict[str, tuple[str, str, str]]:
        """Run id to its board, its submission and a hash of all that is known of it: the record, and what it lacks.

        By board, entry, case, seed and run id, as `load_records`. The record names its tables by their hashes.
        """
        sql = (
            "WITH lacking AS (SELECT run_id, string_agg(why, ';' ORDER BY why) AS lacks FROM absent GROUP BY run_id) "
            "SELECT run_id, board, submission, sha256(record || coalesce(lacks, '')) FROM runs "
            "LEFT JOIN lacking USING (run_id) ORDER BY board, entry, case_id, seed, run_id"
        )
        with self._reading() as connection:
            return {run: tuple(told) for run, *told in connection.execute(sql).fetchall()}

    def load_rows_of(self, run_ids: Sequence[str]) -> dict[str, pa.Table]:
        """The whole long per-row tables of these runs, in file order; runs without one are not in it."""
        sql = (
            f"SELECT run_id, {', '.join(COLUMNS[ROWS])} FROM rows "
            "WHERE run_id IN (SELECT unnest($1::VARCHAR[])) ORDER BY run_id, position"
        )
        with self._reading() as connection:
            table = connection.sql(sql, params=[list(run_ids)]).to_arrow_table().combine_chunks()
        columns = table.drop_columns("run_id")
        found, start = {}, 0
        for run in table["run_id"].value_counts().to_pylist():
            found[run["values"]] = columns.slice(start, run["counts"])
            start += run["counts"]
        return found

    def load_comparisons(self) -> list[Comparison]:
        """All comparisons that could be read, by board and id."""
        sql = "SELECT file FROM comparisons WHERE why IS NULL ORDER BY board, comparison"
        with self._reading() as connection:
            files = connection.execute(sql).fetchall()
        return [comparisons.read(Path(file)) for (file,) in files]

    def load_rows(self, run_id: str, per_probe: int = 50) -> list[dict[str, Any]]:
        """The long per-row table of a run, cut to the first `per_probe` rows of each probe, in file order."""
        return self.load_all_rows(per_probe, run_id).get(run_id, [])

    def load_all_rows(
        self, per_probe: int = 50, run_id: str | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """As `load_rows`, for every run that has rows, in one go."""
        names = ", ".join(COLUMNS[ROWS])
        sql = (
            f"WITH mine AS (SELECT run_id, position, {names}, "
            "min(position) OVER (PARTITION BY run_id, probe, row_id) AS first "
            "FROM rows WHERE $1 IS NULL OR run_id = $1) "
            f"SELECT run_id, {names} FROM mine QUALIFY "
            "dense_rank() OVER (PARTITION BY run_id, probe ORDER BY first) <= $2 ORDER BY run_id, position"
        )
        with self._reading() as connection:
            lines = connection.execute(sql, [run_id, per_probe]).fetchall()
        found: dict[str, list[dict[str, Any]]] = {}
        for run, *line in lines:
            found.setdefault(run, []).append(dict(zip(COLUMNS[ROWS], line, strict=True)))
        return found

    def load_row_values(self, board: str, metrics: Sequence[str]) -> dict[str, dict[str, PerRow]]:
        """Per-row values of some metrics of a board's runs, by run id and metric; runs without rows are not in it."""
        sql = (
            "SELECT run_id, metric, list(row_id ORDER BY row_id), list(value ORDER BY row_id) "
            "FROM rows JOIN runs USING (run_id) WHERE board = $1 AND metric IN (SELECT unnest($2::VARCHAR[])) "
            "AND value IS NOT NULL GROUP BY run_id, metric"
        )
        with self._reading() as connection:
            lines = connection.execute(sql, [board, list(metrics)]).fetchall()
        found: dict[str, dict[str, PerRow]] = {}
        for run_id, metric, ids, values in lines:
            found.setdefault(run_id, {})[metric] = PerRow(tuple(ids), np.array(values, np.float64))
        return found

    def load_curves(self, board: str, metrics: Sequence[str]) -> dict[str, Curve]:
        """The curve of each of a board's runs in the first of `metrics` that it has, by run id."""
        sql = (
            "SELECT run_id, metric, list(t.charged_s ORDER BY step), list(value ORDER BY step) "
            "FROM trajectories t JOIN runs USING (run_id) "
            "WHERE board = $1 AND metric IN (SELECT unnest($2::VARCHAR[])) GROUP BY run_id, metric"
        )
        with self._reading() as connection:
            lines = connection.execute(sql, [board, list(metrics)]).fetchall()
        lines.sort(key=lambda line: -metrics.index(line[1]))
        return {run: Curve(run, metric, tuple(times), tuple(values)) for run, metric, times, values in lines}

    def load_trajectory(self, run_id: str) -> Trajectory | None:
        """The curve of a run, or None where it has none; a value that was null is NaN here."""
        return self.load_all_trajectories(run_id).get(run_id)

    def load_all_trajectories(self, run_id: str | None = None) -> dict[str, Trajectory]:
        """The curves of all runs that have one, in one go."""
        return self.load_trajectories_of(None if run_id is None else [run_id])

    def load_trajectories_of(self, run_ids: Sequence[str] | None) -> dict[str, Trajectory]:
        """The curves of these runs, of all with None; runs without one are not in it."""
        sql = (
            "SELECT run_id, metric, list(step ORDER BY step), list(updates ORDER BY step), "
            "list(charged_s ORDER BY step), list(value ORDER BY step) FROM trajectories "
            "WHERE $1 IS NULL OR run_id IN (SELECT unnest($1::VARCHAR[])) "
            "GROUP BY run_id, metric ORDER BY run_id, metric"
        )
        with self._reading() as connection:
            lines = connection.execute(sql, [None if run_ids is None else list(run_ids)]).fetchall()
        by_run: dict[str, dict[str, Any]] = {}
        for run, metric, *columns in lines:
            by_run.setdefault(run, {})[metric] = columns
        return {run: trajectory_of(metrics) for run, metrics in by_run.items()}

    def load_relearning_of(self, run_ids: Sequence[str]) -> dict[str, list[tuple[str, str, int, float]]]:
        """Extraction strength along relearning by run id: (`run` or `retain`, measure, step, value)."""
        sql = (
            "SELECT run_id, name, measure, step, value FROM diagnostics WHERE kind = 'relearn' "
            "AND value IS NOT NULL AND run_id IN (SELECT unnest($1::VARCHAR[])) ORDER BY ALL"
        )
        with self._reading() as connection:
            lines = connection.execute(sql, [list(run_ids)]).fetchall()
        found: dict[str, list[tuple[str, str, int, float]]] = {}
        for run, *line in lines:
            found.setdefault(run, []).append(tuple(line))
        return found

    # --- inside -------------------------------------------------------------------------------------------
    @property
    def _file(self) -> Database:
        return Database(Path(self.database), self.wait_s)

    @property
    def _roots(self) -> list[Path]:
        return [Path(root).resolve() for root in self.leaderboards]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A read-only connection to a database of this layout, which is made first where there is none."""
        import duckdb

        with contextlib.ExitStack() as stack:
            connection = self._open_current(stack)
            if connection is None:
                self.rebuild()
                connection = self._open_current(stack)
            if connection is None:
                raise StoreError(f"{self.database} was replaced by another version's while it was being read")
            try:
                yield connection
            except duckdb.Error as error:
                raise StoreError(f"{self.database} cannot be read: {error}; build it again") from error

    def _open_current(self, stack: contextlib.ExitStack) -> duckdb.DuckDBPyConnection | None:
        try:
            connection = stack.enter_context(self._file.reading())
            if _is_current(connection):
                return connection
        except UnusableDatabase:
            return None
        stack.close()
        return None

    def _ingest(self, paths: Sequence[Path], gone: Sequence[str]) -> list[str]:
        """Puts runs in, and says which failed; a database that cannot be used is built anew with them."""
        failed: list[str] = []
        batch = Batch.of(paths)
        with self._file.exclusive() as deadline:
            try:
                connection = self._file.connect(deadline)
                with contextlib.closing(connection):
                    if usable := _is_current(connection):
                        failed = _put(connection, batch, paths, gone)
                        _put_compared(connection, comparisons.find(self._roots))
            except UnusableDatabase:
                usable = False
            if not usable:
                report = self._rebuild(deadline)
                failed = [str(lack) for lack in report.absent if lack.path in paths]
        return failed

    def _rebuild(self, deadline: float) -> StoreReport:
        found, shadowed = find_records(self._roots)
        states: list[tuple[int, tuple[Absent, ...]]] = []
        compared = comparisons.find(self._roots)
        self._file.replace_with(partial(_build, found=found, compared=compared, states=states), deadline)
        count, absent = states[0]
        return StoreReport(count, _without(sorted(found), absent), (), (*absent, *shadowed))


def _build(
    scratch: Path, *, found: Mapping[str, Path], compared: Mapping[str, Path],
    states: list[tuple[int, tuple[Absent, ...]]],
) -> None:  # fmt: skip
    with contextlib.closing(Database(scratch).connect(0.0)) as connection:
        for name, columns in {**_TABLES, **_COMPARED}.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
        connection.execute(f"CREATE TABLE meta AS SELECT {SCHEMA} AS schema")
        paths = sorted(found.values())
        parts = [paths[start : start + _RUNS_AT_ONCE] for start in range(0, len(paths), _RUNS_AT_ONCE)]
        for part, batch in zip(parts, _ahead(Batch.of, parts), strict=True):
            _put(connection, batch, part, ())
        _put_compared(connection, compared)
        states.append(_state(connection))


def _ahead(read: Callable[[Sequence[Path]], Batch], parts: Sequence[Sequence[Path]]) -> Iterator[Batch]:
    """`read` of each part, in order; the next two are read while one is stored."""
    with ThreadPoolExecutor(2) as pool:
        waiting = deque(pool.submit(read, part) for part in parts[:2])
        for part in [*parts[2:], None, None][: len(parts)]:
            batch = waiting.popleft().result()
            if part is not None:
                waiting.append(pool.submit(read, part))
            yield batch


def _put(
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
        for name in _TABLES if out else ():
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


def _put_compared(connection: duckdb.DuckDBPyConnection, found: Mapping[str, Path]) -> None:
    """Replaces all comparisons, in one transaction; one that cannot be read is a line that says why."""
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in _COMPARED}
    for name, path in found.items():
        line: dict[str, Any] = dict(zip(_names(_FILE), stamp(path), strict=True)) | {"comparison": name}
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
    for name, columns in _COMPARED.items():
        connection.execute(f"DELETE FROM {name}")
        for given in lines[name]:
            values = [given.get(column) for column in _names(columns)]
            connection.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(values))})", values)
    connection.execute("COMMIT")


def _is_current(connection: duckdb.DuckDBPyConnection) -> bool:
    import duckdb

    try:
        return connection.execute("SELECT schema FROM meta").fetchall() == [(SCHEMA,)]
    except duckdb.CatalogException:
        return False


def _state(connection: duckdb.DuckDBPyConnection) -> tuple[int, tuple[Absent, ...]]:
    count = connection.execute("SELECT count(*) FROM runs").fetchall()[0][0]
    compared = "SELECT file, why FROM comparisons WHERE why IS NOT NULL"
    lines = connection.execute(f"SELECT file, why FROM absent UNION ALL {compared} ORDER BY 1, 2").fetchall()
    return count, tuple(Absent(Path(file), why) for file, why in lines)


def _without(run_ids: Iterable[str], absent: Iterable[Absent]) -> tuple[str, ...]:
    """The run ids whose record itself is not among what is absent."""
    unread = {a.path.stem for a in absent if a.path.suffix == ".json"}
    return tuple(run_id for run_id in run_ids if run_id not in unread)


def _names(columns: str) -> list[str]:
    return [column.split()[0] for column in columns.split(",")]
