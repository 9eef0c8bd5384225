"""Run records as files: the truth that the database is derived from.

One run is up to four files in `<root>/<board>/results/`::

    <run_id>.json                the record
    <run_id>.rows.parquet        one line per (metric, row): the values behind the scores
    <run_id>.trajectory.parquet  one line per (check, metric): what was seen along the run
    <run_id>.diagnostics.parquet  what `uharness diagnose` measured in its weights

The record's `rows` field holds the SHA-256 of the others, which are written first: a record that is there
is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from harness.errors import StoreError
from harness.recordtables import COLUMNS, checked_table
from harness.specs import RunRecord

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
"""The record format that this version writes, and the newest that it reads."""
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@,-]{0,199}")


@dataclass(frozen=True)
class Absent:
    """Something the store should hold and does not: which file, and why."""

    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


# --- writing ------------------------------------------------------------------------------------------------
def write_atomic(path: Path, content: bytes) -> None:
    """Writes `path` so that a reader, or a crash at any moment, sees the old file or the whole new one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with scratch.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(
            OSError
        ):  # some network file systems cannot sync a folder; the file is synced
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Lets one process at a time decide whether a name in `folder` is free."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(
            OSError
        ):  # no locks on folders over NFS: there only equal run ids could collide
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def record_json(record: RunRecord) -> str:
    """The record as stored: sorted keys, two spaces, a newline at the end, never NaN or Infinity."""
    try:
        data = record.model_dump(mode="json")
        bad = next(_not_finite(record.model_dump(), ""), None)
        if bad:
            raise StoreError(f"record {record.run_id}: {bad} is not a finite number; store null and say why")
        text = json.dumps(data, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        text.encode()
    except (ValueError, TypeError) as error:
        raise StoreError(f"record {record.run_id} cannot be written as JSON: {error}") from error
    return text


def _not_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, Mapping):
        for key in value:
            yield from _not_finite(value[key], f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _not_finite(item, f"{path}[{i}]")


def write_files(
    root: Path, record: RunRecord, tables: Mapping[str, pa.Table | None], *, replace: bool = False
) -> tuple[Path, RunRecord]:
    """Writes the record and its tables under `root`, and returns the record's path and the record as stored.

    Writing the same content twice is fine. A record that is there with other content is left alone, unless
    `replace` is set and it is the same run (board, entry, case, seed and start).

    Args:
        root: the leaderboards folder.
        record: its `rows` hashes are filled in for the tables that are given.
        tables: `rows.parquet` and `trajectory.parquet`; None is none, or what the record names already.
        replace: for scores that were computed again.
    """
    if unknown := {*record.rows, *tables} - set(COLUMNS):
        raise StoreError(f"a run has the files {', '.join(COLUMNS)}; got also {', '.join(sorted(unknown))}")
    for name, what in ((record.run_id, "run_id"), (record.board, "board")):
        if not _FILE_NAME.fullmatch(name):
            raise StoreError(f"{what} {name!r} cannot be a file name: use letters, digits and . _ + = @ , -")
    folder = root / record.board / "results"
    contents: dict[str, bytes] = {}
    hashes = dict(record.rows)
    for kind, table in tables.items():
        if table is not None:
            contents[kind] = _parquet(checked_table(table, COLUMNS[kind]))
            hashes[kind] = hashlib.sha256(contents[kind]).hexdigest()
    path = folder / f"{record.run_id}.json"
    text = record_json(record.model_copy(update={"rows": hashes}))
    stored = parse_record(text, path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _folder_lock(folder):
            _refuse_another_run(path, stored, text, replace)
            for kind in set(hashes) - set(contents):
                read_hashed(folder / f"{record.run_id}.{kind}", hashes[kind])
            for kind, content in sorted(contents.items()):
                write_atomic(folder / f"{record.run_id}.{kind}", content)
            write_atomic(path, text.encode())
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
    return path, stored


def _refuse_another_run(path: Path, record: RunRecord, text: str, replace: bool) -> None:
    if not path.exists():
        return
    old_text = path.read_text(encoding="utf-8")
    if old_text == text:
        return
    old = parse_record(old_text, path)
    identity = ("board", "entry", "case", "seed", "started")
    other = [k for k in identity if getattr(old, k) != getattr(record, k)]
    if other:
        raise StoreError(f"{path} holds another run (differs in {', '.join(other)}); it is left as it was")
    if not replace:
        raise StoreError(
            f"{path} holds this run with other content; it is left as it was (replace was not set)"
        )


def _parquet(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


# --- reading ------------------------------------------------------------------------------------------------
def parse_record(text: str | bytes, path: Path) -> RunRecord:
    """Reads a record of any known format; the error names the file and what is wrong with it."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is no JSON: {error}") from error
    form = data.get("format") if isinstance(data, dict) else None
    if not isinstance(form, int) or isinstance(form, bool) or form < 1:
        raise StoreError(f"{path} is no run record: it has no format number")
    if form > FORMAT:
        raise StoreError(f"{path} has format {form}; this version reads up to {FORMAT}: update uharness")
    try:
        return RunRecord.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{path} is no run record: {field or 'record'}: {first['msg']}") from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def read_record(path: Path) -> tuple[RunRecord, str]:
    """The record in `path` and its exact text; its name and folder must be its run id and board."""
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    record = parse_record(text, path)
    if path.name != f"{record.run_id}.json":
        raise StoreError(f"{path} holds run_id {record.run_id!r}, which is not its file name")
    if path.parent.parent.name != record.board:
        raise StoreError(f"{path} is a record of board {record.board!r}, and lies in another board's folder")
    return record, text


def read_table(path: Path, sha256: str, columns: Sequence[str]) -> pa.Table:
    """The Parquet file beside a record, refused when it is not the one that the record names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = read_hashed(path, sha256)
    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
        return checked_table(table, columns)
    except (pa.ArrowException, StoreError) as error:
        raise StoreError(f"{path} is not a table of rows: {error}") from error


def read_hashed(path: Path, sha256: str) -> bytes:
    """A file beside a record, refused when it is not the one that the record names."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing; the record names it") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise StoreError(
            f"{path} is not the file that the record names: sha256 {found[:12]}, not {sha256[:12]}"
        )
    return content


def remove_leftovers(root: Path, before: float) -> int:
    """Deletes scratch files of killed writers that were last touched before this time; returns how many."""
    old = [p for p in root.glob("*/results/.*.tmp") if p.stat().st_mtime < before]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def find_records(roots: Sequence[Path]) -> tuple[dict[str, Path], tuple[Absent, ...]]:
    """Run id to record file over all roots; the first root that has a run wins.

    A run id that two boards of one root use is reported, and the first in alphabetical order is taken.
    """
    found: dict[str, Path] = {}
    absent: list[Absent] = []
    for root in roots:
        here: dict[str, Path] = {}
        for folder in sorted(p for p in root.glob("*/results") if p.is_dir()):
            names = os.listdir(folder)  # noqa: PTH208 - a glob takes four times as long
            for name in sorted(n for n in names if n.endswith(".json") and not n.startswith(".")):
                run_id = name.removesuffix(".json")
                if run_id in here:
                    why = f"run_id {run_id!r} is already used by {here[run_id]}"
                    absent.append(Absent(folder / name, why))
                else:
                    here[run_id] = folder / name
        found = here | found
    return found, tuple(absent)
