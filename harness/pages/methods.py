"""A page a method: all its rows, its source file, its paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jinja2 import Environment

from harness.markup import page, slug
from harness.pages.boards import Line, key_of, lines_of
from harness.pages.content import BoardPage, Files, MethodPage, Site
from harness.pages.downloads import files
from harness.pages.words import paper_bibtex
from harness.tables import TableRow

GOALS = {
    "remove": "remove what training on the rows contributed",
    "suppress": "suppress the answers",
}
_ROWS = {
    "board": str, "entry": str, "section": str, "rank": int, "rank_by": str, "mean": float, "low": float, "high": float,
    "runs": int, "planned": int, "why": str,
}  # fmt: skip


def methods_of(site: Site, boards: Sequence[BoardPage]) -> list[MethodPage]:
    """The submissions with a file and those that only rows name, by name."""
    known = {method.name: method for method in site.methods}
    for board in boards:
        for row in board.table.rows:
            known.setdefault(row.submission, MethodPage(row.submission, row.title))
    return [known[name] for name in sorted(known)]


def rows_of(method: MethodPage, boards: Iterable[BoardPage]) -> list[tuple[BoardPage, list[TableRow]]]:
    """A method's rows on each board that has any."""
    found = [(board, [r for r in board.table.rows if r.submission == method.name]) for board in boards]
    return [(board, rows) for board, rows in found if rows]


def method_files(
    env: Environment, method: MethodPage, found: Sequence[tuple[BoardPage, list[TableRow]]]
) -> Files:
    """A method's page, and its rows for other programs."""
    name = slug(method.name)
    shown: list[tuple[BoardPage, int, list[Line]]] = [
        (board, key_of(board.table), lines_of(board.table, rows)) for board, rows in found
    ]
    html = page(
        env, "method.html", "../", method=method, found=shown, goal=GOALS.get(method.goal, method.goal),
        cite=paper_bibtex(method.name, method.title, method.paper, method.authors),
    )  # fmt: skip
    lines = [
        {
            "board": board.board.name, "entry": row.entry, "section": row.section, "rank": row.rank,
            "rank_by": board.board.rank_by, "runs": row.runs, "planned": row.planned, "why": row.why,
        } | {kind: getattr(row.cells[key_of(board.table)], kind) for kind in ("mean", "low", "high")}
        for board, rows in found for row in rows
    ]  # fmt: skip
    return {f"methods/{name}.html": html, **(files(f"data/methods/{name}", _ROWS, lines) if lines else {})}
