"""What a leaderboard table is, and its forms as text: plain, Markdown, CSV, JSON, and for the terminal."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from harness.specs import Board
from harness.types import MetricInfo

if TYPE_CHECKING:
    import rich.table

Section = Literal["ranked", "incomplete", "reference", "unranked", "outdated"]
SECTIONS: tuple[Section, ...] = ("ranked", "incomplete", "reference", "unranked", "outdated")
STATUS_TEXT = {
    "ok": "measured",
    "drift": "the machine's speed drifted by more than a fifth during the run",
    "limited": "only some rows were used",
    "imported": "imported from another tool's log, not measured here",
    "over_budget": "it used more than the budget",
    "timeout": "it did not stop, and no checkpoint was made in time",
    "invalid": "its numbers cannot be used",
    "failed": "it failed",
}
"""What each status means; the reason that a record gives is added where there is one."""


@dataclass(frozen=True)
class Column:
    """A column of a table: a metric, over all cases or on one (`metric@case`)."""

    id: str
    metric: str
    case: str | None
    info: MetricInfo


@dataclass(frozen=True)
class Cell:
    """One number of a row.

    Attributes:
        mean: over cases and seeds; None where any run of the row has no value.
        sd: between seeds, pooled over cases.
        low, high: 95 % interval.
        n: runs with a value, repeats counted once.
        why: why there is no mean or, with a mean, no interval.
    """

    mean: float | None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    why: str = ""


@dataclass(frozen=True)
class TableRow:
    """One entry.

    Attributes:
        section: `ranked` and `incomplete` rows are the table; the others are shown apart.
        group: empty for the main ranking; else what sets these rows apart, ranked among themselves.
        rank: None where the row is not ranked.
        cells: in the order of the table's columns.
        runs, planned: (case, seed) pairs that are in the row, and that the board asks for.
        statuses: how many runs of this entry ended how, in the order of the closed set.
        why: why the row has no rank, or what to know about it.
        run_ids: the records behind the row, sorted.
    """

    entry: str
    submission: str
    title: str
    optimizer: str | None
    section: Section
    group: str
    rank: int | None
    cells: tuple[Cell, ...]
    runs: int
    planned: int
    statuses: tuple[tuple[str, int], ...]
    reference: bool
    complete: bool
    why: str
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A leaderboard: rows in the order in which they are shown, and what a reader must know."""

    board: Board
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]

    def section(self, *names: Section) -> tuple[TableRow, ...]:
        """The rows of some sections, in order."""
        return tuple(row for row in self.rows if row.section in names)


ARROWS = {"higher": "↑", "lower": "↓", "none": ""}


def number(value: float | None, like: float | None = None) -> str:
    """A value in about four digits, or a dash; with as many decimals as `like` has, where that is given.

    >>> number(0.71604), number(2.1942e-16), number(12345.6), number(0.0), number(None), number(9.3825, 297.3)
    ('0.7160', '2.194e-16', '12346', '0', '–', '9.38')
    """
    if value is None:
        return "–"
    size = max(abs(value), abs(like or 0.0))
    if value == 0:
        return "0"
    if size >= 1e6 or size < 1e-4:
        return f"{value:.3e}"
    return f"{value:.4f}" if size < 10 else f"{value:.2f}" if size < 1000 else f"{value:.0f}"


def heading(column: Column) -> str:
    """A column's name with the direction that is better: an arrow, or the target.

    >>> heading(Column("a@b", "a", "b", MetricInfo("a", "lower", 0, 1, "", "")))
    'a@b ↓'
    """
    info = column.info
    mark = ARROWS.get(info.direction) or (f"→ {info.target:g}" if info.target is not None else "")
    return f"{column.id} {mark}".strip()


def cell_text(cell: Cell) -> str:
    """Mean and half-width of the interval, or a dash."""
    if cell.mean is None or cell.low is None or cell.high is None:
        return number(cell.mean)
    return f"{number(cell.mean)} ± {number((cell.high - cell.low) / 2, cell.mean)}"


def table_dict(table: Table) -> dict[str, Any]:
    """The table as JSON-able data, all digits kept."""
    rows = []
    for row in table.rows:
        line = asdict(row) | {"statuses": dict(row.statuses), "run_ids": list(row.run_ids)}
        line["cells"] = {c.id: asdict(cell) for c, cell in zip(table.columns, row.cells, strict=True)}
        rows.append(line)
    columns = [
        {
            "id": c.id,
            "direction": c.info.direction,
            "target": c.info.target,
            "unit": c.info.unit,
            "text": c.info.text,
        }
        for c in table.columns
    ]
    return {
        "board": table.board.name,
        "board_version": table.board.board_version,
        "rank_by": table.board.rank_by,
        "columns": columns,
        "notes": list(table.notes),
        "rows": rows,
    }


def format_table(table: Table, form: Literal["table", "md", "csv", "json"]) -> str:
    """The table as text. `table` and `md` are for people; `csv` and `json` keep all digits and reasons."""
    if form == "json":
        return json.dumps(table_dict(table), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if form == "csv":
        return _csv(table)
    lines = [_head(table), *(_line(row) for row in table.rows)]
    notes = [f"Note: {note}." for note in table.notes]
    if form == "md":
        cells = [[text.replace("\\", "\\\\").replace("|", "\\|") for text in line] for line in lines]
        cells.insert(1, ["---"] * len(cells[0]))
        body = ["| " + " | ".join(line) + " |" for line in cells]
        return "\n".join([*body, *(f"\n{note}" for note in notes)]) + "\n"
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    body = ["  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([body[0], "-" * len(body[0]), *body[1:], *notes]) + "\n"


def rich_table(table: Table) -> rich.table.Table:
    """The table for a terminal, with the notes below; rows that are not ranked are dim."""
    from rich.table import Table as RichTable
    from rich.text import Text

    out = RichTable(title=table.board.title or table.board.name, caption="; ".join(table.notes) or None)
    for i, name in enumerate(_head(table)):
        out.add_column(name, justify="right" if i == 0 or 1 < i <= len(table.columns) + 1 else "left")
    for row in table.rows:
        style = "" if row.section == "ranked" else "dim"
        out.add_row(*(Text(text) for text in _line(row)), style=style)
    return out


def _head(table: Table) -> list[str]:
    return ["rank", "entry", *(heading(c) for c in table.columns), "runs", "note"]


def _line(row: TableRow) -> list[str]:
    note = "; ".join(filter(None, [row.section if row.section != "ranked" else "", row.group, row.why]))
    name = row.title if row.title == row.entry else f"{row.title} [{row.entry}]"
    texts = [
        str(row.rank or "–"), name, *(cell_text(c) for c in row.cells), f"{row.runs}/{row.planned}", note,
    ]  # fmt: skip
    return [" ".join(text.split()) for text in texts]


def _csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    kinds = ("mean", "sd", "low", "high", "n", "why")
    plain = (
        "section",
        "group",
        "rank",
        "entry",
        "submission",
        "title",
        "optimizer",
        "runs",
        "planned",
        "why",
    )
    writer.writerow([*plain, *(f"{c.id}:{kind}" for c in table.columns for kind in kinds)])
    for row in table.rows:
        values = [getattr(row, name) for name in plain]
        values += [getattr(cell, kind) for cell in row.cells for kind in kinds]
        writer.writerow(["" if v is None else repr(v) if isinstance(v, float) else v for v in values])
    return out.getvalue()
