"""Everything that the pages show, read from the database and the submissions, as late and as seldom as can be.

Records, per-row values and curves are loaded when a page asks for them. Tables are kept from build to build, each
under a key that has all that it was made from; so is what a submission's file tells of itself, as finding out runs it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from harness import plugins
from harness.comparetables import Compared
from harness.comparisons import Comparison
from harness.errors import StoreError, UharnessError
from harness.leaderboard import Leaderboard, load, meanings
from harness.overall import Standing, standings
from harness.pages.content import BoardPage, MethodPage, Site
from harness.recordfiles import write_atomic
from harness.reported import note_of, reported_of
from harness.sparkline import Curve
from harness.specs import Board, RunRecord, content_hash
from harness.store import Store
from harness.targets import target_of
from harness.types import MetricInfo, Trajectory
from harness.workspace import Workspace

T = TypeVar("T")
FIRST, AT_ONCE = 64, 1024
"""Runs that are loaded together, at first and at most."""


@dataclass(frozen=True)
class Records(Sequence[RunRecord]):
    """A board's records, read when the first of them is asked for; how many there are is known before."""

    store: Store
    board: str
    run_ids: tuple[str, ...]

    @functools.cached_property
    def loaded(self) -> list[RunRecord]:
        """All of them, in the store's order."""
        return self.store.load_records(self.board) if self.run_ids else []

    def __len__(self) -> int:
        return len(self.run_ids)

    def __getitem__(self, index: Any) -> Any:
        return self.loaded[index]

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self.loaded)


