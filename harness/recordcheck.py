"""What is wrong with record files: what a maintainer's workflow asks of a pull request that adds some.

Works from the files alone. Numbers are held against what lies beside them: a score that is the mean of its rows in
other records of the same task must be so in all; a score must lie in its metric's range; a table must be the one that
the record names by its hash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import preflight
from harness.errors import StoreError, UharnessError, near
from harness.recordfiles import find_records, read_record, read_table
from harness.recordtables import COLUMNS, ROWS
from harness.specs import Board, RunRecord
from harness.types import MetricInfo
from harness.workspace import Workspace

SAME = 1e-9
"""How far apart, relatively, a score and the mean of its rows may be: rounding of the sum."""


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong: in which file, in which line where that is known, and what."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}{f':{self.line}' if self.line else ''}: {' '.join(self.what.split())}"


@dataclass(frozen=True)
class Means:
    """For one score: its value and the mean of its rows."""

    path: Path
    task: str
    metric: str
    value: float
    mean: float

    @property
    def same(self) -> bool:
        """Whether they are the same number up to rounding."""
        return math.isclose(self.value, self.mean, rel_tol=SAME, abs_tol=1e-12)


@dataclass
class _Checker:
    workspace: Workspace
    strict: bool
    means: list[Means] = field(default_factory=list)
    boards: dict[str, tuple[Board, Mapping[str, MetricInfo] | None] | str] = field(default_factory=dict)

    def board(self, name: str) -> tuple[Board, Mapping[str, MetricInfo] | None] | str:
        """A board and its metrics (None where its task cannot be described here), or what is wrong with it."""
        if name not in self.boards:
            try:
                board = self.workspace.board(name)
            except UharnessError as error:
                self.boards[name] = str(error)
                return self.boards[name]
            try:
                metrics: Mapping[str, MetricInfo] | None = preflight.described(board, self.workspace).metrics
            except UharnessError:
                metrics = None
            self.boards[name] = (board, metrics)
        return self.boards[name]

    def record(self, path: Path) -> Iterator[tuple[str, str]]:
        """What is wrong with one record, each with a text that stands in its line, or nothing."""
        try:
            record, _ = read_record(path)
        except StoreError as error:
            yield "", str(error).removeprefix(f"{path} ")
            return
        known = self.board(record.board)
        if isinstance(known, str):
            yield '"board"', known
            return
        board, metrics = known
        yield from self._version(record, board)
        for name, score in record.scores.items():
            place = json.dumps(name, ensure_ascii=False)
            if metrics is not None and name not in metrics:
                yield place, f"score of an unknown metric {name!r}; {near(name, metrics)}"
            elif metrics is not None and score.value is not None:
                yield from ((place, text) for text in _range(metrics[name], score.value))
            if score.value is None and not score.why:
                yield place, f"{name} has no value and does not say why"
        yield from self._tables(record, path, board)

    def _version(self, record: RunRecord, board: Board) -> Iterator[tuple[str, str]]:
        if record.board_version == board.board_version:
            return
        number = record.board_version.partition("-")[0]
        older = number.isdigit() and int(number) < board.version
        if self.strict or not older:
            how = "an older version" if older else "another version"
            yield (
                '"board_version"',
                f"made with {how} of board {board.name}: {record.board_version}, which is now {board.board_version}",
            )

    def _tables(self, record: RunRecord, path: Path, board: Board) -> Iterator[tuple[str, str]]:
        for kind, sha256 in sorted(record.rows.items()):
            beside = path.with_name(f"{record.run_id}.{kind}")
            if kind not in COLUMNS:
                yield f'"{kind}"', f"{beside.name} is of a kind that this version does not know"
                continue
            try:
                table = read_table(beside, sha256, COLUMNS[kind])
            except StoreError as error:
                yield f'"{kind}"', str(error).replace(f"{beside}", beside.name)
                continue
            if kind == ROWS:
                yield from self._rows(record, path, board, table.select(["metric", "value"]).to_pydict())
        for beside in path.parent.glob(f"{record.run_id}.*.parquet"):
            if beside.name.removeprefix(f"{record.run_id}.") not in record.rows:
                yield "", f"{beside.name} lies beside the record, which does not name it"

    def _rows(
        self, record: RunRecord, path: Path, board: Board, table: Mapping[str, list]
    ) -> Iterator[tuple[str, str]]:
        values: dict[str, list[float]] = {}
        for metric, value in zip(table["metric"], table["value"], strict=True):
            values.setdefault(metric, [])
            if value is not None:
                values[metric].append(value)
        for metric, found in values.items():
            score = record.scores.get(metric)
            if score is None:
                yield "", f"its rows have values of {metric}, which is not among its scores"
            elif score.value is not None and found:
                mean = math.fsum(found) / len(found)
                self.means.append(Means(path, board.task.name, metric, score.value, mean))


def _range(info: MetricInfo, value: float) -> Iterator[str]:
    slack = 1e-9 * max(1.0, abs(value))
    low, high = info.low, info.high
    if (low is not None and value < low - slack) or (high is not None and value > high + slack):
        text = f"{'-inf' if low is None else f'{low:g}'} to {'inf' if high is None else f'{high:g}'}"
        yield f"{info.id} is {value!r}, and cannot be outside {text}"


def check_records(workspace: Workspace, only: Sequence[Path] = ()) -> tuple[list[Finding], int]:
    """All findings in the records of the workspace's own leaderboards folder, sorted, and how many were looked at.

    Args:
        workspace: its boards, also the package's, are what records are held against.
        only: records to report on; all without. A record named here must be of its board's current version; else one
            of an older version is fine, as tables list it apart. The others still tell which scores are means.
    """
    root = workspace.leaderboards[0]
    found, shadowed = find_records([root])
    wanted = {path.resolve() for path in only}
    checker = _Checker(workspace, strict=bool(only))
    findings = [Finding(_shown(a.path, workspace), 0, a.why.replace(f"{root.parent}/", "")) for a in shadowed]
    paths = {path.resolve() for path in found.values()} | {a.path.resolve() for a in shadowed}
    for path in sorted(wanted - paths):
        findings.append(Finding(_shown(path, workspace), 0, "is no record of this workspace"))
    for path in sorted(found.values()):
        for text, what in checker.record(path):
            findings.append(Finding(_shown(path, workspace), _line(path, text, what), what))
    findings += _not_means(checker.means, workspace)
    findings += _strays(root, found, workspace)
    if wanted:
        names = {_shown(path, workspace) for path in wanted}
        findings = [f for f in findings if f.path in names]
    return sorted(set(findings)), len(wanted) or len(found)


def _not_means(means: Iterable[Means], workspace: Workspace) -> list[Finding]:
    """Scores that are not the mean of their rows, where that is what the metric is in most records of the task."""
    by_metric: dict[tuple[str, str], list[Means]] = {}
    for one in means:
        by_metric.setdefault((one.task, one.metric), []).append(one)
    found = []
    for (_, metric), group in sorted(by_metric.items()):
        same = sum(one.same for one in group)
        if same <= len(group) - same:
            continue
        for one in group:
            if not one.same:
                line = _line(one.path, json.dumps(metric, ensure_ascii=False), "")
                what = f"{metric} is {one.value!r}, but the mean of its rows is {one.mean!r}"
                found.append(Finding(_shown(one.path, workspace), line, what))
    return found


def _strays(root: Path, found: Mapping[str, Path], workspace: Workspace) -> Iterator[Finding]:
    """Tables without a record."""
    for path in sorted(root.glob("*/results/*.parquet")):
        run = next(
            (path.name.removesuffix(f".{kind}") for kind in COLUMNS if path.name.endswith(f".{kind}")), None
        )
        if run is None or found.get(run, Path()).parent != path.parent:
            yield Finding(_shown(path, workspace), 0, "no record names this file")


def _line(path: Path, text: str, what: str) -> int:
    """The line that JSON's complaint names, else the one in which `text` stands as a key; 0 where neither is."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return 0
    if what.startswith("is no JSON"):
        try:
            json.loads(content)
        except json.JSONDecodeError as error:
            return error.lineno
        except (ValueError, RecursionError):
            return 0
    lines = content.splitlines()
    return next((i for i, line in enumerate(lines, 1) if text and line.strip().startswith(f"{text}:")), 0)


def _shown(path: Path, workspace: Workspace) -> str:
    try:
        return path.resolve().relative_to(workspace.root).as_posix()
    except ValueError:
        return path.as_posix()
