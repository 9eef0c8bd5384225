"""All boards at once: mean rank, and performance profiles over time-to-target. Pure.

The same method is another entry on every board, because its settings differ; across boards it is known by its
submission and its optimizer. Where a board has several of its entries, the first of them in the table's order stands
for it, and `entries` tells how many there were to be the first of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.profiles import Profile, profiles
from harness.specs import RunRecord
from harness.tables import Table, TableRow
from harness.targets import target_of, times_to_target
from harness.types import Trajectory

Who = tuple[str, str]
"""A submission and its optimizer."""
Workload = tuple[str, str, int]
"""A board, a case and a seed."""


@dataclass(frozen=True)
class Place:
    """Where a method stands on one board.

    Attributes:
        entry: the entry that stands for it; empty where it has none.
        rank: its rank there, or one more than the number of ranked entries where it has none.
        ranked: whether it has one.
        entries: how many of its entries are in the board's main ranking.
        why: why it has no rank.
        timed: whether it has times here: a rank on a board with a target, and a trajectory of any of its runs.
    """

    board: str
    entry: str
    rank: int
    ranked: bool
    entries: int
    why: str = ""
    timed: bool = False


@dataclass(frozen=True)
class Standing:
    """One method over all boards.

    Attributes:
        submission, optimizer, title: who.
        mean_rank: over all boards that rank anybody; a board it is not ranked on counts as one behind the last.
        boards: how many of them it is ranked on.
        places: one per board that ranks anybody, by name.
        profile: over the (board, case, seed) workloads of boards with a target; None where it has times on none.
    """

    submission: str
    optimizer: str
    title: str
    mean_rank: float
    boards: int
    places: tuple[Place, ...]
    profile: Profile | None


def standings(
    tables: Sequence[Table],
    records: Mapping[str, Sequence[RunRecord]] | None = None,
    trajectories: Mapping[str, Trajectory] | None = None,
) -> tuple[Standing, ...]:
    """All methods that are ranked on some board, by mean rank, then by profile score, then by name.

    Args:
        tables: one per board, in any order.
        records: those of each board by its name; with `trajectories`, they give the profiles.
        trajectories: by run id.
    """
    used = sorted(
        (t for t in tables if any(row.rank is not None for row in _main(t))), key=lambda t: t.board.name
    )
    rows = {table.board.name: _by_method(table) for table in used}
    titles = {who: mine[0].title for found in rows.values() for who, mine in found.items()}
    curves = trajectories if records and trajectories else {}
    profiled = time_profiles(used, records or {}, curves)
    found = []
    for who in sorted({who for by in rows.values() for who, mine in by.items() if mine[0].rank is not None}):
        places = tuple(_place(table, rows[table.board.name].get(who, []), curves) for table in used)
        mean = sum(place.rank for place in places) / len(places)
        ranked_on = sum(place.ranked for place in places)
        profile = profiled.get(who) if any(place.timed for place in places) else None
        found.append(Standing(*who, titles[who], mean, ranked_on, places, profile))
    return tuple(sorted(found, key=lambda s: (s.mean_rank, -_score(s), s.submission, s.optimizer)))


def timed_boards(found: Sequence[Standing]) -> list[str]:
    """The boards that the profiles are over, by name."""
    return sorted({place.board for standing in found for place in standing.places if place.timed})


def time_profiles(
    tables: Sequence[Table],
    records: Mapping[str, Sequence[RunRecord]],
    trajectories: Mapping[str, Trajectory],
) -> dict[Who, Profile]:
    """Profiles over the time to each board's target of the entries that stand for the methods.

    A board counts when it has a target and at least one of its runs has a trajectory: each of its cases and seeds is
    a workload, and a method without a complete row on it reached none of them.
    """
    workloads: set[Workload] = set()
    times: dict[Who, dict[Workload, float | None]] = {}
    for table in tables:
        name, target = table.board.name, target_of(table.board)
        by_id = {record.run_id: record for record in records.get(name, ())}
        for who, mine in _by_method(table).items():
            times.setdefault(who, {})
            if target is None or not _is_timed(table, mine[0], trajectories):
                continue
            runs = [by_id[i] for i in mine[0].run_ids if i in by_id]
            for (_, case, seed), reached in times_to_target(target, runs, trajectories).items():
                workloads.add((name, case, seed))
                times[who][(name, case, seed)] = reached.charged_s
    return profiles(times, sorted(workloads)) if workloads else {}


def _is_timed(table: Table, row: TableRow, trajectories: Mapping[str, Trajectory]) -> bool:
    ranked = target_of(table.board) is not None and row.rank is not None
    return ranked and any(run in trajectories for run in row.run_ids)


def _main(table: Table) -> list[TableRow]:
    """Rows of the main ranking; those that are ranked apart are compared with nobody."""
    return [row for row in table.section("ranked", "incomplete") if not row.group]


def _by_method(table: Table) -> dict[Who, list[TableRow]]:
    found: dict[Who, list[TableRow]] = {}
    for row in _main(table):
        found.setdefault((row.submission, row.optimizer or ""), []).append(row)
    return found


def _place(table: Table, mine: Sequence[TableRow], trajectories: Mapping[str, Trajectory]) -> Place:
    ranked = sum(row.rank is not None for row in _main(table))
    if not mine:
        return Place(table.board.name, "", ranked + 1, False, 0, "no entry on this board")
    first = mine[0]
    if first.rank is None:
        why = first.why or "it lacks what the board ranks by"
        return Place(table.board.name, first.entry, ranked + 1, False, len(mine), why)
    timed = _is_timed(table, first, trajectories)
    return Place(table.board.name, first.entry, first.rank, True, len(mine), timed=timed)


def _score(standing: Standing) -> float:
    score = standing.profile.score if standing.profile is not None else None
    return -1.0 if score is None else score
