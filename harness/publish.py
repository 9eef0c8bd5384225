"""From the database to a folder of pages: what `uharness site build` does."""

from __future__ import annotations

from pathlib import Path

from harness import plugins
from harness.errors import UharnessError
from harness.leaderboard import load, meanings
from harness.render import BoardPage, MethodPage, Site, render_site
from harness.site import read_static, write_site
from harness.store import Store
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
    for name in workspace.board_names():
        board = workspace.board(name)
        known, cases = meanings(workspace, board)
        metrics |= known
        shown = load(store, board, known, cases)
        boards.append(BoardPage(shown.table, shown.records))
    return Site(
        boards=boards, methods=_methods(workspace), metrics=metrics,
        rows=store.load_all_rows(), trajectories=store.load_all_trajectories(),
    )  # fmt: skip


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
