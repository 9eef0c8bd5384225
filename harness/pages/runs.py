"""A page a run: configuration, machine, cost, curve, every metric, and every question with its answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Environment
from markupsafe import Markup, escape

from harness.charts import line_chart
from harness.markup import breakable, clean, cut, data_block, num, page, slug
from harness.pages.content import BoardPage, Files, Site, of_runs
from harness.pages.downloads import csv_text, files_of, lines_of, parquet, script
from harness.pages.words import budget_text, command, run_bibtex
from harness.recordfiles import record_json
from harness.recordtables import DIAGNOSTICS
from harness.specs import RunRecord
from harness.tables import STATUS_TEXT
from harness.targets import target_of, time_to
from harness.types import MetricInfo, Trajectory

if TYPE_CHECKING:
    import pyarrow as pa

FEW = 3
"""Questions of each probe that are on the page itself; the data file has all of them."""
TEXTS = ("prompt", "target", "answer")
_SCORES = ("metric", "value", "n", "why")
_ROWS = {
    "probe": str, "metric": str, "row_id": str, "value": float, "why": str, "prompt": str, "target": str, "answer": str,
}  # fmt: skip
WORDLESS = {"images": "images", "bma": "numbers"}
"""Task to what its rows are, where they are no texts."""
_CHECKS = {"run_id": str, "step": int, "updates": int, "charged_s": float, "metric": str, "value": float}
ARROWS = {"higher": ("↑", "higher is better"), "lower": ("↓", "lower is better")}


def run_files(env: Environment, site: Site, board: BoardPage, record: RunRecord) -> Files:
    """A run's page and its data."""
    name = slug(record.run_id)
    columns = _columns(site.rows.get(record.run_id, ()))
    probes = questions(columns)
    text, table = site.files.get(record.run_id, (None, None))
    scores = [(metric, s.value, s.n, s.why) for metric, s in sorted(record.scores.items())]
    made: Files = {
        f"runs/{name}.html": page(env, "run.html", "../", **_values(site, board, record, probes)),
        f"data/runs/{name}.csv": csv_text(_SCORES, scores),
        f"data/runs/{name}.json": record_json(record) if text is None else text,
    }
    if probes:
        made[f"data/rows/{name}.js"] = script("questions", record.run_id, [q.data() for q in probes])
        lines = list(zip(*columns.values(), strict=True)) if table is None else []
        made[f"data/rows/{name}.parquet"] = parquet(_ROWS, lines) if table is None else table
    return made


def _columns(rows: Sequence[Mapping[str, Any]] | pa.Table) -> dict[str, Sequence[Any]]:
    """The columns `_ROWS`, in this order; what a line lacks, or is not finite, is None."""
    if not isinstance(rows, Sequence):
        return rows.select(list(_ROWS)).to_pydict()
    across = zip(*lines_of(_ROWS, rows), strict=True) if rows else ((),) * len(_ROWS)
    found: dict[str, Sequence[Any]] = dict(zip(_ROWS, across, strict=True))
    return found | {"value": [v if v is not None and math.isfinite(v) else None for v in found["value"]]}


def curve_files(site: Site, board: str, runs: Sequence[str]) -> Files:
    """The curves of a board's runs: a line a run, check and metric, as the database has them."""
    lines: list[tuple[Any, ...]] = []
    curves = of_runs(site.trajectories, runs)
    for run in runs:
        curve = curves.get(run)
        if curve is not None:
            at = zip(
                itertools.count(),
                curve.updates.tolist(),
                map(_finite, curve.charged_s.tolist()),
                strict=False,
            )
            names = sorted(curve.values)
            across = zip(*(map(_finite, curve.values[name].tolist()) for name in names), strict=True)
            for check, values in zip(at, across, strict=True):
                lines += [(run, *check, name, value) for name, value in zip(names, values, strict=True)]
    return files_of(f"data/trajectories/{slug(board)}", _CHECKS, lines) if lines else {}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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


def questions(columns: Mapping[str, Sequence[Any]]) -> list[Questions]:
    """The columns of a long table (`_ROWS`) with one line a question, probe by probe; in the order of the table."""
    probes: dict[str, dict[str, list[int]]] = {}
    for i, (probe, metric, row_id) in enumerate(
        zip(columns["probe"], columns["metric"], columns["row_id"], strict=True)
    ):
        probes.setdefault(probe or metric.split(".")[0], {}).setdefault(row_id, []).append(i)
    return [_probe(probe, rows, columns) for probe, rows in probes.items()]


