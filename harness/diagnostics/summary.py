"""Diagnostics in a few lines of text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]


def summary(lines: Sequence[Line]) -> list[str]:
    """What a person wants to see first; all numbers are in the table."""
    if lines and "power" in lines[0]:
        return [
            f"{n['submission']:20} p = {n['power']:<6g} {n['value']:.4g}"
            + (f" +- {n['sd']:.2g}" if n["sd"] is not None else "")
            + f"  ({n['runs']} runs, best of {n['entries']} entries)"
            for n in lines
        ]
    runs = list(dict.fromkeys(n["run_id"] for n in lines if n["kind"] != "pca"))
    out: list[str] = []
    for run in runs:
        out += [f"{run}:"] if len(runs) > 1 else []
        out += _of_run([n for n in lines if n["run_id"] == run and n["kind"] != "pca"])
    return out + _of_run([n for n in lines if n["kind"] == "pca"])


def _of_run(lines: Sequence[Line]) -> list[str]:
    known = [n for n in lines if n["value"] is not None]
    lacks = dict.fromkeys(
        f"{n['kind']:11} {n['name'] or n['measure']}: {n['why']}" for n in lines
        if n["value"] is None and n["kind"] in ("losses", "pca", "covariance", "request", "ablation")
    )  # fmt: skip
    return [
        *_norms(known),
        *_drift(known),
        *_covariance(known),
        *_losses(known),
        *_path(known),
        *_pca(known),
        *_soups(known),
        *_edits(known),
        *lacks,
    ]


def _norms(lines: Sequence[Line]) -> Iterator[str]:
    mine = {(n["name"], n["role"], n["measure"]): n["value"] for n in lines if n["kind"] == "norms"}
    for (name, role, measure), value in mine.items():
        if role == "all" and measure == "fro":
            share = mine.get((name, role, "relative"))
            more = f", {share:.3%} of its weights' norm" if share is not None else ""
            yield f"norms       {name:12} moved by {value:.4g}{more}"


def _drift(lines: Sequence[Line]) -> Iterator[str]:
    for measure in ("relative", "retain_model.relative"):
        mine = [n for n in lines if n["kind"] == "drift" and n["measure"] == measure]
        whose = "of the retain model" if measure.startswith("retain_model") else "of the run"
        for name in dict.fromkeys(n["name"] for n in mine):
            values = ", ".join(f"{n['value']:.3g}" for n in mine if n["name"] == name)
            yield f"drift       {name} rows, {whose}, block by block: {values}"


def _covariance(lines: Sequence[Line]) -> Iterator[str]:
    mine = [n for n in lines if n["kind"] == "covariance" and ".cosine." in n["measure"]]
    for kind in dict.fromkeys(n["measure"].split(".")[0] for n in mine):
        last = max(n["step"] for n in mine)
        for step in dict.fromkeys((0, last)):
            parts: dict[str, list[float]] = {}
            for n in mine:
                if n["step"] == step and n["measure"].startswith(f"{kind}."):
                    parts.setdefault(n["measure"].split(".", 2)[2], []).append(n["value"])
            text = ", ".join(f"{m} {statistics.fmean(v):.3f}" for m, v in parts.items())
            yield f"covariance  {kind} gradient, {'end' if step else 'start'}, mean cosine: {text}"


def _losses(lines: Sequence[Line]) -> Iterator[str]:
    mine = [n for n in lines if n["kind"] == "losses"]
    for name in dict.fromkeys(n["name"] for n in mine):
        values = [n["value"] for n in mine if n["name"] == name]
        yield f"losses      {name}: {' -> '.join(f'{v:.4g}' for v in values)}"


def _path(lines: Sequence[Line]) -> Iterator[str]:
    mine = [n for n in lines if n["kind"] == "path" and n["name"] == "run"]
    for measure in dict.fromkeys(n["measure"] for n in mine):
        values = [n["value"] for n in mine if n["measure"] == measure]
        yield f"path        {measure}: {values[0]:.4g} -> {values[-1]:.4g} over {len(values)} points"


def _edits(lines: Sequence[Line]) -> Iterator[str]:
    mine = [n for n in lines if n["kind"] == "request"]
    whole = {n["measure"]: n["value"] for n in mine if n["name"] == "all"}
    if "separable" in whole:
        says = "separable" if whole["separable"] else "not separable: a subspace edit has nothing to remove"
        yield f"request     this request is {says}"
        numbers: dict[str, dict[str, float]] = {}
        for n in mine:
            numbers.setdefault(n["name"], {})[n["measure"].removeprefix("separability.")] = n["value"]
        name, best = max(numbers.items(), key=lambda item: item[1].get("deviations", float("-inf")))
        usual = f"random requests of its size {best['control']:.3g} +- {best['spread']:.2g}"
        yield f"request     separability is highest at {name}: {best['score']:.3g}; {usual}"
    words = {"overlap": "overlap of forget and retain inputs", "tau.relative": "task vector by weights' norm"}
    for measure, label in words.items():
        if told := [f"{n['name']} {n['value']:.2f}" for n in mine if n["measure"] == measure]:
            yield f"request     {label}, layer by layer: {', '.join(told)}"
    parts: dict[str, list[str]] = {}
    for n in lines:
        if n["kind"] == "ablation":
            parts.setdefault(n["name"], []).append(f"{n['measure']} {n['value']:.3g}")
    for name, told in parts.items():
        yield f"ablation    {name}: {', '.join(told)}"


def _soups(lines: Sequence[Line]) -> Iterator[str]:
    for measure in ("loss.total", "loss.forget", "ds_es"):
        values = [n["value"] for n in lines if n["kind"] == "ds" and n["measure"] == measure]
        if values:
            yield f"ds          {measure}: {' -> '.join(f'{v:.4g}' for v in values)}"
    mixes = [n for n in lines if n["kind"] == "mixes"]
    for name in dict.fromkeys(n["name"] for n in mixes):
        mine = {n["measure"]: n["value"] for n in mixes if n["name"] == name}
        parts = ", ".join(f"{m.removeprefix('weight.')} {v:.4g}" for m, v in mine.items() if m != "value")
        worth = f"{mine['value']:.4g}" if "value" in mine else "not judged"
        yield f"mixes       {name:8} {parts}: {worth}"
    points = [n for n in lines if n["kind"] == "slice" and n["measure"] == "ds_es"]
    if points:
        low = min(points, key=lambda n: n["value"])
        at = {n["measure"]: n["value"] for n in lines if n["kind"] == "slice" and n["name"] == low["name"]}
        where = f"x = {at['x']:.3g}, y = {at['y']:.3g}"
        yield f"slice       lowest DS_ES {low['value']:.4g} at {where}, of {len(points)} points"


def _pca(lines: Sequence[Line]) -> Iterator[str]:
    mine = [n for n in lines if n["kind"] == "pca" and n["block"] is None]
    for n in mine:
        if n["measure"].startswith("explained."):
            yield f"pca         {n['measure'].removeprefix('explained.')} explains {n['value']:.1%} of the variance"
    ends = {n["name"]: n["step"] for n in mine if n["measure"] == "pc1"}
    for name, step in ends.items():
        spot = [n["value"] for n in mine if n["name"] == name and n["step"] == step]
        yield f"pca         {name} ends at ({', '.join(f'{v:.4g}' for v in spot)})"
