"""From tables and records to the pages of a static site. Pure: texts in, texts out; `site` writes them.

Pages have no script, ask for nothing from elsewhere, and link by relative paths only, so that they work from
a file, a sub-path or an archive. The same input gives the same bytes: everything is sorted, and no page has a
date of its own making.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from harness.charts import interval_mark, line_chart
from harness.markup import environment, slug
from harness.rank import value_of
from harness.specs import Board, RunRecord
from harness.tables import STATUS_TEXT, Cell, Table, TableRow
from harness.types import MetricInfo, Trajectory

QUESTIONS = 200
"""Rows of a run that its page shows."""
_TOP = 5


@dataclass(frozen=True)
class MethodPage:
    """What is known of a submission besides its runs; `source` is the text of its file."""

    name: str
    title: str = ""
    paper: str = ""
    authors: str = ""
    goal: str = ""
    source: str = ""


@dataclass(frozen=True)
class BoardPage:
    """A board's table, and all its records, of every version."""

    table: Table
    records: Sequence[RunRecord]

    @property
    def board(self) -> Board:
        """The board."""
        return self.table.board


@dataclass(frozen=True)
class Site:
    """Everything that the pages show.

    Attributes:
        boards: in any order; pages sort them by name.
        methods: those with a file. Submissions that only records name get a page too.
        metrics: descriptions by id, for headings and the glossary.
        rows: run id to its long per-row table (`Store.load_all_rows`); runs without one show no rows.
        trajectories: run id to its curve.
        title: of the site.
    """

    boards: Sequence[BoardPage]
    methods: Sequence[MethodPage] = ()
    metrics: Mapping[str, MetricInfo] = field(default_factory=dict)
    rows: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    trajectories: Mapping[str, Trajectory] = field(default_factory=dict)
    title: str = "uharness"


def render_site(
    site: Site, templates: Path | Mapping[str, str], static: Mapping[str, bytes] | None = None
) -> dict[str, str | bytes]:
    """All files of the site by relative path, in sorted order.

    Args:
        site: what to show.
        templates: the folder of templates, or their texts by name.
        static: files that are copied to `static/`, such as `style.css`.
    """
    env = environment(templates)
    env.globals |= {"site_title": site.title}
    boards = sorted(site.boards, key=lambda page: page.board.name)
    records = {r.run_id: r for page in boards for r in page.records}
    methods = _methods(site, records.values())
    metrics = _metrics(site, boards, records.values())
    pages: dict[str, str | bytes] = {f"static/{name}": content for name, content in (static or {}).items()}
    tops = [(page, _lines(page.table, page.table.section("ranked"))[:_TOP]) for page in boards]
    pages["index.html"] = _page(env, "index.html", "", tops=tops, methods=methods, runs=len(records))
    pages["glossary.html"] = _page(env, "glossary.html", "", metrics=metrics, statuses=STATUS_TEXT)
    for page in boards:
        pages[f"boards/{slug(page.board.name)}.html"] = _page(env, "board.html", "../", **_board(page))
        for record in page.records:
            content = _page(env, "run.html", "../", **_run(site, page, record, metrics))
            pages[f"runs/{slug(record.run_id)}.html"] = content
    for method in methods:
        shown = [(page, [row for row in page.table.rows if row.submission == method.name]) for page in boards]
        found = [(page, _lines(page.table, rows)) for page, rows in shown if rows]
        pages[f"methods/{slug(method.name)}.html"] = _page(
            env, "method.html", "../", method=method, found=found
        )
    return dict(sorted(pages.items()))


def budget_text(board: Board) -> str:
    """The budget in words."""
    budget = board.budget
    if budget.seconds is not None:
        text = f"{budget.seconds:g} s of wall-clock time"
    elif budget.reference_steps is not None:
        text = (
            f"wall-clock time of {budget.reference_steps} reference steps (GradDiff with AdamW, same batch, "
            "timed on the machine at hand)"
        )
    else:
        text = f"{budget.updates} updates: not equal time"
    return text + (f"; at most {budget.max_peak_gib:g} GiB at the peak" if budget.max_peak_gib else "")


def stop_text(board: Board) -> str:
    """The early stop in words."""
    stop = board.stop
    if stop is None:
        return "none: every run uses its whole budget"
    bound = f"≤ {stop.at_most:g}" if stop.at_most is not None else f"≥ {stop.at_least:g}"
    every = "every update" if stop.check_every == 1 else f"every {stop.check_every} updates"
    return f"when {stop.metric} {bound}, checked off the clock at {every}"


def _page(env: Environment, template: str, root: str, **values: Any) -> str:
    return env.get_template(template).render(root=root, **values)


@dataclass(frozen=True)
class _Line:
    """A table row with what only a page needs: cells with their footnote, and the interval's picture."""

    row: TableRow
    cells: Sequence[tuple[Cell, int]]
    mark: Markup


def _lines(table: Table, rows: Sequence[TableRow], notes: dict[str, int] | None = None) -> list[_Line]:
    """Rows for a template; reasons of missing values get a number in `notes`, in order of appearance."""
    notes = {} if notes is None else notes
    key = next(i for i, column in enumerate(table.columns) if column.id == table.board.rank_by)
    ends = [
        v for row in table.section("ranked", "incomplete", "reference") for c in (row.cells[key],)
        for v in (c.mean, c.low, c.high) if v is not None
    ]  # fmt: skip
    span = (min(ends), max(ends)) if ends else (0.0, 1.0)
    lines = []
    for row in rows:
        noted = (
            row.cells if row.section in ("ranked", "incomplete", "reference") else row.cells[key : key + 1]
        )
        for cell in noted:
            if cell.mean is None:
                notes.setdefault(cell.why, len(notes) + 1)
        cells = [(c, notes.get(c.why, 0) if c.mean is None else 0) for c in row.cells]
        main = row.cells[key]
        lines.append(_Line(row, cells, interval_mark(main.mean, main.low, main.high, span)))
    return lines


