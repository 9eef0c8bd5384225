"""What a leaderboard table is, and how its numbers look: the same on a page, in a terminal and in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.specs import Board
from harness.types import MetricInfo

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
