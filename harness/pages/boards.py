"""A page a board, the page with all of its runs, and the numbers that entries are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from harness.chains import AFTER
from harness.charts import interval_mark
from harness.markup import cut, data_block, page, slug
from harness.pages.content import BoardPage, Files
from harness.pages.downloads import board_files, files
from harness.pages.names import BODY, has_several_optimizers, names_of
from harness.pages.scatter import Dot, lay_out, scatter_chart
from harness.pages.words import board_bibtex, budget_text, command, hardware_of, stop_text, year_of
from harness.rank import value_of
from harness.reported import ReportedRow
from harness.sparkline import span, sparkline
from harness.specs import RunRecord, content_hash
from harness.tables import Cell, Table, TableRow, cell_text, heading, number
from harness.tradeoffs import TradeOff

SHOWN = 6
"""Columns that a table shows at first where a script can show the others."""


@dataclass(frozen=True)
class Line:
    """A table row with what only a page needs.

    Attributes:
        cells: each with the number of its footnote, or 0.
        mark: the interval's picture.
        anchor: where its runs are listed.
        spark: the small curve.
        optimizer: the row's, where the board has rows of several.
        trainings: how many stand behind each of its runs: of runs that differ in it, the most.
    """

    row: TableRow
    cells: Sequence[tuple[Cell, int]]
    mark: Markup
    anchor: str
    spark: str = ""
    optimizer: str = ""
    trainings: int = 1


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
    trainings = trainings_of(board.records) if board is not None else {}
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
        most = max((trainings.get(run, 1) for run in row.run_ids), default=1)
        lines.append(Line(row, cells, picture, anchor(row), spark, optimizer, most))
    return lines


def trainings_of(records: Iterable[RunRecord]) -> dict[str, int]:
    """Run id to the trainings behind the run; of a chain only its first run, as the others' ledgers have it too."""
    return {r.run_id: r.ledger.trainings for r in records if AFTER not in r.hashes}


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
        **(_reported_files(f"data/reported/{name}", board.reported) if board.reported else {}),
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
        "cite": board_bibtex(board, year_of(current)),
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


def _reported_files(base: str, rows: Sequence[ReportedRow]) -> Files:
    """Rows of papers for other programs: a column a metric, and one for its deviation where a paper gives any."""
    plain = ("title", "source", "model", "split", "reference", "note")
    lines = [
        {name: getattr(row, name) for name in plain} | {"reference": int(row.reference)} | row.values
        | {f"{metric} sd": sd for metric, sd in row.sd.items()}
        for row in rows
    ]  # fmt: skip
    metrics = sorted({key for line in lines for key in line} - set(plain))
    kinds = {name: int if name == "reference" else str for name in plain}
    return files(base, kinds | dict.fromkeys(metrics, float), lines)


def _told(row: ReportedRow, metric: str) -> tuple[float | None, str]:
    value = row.values.get(metric)
    return value, f"± {number(row.sd[metric], value)}" if metric in row.sd else ""


def _charts(table: Table, found: Sequence[TradeOff]) -> tuple[list[tuple[str, Markup]], Markup | None]:
    charts, data = [], {}
    names = names_of(table)
    for i, trade in enumerate(found):
        pairs = [
            (p, Dot(names[p.entry], p.x.mean, p.y.mean, bool(p.best), p.best is not None))
            for p in trade.points
            if p.x.mean is not None and p.y.mean is not None
        ]
        if len(pairs) < 2:
            continue
        dots, name = [dot for _, dot in pairs], f"trade-{i}"
        laid, title = lay_out(dots), f"{heading(trade.y)} against {heading(trade.x)}"
        labels = {"x_label": heading(trade.x), "y_label": heading(trade.y)}
        charts.append((name, scatter_chart(dots, title=title, name=name, layout=laid, **labels)))
        data[name] = {
            "kind": "scatter", "x": heading(trade.x), "y": heading(trade.y),
            "across": [laid.x_ticks[0], laid.x_ticks[-1]], "up": [laid.y_ticks[0], laid.y_ticks[-1]],
            "points": [
                [str(cut(names[p.entry], 120)), str(cut(p.entry, 120)), p.x.mean, p.y.mean, p.x.low, p.x.high,
                 p.y.low, p.y.high, bool(p.best), p.best is not None, cell_text(p.x), cell_text(p.y),
                 *laid.labels.get(k, ("", False))]
                for k, (p, _) in enumerate(pairs)
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
