"""From records and a board to a table: means, intervals, ranks and ties. Pure: no database, no files.

How a table comes about:

- A row is an entry, over the board's cases and seeds. Several runs of one (entry, case, seed) are averaged
  first.
- Only runs of the current board version, of the board's seeds and cases, with a status that is ranked, go
  into a ranked row. Everything else is listed apart with its reason; nothing is left out.
- Rank = 1 + the number of entries that are significantly better on `rank_by`: a stratified paired t test over
  the shared (case, seed) runs, with the paired bootstrap's variance over the shared rows where the metric is
  a mean over rows (`paired`, `bootstrap`), Holm-corrected over all pairs of the group, at .05. Ties share a
  rank, and are ordered by their mean. With a target, what is compared is the mean distance to it.
- Budgets in seconds are compared only within one hardware string, and rows picked by the full metric only
  with each other: such groups are ranked apart.
- A missing value is missing: the cell has no mean and says why, and sorts last in either direction. A row
  that lacks runs is incomplete: it is below the complete ones and has no rank.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from harness.cells import (
    Key,
    Points,
    Rows,
    Values,
    cell_at,
    cell_of,
    column_of,
    gain,
    grouped,
    joined,
    points_of,
    row_sets,
    strata,
    value_of,
    values_at,
)
from harness.intervals import estimate
from harness.paired import count_better
from harness.specs import RANKED_STATUSES, Board, RunRecord
from harness.tables import STATUS_TEXT, Column, Section, Table, TableRow
from harness.types import MetricInfo

ALPHA = 0.05
UNEVEN = 0.2
"""Budgets in seconds that differ by more than this share are told of."""
FULL_METRIC = "picked by the full metric"

RowSets = Mapping[tuple[str, ...], np.ndarray]
"""What each set of shared rows adds to an entry's mean (`cells.row_sets`)."""

__all__ = ["ALPHA", "cell_of", "column_of", "gain", "rank", "value_of"]


def rank(
    board: Board,
    records: Iterable[RunRecord],
    metrics: Mapping[str, MetricInfo],
    *,
    cases: Sequence[str] = (),
    board_version: str | None = None,
    rows: Rows | None = None,
) -> Table:
    """Makes the table of `board` from records; those of other boards are passed over.

    Args:
        board: says columns, seeds, what to rank by.
        records: in any order; the result does not depend on it.
        metrics: by metric id. A column without one has no direction.
        cases: the cases that an entry must have. Default: the board's, else all that its records have.
        board_version: the one that is ranked. Default: the board's own.
        rows: per-row values by run and metric; a metric without them has what its seeds tell.
    """
    version = board_version or board.board_version
    mine = sorted(
        (r for r in records if r.board == board.name), key=lambda r: (r.entry, r.case, r.seed, r.run_id)
    )
    current = [r for r in mine if r.board_version == version]
    outdated = [r for r in mine if r.board_version != version]
    columns = tuple(column_of(name, metrics) for name in board.columns)
    key = next(column for column in columns if column.id == board.rank_by)
    asked = cases or board.cases or sorted({r.case for r in current if r.status != "imported"})
    maker = _Maker(
        columns, tuple((case, seed) for case in asked for seed in board.seeds), current, rows or {}
    )
    plan = set(maker.plan)
    usable = [r for r in current if r.status in RANKED_STATUSES and (r.case, r.seed) in plan]
    main = _main_hardware(board, usable)
    groups: dict[str, list[tuple[TableRow, Points]]] = {}
    for (group, _), runs in grouped(usable, lambda r: (_group(board, r, main), r.entry)).items():
        groups.setdefault(group, []).append((maker.row(runs, "ranked", group), points_of(runs)))
    found = [row for group in sorted(groups) for row in _ranked(groups[group], key, maker.rows)]
    found += maker.apart({r.run_id for r in usable})
    for (_, other), runs in grouped(outdated, lambda r: (r.entry, r.board_version)).items():
        why = f"board version {other}; the current one is {version}"
        found.append(replace(maker.row(runs, "outdated", ""), why=why))
    order = {"ranked": 0, "incomplete": 0, "reference": 1, "unranked": 2, "outdated": 3}
    found.sort(key=lambda row: order[row.section])
    notes = [*_notes(board, key, found, main), *_uneven(board, usable)]
    return Table(board, columns, tuple(found), tuple(notes))