def _probe(probe: str, rows: Mapping[str, Sequence[int]], columns: Mapping[str, Sequence[Any]]) -> Questions:
    """The questions of one probe; `rows` says in which lines of the columns each stands."""
    metric, value, why = columns["metric"], columns["value"], columns["why"]
    metrics = list(dict.fromkeys(metric[i] for lines in rows.values() for i in lines))
    place = {name: i for i, name in enumerate(metrics)}
    texts = {t: {r: _text(columns[t], lines) for r, lines in rows.items()} for t in TEXTS}
    there = {t: {r: "–" if text is None else clean(text) for r, text in of.items()}
             for t, of in texts.items() if any(text is not None for text in of.values())}  # fmt: skip
    found = []
    for row_id, lines in rows.items():
        values: list[float | str] = ["not asked of this row"] * len(metrics)
        for i in lines:
            told = value[i]
            values[place[metric[i]]] = told if told is not None else clean(why[i] or "no value", 300)
        found.append((clean(row_id, 200), [of[row_id] for of in there.values()], values))
    return Questions(clean(probe, 80), [clean(m, 120) for m in metrics], list(there), found)


def _text(column: Sequence[str | None], lines: Sequence[int]) -> str | None:
    for i in lines:
        if column[i] is not None:
            return column[i]
    return None


def _values(site: Site, board: BoardPage, record: RunRecord, probes: Sequence[Questions]) -> dict[str, Any]:
    curve = site.trajectories.get(record.run_id)
    shown = list(dict.fromkeys(c.metric for c in board.table.columns if c.metric in record.scores))
    every = [column.metric for column in board.table.columns]
    charts, data = (
        _charts(record, curve, every, site.metrics) if curve is not None and len(curve.updates) else ([], {})
    )
    target = target_of(board.board)
    lines = site.relearning.get(record.run_id) if DIAGNOSTICS in record.rows else None
    relearning, more = _relearning(record, lines) if lines else ([], {})
    return {
        "record": record,
        "board": board.board,
        "budget": budget_text(board.board),
        "scores": score_rows(record, site.metrics, shown),
        "others": score_rows(
            record, site.metrics, [name for name in sorted(record.scores) if name not in shown]
        ),
        "status_text": STATUS_TEXT[record.status],
        "target": target,
        "reached": time_to(target, curve) if target is not None else None,
        "charts": charts,
        "relearning": relearning,
        "chart_data": data_block("charts", data | more),
        "probes": [(q, q.rows[:FEW]) for q in probes],
        "count": sum(len(q.rows) for q in probes),
        "wordless": [q.probe for q in probes if not q.texts],
        "kind": WORDLESS.get(board.board.task.name, ""),
        "along": curve is not None and len(curve.updates) > 0,
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


def _charts(
    record: RunRecord, curve: Trajectory, shown: Sequence[str], metrics: Mapping[str, MetricInfo]
) -> tuple[list[tuple[str, Markup]], dict[str, Any]]:
    """What a curve has of the board's columns, or all of it: shares together, any other metric by itself."""
    names = [name for name in dict.fromkeys(shown) if name in curve.values] or sorted(curve.values)
    groups: dict[str, list[str]] = {}
    for name in names:
        info = metrics.get(name)
        share = info is None or (info.low, info.high) == (0.0, 1.0)
        groups.setdefault("value" if share else name, []).append(name)
    axes = {
        "charged seconds": [float(v) for v in curve.charged_s],
        "updates": [float(v) for v in curve.updates],
    }
    charts, found = [], {}
    for k, (label, members) in enumerate(groups.items()):
        series = {name: [float(v) for v in curve.values[name]] for name in members}
        for kind, x in axes.items():
            name = f"chart-{k}-{kind.split()[0]}"
            title = f"{', '.join(series)} of {record.run_id} over {kind}"
            charts.append((name, line_chart(x, series, title=title, x_label=kind, name=name)))
            found[name] = {
                "kind": "lines", "x": kind, "y": str(cut(label, 80)),
                "lines": {n: [[a, b] for a, b in zip(x, v, strict=True) if math.isfinite(a) and math.isfinite(b)]
                          for n, v in series.items()},
            }  # fmt: skip
    return [(name, chart) for name, chart in charts if chart], found


RELEARNT = {"rows": {"forget.es": "", "forget.es.unseen": ", unseen"}, "questions": {"questions.es": ""}}
"""Chart of relearning -> measures in it, and what is added to the line's name for each."""


def _relearning(
    record: RunRecord, lines: Sequence[tuple[str, str, int, float]]
) -> tuple[list[tuple[str, Markup]], dict[str, Any]]:
    """Extraction strength along relearning, of the run and of the retain model, on the rows and on questions."""
    charts, data, kind = [], {}, "relearning steps"
    for chart, measures in RELEARNT.items():
        points: dict[str, dict[int, float]] = {}
        for whose, measure, step, value in lines:
            if measure in measures:
                points.setdefault(whose + measures[measure], {})[step] = value
        steps = sorted({step for found in points.values() for step in found})
        series = {label: [found.get(step, math.nan) for step in steps] for label, found in points.items()}
        name, title = f"chart-relearning-{chart}", f"Extraction strength on {chart} of {record.run_id}"
        if drawn := line_chart(steps, series, title=title, x_label=kind, name=name):
            charts.append((name, drawn))
            found = {label: [list(point) for point in sorted(of.items())] for label, of in points.items()}
            data[name] = {"kind": "lines", "x": kind, "y": f"extraction strength, {chart}", "lines": found}
    return charts, data
