"""A leaderboard table as text: for a terminal of some width, Markdown, CSV and JSON. All show the same numbers."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from harness.sparkline import WIDTH, Curve, span, sparkline
from harness.tables import Table, TableRow, cell_text, heading

if TYPE_CHECKING:
    import rich.table

Form = Literal["table", "md", "csv", "json"]
GAP = 2


@dataclass(frozen=True)
class Layout:
    """What of a table fits into some width.

    Attributes:
        head: headings, of the columns that are shown.
        lines: texts, as many as headings, one tuple per row.
        numeric: per heading, whether it stands over numbers.
        hidden: ids of the columns that do not fit.
        footnotes: why rows have no rank and what to know about them, by number from 1.
    """

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    hidden: tuple[str, ...]
    footnotes: tuple[str, ...]


def layout(table: Table, width: int | None, curves: Mapping[str, Curve] | None = None) -> Layout:
    """Rank, entry, what the board ranks by, then as many columns, in the board's order, as fit into `width`.

    Args:
        table: what to lay out.
        width: characters; None shows all columns.
        curves: by run id; a row shows that of its first run that has one.
    """
    footnotes: list[str] = []
    ends = [_end(row, footnotes) for row in table.rows]
    first = [("rank", [_rank(row) for row in table.rows]), ("entry", [_name(row) for row in table.rows])]
    last = [("runs", [f"{row.runs}/{row.planned}" for row in table.rows])]
    last += _sparks(table, curves or {})
    last += [("note", ends)] if any(ends) else []
    columns = [
        (heading(column), [_one_line(cell_text(row.cells[i])) for row in table.rows])
        for i, column in enumerate(table.columns)
    ]
    key = next(i for i, column in enumerate(table.columns) if column.id == table.board.rank_by)
    room = None if width is None else width - sum(_width(c) + GAP for c in [*first, *last]) + GAP
    kept = {key}
    for i in [key, *(i for i in range(len(columns)) if i != key)]:
        if room is not None:
            room -= _width(columns[i]) + GAP
        if room is None or room >= 0:
            kept.add(i)
        else:
            break
    shown = [*first, *(columns[i] for i in sorted(kept)), *last]
    return Layout(
        head=tuple(name for name, _ in shown),
        lines=tuple(zip(*(texts for _, texts in shown), strict=True)),
        numeric=tuple(i == 0 or 1 < i < 2 + len(kept) for i in range(len(shown))),
        hidden=tuple(column.id for i, column in enumerate(table.columns) if i not in kept),
        footnotes=tuple(footnotes),
    )


def below(table: Table, shown: Layout, width: int | None) -> list[str]:
    """The lines under a table: footnotes, notes, and what is hidden."""
    lines = [f"[{i}] {text}" for i, text in enumerate(shown.footnotes, 1)]
    if len({row.rank for row in table.rows if row.rank}) < sum(1 for row in table.rows if row.rank):
        lines.append("Equal ranks: no significant difference.")
    lines += [f"Note: {note}." for note in table.notes]
    if shown.hidden:
        lines.append(
            f"{len(shown.hidden)} columns that do not fit: {', '.join(shown.hidden)}. "
            "--all-columns shows them, as does --format md, csv or json."
        )
    if width is None:
        return lines
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, max(width, 40), subsequent_indent="    ", break_on_hyphens=False)
    ]


def format_table(
    table: Table, form: Form, *, width: int | None = None, curves: Mapping[str, Curve] | None = None
) -> str:
    """The table as text. `table` and `md` are for people; `csv` and `json` keep all digits and reasons."""
    if form == "json":
        return json.dumps(table_dict(table, curves), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if form == "csv":
        return _csv(table)
    if form == "md":
        return _markdown(table)
    shown = layout(table, width, curves)
    lines = [shown.head, *shown.lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(shown.head))]
    text = [
        (" " * GAP)
        .join(
            t.rjust(w) if number and k else t.ljust(w)
            for t, w, number in zip(line, widths, shown.numeric, strict=True)
        )
        .rstrip()
        for k, line in enumerate(lines)
    ]
    rule = "-" * max(map(len, text))
    return "\n".join([text[0], rule, *text[1:], *below(table, shown, width)]) + "\n"


def rich_table(
    table: Table, width: int | None = None, curves: Mapping[str, Curve] | None = None
) -> rich.table.Table:
    """The table for a terminal, with the notes below; rows that are not ranked are dim."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = layout(table, width, curves)
    caption = Text("\n".join(below(table, shown, width)))
    out = RichTable(
        title=Text(table.board.title or table.board.name), caption=caption, caption_justify="left",
        box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False,
    )  # fmt: skip
    for name, number in zip(shown.head, shown.numeric, strict=True):
        out.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    for row, line in zip(table.rows, shown.lines, strict=True):
        out.add_row(*map(Text, line), style="" if row.section == "ranked" else "dim")
    return out


