"""Run records in DuckDB: the one database that tables, pages and queries read.

The files under the leaderboards folders are the truth; the database is derived from them, and can be built
anew at any time. A database belongs to one list of leaderboards folders. `ingest` lists its tables.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import comparisons
from harness.bootstrap import PerRow
from harness.comparisons import Comparison
from harness.database import Database, UnusableDatabase
from harness.errors import InputError, StoreError
from harness.ingest import COMPARED, FILE, TABLES, build, is_current, names_of, put, put_compared, state
from harness.recordfiles import Absent, find_records, parse_record, read_hashed, remove_leftovers, write_files
from harness.recordlines import Batch, Stamp, stamp
from harness.recordtables import COLUMNS, DIAGNOSTICS, ROWS, TRAJECTORY, per_row_values, trajectory_of
from harness.sparkline import Curve
from harness.specs import RunRecord
from harness.types import Trajectory

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_LEFTOVER_S = 3600.0


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
    _held: list[duckdb.DuckDBPyConnection] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

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
            names = ", ".join(names_of(FILE))
            runs = connection.execute(f"SELECT run_id, {names} FROM runs").fetchall()
            lacks = connection.execute(f"SELECT run_id, {names} FROM absent").fetchall()
            compared = set(connection.execute(f"SELECT {names} FROM comparisons").fetchall())
            count, absent = state(connection)
        known: dict[str, list[Stamp]] = {}
        for run_id, *seen in [*runs, *lacks]:
            known.setdefault(run_id, []).append(tuple(seen))
        found, shadowed = find_records(self._roots)
        changed = {r for r, seen in known.items() if any(s != stamp(s[0]) for s in seen)}
        moved = {r for r, path in found.items() if all(s[0] != str(path) for s in known.get(r, ()))}
        todo = tuple(sorted((changed | moved) & set(found)))
        gone = tuple(sorted(set(known) - set(found)))
        if todo or gone or compared != {stamp(p) for p in comparisons.find(self._roots).values()}:
            self._ingest([found[run_id] for run_id in todo], gone)
            with self._reading() as connection:
                count, absent = state(connection)
        stored = {run_id for run_id, *_ in runs}
        removed = tuple(run_id for run_id in gone if run_id in stored)
        return StoreReport(count, _without(todo, absent), removed, (*absent, *shadowed))

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """All that is loaded inside is of one moment, over one connection; nobody can write meanwhile."""
        with self._reading() as connection:
            self._held.append(connection)
            try:
                yield
            finally:
                self._held.pop()

    def query(self, sql: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Column names and rows of a statement that reads; one that writes, or wants a file, is refused."""
        import duckdb

        known = f"tables: {', '.join([*TABLES, *COMPARED])}"
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
            "SELECT run_id, board, submission, if(lacks IS NULL, sha256, sha256(sha256 || lacks)) FROM runs "
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

    def load_files_of(self, run_ids: Sequence[str]) -> dict[str, tuple[str, bytes | None]]:
        """These runs' records, and the Parquet files of their rows where they name one, as they lie in the folder.

        Raises:
            StoreError: a file of rows was changed since it was read into the database.
        """
        sql = (
            f"SELECT run_id, record, file, json_extract_string(record, '$.rows.\"{ROWS}\"') FROM runs "
            "WHERE run_id IN (SELECT unnest($1::VARCHAR[]))"
        )
        lacking = "SELECT file FROM absent WHERE run_id IN (SELECT unnest($1::VARCHAR[]))"
        with self._reading() as connection:
            lines = connection.execute(sql, [list(run_ids)]).fetchall()
            absent = {file for (file,) in connection.execute(lacking, [list(run_ids)]).fetchall()}
        found: dict[str, tuple[str, bytes | None]] = {}
        for run, text, file, sha256 in lines:
            path = Path(file).with_name(f"{run}.{ROWS}")
            try:
                there = sha256 is not None and str(path) not in absent
                found[run] = text, read_hashed(path, str(sha256)) if there else None
            except StoreError as error:
                raise StoreError(f"{error}; `uharness db rebuild` notes it as absent") from error
        return found

    def load_rows(self, run_id: str) -> list[dict[str, Any]]:
        """As `load_rows_of`, for one run and as lines; none where it has no table."""
        table = self.load_rows_of([run_id]).get(run_id)
        return table.to_pylist() if table is not None else []

    def load_comparisons(self) -> list[Comparison]:
        """All comparisons that could be read, by board and id."""
        sql = "SELECT file FROM comparisons WHERE why IS NULL ORDER BY board, comparison"
        with self._reading() as connection:
            files = connection.execute(sql).fetchall()
        return [comparisons.read(Path(file)) for (file,) in files]

    def load_row_values(self, board: str, metrics: Sequence[str]) -> dict[str, dict[str, PerRow]]:
        """Per-row values of some metrics of a board's runs, by run id and metric; runs without rows are not in it."""
        sql = (
            "SELECT run_id, metric, row_id, value FROM rows JOIN runs USING (run_id) WHERE board = $1 "
            "AND metric IN (SELECT unnest($2::VARCHAR[])) AND value IS NOT NULL ORDER BY run_id, metric, row_id"
        )
        with self._reading() as connection:
            table = connection.sql(sql, params=[board, list(metrics)]).to_arrow_table().combine_chunks()
        return per_row_values(table) if len(table) else {}

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

        if self._held:
            yield self._held[-1]
            return
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
            if is_current(connection):
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
                    if usable := is_current(connection):
                        failed = put(connection, batch, paths, gone)
                        put_compared(connection, comparisons.find(self._roots))
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
        self._file.replace_with(partial(build, found=found, compared=compared, states=states), deadline)
        count, absent = states[0]
        return StoreReport(count, _without(sorted(found), absent), (), (*absent, *shadowed))


def _without(run_ids: Iterable[str], absent: Iterable[Absent]) -> tuple[str, ...]:
    """The run ids whose record itself is not among what is absent."""
    unread = {a.path.stem for a in absent if a.path.suffix == ".json"}
    return tuple(run_id for run_id in run_ids if run_id not in unread)
