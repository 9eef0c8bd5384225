"""The stages of `uharness diagnose`: each runs in a process of its own, and leaves `<kind>.parquet` in its folder.

The folder is `diagnostics/` inside a run's; `request.json` in it says what is asked. Those that look at weights alone
are in `work_weights`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness import answers as answering
from harness import blocks, losses, models, scoring
from harness.diagnostics import covariance as covariances
from harness.diagnostics import gradients as grads
from harness.diagnostics import norms as norming
from harness.diagnostics.drift import Drift
from harness.diagnostics.places import place
from harness.diagnostics.table import Lines, Moment, moments
from harness.generate.hf import HFGenerator
from harness.plugins import load_task
from harness.runs import RunSpec, cut_case, cut_probes, read_json
from harness.scoring import token_logp
from harness.types import Generation, Row

MATRICES = r"(o_proj|out_proj|c_proj|up_proj|c_fc|fc1|down_proj|fc2|output|mlp_in|mlp_out)\.weight$"
"""What covariances are measured of: attention output, MLP up and MLP down, in the middle and the last block."""
BATCH = 16
"""Texts that go through a model at once."""


def begin(folder: Path) -> tuple[RunSpec, dict[str, Any], list[Moment]]:
    """What a stage starts from: the run, what is asked, and the weights to look at, the start first."""
    run = folder.parent
    spec = RunSpec.read(run)
    torch.set_num_threads(spec.threads)
    return spec, read_json(folder / "request.json"), moments(run, spec)


def load(spec: RunSpec, path: str | Path) -> models.LoadedModel:
    """A model of the run's board."""
    board = spec.board
    return models.load(str(path), dtype=board.dtype, template=board.template, max_length=board.max_length)


# --- drift ----------------------------------------------------------------------------------------------------------
def drift(folder: Path) -> None:
    """Of every block: how far its output has moved on forget and retain rows, and the start's gradients there."""
    spec, request, seen = begin(folder)
    lines = Lines("drift")
    case = cut_case(load_task(spec.task_ref, spec.board.template).case(spec.case, spec.seed), spec.limit)
    sets = {
        name: spread(rows, request["limit"])
        for name, rows in (("forget", case.forget), ("retain", case.retain))
    }
    start = load(spec, seen[0].weights)
    others = {"": seen[-1].weights}
    if "retain" in spec.models:
        others["retain_model."] = spec.models["retain"]
    for prefix, weights in others.items():
        other = load(spec, weights)
        for name, rows in sets.items():
            for block, means in _drift(start, other, rows).items():
                for measure, value in means.items():
                    lines.add(name, f"{prefix}{measure}", value, seen[-1], block=block, role="all")
        del other
    for name, rows in sets.items():
        for (block, role), square in sorted(_gradient_squares(start, rows).items(), key=str):
            lines.add(name, "gradient", square**0.5, seen[0], block=block, role=role)
    lines.write(folder)


