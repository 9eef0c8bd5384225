"""From record files to lines of database tables: everything about it that needs no database."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import StoreError
from harness.recordfiles import read_record, read_table
from harness.recordtables import COLUMNS, DIAGNOSTICS, ROWS, TRAJECTORY
from harness.specs import RunRecord

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN = (
    "run_id", "board", "board_version", "entry", "submission", "title", "reference", "optimizer",
    "seed", "status", "error", "started", "stopped", "charged_s", "overshoot_s", "updates", "examples",
    "tokens", "peak_gib",
)  # fmt: skip
_TABLES = {ROWS: "rows", TRAJECTORY: "trajectories", DIAGNOSTICS: "diagnostics"}
_NESTED = ("config", "budget", "env", "hashes", "lanes_s")

Stamp = tuple[str, int | None, int | None]
"""A file, its size in bytes and its time of change in ns; None where there is no file."""


def stamp(path: Path | str) -> Stamp:
    """Tells cheaply whether a file is still the one that was read."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - no Path for each of many thousand files
    except OSError:
        return str(path), None, None
    return str(path), stat.st_size, stat.st_mtime_ns


@dataclass
class Batch:
    """Lines for the tables of some runs, gathered before the database is opened.

    Attributes:
        run_ids: all runs that were looked at.
        good: those whose record could be read.
        lines: table name to lines; `absent` holds what could not be read.
        tables: Parquet contents for the long tables.
    """

    run_ids: set[str] = field(default_factory=set)
    good: set[str] = field(default_factory=set)
    lines: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {"runs": [], "scores": [], "ledgers": [], "absent": []}
    )
    tables: dict[str, list[pa.Table]] = field(default_factory=lambda: {name: [] for name in _TABLES.values()})

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Batch:
        """Reads the runs in `paths`; one that cannot be read becomes a line of `absent`."""
        batch = cls()
        for path in paths:
            batch.run_ids.add(path.stem)
            seen = stamp(path)
            try:
                record, text = read_record(path)
            except StoreError as error:
                batch.lacks(path.stem, seen, str(error))
                continue
            batch.good.add(record.run_id)
            batch._add_record(record, text, seen)
            for kind, sha256 in sorted(record.rows.items()):
                batch._add_table(record.run_id, path.with_name(f"{record.run_id}.{kind}"), kind, sha256)
        return batch

    def lacks(self, run_id: str, file: Stamp, why: str) -> None:
        """Notes that `file` should be in the database and is not."""
        why = why.removeprefix(f"{file[0]} ")
        line = dict(zip(("file", "file_size", "file_mtime_ns"), file, strict=True))
        self.lines["absent"].append({"run_id": run_id, "why": why, **line})

    def _add_record(self, record: RunRecord, text: str, seen: Stamp) -> None:
        run: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
        run |= {name: json.dumps(getattr(record, name), sort_keys=True) for name in _NESTED}
        run |= dict(zip(("file", "file_size", "file_mtime_ns"), seen, strict=True))
        run |= {"case_id": record.case, "record": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        self.lines["runs"].append(run)
        self.lines["scores"] += [
            {"run_id": record.run_id, "metric": metric, "value": score.value, "n": score.n, "why": score.why}
            for metric, score in sorted(record.scores.items())
        ]
        picked = record.selection
        picked_line = {
            "selection": picked.kind,
            "proxy_rows": picked.proxy_rows,
            "proxy_rows_in_probes": picked.proxy_rows_in_probes,
            "dropped": picked.dropped,
        }
        self.lines["ledgers"].append({"run_id": record.run_id, **record.ledger.model_dump(), **picked_line})

    def _add_table(self, run_id: str, path: Path, kind: str, sha256: str) -> None:
        import pyarrow as pa

        seen = stamp(path)
        try:
            if kind not in COLUMNS:
                raise StoreError(f"{path} is of a kind that this version does not know")
            table = read_table(path, sha256, COLUMNS[kind])
        except StoreError as error:
            self.lacks(run_id, seen, str(error))
            return
        table = table.append_column("run_id", pa.array([run_id] * len(table), pa.string()))
        if kind == ROWS:
            table = table.append_column("position", pa.array(range(len(table)), pa.int64()))
        self.tables[_TABLES[kind]].append(table)
