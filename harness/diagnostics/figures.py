"""Diagnostics as pictures: lines of the tidy table -> charts by file name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from harness.charts import xy_chart

Line = dict[str, Any]
Points = dict[str, list[tuple[float, float]]]
LOSSES = ("total", "forget", "retain")
AXES = {"updates": "updates", "charged_s": "charged seconds"}
MODELS = ("best_kronecker", "soap", "shampoo_square", "shampoo", "kl_shampoo", "muon", "diagonal", "identity")


def figures(lines: Sequence[Line], axes: tuple[str, str] = ("", "")) -> dict[str, Markup]:
    """Everything that can be drawn of a run's lines; `axes` are the measures of a path's two axes."""
    by_kind: dict[str, list[Line]] = {}
    for line in lines:
        if line["value"] is not None:
            by_kind.setdefault(line["kind"], []).append(line)
    made = _norms(by_kind.get("norms", [])) | _drift(by_kind.get("drift", []))
    made |= _covariance(by_kind.get("covariance", [])) | _losses(by_kind.get("losses", []))
    made |= path(by_kind.get("path", []), *axes) | _request(by_kind.get("request", []))
    made |= _ds(by_kind.get("ds", [])) | _slice(by_kind.get("slice", []))
    return {name: chart for name, chart in made.items() if chart}


def _ds(lines: Sequence[Line]) -> dict[str, Markup]:
    """DS_ES along the run, and against the method's own loss (the NLL of forget rows where that is not known)."""
    mine = [n for n in lines if n["measure"] == "ds_es"]
    out = {}
    for x, label in AXES.items():
        out[f"ds-{x}"] = xy_chart(
            _gather(mine, lambda n: n["measure"], x), title="DS_ES along the run", x_label=label, y_label="DS_ES",
            name=f"ds-{x}",
        )  # fmt: skip
    by = {
        m: {n["step"]: n["value"] for n in lines if n["measure"] == m} for m in ("loss.total", "loss.forget")
    }
    name, loss = next(((m, found) for m, found in by.items() if found), ("", {}))
    trail = [(float(loss[n["step"]]), float(n["value"])) for n in mine if n["step"] in loss]
    out["ds-loss"] = xy_chart(
        {"run": trail} if trail else {}, title=f"DS_ES against {name}, from the start on", x_label=name,
        y_label="DS_ES", name="ds-loss",
    )  # fmt: skip
    return out


def _slice(lines: Sequence[Line]) -> dict[str, Markup]:
    """DS_ES along x of a slice through the weights, one line a y."""
    parts = {m: {n["step"]: n["value"] for n in lines if n["measure"] == m and n["name"] != "chosen"}
             for m in ("x", "y", "ds_es")}  # fmt: skip
    rows: Points = {}
    for step, value in parts["ds_es"].items():
        rows.setdefault(f"y = {parts['y'][step]:.3g}", []).append((float(parts["x"][step]), float(value)))
    return {"slice": xy_chart(
        {name: sorted(points) for name, points in rows.items()},
        title="DS_ES over original + x (child 0 - original) + y (child 1 - original)", x_label="x", y_label="DS_ES",
        name="slice",
    )} if rows else {}  # fmt: skip


def _request(lines: Sequence[Line]) -> dict[str, Markup]:
    """Overlap and separability of every linear map, from the input to the output."""
    mine = [n for n in lines if n["measure"] in ("overlap", "separability.score", "separability.control")]
    order = list(dict.fromkeys(n["name"] for n in mine if n["name"] != "all"))
    points: Points = {}
    for n in mine:
        if n["name"] in order:
            points.setdefault(n["measure"], []).append((float(order.index(n["name"])), float(n["value"])))
    return {"request": xy_chart(
        points, title="Forget and retain inputs of every linear map", x_label="linear map, from the input on",
        y_label="share, 0 to 1", name="request",
    )} if points else {}  # fmt: skip


def _gather(lines: Sequence[Line], key: Callable[[Line], str], x: str = "block") -> Points:
    out: Points = {}
    for line in lines:
        if line[x] is not None:
            out.setdefault(key(line), []).append((float(line[x]), float(line["value"])))
    return {name: sorted(points) for name, points in out.items()}