def spread(rows: Sequence[Row], limit: int) -> list[Row]:
    """At most `limit` rows, evenly over the whole sequence.

    >>> spread(list("abcdef"), 3)
    ['a', 'c', 'e']
    """
    count = min(limit, len(rows))
    return [rows[i * len(rows) // count] for i in range(count)]


def _batches(loaded: models.LoadedModel, rows: Sequence[Row]) -> list[scoring.Inputs]:
    device = str(next(loaded.model.parameters()).device)
    size = BATCH if loaded.encoder is not None else 4096
    return [
        scoring.collate(rows[at : at + size], loaded.encoder, device=device)
        for at in range(0, len(rows), size)
    ]


def _drift(
    start: models.LoadedModel, other: models.LoadedModel, rows: Sequence[Row]
) -> dict[int, dict[str, float]]:
    means = Drift()
    for inputs in _batches(start, rows):
        with torch.no_grad():
            a, b = block_outputs(start.model, inputs), block_outputs(other.model, inputs)
        mask = inputs.answer if inputs.answer is not None else torch.ones(len(inputs), 1, dtype=torch.bool)
        means.add(a, b, mask.to(next(iter(a.values())).device))
    return means.means()


def block_outputs(model: nn.Module, inputs: scoring.Inputs) -> dict[int, Tensor]:
    """What every block puts out [B, T, d] (arrays: [B, 1, d]), in one pass; before the model's final norm."""
    parts = blocks.blocks(model)
    if not parts:
        return dict(scoring.forward(model, inputs, tuple(range(blocks.depth(model)))).hidden)
    out: dict[int, Tensor] = {}

    def keep(block: int) -> Any:
        def hook(_module: nn.Module, _given: Any, output: Any) -> None:
            out[block] = output[0] if isinstance(output, tuple) else output

        return hook

    with ExitStack() as stack:
        for i, part in enumerate(parts):
            stack.callback(part.register_forward_hook(keep(i)).remove)
        scoring.forward(model, inputs)
    return out


def _gradient_squares(loaded: models.LoadedModel, rows: Sequence[Row]) -> dict[tuple[int | None, str], float]:
    """Squared norms, by block and role, of the gradient of the mean NLL of the rows' answers."""
    model = loaded.model.requires_grad_(True)
    model.zero_grad(set_to_none=True)
    for inputs in _batches(loaded, rows):
        out = scoring.forward(model, inputs)
        (losses.nll(token_logp(out), out.mask) * (len(inputs) / len(rows))).backward()
    squares = {
        name: (place(name), norming.squared_distance(p.grad))
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return norming.grouped(squares)


# --- losses ---------------------------------------------------------------------------------------------------------
def losses_along(folder: Path) -> None:
    """The method's own loss, and the NLL of forget and retain answers, at the start, at saved points, at the end."""
    spec, request, seen = begin(folder)
    lines = Lines("losses")
    run = grads.OwnRun(spec, max(1, request["limit"] // BATCH), BATCH)
    known, why = run.losses()
    for moment in seen:
        run.move_to(Path(moment.weights))
        with torch.no_grad():
            sums = {name: sum(float(loss(b)) for b in run.batches) for name, loss in known.items()}
        for name, total in sums.items():
            lines.add(name, "loss", total / len(run.batches), moment)
        if why:
            lines.add("total", "loss", None, moment, why=why)
    lines.write(folder)


# --- covariance -----------------------------------------------------------------------------------------------------
def covariance(folder: Path) -> None:
    """Cosines of what optimizers imply with the measured gradient covariance, and with the best Kronecker product.

    At the points between start and end only of the method's own gradient (of the forget rows' where it is not known).
    """
    spec, request, seen = begin(folder)
    lines = Lines("covariance")
    run = grads.OwnRun(spec, request["gradients"], request["rows"])
    known, why = run.losses()
    chosen = matrices(run.job.model, request["matrices"])
    run.job.model.requires_grad_(False)
    if why:
        lines.add("", "total.cosine", None, seen[0], why=why)
    for moment in seen:
        run.move_to(Path(moment.weights))
        for names in grads.groups(chosen, len(run.batches)):
            ends = moment in (seen[0], seen[-1])
            for kind, loss in list(known.items())[: None if ends else 1]:
                _measure(lines, moment, kind, loss, run.batches, {n: chosen[n] for n in names})
    lines.write(folder)


def _measure(
    lines: Lines, moment: Moment, kind: str, loss: grads.Loss, batches: Any, chosen: Mapping[str, nn.Parameter]
) -> None:  # fmt: skip
    for matrix in chosen.values():
        matrix.requires_grad_(True)
    kept = grads.gradients(loss, batches, list(chosen.values()))
    for matrix in chosen.values():
        matrix.requires_grad_(False)
    for name in chosen:
        where, measured = place(name), kept.pop(0)
        lines.add(name, f"{kind}.gradients", float(len(measured)), moment, where=where)
        try:
            found = covariances.cosines(measured)
        except ValueError as problem:
            lines.add(name, f"{kind}.cosine", None, moment, why=str(problem), where=where)
            continue
        for measure, values in found.items():
            for model, value in values.items():
                lines.add(name, f"{kind}.{measure}.{model}", value, moment, where=where)


def matrices(model: nn.Module, pattern: str = "") -> dict[str, nn.Parameter]:
    """The matrices that covariances are measured of: those whose names match, or `MATRICES` of two blocks.

    Without a pattern and without such names: every matrix of the middle and the last block. Raises `ValueError` when
    nothing fits.
    """
    every = {name: p for name, p in model.named_parameters() if p.ndim == 2}
    if pattern:
        found = {name: p for name, p in every.items() if re.search(pattern, name)}
    else:
        inside = [b for b in (place(name).block for name in every) if b is not None]
        wanted = {max(inside, default=0) // 2, max(inside, default=0)}
        here = {name: p for name, p in every.items() if place(name).block in wanted}
        found = {name: p for name, p in here.items() if re.search(MATRICES, name)} or here
    if not found:
        raise ValueError(
            f"no matrix fits {pattern or MATRICES!r}; there are {', '.join(list(every)[:6])} ..."
        )
    return found


# --- texts along the way --------------------------------------------------------------------------------------------
def texts(folder: Path) -> None:
    """Ask the weights saved along the way for texts too (and the task's judge), so that `util` is known there."""
    spec, _, _ = begin(folder)
    task = load_task(spec.task_ref, spec.board.template)
    case = cut_case(task.case(spec.case, spec.seed), spec.limit)
    probes = cut_probes(task.probes(case), spec.limit)
    wanted = [p for p in probes if isinstance(p, Generation)]
    for point in sorted((folder.parent / "points").glob("*")):
        have = answering.read(point / "answers")
        missing = [p for p in wanted if p.name not in have]
        if not missing:
            continue
        loaded = load(spec, point)
        generator = None if loaded.encoder is None else HFGenerator(loaded.model, loaded.encoder)
        made = answering.answer(loaded, missing, generator)
        if hasattr(task, "judge"):
            made |= task.judge(loaded, probes, {**have, **made})
        answering.write(made, point / "answers")
