"""A page a board, the page with all of its runs, and the numbers that entries are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from harness.charts import interval_mark
from harness.markup import cut, data_block, page, slug
from harness.pages.content import BoardPage, Files
from harness.pages.downloads import board_files
from harness.pages.scatter import Dot, scatter_chart
from harness.pages.words import board_bibtex, budget_text, command, hardware_of, stop_text
from harness.rank import value_of
from harness.reported import ReportedRow
from harness.sparkline import span, sparkline
from harness.specs import RunRecord, content_hash
from harness.tables import Cell, Table, TableRow, cell_text, heading, number
from harness.tradeoffs import TradeOff

SHOWN = 6
"""Columns that a table shows at first where a script can show the others."""
BODY = ("ranked", "incomplete", "reference")


@dataclass(frozen=True)
class Line:
    """A table row with what only a page needs.

    Attributes:
        cells: each with the number of its footnote, or 0.
        mark: the interval's picture.
        anchor: where its runs are listed.
        spark: the small curve.
        optimizer: the row's, where the board has rows of several.
    """

    row: TableRow
    cells: Sequence[tuple[Cell, int]]
    mark: Markup
    anchor: str
    spark: str = ""
    optimizer: str = ""


def lines_of(
    table: Table,
    rows: Sequence[TableRow],
    notes: dict[str, int] | None = None,
    board: BoardPage | None = None,
) -> list[Line]:
    """Rows for a template; reasons of missing values get a number in `notes`, in order of appearance."""
    notes = {} if notes is None else notes
    key = key_of(table)
    ends = [
        v for row in table.section(*BODY) for c in (row.cells[key],)
        for v in (c.mean, c.low, c.high) if v is not None
    ]  # fmt: skip
    over = (min(ends), max(ends)) if ends else (0.0, 1.0)
    curves = board.curves if board is not None else {}
    scale = span(list(curves.values())) if curves else (0.0, 1.0)
    several = has_several_optimizers(table)
    lines = []
    for row in rows:
        for cell in row.cells if row.section in BODY else row.cells[key : key + 1]:
            if cell.mean is None:
                notes.setdefault(cell.why, len(notes) + 1)
        cells = [(c, notes.get(c.why, 0) if c.mean is None else 0) for c in row.cells]
        main = row.cells[key]
        curve = next((curves[i] for i in row.run_ids if i in curves), None)
        spark = sparkline(curve.values, *scale) if curve is not None else ""
        picture = interval_mark(main.mean, main.low, main.high, over)
        optimizer = (row.optimizer or "") if several else ""
        lines.append(Line(row, cells, picture, anchor(row), spark, optimizer))
    return lines


def has_several_optimizers(table: Table) -> bool:
    """Whether titles alone do not tell a table's rows apart."""
    return len({row.optimizer for row in table.rows if row.optimizer}) > 1


def names_of(table: Table) -> dict[str, str]:
    """Entry to title, with the optimizer where the board has rows of several."""
    several = has_several_optimizers(table)
    return {
        row.entry: f"{row.title or row.entry}, {row.optimizer}" if several and row.optimizer else row.title or row.entry
        for row in table.rows
    }  # fmt: skip


def anchor(row: TableRow) -> str:
    """The same for the same row in every build: an entry can stand in several sections and groups."""
    return "e" + content_hash([row.entry, row.section, row.group, row.run_ids[:1]], 10)


def key_of(table: Table) -> int:
    """The place of the column that the board ranks by."""
    return next(i for i, column in enumerate(table.columns) if column.id == table.board.rank_by)


def board_part(env: Environment, board: BoardPage) -> Files:
    """All files of a board but its runs'."""
    name = slug(board.board.name)
    return {
        f"boards/{name}.html": page(env, "board.html", "../", **_values(board)),
        f"entries/{name}.html": page(env, "entries.html", "../", **_entries(board)),
        **board_files(board),
    }


