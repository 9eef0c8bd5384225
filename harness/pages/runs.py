"""A page a run: configuration, machine, cost, curve, every metric, and every question with its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from harness.charts import line_chart
from harness.markup import breakable, cut, data_block, num, page, slug
from harness.pages.content import BoardPage, Files, Site
from harness.pages.downloads import csv_text, parquet, script
from harness.pages.words import budget_text, command, run_bibtex
from harness.recordfiles import record_json
from harness.specs import RunRecord
from harness.tables import STATUS_TEXT
from harness.types import MetricInfo, Trajectory

FEW = 3
"""Questions of each probe that are on the page itself; the data file has all of them."""
TEXTS = ("prompt", "target", "answer")
_SCORES = {"metric": str, "value": float, "n": int, "why": str}
_ROWS = {
    "probe": str, "metric": str, "row_id": str, "value": float, "why": str, "prompt": str, "target": str, "answer": str,
}  # fmt: skip
ARROWS = {"higher": ("↑", "higher is better"), "lower": ("↓", "lower is better")}


def run_files(env: Environment, site: Site, board: BoardPage, record: RunRecord) -> Files:
    """A run's page and its data."""
    name = slug(record.run_id)
    lines = site.rows.get(record.run_id, ())
    probes = questions(lines)
    scores = [
        {"metric": metric, "value": s.value, "n": s.n, "why": s.why}
        for metric, s in sorted(record.scores.items())
    ]
    made: Files = {
        f"runs/{name}.html": page(env, "run.html", "../", **_values(site, board, record, probes)),
        f"data/runs/{name}.csv": csv_text(list(_SCORES), scores),
        f"data/runs/{name}.json": record_json(record),
        f"data/runs/{name}.parquet": parquet(_SCORES, scores),
    }
    if probes:
        made[f"data/rows/{name}.js"] = script("questions", record.run_id, [q.data() for q in probes])
        made[f"data/rows/{name}.parquet"] = parquet(_ROWS, lines)
    return made


@dataclass(frozen=True)
class Questions:
    """The rows of one probe.

    Attributes:
        probe: its name.
        metrics, texts: what any of its rows has.
        rows: id, texts (as many as `texts`), values (as many as `metrics`: a number, or why there is none).
    """

    probe: str
    metrics: Sequence[str]
    texts: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str], Sequence[float | str]]]

    def data(self) -> dict[str, Any]:
        """For the page's script."""
        return {"probe": self.probe, "metrics": self.metrics, "texts": self.texts, "rows": self.rows}


def questions(lines: Sequence[Mapping[str, Any]]) -> list[Questions]:
    """A long table with one line a question, probe by probe; in the order of the table."""
    probes: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for line in lines:
        probe = str(line.get("probe") or str(line["metric"]).split(".")[0])
        probes.setdefault(probe, {}).setdefault(str(line["row_id"]), []).append(line)
    return [_probe(probe, rows) for probe, rows in probes.items()]


def _probe(probe: str, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Questions:
    metrics = list(dict.fromkeys(str(line["metric"]) for group in rows.values() for line in group))
    texts = [t for t in TEXTS if any(line.get(t) is not None for group in rows.values() for line in group)]
    place = {metric: i for i, metric in enumerate(metrics)}
    found = []
    for row_id, group in rows.items():
        values: list[float | str] = ["not asked of this row"] * len(metrics)
        for line in group:
            value = line["value"]
            if value is None or not math.isfinite(value):
                value = str(cut(line.get("why") or "no value", 300))
            values[place[str(line["metric"])]] = value
        shown = [str(cut(next((x[t] for x in group if x.get(t) is not None), "–"))) for t in texts]
        found.append((str(cut(row_id, 200)), shown, values))
    return Questions(str(cut(probe, 80)), [str(cut(m, 120)) for m in metrics], texts, found)


def _values(site: Site, board: BoardPage, record: RunRecord, probes: Sequence[Questions]) -> dict[str, Any]:
    curve = site.trajectories.get(record.run_id)
    shown = list(dict.fromkeys(c.metric for c in board.table.columns if c.metric in record.scores))
    charts, data = _charts(record, curve) if curve is not None and len(curve.updates) else ([], None)
    return {
        "record": record,
        "board": board.board,
        "budget": budget_text(board.board),
        "scores": score_rows(record, site.metrics, shown),
        "others": score_rows(
            record, site.metrics, [name for name in sorted(record.scores) if name not in shown]
        ),
        "status_text": STATUS_TEXT[record.status],
        "charts": charts,
        "chart_data": data,
        "probes": [(q, q.rows[:FEW]) for q in probes],
        "count": sum(len(q.rows) for q in probes),
        "outdated": record.board_version != board.board.board_version,
        "again": command(record),
        "cite": run_bibtex(record),
        "parts": [
            ("Configuration", sorted(record.config.items())),
            ("Machine and software", sorted(record.env.items())),
            ("Budget", sorted((k, v) for k, v in record.budget.items() if v is not None)),
            ("Content hashes", sorted([*record.hashes.items(), *record.rows.items()])),
        ],
    }


def score_rows(record: RunRecord, metrics: Mapping[str, MetricInfo], names: Sequence[str]) -> Markup:
    """The rows of the table of scores; made here because a site has thousands of pages with a hundred each."""
    out = []
    for name in names:
        score, info = record.scores[name], metrics.get(name)
        arrow, tip = ARROWS.get(info.direction, ("", "")) if info is not None else ("", "")
        if info is not None and info.direction == "target" and info.target is not None:
            arrow, tip = f"→ {info.target:g}", "closest to the target is best"
        mark = f' <abbr class="dir" title="{tip}">{arrow}</abbr>' if arrow else ""
        text = f'<a href="../glossary.html#{escape(name)}">{breakable(name)}</a>' if info else breakable(name)
        out.append(
            f"<tr><td>{text}{mark}</td>"
            f'<td class="num">{num(score.value)}</td><td class="num">{score.n}</td>'
            f'<td class="why">{escape(cut(score.why, 600))}</td></tr>\n'
        )
    return Markup("".join(out))


def _charts(record: RunRecord, curve: Trajectory) -> tuple[list[tuple[str, Markup]], Markup]:
    series = {name: [float(v) for v in values] for name, values in sorted(curve.values.items())}
    charts = []
    axes = {
        "charged seconds": [float(v) for v in curve.charged_s],
        "updates": [float(v) for v in curve.updates],
    }
    for kind, x in axes.items():
        title = f"{', '.join(series)} of {record.run_id} over {kind}"
        name = f"chart-{kind.split()[0]}"
        charts.append((name, line_chart(x, series, title=title, x_label=kind, name=name)))
    kept = [(name, chart) for name, chart in charts if chart]
    found = {
        f"chart-{kind.split()[0]}": {
            "kind": "lines", "x": kind, "y": "value",
            "lines": {k: [[a, b] for a, b in zip(x, v, strict=True) if math.isfinite(a) and math.isfinite(b)]
                      for k, v in series.items()},
        }
        for kind, x in axes.items()
    }  # fmt: skip
    return kept, data_block("charts", found)
