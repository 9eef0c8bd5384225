"""Flat tables for people and for other programs: named columns, one line a row, as text, Markdown, CSV and JSON.

A leaderboard with its ranks and sections is `harness.tables.Table`; this is everything else that is tabular.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.errors import InputError, near
from harness.tables import Cell, number

FORMATS = ("table", "md", "csv", "json")

Value = str | int | float | bool | Cell | None


@dataclass(frozen=True)
class Flat:
    """A table.

    Attributes:
        name: a file name without ending.
        title: what is in it.
        heads: the columns, in order.
        rows: head to value; a head that a row lacks is None there.
        notes: what a reader must know.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[Mapping[str, Value], ...]
    notes: tuple[str, ...] = ()


def check_format(form: str) -> None:
    """Refuse a format that is none."""
    if form not in FORMATS:
        raise InputError(f"no format {form!r}", near(form, FORMATS), "")


def text_of(value: Value) -> str:
    """A value for people: four digits, and the deviation behind a mean.

    >>> text_of(Cell(0.5, sd=0.01)), text_of(1e-05), text_of(None), text_of(3)
    ('0.5000 ± 0.0100', '1e-05', '–', '3')
    """
    if isinstance(value, Cell):
        if value.mean is None or value.sd is None:
            return number(value.mean)
        return f"{number(value.mean)} ± {number(value.sd, value.mean)}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None or value == "" else str(value)


def format_flat(tables: Sequence[Flat], form: str) -> str:
    """Tables as text; `csv` takes one table, the others any number."""
    check_format(form)
    if form == "json":
        data = [_json(t) for t in tables]
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if form == "csv":
        return "\n".join(_csv(t) for t in tables)
    return "\n".join((_markdown if form == "md" else _plain)(t) for t in tables)


def _lines(table: Flat) -> list[list[str]]:
    body = [[" ".join(text_of(row.get(head)).split()) for head in table.heads] for row in table.rows]
    return [list(table.heads), *body]


def _plain(table: Flat) -> str:
    lines = _lines(table)
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.heads))]
    body = ["  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    rule = "-" * max(map(len, body))
    return "\n".join([table.title, rule, body[0], rule, *body[1:], *_notes(table)]) + "\n"


def _markdown(table: Flat) -> str:
    lines = [[text.replace("\\", "\\\\").replace("|", "\\|") for text in line] for line in _lines(table)]
    lines.insert(1, ["---"] * len(table.heads))
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([f"**{table.title}**", "", *body, *(f"\n{note}" for note in _notes(table))]) + "\n"


def _notes(table: Flat) -> list[str]:
    return [f"Note: {note}." for note in table.notes]


def _csv(table: Flat) -> str:
    """All digits; a cell is four columns: mean, `:sd`, `:n`, `:why`."""
    cells = {head for row in table.rows for head, value in row.items() if isinstance(value, Cell)}
    parts = ("", ":sd", ":n", ":why")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([h + part for h in table.heads for part in (parts if h in cells else ("",))])
    for row in table.rows:
        line: list[Any] = []
        for head in table.heads:
            value = row.get(head)
            if head not in cells:
                line.append(value)
            elif isinstance(value, Cell):
                line += [value.mean, value.sd, value.n, value.why]
            else:
                line += [value, None, None, ""]
        writer.writerow(["" if v is None else repr(v) if isinstance(v, float) else v for v in line])
    return out.getvalue()


def _json(table: Flat) -> dict[str, Any]:
    rows = [
        {h: asdict(v) if isinstance(v := row.get(h), Cell) else v for h in table.heads} for row in table.rows
    ]
    return {"name": table.name, "title": table.title, "columns": list(table.heads), "rows": rows,
            "notes": list(table.notes)}  # fmt: skip
