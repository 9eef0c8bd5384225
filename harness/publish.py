"""From the database to a folder of pages: what `uharness site build` does."""

from __future__ import annotations

from pathlib import Path

from harness import plugins, preflight
from harness.errors import UharnessError
from harness.rank import rank
from harness.render import BoardPage, MethodPage, Site, render_site
from harness.site import read_static, write_site
from harness.specs import Board
from harness.store import Store
from harness.types import MetricInfo
from harness.workspace import Workspace


def build_site(workspace: Workspace, store: Store, folder: Path) -> int:
    """Render every board, run and method, and swap the folder in whole. Returns the number of files."""
    site = collect(workspace, store)
    sources = workspace.site_sources
    pages = render_site(site, sources / "templates", read_static(sources / "static"))
    write_site(pages, folder)
    return len(pages)


def collect(workspace: Workspace, store: Store) -> Site:
    """Everything that the pages show, read from the database and the submissions."""
    boards, metrics = [], {}
    records = store.load_records()
    for name in workspace.board_names():
        board = workspace.board(name)
        mine = [r for r in records if r.board == name]
        known, cases = _described(workspace, board)
        metrics |= known
        boards.append(BoardPage(rank(board, mine, known, cases=cases), mine))
    return Site(
        boards=boards, methods=_methods(workspace), metrics=metrics,
        rows=store.load_all_rows(), trajectories=store.load_all_trajectories(),
    )  # fmt: skip


def _described(workspace: Workspace, board: Board) -> tuple[dict[str, MetricInfo], tuple[str, ...]]:
    """Metrics and cases of a board; of one whose data are not here, only what every run has."""
    try:
        known = preflight.described(board, workspace)
    except UharnessError:
        return dict(preflight.COST_COLUMNS), board.cases
    return dict(known.metrics), known.cases


def _methods(workspace: Workspace) -> list[MethodPage]:
    pages = []
    for name in plugins.submission_names(workspace.submissions):
        try:
            loaded = plugins.load_submission(name, workspace.submissions)
        except UharnessError as error:
            pages.append(MethodPage(name, title=f"{name} does not load: {error}"))
            continue
        s = loaded.submission
        source = loaded.path.read_text(encoding="utf-8", errors="replace") if loaded.path.is_file() else ""
        pages.append(MethodPage(name, s.title, s.paper, s.authors, s.goal, source))
    return pages
