"""What an entry gives up for what it gains: two metrics of each row side by side, and who is on the front. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.cells import cell_of, column_of, gain
from harness.pareto import front
from harness.specs import Board, RunRecord
from harness.tables import Cell, Column, Table
from harness.types import MetricInfo

COSTS = ("cost.charged_s", "cost.peak_gib", "cost.total_s")
"""What is spent on a run: seconds and memory of its training, and seconds of all trainings behind it, trials too."""


@dataclass(frozen=True)
class Point:
    """One row of a table in a trade-off.

    Attributes:
        entry, title: of the row.
        x, y: means and intervals, as a table's cells.
        best: whether no other row of the main ranking beats it in both; None where it is not compared.
        why: why it is not compared.
    """

    entry: str
    title: str
    x: Cell
    y: Cell
    best: bool | None
    why: str = ""


@dataclass(frozen=True)
class TradeOff:
    """Two columns against each other, over the rows of the main ranking in their order."""

    x: Column
    y: Column
    points: tuple[Point, ...]

    @property
    def front(self) -> tuple[Point, ...]:
        """The points that nobody beats, best in `x` first."""
        sign = 1.0 if self.x.info.direction == "lower" else -1.0
        best = [point for point in self.points if point.best]
        return tuple(sorted(best, key=lambda p: (sign * (p.x.mean or 0.0), p.entry)))


def pairs_of(board: Board) -> list[tuple[str, str]]:
    """The trade-offs of a board: mem against util, and what it ranks by against seconds, memory and tuning.

    A composite stands for its variants: `util` is the board's first column `util` or `util.*`.
    """
    first = {name: _column_named(board, name) for name in ("mem", "util")}
    pairs = [(first["mem"], first["util"])] if first["mem"] and first["util"] else []
    return pairs + [(board.rank_by, cost) for cost in COSTS if cost != board.rank_by]


def trade_offs(
    table: Table, records: Iterable[RunRecord], metrics: Mapping[str, MetricInfo]
) -> tuple[TradeOff, ...]:
    """The trade-offs of a table's board, of those whose two columns have a direction.

    Args:
        table: its main ranking is what is compared: complete rows, and none that is ranked apart.
        records: those that the table was made from; they have the costs that are no columns.
        metrics: by id, those of the costs too.
    """
    by_id = {record.run_id: record for record in records}
    found = []
    for pair in pairs_of(table.board):
        x, y = (column_of(name, metrics) for name in pair)
        if all(column.info.direction in ("higher", "lower", "target") for column in (x, y)):
            found.append(trade_off(table, by_id, x, y))
    return tuple(found)


def trade_off(table: Table, records: Mapping[str, RunRecord], x: Column, y: Column) -> TradeOff:
    """Two columns of a table's ranked and incomplete rows; `records` by run id."""
    rows = [row for row in table.rows if row.section in ("ranked", "incomplete") and not row.group]
    cells = []
    for row in rows:
        runs = [records[i] for i in row.run_ids if i in records]
        cells.append((_cell(table, row.cells, x, runs), _cell(table, row.cells, y, runs)))
    points = [
        (_gain(x, a), _gain(y, b)) if row.section == "ranked" else (None, None)
        for row, (a, b) in zip(rows, cells, strict=True)
    ]
    best = front(points, ("higher", "higher"))
    left_out = {i for i, _ in best.left_out}
    return TradeOff(
        x, y,
        tuple(
            Point(row.entry, row.title, a, b, None if i in left_out else i in best.best, _why(row.section, a, b))
            for i, (row, (a, b)) in enumerate(zip(rows, cells, strict=True))
        ),
    )  # fmt: skip


def _cell(table: Table, cells: Sequence[Cell], column: Column, runs: Sequence[RunRecord]) -> Cell:
    """The table's own cell where it has the column, so that the two show the same number."""
    place = next((i for i, c in enumerate(table.columns) if c.id == column.id), None)
    return cell_of(column, runs) if place is None else cells[place]


def _gain(column: Column, cell: Cell) -> float | None:
    return None if cell.mean is None else gain(column.info, cell.mean)


def _why(section: str, x: Cell, y: Cell) -> str:
    if section != "ranked":
        return "the row lacks runs"
    return next((cell.why for cell in (x, y) if cell.mean is None), "")


def _column_named(board: Board, name: str) -> str | None:
    return next((c for c in board.columns if c == name or c.startswith(f"{name}.")), None)
