"""One board as everybody shows it: the table that the terminal, the pages and exports share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import preflight
from harness.errors import UharnessError
from harness.overall import Standing, standings
from harness.rank import rank
from harness.robustness.report import comparable
from harness.sparkline import Curve
from harness.specs import Board, RunRecord
from harness.store import Store
from harness.tables import Table
from harness.targets import target_of
from harness.tradeoffs import TradeOff, trade_offs
from harness.types import MetricInfo
from harness.workspace import Workspace


@dataclass(frozen=True)
class Leaderboard:
    """A board's table and what it was made from.

    Attributes:
        table: ranked, with per-row values where the records have them.
        records: all of the board's, of every version.
        curves: by run id, of the metric that `curve_metrics` names first and the run has.
        trade_offs: the board's standard ones.
    """

    table: Table
    records: tuple[RunRecord, ...]
    curves: Mapping[str, Curve]
    trade_offs: tuple[TradeOff, ...]


def load(
    store: Store,
    board: Board,
    metrics: Mapping[str, MetricInfo],
    cases: Sequence[str] = (),
    records: Sequence[RunRecord] | None = None,
) -> Leaderboard:
    """Reads a board's records, per-row values and curves, and ranks them.

    Args:
        store: up to date with its files.
        board: which.
        metrics: what its columns mean, by metric id.
        cases: the cases that an entry must have; see `rank.rank`.
        records: the board's, where they are at hand.
    """
    wanted = sorted({column.partition("@")[0] for column in board.columns})
    with store.at_once():
        records = comparable(board, store.load_records(board.name) if records is None else records)
        rows = store.load_row_values(board.name, wanted) if records else {}
        curves = store.load_curves(board.name, curve_metrics(board)) if records else {}
    table = rank(board, records, metrics, cases=cases, rows=rows)
    return Leaderboard(table, tuple(records), curves, trade_offs(table, records, metrics))


def meanings(workspace: Workspace, board: Board) -> tuple[dict[str, MetricInfo], tuple[str, ...]]:
    """Metrics and cases of a board; of one whose data are not here, only what every run has."""
    try:
        known = preflight.described(board, workspace)
    except UharnessError:
        return dict(preflight.COST_COLUMNS), board.cases
    return dict(known.metrics), tuple(known.cases)


def overall(workspace: Workspace, store: Store) -> tuple[Standing, ...]:
    """All methods over all boards of a workspace, as `overall.standings` has them."""
    boards = [workspace.board(name) for name in workspace.board_names()]
    found = [load(store, board, *meanings(workspace, board)) for board in boards]
    timed = any(target_of(board) is not None for board in boards)
    trajectories = store.load_all_trajectories() if timed else {}
    return standings([b.table for b in found], {b.table.board.name: b.records for b in found}, trajectories)


def curve_metrics(board: Board) -> list[str]:
    """Whose curve stands beside a row: the target's, what the board ranks by, or how much is still remembered."""
    target = target_of(board)
    named = [target.metric] if target is not None else []
    return list(dict.fromkeys([*named, board.rank_by.partition("@")[0], "forget.p", "forget.prob"]))
