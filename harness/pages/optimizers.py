"""Optimizers compared under equal wall-clock: curves against charged seconds and steps, and along learning rates."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from harness.charts import xy_chart
from harness.comparetables import Compared, tables
from harness.flat import Flat, Value, text_of
from harness.markup import cut, data_block, page, slug
from harness.pages.content import BoardPage, Files, Site
from harness.pages.downloads import FORMS, files
from harness.pages.words import comparison_bibtex, year_of
from harness.tables import Cell

SHOWN = ("comparison", "comparison_before", "cost", "ledger", "widths", "families", "time")
"""Tables on the page; the long ones are drawn."""
Points = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Chart:
    """A drawing with its data; `kind` is `along` the run or `rate`, `loss` and `metric` say of what."""

    name: str
    kind: str
    loss: str
    metric: str
    svg: Markup
    data: Mapping[str, Any]


def overview_files(env: Environment, site: Site, boards: Sequence[BoardPage]) -> Files:
    """The page that lists comparisons and optimizer boards."""
    tracks = [b for b in boards if b.board.track == "optimizer"]
    found = [(c.comparison, slug(c.comparison.id), c.budget_text) for c in _sorted(site)]
    return {"optimizers.html": page(env, "optimizers.html", "", comparisons=found, boards=tracks)}


def comparison_files(env: Environment, compared: Compared, paged: Sequence[str]) -> Files:
    """A comparison's page and all its tables; the runs in `paged` have a page of their own."""
    c = compared.comparison
    name = slug(c.id)
    made = tables(compared)
    shown = [column.metric for column in compared.columns]
    charts = [*_along(made["progress"], shown), *_rates(made["rates"], c.board.rank_by)]
    html = page(
        env, "comparison.html", "../", c=c, budget=compared.budget_text, text_of=text_of,
        tables=[made[t] for t in SHOWN if t in made], charts=charts, base=f"data/comparisons/{name}",
        names=sorted(made), forms=FORMS, paged=set(paged),
        chart_data=data_block("charts", {chart.name: chart.data for chart in charts}),
        again=_command(compared), cite=comparison_bibtex(c, year_of(compared.records.values())),
    )  # fmt: skip
    found: Files = {f"optimizers/{name}.html": html}
    for flat in made.values():
        found |= _flat_files(f"data/comparisons/{name}/{slug(flat.name)}", flat)
    return found


def _sorted(site: Site) -> list[Compared]:
    return sorted(site.comparisons, key=lambda c: (c.comparison.base, c.comparison.id))


def _command(compared: Compared) -> str:
    c = compared.comparison
    parts = ["uharness", "compare", "--board", c.base, "--loss", ",".join(c.losses)]
    parts += ["--optimizers", ",".join(c.optimizers), *(["--until-slowest"] if c.until_slowest else [])]
    return " ".join(shlex.quote(part) for part in parts)


def _flat_files(base: str, flat: Flat) -> Files:
    """A table for other programs: a cell becomes its mean and its deviation."""
    kinds: dict[str, type] = {}
    rows = []
    for row in flat.rows:
        line: dict[str, Any] = {}
        for head in flat.heads:
            value = row.get(head)
            if isinstance(value, Cell):
                line |= {head: value.mean, f"{head} sd": value.sd}
                kinds |= {head: float, f"{head} sd": float}
            elif value is not None:
                line[head] = int(value) if isinstance(value, bool) else value
                kinds[head] = _wider(kinds.get(head), type(line[head]))
        rows.append(line)
    ordered = {name: kinds[name] for h in flat.heads for name in (h, f"{h} sd") if name in kinds}
    ordered |= {h: str for h in flat.heads if h not in ordered}
    return files(base, ordered, rows)


def _wider(one: type | None, two: type) -> type:
    if one is None or one is two:
        return two
    return float if {one, two} == {int, float} else str


# --- drawings -------------------------------------------------------------------------------------------------------
def _along(progress: Flat, shown: Sequence[str]) -> list[Chart]:
    """Metrics along the runs of each loss, against charged seconds and against updates.

    Those of `shown` that have values along the runs, in this order; all, where none of them has.
    """
    runs: dict[tuple[str, str], dict[str, dict[tuple[Any, Any], list[tuple[float, float, float]]]]] = {}
    for row in progress.rows:
        if not row["end"] and row["charged_s"] is not None and row["updates"] is not None:
            mine = runs.setdefault((str(row["loss"]), str(row["metric"])), {})
            point = (_number(row["charged_s"]), _number(row["updates"]), _number(row["value"]))
            mine.setdefault(str(row["optimizer"]), {}).setdefault((row["case"], row["seed"]), []).append(
                point
            )
    place = {metric: k for k, metric in reversed(list(enumerate(shown)))}
    kept = {pair: mine for pair, mine in runs.items() if pair[1] in place} or runs
    charts = []
    for i, ((loss, metric), mine) in enumerate(
        sorted(kept.items(), key=lambda item: (item[0][0], place.get(item[0][1], 0), item[0][1]))
    ):
        means = {optimizer: _mean(list(curves.values())) for optimizer, curves in mine.items()}
        for axis, x_label in enumerate(("charged seconds", "updates")):
            lines = {o: [(point[axis], point[2]) for point in points] for o, points in means.items()}
            charts.append(_chart(f"along-{i}-{axis}", loss, metric, x_label, lines))
    return [chart for chart in charts if chart.svg]


def _mean(curves: list[list[tuple[float, float, float]]]) -> list[tuple[float, float, float]]:
    """Check by check, the mean over runs; of runs with another number of checks only the first one's."""
    if len({len(curve) for curve in curves}) > 1:
        return curves[0]
    return [
        tuple(math.fsum(values) / len(values) for values in zip(*points, strict=True))
        for points in zip(*curves, strict=True)
    ]  # type: ignore[return-value]


def _rates(rates: Flat, rank_by: str) -> list[Chart]:
    """What the board ranks by, and the proxy, along the learning rates of each loss; rates by their logarithm."""
    lines: dict[tuple[str, str], Points] = {}
    for row in rates.rows:
        if row["metric"] in (rank_by, "proxy") and row["value"] is not None:
            mine = lines.setdefault((str(row["loss"]), str(row["metric"])), {})
            mine.setdefault(str(row["optimizer"]), []).append((_number(row["lr"]), _number(row["value"])))
    charts = []
    for i, ((loss, metric), mine) in enumerate(sorted(lines.items())):
        if max(map(len, mine.values())) > 1:
            charts.append(_chart(f"rate-{i}", loss, metric, "learning rate", mine, log=True))
    return [chart for chart in charts if chart.svg]


def _chart(name: str, loss: str, metric: str, x_label: str, lines: Points, *, log: bool = False) -> Chart:
    drawn = {k: [(math.log10(x), y) for x, y in v] for k, v in lines.items()} if log else lines
    label = f"log10 of the {x_label}" if log else x_label
    title = f"{metric} of {loss} over {label}"
    svg = xy_chart(drawn, title=title, x_label=label, y_label=metric, name=name)
    data = {
        "kind": "lines", "x": x_label, "y": str(cut(metric, 80)), "log": log,
        "lines": {str(cut(k, 80)): [list(point) for point in v] for k, v in lines.items()},
    }  # fmt: skip
    return Chart(name, name.partition("-")[0], loss, metric, svg, data)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
