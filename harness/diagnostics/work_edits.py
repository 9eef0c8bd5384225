"""The stages of `uharness diagnose` about edits: a request before any of them, and the parts of one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.clock import Allowance, Clock
from harness.diagnostics.gradients import entry_of, supplies
from harness.diagnostics.places import place
from harness.diagnostics.table import Lines, Moment
from harness.diagnostics.work import load
from harness.edits import bases, geometry, onjob, separability
from harness.edits.geometry import BasisSpec
from harness.edits.layers import editable
from harness.edits.moments import Gathering
from harness.edits.task_vectors import check_start
from harness.errors import InputError, ModelError
from harness.job import Job, Plan
from harness.plugins import load_task
from harness.runs import RunSpec, cut_case, read_json
from harness.specs import OptimizerSpec

POSITIONS = 64
"""Patches of an image that a convolution looks at."""


def _begin(folder: Path) -> tuple[RunSpec, dict[str, Any], Moment]:
    spec = RunSpec.read(folder.parent)
    torch.set_num_threads(spec.threads)
    torch.manual_seed(spec.train_seed)
    return spec, read_json(folder / "request.json"), Moment(0, 0, 0.0, spec.models["target"])


def _job(spec: RunSpec, needs: Sequence[str], optimizer: OptimizerSpec | None = None) -> Job:
    """The run's job at the target's weights, with a clock that never runs out."""
    board, task = spec.board, load_task(spec.task_ref, spec.board.template)
    case = cut_case(task.case(spec.case, spec.seed), spec.limit)
    plan = Plan(spec.train_seed, board.batch, optimizer or OptimizerSpec(), dtype=board.dtype)
    return Job(
        load(spec, spec.models["target"]), case.forget, case.retain, Clock(Allowance(updates=1)), plan,
        resources=supplies(spec, task, case, needs, partial(load, spec)),
    )  # fmt: skip


def request(folder: Path) -> None:
    """Of every linear map: overlap of forget and retain inputs, size of the task vector, separability."""
    spec, asked, at = _begin(folder)
    job = _job(spec, ("model.init",))
    lines, layers = Lines("request"), editable(job.model)
    seen, _ = onjob.look(job, layers, Gathering(positions=POSITIONS))
    basis = BasisSpec(rank=asked["rank"])
    for layer in layers:
        moments = seen[layer.name]
        shared = bases.overlap(
            geometry.forget_basis(moments, (), basis), geometry.retain_basis(moments, basis)
        )
        value = float(shared.mean()) if len(shared) else None
        why = "" if value is not None else "the layer has no input"
        lines.add(layer.name, "overlap", value, at, why=why, where=place(layer.name))
    found = separability.verdict({name: separability.scores(m) for name, m in seen.items()})
    for name, standing in found.layers.items():
        for measure in ("score", "control", "spread", "deviations"):
            lines.add(name, f"separability.{measure}", getattr(standing, measure), at, where=place(name))
    lines.add("all", "separable", float(found.separable), at, role="all")
    _sizes(job, spec, lines, at)
    lines.write(folder)


def _sizes(job: Job, spec: RunSpec, lines: Lines, at: Moment) -> None:
    why = "" if "init" in spec.models else "the board has no model in role init"
    if not why:
        try:
            sizes = check_start(dict(job.model.state_dict()), dict(job.resource("model.init").state_dict()))
        except ModelError as problem:
            why = str(problem)
    if why:
        lines.add("all", "tau.norm", None, at, why=why, role="all")
        return
    for name, found in ((n, sizes[n]) for n, _ in job.model.named_parameters() if n in sizes):
        for measure in ("norm", "relative", "cosine"):
            lines.add(name, f"tau.{measure}", getattr(found, measure), at, where=place(name))


def ablation(folder: Path) -> None:
    """What the run's own method says of its parts (`ablate(job, rows)`): alpha and accuracies per rank and term."""
    spec, asked, at = _begin(folder)
    lines = Lines("ablation")
    entry, why = entry_of(spec)
    if entry is not None and not hasattr(entry.method, "ablate"):
        entry, why = None, f"{spec.submission} has no ablate(job, rows): its parts cannot be left out"
    if entry is None:
        lines.add("", "alpha", None, at, why=why)
    else:
        try:
            job = _job(spec, entry.needs, entry.optimizer)
            for name, measure, value in entry.method.ablate(job, asked["limit"]):
                lines.add(name, measure, value, at)
        except InputError as problem:
            lines.add("", "alpha", None, at, why=str(problem))
    lines.write(folder)
