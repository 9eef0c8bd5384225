"""From records and a board to a table: means, intervals, ranks and ties. Pure: no database, no files.

How a table comes about:

- A row is an entry, over the board's cases and seeds. Several runs of one (entry, case, seed) are averaged
  first.
- Only runs of the current board version, of the board's seeds and cases, with a status that is ranked, go
  into a ranked row. Everything else is listed apart with its reason; nothing is left out.
- Rank = 1 + the number of entries that are significantly better on `rank_by`: stratified paired t over the
  shared (case, seed) runs, Holm-corrected over all pairs of the group, at .05. Ties share a rank, and are
  ordered by their mean. With a target, what is compared is the mean distance to it.
- Budgets in seconds are compared only within one hardware string, and rows picked by the full metric only
  with each other: such groups are ranked apart.
- A missing value is missing: the cell has no mean and says why, and sorts last in either direction. A row
  that lacks runs is incomplete: it is below the complete ones and has no rank.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

from harness.intervals import estimate, holm, paired_p
from harness.specs import RANKED_STATUSES, Board, RunRecord
from harness.tables import STATUS_TEXT, Cell, Column, Section, Table, TableRow
from harness.types import MetricInfo

ALPHA = 0.05
FULL_METRIC = "picked by the full metric"

Key = tuple[str, int]
"""A case and a seed."""
T = TypeVar("T")
K = TypeVar("K", bound=tuple)


def rank(
    board: Board,
    records: Iterable[RunRecord],
    metrics: Mapping[str, MetricInfo],
    *,
    cases: Sequence[str] = (),
    board_version: str | None = None,
) -> Table:
    """Makes the table of `board` from records; those of other boards are passed over.

    Args:
        board: says columns, seeds, what to rank by.
        records: in any order; the result does not depend on it.
        metrics: by metric id. A column without one has no direction.
        cases: the cases that an entry must have. Default: the board's, else all that its records have.
        board_version: the one that is ranked. Default: the board's own.
    """
    version = board_version or board.board_version
    mine = sorted(
        (r for r in records if r.board == board.name), key=lambda r: (r.entry, r.case, r.seed, r.run_id)
    )
    current = [r for r in mine if r.board_version == version]
    outdated = [r for r in mine if r.board_version != version]
    columns = tuple(_column(name, metrics) for name in board.columns)
    key = next(column for column in columns if column.id == board.rank_by)
    asked = cases or board.cases or sorted({r.case for r in current if r.status != "imported"})
    maker = _Maker(columns, tuple((case, seed) for case in asked for seed in board.seeds), current)
    usable = [r for r in current if r.status in RANKED_STATUSES and (r.case, r.seed) in set(maker.plan)]
    main = _main_hardware(board, usable)
    groups: dict[str, list[tuple[TableRow, Values]]] = {}
    for (group, _), runs in _by(usable, lambda r: (_group(board, r, main), r.entry)).items():
        groups.setdefault(group, []).append((maker.row(runs, "ranked", group), _values(key, runs)))
    rows = [row for group in sorted(groups) for row in _ranked(groups[group], key.info)]
    rows += maker.apart({r.run_id for r in usable})
    for (_, other), runs in _by(outdated, lambda r: (r.entry, r.board_version)).items():
        why = f"board version {other}; the current one is {version}"
        rows.append(replace(maker.row(runs, "outdated", ""), why=why))
    order = {"ranked": 0, "incomplete": 0, "reference": 1, "unranked": 2, "outdated": 3}
    rows.sort(key=lambda row: order[row.section])
    return Table(board, columns, tuple(rows), _notes(board, key, rows, main))


def _ranked(entries: Sequence[tuple[TableRow, Values]], info: MetricInfo) -> list[TableRow]:
    """The rows of one group with their ranks, in order."""
    has_direction = info.direction in ("higher", "lower") or (
        info.direction == "target" and info.target is not None
    )
    gains = {
        row.entry: {key: gain(info, value) for key, (value, _) in values.items() if value is not None}
        for row, values in entries
        if has_direction and values and all(value is not None for value, _ in values.values())
    }
    compared = [row.entry for row, _ in entries if row.section == "ranked" and row.entry in gains]
    worse = _significantly_worse({entry: gains[entry] for entry in compared})
    ranks = {entry: 1 + worse[entry] for entry in compared}

    def place(row: TableRow) -> tuple[bool, float, bool, float, str]:
        mean = estimate(_strata(gains[row.entry])).mean if row.entry in gains else None
        return (
            row.section == "incomplete",
            ranks.get(row.entry, math.inf),
            mean is None,
            -(mean or 0.0),
            row.entry,
        )

    rows = [replace(row, rank=ranks.get(row.entry)) for row, _ in entries]
    return sorted(rows, key=place)


def _significantly_worse(gains: Mapping[str, Mapping[Key, float]]) -> Counter[str]:
    """How many entries are significantly better than each."""
    tested: list[tuple[str, float]] = []
    for a, b in combinations(sorted(gains), 2):
        shared = sorted(set(gains[a]) & set(gains[b]))
        differences = _strata({key: _difference(gains[a][key], gains[b][key]) for key in shared})
        p = paired_p(differences)
        if p is not None:
            tested.append((b if estimate(differences).mean > 0 else a, p))
    adjusted = holm([p for _, p in tested])
    return Counter(loser for (loser, _), p in zip(tested, adjusted, strict=True) if p < ALPHA)


def _difference(a: float, b: float) -> float:
    """Half of a - b, which cannot overflow; zero where they differ by rounding only."""
    return 0.0 if math.isclose(a, b, rel_tol=1e-12) else 0.5 * a - 0.5 * b


def _strata(values: Mapping[Key, float]) -> list[list[float]]:
    """One list of values per case."""
    return [
        [value for _, value in group]
        for group in _by(sorted(values.items()), lambda kv: (kv[0][0],)).values()
    ]


def value_of(record: RunRecord, metric: str) -> tuple[float | None, str]:
    """A metric's value in a record, or None and why; `cost.*` come from the record itself."""
    if metric in record.scores:
        score = record.scores[metric]
        return score.value, score.why or ("" if score.value is not None else "no reason was recorded")
    costs = {
        "cost.charged_s": record.charged_s,
        "cost.updates": record.updates,
        "cost.peak_gib": record.peak_gib,
        "cost.total_s": record.ledger.charged_s,
    }
    if metric in costs:
        cost = costs[metric]
        return (None, "not measured") if cost is None else (float(cost), "")
    return None, record.error or f"{metric} is not in the record"