def _ranked(entries: Sequence[tuple[TableRow, Points]], key: Column, rows: Rows) -> list[TableRow]:
    """The rows of one group with their ranks, in order."""
    info = key.info
    has_direction = info.direction in ("higher", "lower") or (
        info.direction == "target" and info.target is not None
    )
    gains = {}
    if has_direction:
        found = {row.entry: values_at(key, points) for row, points in entries}
        gains = {entry: _gains(info, values) for entry, values in found.items() if _whole(values)}
    compared = [
        (row.entry, points) for row, points in entries if row.section == "ranked" and row.entry in gains
    ]
    linear = info.direction != "target"
    sets = {entry: row_sets(key, points, rows) for entry, points in compared if rows and linear}
    worse = _significantly_worse({entry: gains[entry] for entry, _ in compared}, sets)
    ranks = {entry: 1 + worse.get(entry, 0) for entry, _ in compared}
    means = {entry: estimate(strata(values)).mean for entry, values in gains.items()}

    def place(row: TableRow) -> tuple[bool, float, bool, float, str]:
        mean = means.get(row.entry)
        return (
            row.section == "incomplete",
            ranks.get(row.entry, math.inf),
            mean is None,
            -(mean or 0.0),
            row.entry,
        )

    return sorted((replace(row, rank=ranks.get(row.entry)) for row, _ in entries), key=place)


def _whole(values: Values) -> bool:
    return bool(values) and all(value is not None for value, _ in values.values())


def _gains(info: MetricInfo, values: Values) -> dict[Key, float]:
    return {key: gain(info, value) for key, (value, _) in values.items() if value is not None}


def _significantly_worse(
    gains: Mapping[str, Mapping[Key, float]], sets: Mapping[str, RowSets]
) -> dict[str, int]:
    """How many entries are significantly better than each; all have values at the same (case, seed) runs."""
    names = sorted(gains)
    by_case = [strata(gains[name]) for name in names]
    if len(names) < 2 or min(map(len, by_case[0])) < 2:
        return {}
    matrix = np.array([[value for case in cases for value in case] for cases in by_case])
    shared = [ids for ids in sets.get(names[0], {}) if all(ids in sets[name] for name in names)]
    rows = [np.array([sets[name][ids] for name in names]) for ids in shared]
    counts = count_better(matrix, [len(case) for case in by_case[0]], rows, alpha=ALPHA)
    return dict(zip(names, counts.tolist(), strict=True))


def _hardware(record: RunRecord) -> str:
    return str(record.env.get("hardware") or "unknown hardware")


def _main_hardware(board: Board, usable: Sequence[RunRecord]) -> str:
    """The hardware string with most (entry, case, seed) runs; the first in alphabetical order of equals."""
    if board.budget.kind != "seconds":
        return ""
    counts = Counter(
        h for h, *_ in {(_hardware(r), r.entry, r.case, r.seed) for r in usable if not r.reference}
    )
    return min(counts, key=lambda h: (-counts[h], h), default="")


def _group(board: Board, record: RunRecord, main: str) -> str:
    if record.reference:
        return ""
    apart = []
    if board.budget.kind == "seconds" and _hardware(record) != main:
        apart.append(f"on {_hardware(record)}")
    if record.selection.kind == "full_metric":
        apart.append(FULL_METRIC)
    return ", ".join(apart)


@dataclass(frozen=True)
class _Maker:
    columns: tuple[Column, ...]
    plan: tuple[Key, ...]
    current: Sequence[RunRecord]
    rows: Rows

    @cached_property
    def of_entry(self) -> Mapping[tuple[str], Sequence[RunRecord]]:
        """The runs of this version of each entry."""
        return grouped(self.current, lambda r: (r.entry,))

    def row(self, runs: Sequence[RunRecord], section: Section, group: str) -> TableRow:
        """A row over `runs` of one entry; `ranked` becomes `reference` or `incomplete` where it is."""
        first = runs[0]
        points = points_of(runs)
        missing = [key for key in self.plan if key not in points]
        counted, why = runs, ""
        if section == "ranked":
            section = "reference" if first.reference else "incomplete" if missing else "ranked"
            counted = self.of_entry[(first.entry,)]
            why = self._lacks(counted, missing) if missing else ""
        if drifted := [r for r in runs if r.status == "drift"]:
            reasons = joined(_reason(r) for r in drifted)
            why += f"{'; ' if why else ''}{len(drifted)} of {len(runs)} runs: {reasons}"
        counts = Counter(r.status for r in counted)
        return TableRow(
            entry=first.entry,
            submission=first.submission,
            title=first.title or first.submission,
            optimizer=next((r.used_optimizer for r in runs if r.used_optimizer), None),
            section=section,
            group=group,
            rank=None,
            cells=tuple(cell_at(column, points, self.rows) for column in self.columns),
            runs=len(points),
            planned=len(self.plan),
            statuses=tuple((status, counts[status]) for status in STATUS_TEXT if counts[status]),
            reference=first.reference,
            complete=not missing,
            why=why,
            run_ids=tuple(sorted(r.run_id for r in runs)),
        )

    def apart(self, used: Set[str]) -> list[TableRow]:
        """Rows for the runs of this version that are not ranked: one per entry and kind of reason."""
        asked = {case for case, _ in self.plan}

        def kind(run: RunRecord) -> str:
            if run.status not in RANKED_STATUSES:
                return run.status
            lacks = "this seed" if run.case in asked else f"case {run.case}"
            return f"the board does not have {lacks}"

        rows = []
        for (_, what), runs in grouped(
            (r for r in self.current if r.run_id not in used), lambda r: (r.entry, kind(r))
        ).items():
            whys = {_reason(r) for r in runs} if what in STATUS_TEXT else {what}
            rows.append(replace(self.row(runs, "unranked", ""), why=joined(whys)))
        return rows

    def _lacks(self, runs: Sequence[RunRecord], missing: Sequence[Key]) -> str:
        """Which runs are missing, with what became of them."""
        several = len({case for case, _ in self.plan}) > 1
        parts = []
        for case, seed in missing[:3]:
            ends = {
                _reason(r)
                for r in runs
                if (r.case, r.seed) == (case, seed) and r.status not in RANKED_STATUSES
            }
            what = f"{case} seed {seed}" if several else f"seed {seed}"
            parts.append(f"{what} ({joined(ends)})" if ends else what)
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"{len(self.plan) - len(missing)} of {len(self.plan)} runs; missing: {', '.join(parts)}{more}"


