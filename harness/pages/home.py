"""The pages about everything: home with the overall table, the metrics, how to submit, and the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment

from harness.charts import xy_chart
from harness.markup import cut, data_block, page, slug
from harness.overall import Standing, timed_boards
from harness.pages.boards import key_of, lines_of
from harness.pages.content import BoardPage, Files, MethodPage, Site
from harness.pages.downloads import files
from harness.pages.names import BODY
from harness.pages.words import site_bibtex
from harness.tables import STATUS_TEXT
from harness.types import MetricInfo

TOP = 3
PROFILES = 8
"""Methods whose performance profiles are drawn."""
DRAWN = "Performance profiles of the time to the target"
_METRICS = {
    "id": str, "direction": str, "low": float, "high": float, "target": float, "unit": str, "text": str, "source": str,
}  # fmt: skip


def home_files(
    env: Environment, site: Site, boards: Sequence[BoardPage], methods: Sequence[MethodPage]
) -> Files:
    """The first page and its table."""
    filled = [b for b in boards if b.table.rows]
    tops = [(b, key_of(b.table), lines_of(b.table, b.table.section("ranked"))[:TOP]) for b in filled]
    names = [place.board for place in site.standings[0].places] if site.standings else []
    titles = {b.board.name: b.board.title or b.board.name for b in boards}
    html = page(
        env, "index.html", "", tops=tops, methods=methods, standings=site.standings,
        places=[(name, titles.get(name, name)) for name in names],
        empty=[b for b in boards if not b.table.rows],
        runs=sum(len(row.run_ids) for b in boards for row in b.table.rows),
        timed=[titles.get(name, name) for name in timed_boards(site.standings)], **_profiles(site.standings),
        cite=site_bibtex(site.title, site.year),
    )  # fmt: skip
    columns = {"mean_rank": float, "submission": str, "optimizer": str, "title": str, "profile": float}
    rows = [
        {"mean_rank": s.mean_rank, "submission": s.submission, "optimizer": s.optimizer, "title": s.title,
         "profile": s.profile.score if s.profile is not None else None,
         **{f"rank on {p.board}": p.rank if p.ranked else None for p in s.places}}
        for s in site.standings
    ]  # fmt: skip
    return {"index.html": html, **files("data/overall", columns | {f"rank on {n}": int for n in names}, rows)}


def _profiles(found: Sequence[Standing]) -> dict[str, Any]:
    """The performance profiles of the `PROFILES` methods with the highest scores, as a drawing."""
    known = [(s, s.profile) for s in found if s.profile is not None]
    known.sort(key=lambda pair: (-(pair[1].score or 0.0), pair[0].submission, pair[0].optimizer))
    lines: dict[str, list[tuple[float, float]]] = {}
    for s, profile in known[:PROFILES]:
        name = ", ".join(filter(None, (s.title or s.submission, s.optimizer)))
        lines[str(cut(name if name not in lines else f"{name} ({s.submission})", 80))] = profile.steps()
    shown: dict[str, Any] = {"profiles": [], "profiled": len(known), "drawn": len(lines), "chart_data": ""}
    if lines:
        x, y = "times the best time to the target", "share of (board, case, seed)"
        svg = xy_chart(lines, title=DRAWN, x_label=x, y_label=y, name="profiles-chart", steps=True)
        points = {name: [list(point) for point in steps] for name, steps in lines.items()}
        data = {"kind": "lines", "x": x, "y": y, "steps": True, "lines": points}
        shown |= {"profiles": [("profiles", svg)], "chart_data": data_block("charts", {"profiles": data})}
    return shown


def glossary_files(env: Environment, metrics: Mapping[str, MetricInfo]) -> Files:
    """Every metric, and the words of the tables."""
    html = page(env, "glossary.html", "", metrics=metrics, statuses=STATUS_TEXT)
    lines: list[dict[str, Any]] = [
        {name: getattr(info, name) for name in _METRICS} | {"id": name} for name, info in metrics.items()
    ]
    return {"glossary.html": html, **files("data/metrics", _METRICS, lines)}


def plain_files(env: Environment, boards: Sequence[BoardPage]) -> Files:
    """How to submit, and the page that compares entries, whose numbers are loaded when it is asked for a board."""
    filled = [
        (slug(b.board.name), b.board.title or b.board.name)
        for b in boards if b.table.section(*BODY)
    ]  # fmt: skip
    return {
        "submit.html": page(env, "submit.html", "", boards=[b.board for b in boards]),
        "compare.html": page(env, "compare.html", "", boards=filled),
    }


def metrics_of(site: Site, boards: Sequence[BoardPage]) -> dict[str, MetricInfo]:
    """Every metric that is described, or shown by a board, by id."""
    shown = {column.metric: column.info for board in boards for column in board.table.columns}
    return dict(sorted((shown | dict(site.metrics)).items()))