def gain(info: MetricInfo, value: float) -> float:
    """The value turned so that more is better: its negative, or minus the distance to the target."""
    if info.direction == "target" and info.target is not None:
        return -min(abs(value - info.target), sys.float_info.max)
    return -value if info.direction == "lower" else value


def _column(name: str, metrics: Mapping[str, MetricInfo]) -> Column:
    metric, _, case = name.partition("@")
    unknown = MetricInfo(metric, "none", None, None, "", "This metric has no description.")
    return Column(name, metric, case or None, metrics.get(metric, unknown))


def _by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by key, keys sorted; within a key in the order given."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return dict(sorted(groups.items()))


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


Values = Mapping[Key, tuple[float | None, str]]
"""What each (case, seed) came to, or None and why."""


@dataclass(frozen=True)
class _Maker:
    columns: tuple[Column, ...]
    plan: tuple[Key, ...]
    current: Sequence[RunRecord]

    def row(self, runs: Sequence[RunRecord], section: Section, group: str) -> TableRow:
        """A row over `runs` of one entry; `ranked` becomes `reference` or `incomplete` where it is."""
        first = runs[0]
        points = {(r.case, r.seed) for r in runs}
        missing = [key for key in self.plan if key not in points]
        counted, why = runs, ""
        if section == "ranked":
            section = "reference" if first.reference else "incomplete" if missing else "ranked"
            counted = [r for r in self.current if r.entry == first.entry]
            why = self._lacks(counted, missing) if missing else ""
        if drifted := [r for r in runs if r.status == "drift"]:
            reasons = _joined(_reason(r) for r in drifted)
            why += f"{'; ' if why else ''}{len(drifted)} of {len(runs)} runs: {reasons}"
        counts = Counter(r.status for r in counted)
        return TableRow(
            entry=first.entry,
            submission=first.submission,
            title=first.title or first.submission,
            optimizer=first.optimizer,
            section=section,
            group=group,
            rank=None,
            cells=tuple(_cell(column, runs) for column in self.columns),
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
            return "the board does not have this " + ("seed" if run.case in asked else "case")

        rows = []
        for (_, what), runs in _by(
            (r for r in self.current if r.run_id not in used), lambda r: (r.entry, kind(r))
        ).items():
            whys = {_reason(r) for r in runs} if what in STATUS_TEXT else {what}
            rows.append(replace(self.row(runs, "unranked", ""), why=_joined(whys)))
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
            parts.append(f"{what} ({_joined(ends)})" if ends else what)
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"{len(self.plan) - len(missing)} of {len(self.plan)} runs; missing: {', '.join(parts)}{more}"


def _reason(run: RunRecord) -> str:
    return f"{run.status}: {run.error or STATUS_TEXT[run.status]}"


def _joined(whys: Iterable[str]) -> str:
    """Distinct reasons in one line, the first three of them."""
    texts = sorted(set(whys))
    return "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more reasons" if len(texts) > 3 else "")


def _point(runs: Sequence[RunRecord], metric: str) -> tuple[float | None, str]:
    """One (case, seed): the mean over its repeats; missing where one of them is."""
    values = []
    for run in runs:
        value, why = value_of(run, metric)
        if value is None:
            return None, why
        values.append(value)
    return estimate([values]).mean, ""


def _values(column: Column, runs: Sequence[RunRecord]) -> Values:
    mine = [r for r in runs if column.case in (None, r.case)]
    return {
        key: _point(repeats, column.metric) for key, repeats in _by(mine, lambda r: (r.case, r.seed)).items()
    }


def _cell(column: Column, runs: Sequence[RunRecord]) -> Cell:
    values = _values(column, runs)
    there = {key: value for key, (value, _) in values.items() if value is not None}
    if not values:
        return Cell(None, why=f"no run of case {column.case}")
    if len(there) < len(values):
        text = _joined(why for value, why in values.values() if value is None)
        return Cell(None, n=len(there), why=f"{len(values) - len(there)} of {len(values)} runs: {text}")
    e = estimate(_strata(there))
    return Cell(e.mean, e.sd, e.low, e.high, e.n, e.why)


def _notes(board: Board, key: Column, rows: Sequence[TableRow], main: str) -> tuple[str, ...]:
    """What a reader of the table must know."""
    notes = []
    ranked = [row for row in rows if row.rank is not None]
    groups = sorted({row.group for row in rows if row.group})
    if len(board.seeds) == 1 and ranked:
        notes.append(
            "one seed: differences cannot be tested, so all share rank 1; the order is that of the mean"
        )
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
