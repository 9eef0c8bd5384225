"""The stages of `uharness diagnose` that look at weights alone, streamed from their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.diagnostics import norms as norming
from harness.diagnostics.displacement import components
from harness.diagnostics.places import place
from harness.diagnostics.table import Lines, Moment, moments
from harness.diagnostics.weights import Saved, common, displacement_gram
from harness.diagnostics.work import begin
from harness.runs import RunSpec, read_json


def norms(folder: Path) -> None:
    """Of every parameter, block and role: how far it has moved, and along how many directions."""
    _, _, seen = begin(folder)
    lines = Lines("norms")
    saved = [Saved(Path(m.weights)) for m in seen]
    moved: dict[str, tuple[Any, float]] = {}
    begun: dict[str, tuple[Any, float]] = {}
    legs: list[dict[str, tuple[Any, float]]] = [{} for _ in seen[1:]]
    for name in common(saved):
        where, start, before = place(name), saved[0].read(name), saved[0].read(name)
        for leg, model in zip(legs, saved[1:], strict=True):
            after = model.read(name)
            leg[name] = (where, norming.squared_distance(before, after))
            before = after
        found = norming.update_norms(start, before)
        for measure, (value, why) in found.items():
            lines.add(name, measure, value, seen[-1], why=why, where=where)
        moved[name] = (where, (found["fro"][0] or 0.0) ** 2)
        begun[name] = (where, (found["start"][0] or 0.0) ** 2)
    sums, starts = norming.grouped(moved), norming.grouped(begun)
    ways = [norming.grouped(leg) for leg in legs]
    for (block, role), square in sorted(sums.items(), key=str):
        group = "all" if block is None else f"block {block}"
        values = {"fro": square**0.5, "start": starts[block, role] ** 0.5}
        values["relative"] = values["fro"] / values["start"] if values["start"] else None
        way = sum(leg[block, role] ** 0.5 for leg in ways)
        values["way_per_update"] = way / seen[-1].updates if seen[-1].updates else None
        for measure, value in values.items():
            why = "" if value is not None else "nothing to divide by"
            lines.add(group, measure, value, seen[-1], why=why, block=block, role=role)
    lines.write(folder)


def displacements(folder: Path) -> None:
    """Principal components of the displacements of several runs, over the whole model and block by block."""
    runs = [Path(run) for run in read_json(folder / "request.json")["runs"]]
    specs = [RunSpec.read(run) for run in runs]
    torch.set_num_threads(specs[0].threads)
    points = [(spec.run_id, m) for run, spec in zip(runs, specs, strict=True) for m in moments(run, spec)[1:]]
    start = Saved(Path(specs[0].start))
    saved = [Saved(Path(m.weights)) for _, m in points]
    fitted = np.ones(len(points), dtype=bool)
    if "retain" in specs[0].models:
        points.append(("retain model", Moment(0, None, None, specs[0].models["retain"])))
        saved.append(Saved(Path(specs[0].models["retain"])))
        fitted = np.append(fitted, False)
    names = common([start, *saved])
    parts: dict[int | None, list[str]] = {}
    for name in names:
        parts.setdefault(place(name).block, []).append(name)
    grams = {block: displacement_gram(start, saved, inside) for block, inside in parts.items()}
    lines = Lines("pca")
    whole = sum(grams.values(), start=np.zeros((len(points), len(points))))
    for block, gram in [(None, whole), *((b, g) for b, g in grams.items() if b is not None)]:
        try:
            made = components(gram, fitted)
        except ValueError as problem:
            lines.add("all", "explained", None, None, why=str(problem), block=block, role="all")
            continue
        for c, share in enumerate(made.explained, 1):
            lines.add("all", f"explained.pc{c}", float(share), None, block=block, role="all")
        for (run, moment), spot in zip(points, made.coordinates, strict=True):
            for c, value in enumerate(spot, 1):
                lines.add(run, f"pc{c}", float(value), moment, block=block, role="all")
    lines.write(folder)
