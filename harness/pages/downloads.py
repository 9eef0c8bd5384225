"""The same tables for other programs: CSV, JSON and Parquet, and JavaScript that a page loads from its own folder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from harness.markup import script_json, slug
from harness.pages.content import BoardPage, Files
from harness.specs import RunRecord
from harness.tables import Table
from harness.tabletext import format_table, table_dict

FORMS = ("csv", "json", "parquet")
SMALL = 4_096
"""Bytes of a table up to which its Parquet file is not compressed."""
SCORES = {
    "run_id": str, "entry": str, "submission": str, "title": str, "optimizer": str, "case": str, "seed": int,
    "status": str, "board_version": str, "metric": str, "value": float, "n": int, "why": str,
}  # fmt: skip
"""Columns of the long table of a board's runs."""
_KINDS = {"mean": float, "sd": float, "low": float, "high": float, "n": int, "why": str}
_PLAIN = {
    "section": str, "group": str, "rank": int, "entry": str, "submission": str, "title": str, "optimizer": str,
    "runs": int, "planned": int, "why": str,
}  # fmt: skip


def files(base: str, columns: Mapping[str, type], rows: Sequence[Mapping[str, Any]]) -> Files:
    """A table in three formats.

    Args:
        base: path without ending.
        columns: name to `str`, `int` or `float`.
        rows: a column that a row lacks is missing in it.
    """
    return files_of(base, columns, lines_of(columns, rows))


def files_of(base: str, columns: Mapping[str, type], lines: Sequence[Sequence[Any]]) -> Files:
    """As `files`, from lines with a value a column."""
    return {
        f"{base}.csv": csv_text(columns, lines),
        f"{base}.json": json_text([dict(zip(columns, line, strict=True)) for line in lines]),
        f"{base}.parquet": parquet(columns, lines),
    }


def lines_of(columns: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Rows as lines with a value a column, None where a row lacks it."""
    names = tuple(columns)
    return [[row.get(name) for name in names] for row in rows]


def csv_text(columns: Iterable[str], lines: Iterable[Sequence[Any]]) -> str:
    """All digits; what is missing is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return out.getvalue()


def json_text(value: Any) -> str:
    """JSON in one line, without NaN; what is not ASCII is escaped."""
    return json.dumps(value, allow_nan=False) + "\n"


def parquet(columns: Mapping[str, type], lines: Sequence[Sequence[Any]]) -> bytes:
    """Lines as a Parquet file; the same lines give the same bytes. What is None, or not finite, is missing.

    Without dictionaries: Zstandard alone makes such tables smaller, and sooner. Of a small one the frame is the most.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    across = zip(*lines, strict=True) if lines else ((),) * len(columns)
    arrays = [
        pa.array(_typed(kind, values), kinds[kind])
        for kind, values in zip(columns.values(), across, strict=True)
    ]
    table, sink = pa.table(arrays, schema=schema), pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression="zstd" if table.nbytes > SMALL else "none", use_dictionary=False,
        write_statistics=False,
    )  # fmt: skip
    return sink.getvalue().to_pybytes()


def _typed(kind: type, values: Iterable[Any]) -> list[Any]:
    if kind is str:
        return [v if v is None or type(v) is str else str(v) for v in values]
    return [v if type(v) is kind and isfinite(v) else _number(kind, v) for v in values]


def _number(kind: type, value: Any) -> Any:
    return None if value is None or not isfinite(value) else kind(value)


def script(function: str, *values: Any) -> str:
    r"""A script that hands data to a page: `uharness.FUNCTION(VALUES)`; nothing in it can end the script.

    >>> script("board", {"a": "</script>"})
    'uharness.board({"a":"\\u003c/script>"});\n'
    """
    return f"uharness.{function}({','.join(map(script_json, values))});\n"


def board_files(page: BoardPage) -> Files:
    """A board's table, and all scores of all its runs."""
    name = slug(page.board.name)
    table = page.table
    made: Files = {
        f"data/boards/{name}.csv": format_table(table, "csv"),
        f"data/boards/{name}.json": json_text(table_dict(table, page.curves)),
        f"data/boards/{name}.parquet": parquet(_table_columns(table), _table_lines(table)),
    }
    ordered = sorted(page.records, key=lambda r: (r.entry, r.case, r.seed, r.run_id))
    lines = [line for record in ordered for line in score_lines(record)]
    return made | files_of(f"data/scores/{name}", SCORES, lines)


def score_lines(record: RunRecord) -> list[tuple[Any, ...]]:
    """One line a metric of a run, with the columns `SCORES`."""
    head = (
        record.run_id, record.entry, record.submission, record.title, record.used_optimizer, record.case, record.seed,
        record.status, record.board_version,
    )  # fmt: skip
    return [(*head, name, score.value, score.n, score.why) for name, score in sorted(record.scores.items())]


def _table_columns(table: Table) -> dict[str, type]:
    cells = {f"{c.id}:{kind}": of for c in table.columns for kind, of in _KINDS.items()}
    return _PLAIN | cells


def _table_lines(table: Table) -> list[list[Any]]:
    return [
        [
            *(getattr(row, name) for name in _PLAIN),
            *(getattr(cell, kind) for cell in row.cells for kind in _KINDS),
        ]
        for row in table.rows
    ]