@dataclass
class ByRun(Mapping[str, T]):
    """Something of each run, read from the database as it is asked for.

    Who asks for one run after another, in their order, gets more and more of them at once; what was read before is
    forgotten then.
    """

    load: Callable[[Sequence[str]], Mapping[str, T]]
    run_ids: Sequence[str]
    _held: Mapping[str, T] = field(default_factory=dict)
    _asked: frozenset[str] = frozenset()
    _end: int = -1
    _step: int = 0

    @functools.cached_property
    def _place(self) -> dict[str, int]:
        return {run: i for i, run in enumerate(self.run_ids)}

    def __getitem__(self, run_id: str) -> T:
        if run_id not in self._asked:
            start = self._place[run_id]
            self._step = min(8 * self._step, AT_ONCE) if start == self._end else FIRST
            self._end = start + self._step
            wanted = self.run_ids[start : self._end]
            self._held, self._asked = self.load(wanted), frozenset(wanted)
        return self._held[run_id]

    def many(self, run_ids: Sequence[str]) -> Mapping[str, T]:
        """Of some runs, read together; nothing of it is held here."""
        return self.load(run_ids)

    def __contains__(self, run_id: object) -> bool:
        try:
            self[str(run_id)]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return (run for run in self.run_ids if run in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def collect(
    workspace: Workspace,
    store: Store,
    boards: Sequence[str] | None = None,
    rank: Callable[[Sequence[str]], Callable[[], None]] | None = None,
) -> Site:
    """Everything that the pages show.

    Args:
        workspace: whose boards and submissions.
        store: up to date with its files.
        boards: only these, and neither methods nor comparisons; all of them with None.
        rank: is given the boards whose tables are not in the cache, and may put them there until what it returns has
            been called.
    """
    with store.at_once():
        stamps, year = store.load_stamps(), _latest_year(store)
        comparisons = store.load_comparisons() if boards is None else []
    cache = Cache(workspace.build / "tables")
    names = workspace.board_names() if boards is None else boards
    known: dict[str, tuple[dict[str, MetricInfo], tuple[str, ...], str]] = {}
    of_board: dict[str, list[tuple[str, str]]] = {}
    for run, (board, _, stamp) in stamps.items():
        of_board.setdefault(board, []).append((run, stamp))
    asked = [_Asked.of(workspace, name, of_board.get(name, []), known) for name in names]
    unranked = [one.board.name for one in asked if not cache.has(one.board.name, one.key)]
    wait = rank(unranked) if rank is not None else None
    methods = _methods(workspace, cache) if boards is None else []
    if wait is not None:
        wait()
    metrics = {name: info for one in asked for name, info in one.metrics.items()}
    pages = [_board(workspace, store, cache, one) for one in asked]
    run_ids = sorted(stamps, key=lambda run: (stamps[run][0], run))  # as `render.parts` asks for them
    return Site(
        boards=pages,
        methods=methods,
        metrics=metrics,
        rows=ByRun(store.load_rows_of, run_ids),
        files=ByRun(store.load_files_of, run_ids),
        trajectories=ByRun(store.load_trajectories_of, run_ids),
        relearning=ByRun(store.load_relearning_of, run_ids),
        standings=_standings(pages) if boards is None else (),
        comparisons=_compared(store, comparisons, metrics),
        stamps={run: told[2] for run, told in stamps.items()},
        year=year if boards is None else "",
    )


@dataclass(frozen=True)
class _Asked:
    """A board, what its columns mean, its runs, and the key of its table."""

    board: Board
    metrics: Mapping[str, MetricInfo]
    cases: Sequence[str]
    run_ids: tuple[str, ...]
    key: str

    @classmethod
    def of(
        cls,
        workspace: Workspace,
        name: str,
        runs: Sequence[tuple[str, str]],
        known: dict[str, tuple[dict[str, MetricInfo], tuple[str, ...], str]],
    ) -> _Asked:
        """Its `runs` with their stamps. Boards of the same task are told the same; `known` has what was found out."""
        board = workspace.board(name)
        same = board.model_dump_json(include={"task", "template", "columns", "cases"})
        if same not in known:
            metrics, cases = meanings(workspace, board)
            infos = {name: asdict(info) for name, info in metrics.items()}
            known[same] = metrics, cases, content_hash([infos, list(cases)])
        metrics, cases, told = known[same]
        key = content_hash([code_hash(), board.model_dump(mode="json"), told, runs])
        return cls(board, metrics, cases, tuple(run for run, _ in runs), key)


def _board(workspace: Workspace, store: Store, cache: Cache, asked: _Asked) -> BoardPage:
    board = asked.board
    records = Records(store, board.name, asked.run_ids)

    def make() -> tuple[Any, ...]:
        made: Leaderboard = load(store, board, asked.metrics, asked.cases, records)
        return made.table, made.curves, made.trade_offs

    table, curves, trade_offs = cache.get(board.name, asked.key, make)
    places = workspace.leaderboards, board.name
    return BoardPage(
        table, records, curves, trade_offs, reported_of(*places), note_of(*places), key=asked.key
    )


def _latest_year(store: Store) -> str:
    """Of any run; empty where none tells when it was started."""
    sql = "SELECT coalesce(max(left(started, 4)), '') FROM runs WHERE regexp_matches(started, '^[0-9]{4}-')"
    return str(store.query(sql)[1][0][0])


def _standings(boards: Sequence[BoardPage]) -> tuple[Standing, ...]:
    """All methods over all boards; a run's time to a target is read from the curve that its row shows."""
    timed = [page for page in boards if target_of(page.board) is not None]
    curves = {run: _trajectory(curve) for page in timed for run, curve in page.curves.items()}
    return standings(
        [page.table for page in boards], {page.board.name: page.records for page in timed}, curves
    )


def _trajectory(curve: Curve) -> Trajectory:
    values = np.array([np.nan if v is None else v for v in curve.values], np.float64)
    times = np.array(curve.charged_s, np.float64)
    return Trajectory(np.zeros(len(times), np.int64), times, {curve.metric: values})


def _compared(
    store: Store, comparisons: Sequence[Comparison], metrics: Mapping[str, MetricInfo]
) -> list[Compared]:
    """Each with its records and trajectories."""
    found = []
    for comparison in comparisons:
        with store.at_once():
            records = {r.run_id: r for board in comparison.boards() for r in store.load_records(board)}
            curves = store.load_trajectories_of(list(records))
        found.append(Compared(comparison, records, metrics, curves))
    return found


# --- submissions ----------------------------------------------------------------------------------------------------
def _methods(workspace: Workspace, cache: Cache) -> list[MethodPage]:
    pages = []
    for name, source in plugins.submission_names(workspace.submissions).items():
        path = Path(source)
        if source.startswith("entry:") or not path.is_file():
            pages.append(_method(name, workspace))
            continue
        key = content_hash([code_hash(), hashlib.sha256(path.read_bytes()).hexdigest()])
        pages.append(cache.get(f"method-{name}", key, functools.partial(_method, name, workspace)))
    return pages


def _method(name: str, workspace: Workspace) -> MethodPage:
    try:
        loaded = plugins.load_submission(name, workspace.submissions)
    except UharnessError as error:
        return MethodPage(name, title=f"{name} does not load: {_without(str(error), workspace)}")
    s = loaded.submission
    source = loaded.path.read_text(encoding="utf-8", errors="replace") if loaded.path.is_file() else ""
    selector = hasattr(s.method, "choose")
    return MethodPage(name, s.title, s.paper, s.authors, s.goal, source, selector)


def _without(text: str, workspace: Workspace) -> str:
    """An error's text without the folder that this machine has the workspace in."""
    for root in workspace.roots:
        text = text.replace(f"{root.resolve()}/", "")
    return text


# --- what is kept ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Cache:
    """Values from earlier builds, one a name, each good for one key. A folder of derived files, like the database."""

    folder: Path

    def has(self, name: str, key: str) -> bool:
        """Whether there is a value with this key."""
        try:
            with self._path(name).open("rb") as file:
                return file.readline().strip() == key.encode()
        except OSError:
            return False

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.pickle"

    def get(self, name: str, key: str, make: Callable[[], Any]) -> Any:
        """The kept value where its key is `key` and its file is whole, else what `make` makes, which is kept."""
        path = self._path(name)
        with contextlib.suppress(OSError), path.open("rb") as file:
            if file.readline().strip() == key.encode():
                digest, content = file.readline().strip(), file.read()
                if digest == _digest(content):
                    return pickle.loads(content)
        value = make()
        content = pickle.dumps(value, protocol=5)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            write_atomic(path, b"\n".join((key.encode(), _digest(content), content)))
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
        return value


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


@functools.cache
def code_hash() -> str:
    """A hash of the package's code and of the libraries that numbers and pages come from."""
    from importlib.metadata import version

    package = Path(__file__).parent
    told = [(p.relative_to(package).as_posix(), hashlib.sha256(p.read_bytes()).hexdigest())
            for p in sorted(package.rglob("*.py")) if "_bundled" not in p.parts]  # fmt: skip
    return content_hash([told, [version(n) for n in ("jinja2", "numpy", "scipy", "pyarrow")]])