def table_dict(table: Table, curves: Mapping[str, Curve] | None = None) -> dict[str, Any]:
    """The table as JSON-able data, all digits kept; a row has its `curve` where there is one."""
    rows = []
    for row in table.rows:
        line = vars(row) | {"statuses": dict(row.statuses), "run_ids": list(row.run_ids)}
        line["cells"] = {c.id: dict(vars(cell)) for c, cell in zip(table.columns, row.cells, strict=True)}
        curve = _curve(row, curves or {})
        rows.append(line | ({"curve": asdict(curve)} if curve else {}))
    columns = [
        {"id": c.id, "direction": c.info.direction, "target": c.info.target, "unit": c.info.unit, "text": c.info.text}
        for c in table.columns
    ]  # fmt: skip
    return {
        "board": table.board.name,
        "board_version": table.board.board_version,
        "rank_by": table.board.rank_by,
        "columns": columns,
        "notes": list(table.notes),
        "rows": rows,
    }


def _markdown(table: Table) -> str:
    head = ["rank", "entry", *(heading(c) for c in table.columns), "runs", "note"]
    lines = [head, ["---"] * len(head)]
    for row in table.rows:
        texts = [
            _rank(row), _name(row), *(cell_text(c) for c in row.cells), f"{row.runs}/{row.planned}", _note(row),
        ]  # fmt: skip
        lines.append([_one_line(text).replace("\\", "\\\\").replace("|", "\\|") for text in texts])
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([*body, *(f"\nNote: {note}." for note in table.notes)]) + "\n"


def _csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    kinds = ("mean", "sd", "low", "high", "n", "why")
    plain = (
        "section", "group", "rank", "entry", "submission", "title", "optimizer", "runs", "planned", "why",
    )  # fmt: skip
    writer.writerow([*plain, *(f"{c.id}:{kind}" for c in table.columns for kind in kinds)])
    for row in table.rows:
        values = [getattr(row, name) for name in plain]
        values += [getattr(cell, kind) for cell in row.cells for kind in kinds]
        writer.writerow(["" if v is None else repr(v) if isinstance(v, float) else v for v in values])
    return out.getvalue()


def _rank(row: TableRow) -> str:
    return str(row.rank or "–")


def _name(row: TableRow) -> str:
    return _one_line(row.title if row.title == row.entry else f"{row.title} [{row.entry}]")


def _note(row: TableRow) -> str:
    return "; ".join(filter(None, [row.section if row.section != "ranked" else "", row.group, row.why]))


def _end(row: TableRow, footnotes: list[str]) -> str:
    """The short form of a note: the section, and the number of a footnote with the rest."""
    why = _one_line("; ".join(filter(None, [row.group, row.why])))
    if why and why not in footnotes:
        footnotes.append(why)
    mark = f"[{footnotes.index(why) + 1}]" if why else ""
    return " ".join(filter(None, [row.section if row.section != "ranked" else "", mark]))


def _curve(row: TableRow, curves: Mapping[str, Curve]) -> Curve | None:
    return next((curves[i] for i in row.run_ids if i in curves), None)


def _sparks(table: Table, curves: Mapping[str, Curve]) -> list[tuple[str, list[str]]]:
    """A column of small curves on one scale, where any row has one."""
    found = [_curve(row, curves) for row in table.rows]
    there = [curve for curve in found if curve is not None]
    if not there:
        return []
    low, high = span(there)
    metrics = sorted({curve.metric for curve in there})
    texts = [sparkline(c.values, low, high, WIDTH) if c is not None else "" for c in found]
    return [(f"{', '.join(metrics)} over time", texts)]


def _width(column: tuple[str, list[str]]) -> int:
    return max(map(len, [column[0], *column[1]]))


def _one_line(text: str) -> str:
    """Text on one line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
