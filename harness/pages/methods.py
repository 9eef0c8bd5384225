"""A page a method: all its rows, its source file, its paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jinja2 import Environment

from harness.markup import page, slug
from harness.pages.boards import anchor, key_of
from harness.pages.content import BoardPage, Files, MethodPage, Site
from harness.pages.downloads import files
from harness.pages.words import paper_bibtex
from harness.tables import Cell, TableRow

GOALS = {
    "remove": "remove what training on the rows contributed",
    "suppress": "suppress the answers",
}
_ROWS = {
    "board": str, "entry": str, "section": str, "rank": int, "rank_by": str, "mean": float, "low": float, "high": float,
    "runs": int, "planned": int, "why": str,
}  # fmt: skip


def methods_of(site: Site, boards: Sequence[BoardPage]) -> list[MethodPage]:
    """The submissions with a file, those that only rows name, and the parts of these, by name."""
    known = {method.name: method for method in site.methods}
    for board in boards:
        for row in board.table.rows:
            if row.submission not in known:
                for made in _named(row, known):
                    known.setdefault(made.name, made)
    return [known[name] for name in sorted(known)]


def _named(row: TableRow, known: Mapping[str, MethodPage]) -> list[MethodPage]:
    """The method of a row, and the selector and the base method that it is made of."""
    first, colon, base = row.submission.partition(":")
    if not (first and colon and base):
        return [MethodPage(row.submission, row.title)]
    selector = known.get(first) or MethodPage(first, selector=True)
    inner = known.get(base) or MethodPage(base)
    parts = tuple((part.name, part.title or part.name) for part in (selector, inner))
    both = replace(selector, name=row.submission, title=row.title, goal="", selector=False, parts=parts)
    return [selector, inner, both]


@dataclass(frozen=True)
class Place:
    """A row of a method on a board: what the board ranks by, and where the entry's runs are listed."""

    row: TableRow
    cell: Cell
    anchor: str


def rows_of(method: MethodPage, boards: Iterable[BoardPage]) -> list[tuple[BoardPage, list[TableRow]]]:
    """A method's rows on each board that has any; a selector's with every base method."""
    start = f"{method.name}:"

    def is_of(row: TableRow) -> bool:
        return row.submission == method.name or row.submission.startswith(start)

    found = [(board, list(filter(is_of, board.table.rows))) for board in boards]
    return [(board, rows) for board, rows in found if rows]


def method_files(
    env: Environment, method: MethodPage, found: Sequence[tuple[BoardPage, list[TableRow]]]
) -> Files:
    """A method's page, and its rows for other programs."""
    name = slug(method.name)
    cited = method.parts[0] if method.parts else (method.name, method.title)
    shown = [
        (board, board.table.columns[key], [Place(row, row.cells[key], anchor(row)) for row in rows])
        for board, rows in found for key in (key_of(board.table),)
    ]  # fmt: skip
    html = page(
        env, "method.html", "../", method=method, found=shown, goal=GOALS.get(method.goal, method.goal),
        cite=paper_bibtex(*cited, method.paper, method.authors),
        example=f"{method.name}:grad_diff" if method.selector else method.name,
    )  # fmt: skip
    lines = [
        {
            "board": board.board.name, "entry": row.entry, "section": row.section, "rank": row.rank,
            "rank_by": board.board.rank_by, "runs": row.runs, "planned": row.planned, "why": row.why,
        } | {kind: getattr(row.cells[key_of(board.table)], kind) for kind in ("mean", "low", "high")}
        for board, rows in found for row in rows
    ]  # fmt: skip
    return {f"methods/{name}.html": html, **(files(f"data/methods/{name}", _ROWS, lines) if lines else {})}