def _norms(lines: Sequence[Line]) -> dict[str, Markup]:
    out = {}
    labels = {
        "fro": "||W - W0||_F",
        "relative": "||W - W0||_F / ||W0||_F",
        "way_per_update": "way per update",
    }
    for measure, label in labels.items():
        mine = [n for n in lines if n["measure"] == measure and n["name"].startswith("block ")]
        out[f"update-{measure}"] = xy_chart(
            _gather(mine, lambda n: n["role"]), title=f"Update of every block: {label}", x_label="block",
            y_label=label, name=f"update-{measure}",
        )  # fmt: skip
    return out


def _drift(lines: Sequence[Line]) -> dict[str, Markup]:
    moved = [n for n in lines if n["measure"].removeprefix("retain_model.") in ("relative", "cosine")]
    out = {}
    for measure, label in {"relative": "||h - h0|| / ||h0||", "cosine": "1 - cos(h, h0)"}.items():
        mine = [n for n in moved if n["measure"].endswith(measure)]
        out[f"drift-{measure}"] = xy_chart(
            _gather(mine, _whose), title="Drift of the hidden states at answer tokens", x_label="block",
            y_label=label, name=f"drift-{measure}",
        )  # fmt: skip
    slopes = [n for n in lines if n["measure"] == "gradient" and n["role"] == "all"]
    out["gradient"] = xy_chart(
        _gather(slopes, lambda n: n["name"]), title="Gradient of the start, by block", x_label="block",
        y_label="norm of the gradient of the NLL", name="gradient",
    )  # fmt: skip
    return out


def _whose(line: Line) -> str:
    return f"{line['name']}, retained" if line["measure"].startswith("retain_model.") else line["name"]


def _covariance(lines: Sequence[Line]) -> dict[str, Markup]:
    """One chart a matrix, of the first gradient that was measured: total, else forget."""
    kinds = [n["measure"].split(".")[0] for n in lines if ".cosine." in n["measure"]]
    if not kinds:
        return {}
    kind = next(k for k in LOSSES if k in kinds)
    mine = {m: [n for n in lines if n["measure"] == f"{kind}.cosine.{m}"] for m in MODELS}
    out = {}
    for name in dict.fromkeys(n["name"] for n in mine["best_kronecker"]):
        points: Points = {}
        for model, found in mine.items():
            points |= _gather([n for n in found if n["name"] == name], lambda _, m=model: m, "updates")
        key = f"covariance-{re.sub(r'[^A-Za-z0-9]+', '-', name.removesuffix('.weight'))}"
        out[key] = xy_chart(
            points, title=f"Covariance of the {kind} gradient of {name}", x_label="updates",
            y_label="cosine with the measured covariance", name=key,
        )  # fmt: skip
    return out


def _losses(lines: Sequence[Line]) -> dict[str, Markup]:
    out = {}
    for x, x_label in AXES.items():
        for key, wanted, label in (("objective", ("total",), "the method's own loss"),
                                   ("loss", ("forget", "retain"), "NLL of the answers, nats a token")):  # fmt: skip
            mine = [n for n in lines if n["name"] in wanted]
            out[f"{key}-{x}"] = xy_chart(
                _gather(mine, lambda n: n["name"], x), title=f"{label} along the run", x_label=x_label,
                y_label=label, name=f"{key}-{x}",
            )  # fmt: skip
    return out


def path(lines: Sequence[Line], x: str, y: str) -> dict[str, Markup]:
    """One measure against another along each run, as named in the lines, and both against time."""
    runs: Points = {}
    for name in dict.fromkeys(n["name"] for n in lines):
        mine = [n for n in lines if n["name"] == name]
        across, up = ({n["step"]: n["value"] for n in mine if n["measure"] == m} for m in (x, y))
        if both := sorted(set(across) & set(up)):
            runs[name] = [(across[s], up[s]) for s in both]
    out = (
        {"path": xy_chart(runs, title=f"{y} against {x}", x_label=x, y_label=y, name="path")}
        if x and y
        else {}
    )
    for axis, label in AXES.items():
        for group in ("loss", "p"):
            mine = [
                n
                for n in lines
                if n["measure"] in (f"forget.{group}", f"retain.{group}") and n["name"] == "run"
            ]
            out[f"{group}-of-all-rows-{axis}"] = xy_chart(
                _gather(mine, lambda n: n["measure"], axis), title=f"forget.{group} and retain.{group} along the run",
                x_label=label, y_label=group, name=f"{group}-{axis}",
            )  # fmt: skip
    return out