def _board(page: BoardPage) -> dict[str, Any]:
    table, board = page.table, page.board
    notes: dict[str, int] = {}
    blocks = []
    for row in table.section("ranked", "incomplete"):
        if not blocks or blocks[-1][0] != row.group:
            blocks.append((row.group, []))
        blocks[-1][1].append(row)
    current = [r for r in page.records if r.board_version == board.board_version]
    hardware = sorted(
        {str(r.env.get("hardware") or "unknown hardware") for r in current if r.status != "imported"}
    )
    return {
        "board": board,
        "table": table,
        "budget": budget_text(board),
        "stop": stop_text(board),
        "hardware": hardware,
        "cases": list(board.cases) or sorted({r.case for r in current}),
        "blocks": [(group, _lines(table, rows, notes)) for group, rows in blocks],
        "references": _lines(table, table.section("reference"), notes),
        "unranked": _lines(table, table.section("unranked"), notes),
        "outdated": _lines(table, table.section("outdated"), notes),
        "footnotes": notes,
        "records": sorted(page.records, key=lambda r: (r.entry, r.case, r.seed, r.run_id)),
        "value_of": lambda record: value_of(record, board.rank_by.split("@")[0]),
        "settings": sorted(board.settings.items()),
    }


def _run(site: Site, page: BoardPage, record: RunRecord, metrics: Mapping[str, MetricInfo]) -> dict[str, Any]:
    trajectory = site.trajectories.get(record.run_id)
    tables, hidden = _questions(site.rows.get(record.run_id, ()))
    charts = []
    if trajectory is not None and len(trajectory.updates):
        series = {name: [float(v) for v in values] for name, values in trajectory.values.items()}
        for kind, x in (("charged seconds", trajectory.charged_s), ("updates", trajectory.updates)):
            title = f"{', '.join(sorted(series))} of {record.run_id} over {kind}"
            name = f"chart-{kind.split()[0]}"
            charts.append(line_chart([float(v) for v in x], series, title=title, x_label=kind, name=name))
    return {
        "record": record,
        "board": page.board,
        "budget": budget_text(page.board),
        "scores": [(name, score, metrics[name]) for name, score in sorted(record.scores.items())],
        "status_text": STATUS_TEXT[record.status],
        "charts": [chart for chart in charts if chart],
        "tables": tables,
        "hidden": hidden,
        "outdated": record.board_version != page.board.board_version,
        "parts": [
            ("Configuration", sorted(record.config.items())),
            ("Machine and software", sorted(record.env.items())),
            ("Budget", sorted((k, v) for k, v in record.budget.items() if v is not None)),
            ("Content hashes", sorted([*record.hashes.items(), *record.rows.items()])),
        ],
    }


@dataclass(frozen=True)
class _Questions:
    """The rows of one probe: texts and values side by side."""

    probe: str
    metrics: Sequence[str]
    texts: Sequence[str]
    rows: Sequence[tuple[str, Mapping[str, str], Mapping[str, tuple[float | None, str]]]]


def _questions(lines: Sequence[Mapping[str, Any]]) -> tuple[list[_Questions], int]:
    """The first rows of a long table, one table per probe, and how many rows were left out."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        probe = str(line.get("probe") or str(line["metric"]).split(".")[0])
        found.setdefault((probe, str(line["row_id"])), []).append(line)
    kept = list(found.items())[:QUESTIONS]
    tables = []
    for probe in dict.fromkeys(probe for (probe, _), _ in kept):
        mine = [(row_id, group) for (name, row_id), group in kept if name == probe]
        metrics = list(dict.fromkeys(str(line["metric"]) for _, group in mine for line in group))
        every = [line for _, group in mine for line in group]
        texts = [t for t in ("prompt", "target", "answer") if any(line.get(t) is not None for line in every)]
        rows = [
            (
                row_id,
                {t: next((str(x[t]) for x in group if x.get(t) is not None), "–") for t in texts},
                {str(x["metric"]): (_finite(x["value"]), str(x.get("why") or "")) for x in group},
            )
            for row_id, group in mine
        ]
        tables.append(_Questions(probe, metrics, texts, rows))
    return tables, len(found) - len(kept)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _methods(site: Site, records: Sequence[RunRecord] | Any) -> list[MethodPage]:
    """The submissions with a file and those that only records name, by name."""
    known = {method.name: method for method in site.methods}
    for record in sorted(records, key=lambda r: r.run_id):
        known.setdefault(record.submission, MethodPage(record.submission, record.title))
    return [known[name] for name in sorted(known)]


def _metrics(site: Site, boards: Sequence[BoardPage], records: Any) -> dict[str, MetricInfo]:
    """Every metric that is described, shown or recorded, by id."""
    names = {column.metric for page in boards for column in page.table.columns} | {
        m for r in records for m in r.scores
    }
    shown = {column.metric: column.info for page in boards for column in page.table.columns}
    blank = {n: MetricInfo(n, "none", None, None, "", "This metric has no description.") for n in names}
    return dict(sorted((blank | shown | dict(site.metrics)).items()))