def _reason(run: RunRecord) -> str:
    return f"{run.status}: {run.error or STATUS_TEXT[run.status]}"


def _shared(ranked: Sequence[TableRow], seeds: int) -> str:
    """How many pairs of the main ranking could be told apart, where some share a rank; empty where none do.

    A rank is 1 + the entries that are significantly better, so the ranks add up to the pairs that differ.
    """
    pairs = math.comb(len(ranked), 2)
    differ = sum((row.rank or 1) - 1 for row in ranked)
    if differ == pairs:
        return ""
    cases = ranked[0].planned // seeds
    asked = f"{seeds} seeds" + (f" of each of {cases} cases" if cases > 1 else "")
    told = f"of {pairs} pairs {differ} differ" if pairs > 1 else "the pair does not differ"
    return f"{len(ranked)} entries, {asked}: {told} after correction; a shared rank is no equality"


def _uneven(board: Board, usable: Sequence[RunRecord]) -> list[str]:
    """A budget in reference steps is timed for each submission; which entries had far more or less time than most.

    Their machine was slower or faster then. So it should even out, but only if it stayed so.
    """
    if board.budget.reference_steps is None:
        return []
    notes = []
    trained = [r for r in usable if r.charged_s and r.budget.get("seconds")]
    for (hardware,), runs in sorted(grouped(trained, lambda r: (_hardware(r),)).items()):
        given = {
            entry: (some[0].title or entry, statistics.median(r.budget["seconds"] for r in some))
            for (entry,), some in grouped(runs, lambda r: (r.entry,)).items()
        }
        usual = statistics.median(seconds for _, seconds in given.values())
        far = sorted((s, title) for title, s in given.values() if abs(s / usual - 1.0) > UNEVEN)
        if far:
            which = ", ".join(f"{title} {seconds:.3g} s" for seconds, title in far[:8])
            more = f" and {len(far) - 8} more" if len(far) > 8 else ""
            notes.append(
                f"{board.budget.reference_steps} reference steps took {usual:.3g} s when most entries were measured on "
                f"{hardware}, and more than a fifth more or less for {len(far)}: {which}{more}"
            )
    return notes


def _notes(board: Board, key: Column, rows: Sequence[TableRow], main: str) -> tuple[str, ...]:
    """What a reader of the table must know."""
    notes = []
    ranked = [row for row in rows if row.rank is not None]
    groups = sorted({row.group for row in rows if row.group})
    if len(board.seeds) == 1 and ranked:
        notes.append(
            "one seed: differences cannot be tested, so all share rank 1; the order is that of the mean"
        )
    elif shared := _shared([row for row in ranked if not row.group], len(board.seeds)):
        notes.append(shared)
    if board.budget.kind == "updates":
        notes.append("not equal time: the budget is a number of updates")
    if key.info.direction == "none":
        notes.append(f"nothing is ranked: {key.metric} has no direction")
    elif key.info.direction == "target" and key.info.target is None:
        notes.append(f"nothing is ranked: {key.metric} has a target, but no number was given for it")
    if any(group.startswith("on ") for group in groups):
        notes.append(f"a budget in seconds compares only runs on one machine: the main ranking is on {main}")
    if any(FULL_METRIC in group for group in groups):
        notes.append(f"rows {FULL_METRIC} saw what they are scored by: they are ranked apart")
    if outdated := sum(len(row.run_ids) for row in rows if row.section == "outdated"):
        runs = "1 run" if outdated == 1 else f"{outdated} runs"
        notes.append(f"{runs} of other versions of this board: listed apart")
    return tuple(notes)