def _values(page: BoardPage) -> dict[str, Any]:
    table, board = page.table, page.board
    notes: dict[str, int] = {}
    blocks: list[tuple[str, list[TableRow]]] = []
    for row in table.section("ranked", "incomplete"):
        if not blocks or blocks[-1][0] != row.group:
            blocks.append((row.group, []))
        blocks[-1][1].append(row)
    current = [r for r in page.records if r.board_version == board.board_version]
    charts, data = _charts(table, page.trade_offs)
    key = key_of(table)
    first = [key, *(i for i in range(len(table.columns)) if i != key)][:SHOWN]
    return {
        "page": page,
        "board": board,
        "table": table,
        "budget": budget_text(board),
        "stop": stop_text(board),
        "hardware": hardware_of(current),
        "cases": list(board.cases) or sorted({r.case for r in current}),
        "blocks": [(group, lines_of(table, rows, notes, page)) for group, rows in blocks],
        "references": lines_of(table, table.section("reference"), notes, page),
        "unranked": lines_of(table, table.section("unranked"), notes),
        "outdated": lines_of(table, table.section("outdated"), notes),
        "footnotes": notes,
        "reported": _reported(table, page.reported),
        "key": key,
        "hide": [column.id for i, column in enumerate(table.columns) if i not in first],
        "spark_of": ", ".join(sorted({curve.metric for curve in page.curves.values()})),
        "charts": charts,
        "chart_data": data,
        "cite": board_bibtex(board),
        "settings": sorted(board.settings.items()),
        "runs": len(page.records),
    }


def _reported(table: Table, rows: Sequence[ReportedRow]) -> dict[str, Any]:
    """Rows of papers over the table's columns that any of them has; in the order of the file."""
    there = [c for c in table.columns if c.case is None and any(c.metric in row.values for row in rows)]
    others = sorted({m for row in rows for m in row.values} - {c.metric for c in there})
    columns = [(heading(c), c.metric) for c in there] + [(name, name) for name in others]
    return {
        "columns": columns,
        "rows": [(row, [_told(row, metric) for _, metric in columns]) for row in rows],
    }


def _told(row: ReportedRow, metric: str) -> tuple[float | None, str]:
    value = row.values.get(metric)
    return value, f"± {number(row.sd[metric], value)}" if metric in row.sd else ""


def _charts(table: Table, found: Sequence[TradeOff]) -> tuple[list[tuple[str, Markup]], Markup | None]:
    charts, data = [], {}
    names = names_of(table)
    for i, trade in enumerate(found):
        dots = [
            Dot(names[p.entry], p.x.mean, p.y.mean, bool(p.best), p.best is not None)
            for p in trade.points
            if p.x.mean is not None and p.y.mean is not None
        ]
        name = f"trade-{i}"
        title = f"{heading(trade.y)} against {heading(trade.x)}"
        svg = scatter_chart(dots, title=title, x_label=heading(trade.x), y_label=heading(trade.y), name=name)
        if not svg:
            continue
        charts.append((name, svg))
        data[name] = {
            "kind": "scatter", "x": heading(trade.x), "y": heading(trade.y),
            "points": [
                [str(cut(names[p.entry], 120)), str(cut(p.entry, 120)), p.x.mean, p.y.mean, p.x.low, p.x.high,
                 p.y.low, p.y.high, bool(p.best), p.best is not None, cell_text(p.x), cell_text(p.y)]
                for p in trade.points if p.x.mean is not None and p.y.mean is not None
            ],
        }  # fmt: skip
    return charts, data_block("charts", data) if data else None


# --- all runs -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Entry:
    """An entry with its runs, in the order of the table."""

    row: TableRow
    anchor: str
    records: Sequence[tuple[RunRecord, float | None, str]]
    again: str


def _entries(board: BoardPage) -> dict[str, Any]:
    metric = board.board.rank_by.partition("@")[0]
    by_id = {r.run_id: r for r in board.records}
    entries = []
    for row in board.table.rows:
        mine = [by_id[run] for run in row.run_ids if run in by_id]
        mine.sort(key=lambda r: (r.case, r.seed, r.run_id))
        shown = [(r, *value_of(r, metric)) for r in mine]
        again = command(mine[0], seed=False) if mine else ""
        entries.append(Entry(row, anchor(row), shown, again))
    return {"board": board.board, "entries": entries, "metric": metric, "runs": len(board.records)}
