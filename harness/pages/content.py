"""What the pages are made from, and the unit in which they are made anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from harness.comparetables import Compared
from harness.overall import Standing
from harness.reported import ReportedRow
from harness.sparkline import Curve
from harness.specs import Board, RunRecord
from harness.tables import Table
from harness.tradeoffs import TradeOff
from harness.types import MetricInfo, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Files = dict[str, str | bytes]
"""Content by path in the site."""


@dataclass(frozen=True)
class MethodPage:
    """What is known of a submission besides its runs.

    Attributes:
        source: the text of its file.
        selector: whether it chooses among the trainings of another method, and so is submitted as `NAME:METHOD`.
        parts: of a `NAME:METHOD`, name and title of these two; its paper and its source are those of the first.
    """

    name: str
    title: str = ""
    paper: str = ""
    authors: str = ""
    goal: str = ""
    source: str = ""
    selector: bool = False
    parts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class BoardPage:
    """One board.

    Attributes:
        table: ranked.
        records: all of the board's, of every version.
        curves: by run id, what a row shows as its small curve.
        trade_offs: the board's.
        reported: rows that papers report at this board's setting.
        left_out: what these rows leave out, and why.
        key: anything that changes whenever table, curves or trade-offs do; without one their contents are looked at.
    """

    table: Table
    records: Sequence[RunRecord]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    trade_offs: Sequence[TradeOff] = ()
    reported: Sequence[ReportedRow] = ()
    left_out: str = ""
    key: str = ""

    @property
    def board(self) -> Board:
        """The board."""
        return self.table.board


@dataclass(frozen=True)
class Site:
    """Everything that the pages show. What is large may be a mapping that loads a run when it is asked for one.

    Attributes:
        boards: in any order; pages sort them by name.
        methods: those with a file. Submissions that only records name get a page too.
        metrics: descriptions by id, for headings and the glossary.
        rows: run id to its long per-row table, all of it, as lines or as an Arrow table; runs without one show no
            questions.
        files: run id to its record, and to the Parquet file of its rows or None, as they are kept; what is not here is
            written anew.
        trajectories: run id to its curve.
        relearning: run id to its relearning curves, as `Store.load_relearning_of` gives them.
        standings: all methods over all boards, in order (`overall.standings`).
        comparisons: of optimizers, each with its records and trajectories.
        stamps: run id to anything that changes whenever its record does. A run without one is known by its content.
        year: of the latest run, for citing all of it.
        title: of the site.
    """

    boards: Sequence[BoardPage]
    methods: Sequence[MethodPage] = ()
    metrics: Mapping[str, MetricInfo] = field(default_factory=dict)
    rows: Mapping[str, Sequence[Mapping[str, Any]] | pa.Table] = field(default_factory=dict)
    files: Mapping[str, tuple[str, bytes | None]] = field(default_factory=dict)
    trajectories: Mapping[str, Trajectory] = field(default_factory=dict)
    relearning: Mapping[str, Sequence[tuple[str, str, int, float]]] = field(default_factory=dict)
    standings: Sequence[Standing] = ()
    comparisons: Sequence[Compared] = ()
    stamps: Mapping[str, str] = field(default_factory=dict)
    year: str = ""
    title: str = "uharness"


def of_runs(found: Mapping[str, T], run_ids: Sequence[str]) -> Mapping[str, T]:
    """What is known of some runs; read together where it is read as it is asked for."""
    many: Callable[[Sequence[str]], Mapping[str, T]] | None = getattr(found, "many", None)
    return found if many is None else many(run_ids)


@dataclass(frozen=True)
class Part:
    """Some files of the site that are made together.

    Attributes:
        name: unique in a site, such as `runs/npo-c1-0`; a part keeps its name while its content changes.
        key: the same key means the same files, over builds and machines; the code of the pages is in it.
        make: makes the files; only called when they are needed.
    """

    name: str
    key: str
    make: Callable[[], Files]