def together(lines: Sequence[Line], axes: tuple[str, str] = ("", "")) -> dict[str, Markup]:
    """Several runs in one chart each: update and drift of the blocks, losses, paths. Lines have a `run_id`."""
    known = [n for n in lines if n["value"] is not None]
    out = {}
    for measure in ("fro", "way_per_update"):
        mine = [n for n in known if n["kind"] == "norms" and n["measure"] == measure and n["role"] == "all"]
        out[f"update-{measure}"] = xy_chart(
            _gather(mine, lambda n: n["run_id"]), title="Update of every block", x_label="block",
            y_label="||W - W0||_F" if measure == "fro" else "way per update", name=f"update-{measure}",
        )  # fmt: skip
    mine = [n for n in known if n["kind"] == "drift" and n["measure"] == "relative"]
    out["drift-relative"] = xy_chart(
        _gather(mine, lambda n: f"{n['run_id']}: {n['name']}"), title="Drift of the hidden states", x_label="block",
        y_label="||h - h0|| / ||h0||", name="drift",
    )  # fmt: skip
    for x, x_label in AXES.items():
        for name in LOSSES:
            mine = [n for n in known if n["kind"] == "losses" and n["name"] == name]
            label = "the method's own loss" if name == "total" else f"NLL of the {name} answers, nats a token"
            out[f"{'objective' if name == 'total' else name}-{x}"] = xy_chart(
                _gather(mine, lambda n: n["run_id"], x), title=f"{label} along the runs", x_label=x_label,
                y_label=label, name=f"{name}-{x}",
            )  # fmt: skip
    trails = [
        n | {"name": n["run_id"] if n["name"] == "run" else n["name"]} for n in known if n["kind"] == "path"
    ]
    drawn = path(trails, *axes)
    return {name: chart for name, chart in (out | drawn).items() if chart}


def shared_axes(lines: Sequence[Line], axes: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Of the axes that runs have of their own, those that every run with a path has; empty where there is none."""
    have: dict[str, set[str]] = {}
    for n in lines:
        if n["kind"] == "path" and n["name"] == "run":
            have.setdefault(n["run_id"], set()).add(n["measure"])
    common = set.intersection(*have.values()) if have else set()
    x, y = ([own[i] for own in axes if own[i] in common] for i in (0, 1))
    return (x[0] if x else "", y[0] if y else "")


def plane(lines: Sequence[Line]) -> Markup:
    """Displacements of several runs on the first two principal components of the whole model; all start at 0."""
    mine = [n for n in lines if n["kind"] == "pca" and n["block"] is None and n["value"] is not None]
    explained = {n["measure"]: n["value"] for n in mine if n["measure"].startswith("explained.")}
    runs: Points = {}
    for name in dict.fromkeys(n["name"] for n in mine if n["measure"] == "pc1"):
        first, second = ({n["step"]: n["value"] for n in mine if n["name"] == name and n["measure"] == pc}
                         for pc in ("pc1", "pc2"))  # fmt: skip
        start = [] if name == "retain model" else [(0.0, 0.0)]
        runs[name] = start + [(first[s], second[s]) for s in sorted(first)]
    shares = [f"component {c} ({explained.get(f'explained.pc{c}', 0.0):.1%} of the variance)" for c in (1, 2)]
    return xy_chart(
        runs, title="Displacements of the weights", x_label=shares[0], y_label=shares[1], name="pca"
    )


def powers(lines: Sequence[Line], metric: str) -> Markup:
    """A metric against the spectral exponent p, one line a submission."""
    return xy_chart(
        _gather(lines, lambda n: n["submission"], "power"), title=f"{metric} against the spectral power",
        x_label="p (1: the momentum's direction, 0: its orthogonal factor)", y_label=metric, name="power",
    )  # fmt: skip
