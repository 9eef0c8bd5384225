"""The stages of `uharness diagnose` about choosing weights: DS along a run, a selector's mixes, a slice of weights.

All judge weights by DS_ES on rows that the method may see, as a selector's proxy does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from harness import losses, models, scoring
from harness.diagnostics import gradients as grads
from harness.diagnostics.table import Lines, Moment
from harness.diagnostics.work import BATCH, begin, load, spread
from harness.edits import soups
from harness.errors import RunError
from harness.plugins import load_task
from harness.runs import RunSpec, cut_case, read_json
from harness.scoring import token_logp
from harness.select import proxy_parts, proxy_rows
from harness.types import Row

MARGIN = 0.25
"""How far a slice goes beyond the triangle of its three models, as a share of an edge."""


def curve(folder: Path) -> None:
    """The method's own loss and DS_ES at the start, at saved points and at the end: one may fall while one rises."""
    spec, request, seen = begin(folder)
    forget, retain = _rows(spec)
    lines = Lines("ds")
    run = grads.OwnRun(spec, max(1, request["limit"] // BATCH), BATCH)
    known, why = run.losses()
    if why:
        lines.add("run", "loss.total", None, seen[0], why=why)
    for moment in seen:
        run.move_to(Path(moment.weights))
        with torch.no_grad():
            for name, loss in known.items():
                total = sum(float(loss(b)) for b in run.batches)
                lines.add("run", f"loss.{name}", total / len(run.batches), moment)
        _judge(lines, "run", run.job.loaded, forget, retain, moment)
    lines.write(folder)


def mixes(folder: Path) -> None:
    """Every mix that a selector judged, in order: its weights, its value, and at the end the one it chose."""
    _, _, seen = begin(folder)
    note = read_json(folder.parent / "select.json")
    lines = Lines("mixes")
    tried = [*note["tried"], {"mix": note["chosen"], "value": None}]
    for k, entry in enumerate(tried):
        name = f"mix {k}" if k < len(note["tried"]) else "chosen"
        at = Moment(k, None, None, seen[-1].weights)
        for model, weight in entry["mix"].items():
            lines.add(name, f"weight.{model}", weight, at)
        found = [t["value"] for t in note["tried"] if t["mix"] == entry["mix"]]
        lines.add(
            name, "value", found[0] if found else None, at, why="" if found else "this mix was not judged"
        )
    lines.write(folder)


def plane(folder: Path) -> None:
    """DS_ES and losses over the plane through the original (0, 0), child 0 (1, 0) and child 1 (0, 1)."""
    spec, request, _ = begin(folder)
    forget, retain = _rows(spec)
    places = [Path(p) for p in read_json(folder.parent / "children.json")][:2]
    if len(places) < 2:
        raise RunError("a slice needs a selector's run with two children")
    loaded = load(spec, spec.start)
    own = folder.parent / "original"
    sources = [soups.Stored(own if own.exists() else spec.start), *map(soups.Stored, places)]
    lines = Lines("slice")
    for k, (x, y) in enumerate(grid(request["grid"])):
        at, name = Moment(k, None, None, ""), f"point {k}"
        soups.pour(soups.combined(sources, [1.0 - x - y, x, y]), loaded.model)
        lines.add(name, "x", x, at)
        lines.add(name, "y", y, at)
        _judge(lines, name, loaded, forget, retain, at)
        for side, rows in (("forget", forget), ("retain", retain)):
            lines.add(name, f"loss.{side}", _nll(loaded, rows), at)
    chosen = read_json(folder.parent / "select.json")["chosen"]
    lines.add("chosen", "x", chosen.get("child 0", 0.0), None)
    lines.add("chosen", "y", chosen.get("child 1", 0.0), None)
    lines.write(folder)


def grid(n: int) -> list[tuple[float, float]]:
    """Points (x, y) of a square of n on a side, row by row, a margin beyond 0 and 1 on all sides.

    >>> grid(2)
    [(-0.25, -0.25), (1.25, -0.25), (-0.25, 1.25), (1.25, 1.25)]
    """
    if n < 2:
        raise ValueError(f"a grid has at least 2 points on a side; got {n}")
    axis = [-MARGIN + k * (1.0 + 2.0 * MARGIN) / (n - 1) for k in range(n)]
    return [(x, y) for y in axis for x in axis]


def _rows(spec: RunSpec) -> tuple[list[Row], list[Row]]:
    case = cut_case(load_task(spec.task_ref, spec.board.template).case(spec.case, spec.seed), spec.limit)
    return proxy_rows(case, spec.seed)


def _judge(
    lines: Lines,
    name: str,
    loaded: models.LoadedModel,
    forget: Sequence[Row],
    retain: Sequence[Row],
    at: Moment,
) -> None:
    parts = proxy_parts(loaded, forget, retain)
    for side, value in zip(("forget", "retain"), parts, strict=True):
        lines.add(name, f"{side}.es", value, at)
    lines.add(name, "ds_es", 100.0 * math.hypot(parts[0], 1.0 - parts[1]), at)


def _nll(loaded: models.LoadedModel, rows: Sequence[Row]) -> float:
    """Mean NLL of the answers, over micro-batches of rows taken evenly."""
    device, total, rows = str(next(loaded.model.parameters()).device), 0.0, spread(rows, 4 * BATCH)
    with torch.no_grad(), scoring.evaluating(loaded.model):
        for at in range(0, len(rows), BATCH):
            part = rows[at : at + BATCH]
            out = scoring.forward(loaded.model, scoring.collate(part, loaded.encoder, device=device))
            total += float(losses.nll(token_logp(out), out.mask)) * len(part) / len(rows)
    return total
