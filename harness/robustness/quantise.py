"""Weights rounded to 8 or 4 bits, and whether rounding brings back what was unlearned.

Round to nearest, symmetric, in a few lines and without a calibration set: 8 bits with one scale per output channel, 4
bits with one per group of inputs of an output channel. All weights of linear layers but the output layer are rounded;
embeddings, norms and biases keep theirs. Passes use the rounded values in the board's own type: what is measured is
the rounding, not a fast kernel. Source of the attack: Quantisation attack, arXiv 2410.16454.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness import answers as answering
from harness.generate.hf import HFGenerator
from harness.metrics import mean_score
from harness.metrics.text import rouge
from harness.models import LoadedModel
from harness.robustness.columns import ES, ids
from harness.robustness.finished import Finished
from harness.robustness.rows import SIDES, drawn, numbered, questions, texts
from harness.scoring import score
from harness.specs import Quantise
from harness.types import Generation, GenerationAnswers, Score, TextRow

AXIS = "quantise"


def codes(weight: Tensor, bits: int, group: int | None = None) -> tuple[Tensor, Tensor]:
    """A weight as whole numbers and their scales.

    Args:
        weight: [outputs, inputs].
        bits: 8 or 4; numbers are in -(2^(bits-1) - 1) .. 2^(bits-1) - 1.
        group: inputs that share a scale; all of an output's without. The last group may be shorter.

    Returns:
        ([outputs, groups, group] int8, [outputs, groups, 1] float32): a weight is number times scale. A scale is the
        largest magnitude of its group over the largest number; that of a group of zeros is 0.
    """
    top = 2 ** (bits - 1) - 1
    width = weight.shape[1]
    size = min(group or width, width)
    parts = F.pad(weight.float(), (0, -width % size)).unflatten(1, (-1, size))
    scale = parts.abs().amax(-1, keepdim=True) / top
    numbers = torch.where(scale > 0, parts / scale, 0.0).round().clamp(-top, top)
    return numbers.to(torch.int8), scale


def rounded(weight: Tensor, bits: int, group: int | None = None) -> Tensor:
    """The weight that `codes` stand for, in the weight's own shape and type.

    >>> rounded(torch.tensor([[127.0, 1.4, 0.4]]), 8).tolist()
    [[127.0, 1.0, 0.0]]
    """
    numbers, scale = codes(weight, bits, group)
    return (numbers.float() * scale).flatten(1)[:, : weight.shape[1]].to(weight.dtype)


def layers(model: Any) -> dict[str, nn.Linear]:
    """The linear layers that are rounded, by name: all but the one that makes logits."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head}


def quantise(model: nn.Module, bits: int, group: int | None = None) -> int:
    """Round the weights of `layers` in place; returns how many weights that are."""
    found = layers(model)
    with torch.no_grad():
        for layer in found.values():
            layer.weight.copy_(rounded(layer.weight, bits, group))
    return sum(layer.weight.numel() for layer in found.values())


def changed(model: nn.Module, original: nn.Module, bits: int, group: int | None = None) -> Score:
    """Share of the rounded weights whose whole number is not the original model's (both unrounded here)."""
    mine, theirs = layers(model), layers(original)
    if {n: m.weight.shape for n, m in mine.items()} != {n: m.weight.shape for n, m in theirs.items()}:
        return Score(None, why="the model's linear layers are not those of the original")
    other = total = 0
    with torch.no_grad():
        for name, layer in mine.items():
            a, b = (codes(m.weight, bits, group)[0] for m in (layer, theirs[name]))
            other, total = other + int((a != b).sum()), total + layer.weight.numel()
    return Score(other / total, total) if total else Score(None, why=_NO_LAYER)


_NO_LAYER = "the model has no linear layer beside its output layer"


def asked(
    loaded: LoadedModel,
    rows: Mapping[str, Sequence[TextRow]],
    asks: Mapping[str, Generation],
) -> dict[str, Score]:
    """Extraction strength on `rows` and ROUGE-L recall of greedy answers to `asks`, by set; keys as `forget.es`."""
    if loaded.encoder is None:
        raise ValueError("the axes are for text models")
    out: dict[str, Score] = {}
    for side, part in rows.items():
        scores = score(loaded.model, part, loaded.encoder)
        for variant, metric in ES.items():
            out[f"{side}.es{variant}"] = mean_score(numbered(metric(scores)), f"there are no {side} rows")
    generator = HFGenerator(loaded.model, loaded.encoder)
    for side, probe in asks.items():
        part = probe.rows
        why = f"the {side} rows are no questions, and the task names none"
        out[f"{side}.rougeL_recall"] = Score(None, why=why)
        if part:
            said = answering.generate(loaded.encoder, [probe], generator)[probe.name]
            assert isinstance(said, GenerationAnswers)
            values = rouge(said.texts, [row.target for row in part])
            out[f"{side}.rougeL_recall"] = mean_score(numbered(values))
    return out


def measured(run: Finished, settings: Quantise) -> tuple[dict[str, Score], dict[str, Any]]:
    """The axis's scores, of the run's weights as they are and rounded; and how many rows and weights these are."""
    spec, case = run.spec, run.case
    rows = {"forget": texts(case.forget), "retain": drawn(texts(case.retain), settings.rows)}
    limit = settings.rows if spec.limit is None else min(settings.rows, spec.limit)
    asks = questions(run.task, case, limit, settings.max_tokens)
    facts: dict[str, Any] = {"asked": {side: len(asks[side].rows) for side in SIDES}}
    out = {name: Score(None, why=_NO_LAYER) for name in ids(AXIS, settings)}
    out |= _under("full", asked(run.model(), rows, asks))
    for bits in settings.bits:
        group, loaded = settings.group if bits == 4 else None, run.model()
        original = run.weights(spec.models["target"], "").model
        found = {"changed": changed(loaded.model, original, bits, group)}
        facts["weights"] = quantise(loaded.model, bits, group)
        out |= _under(f"int{bits}", found | (asked(loaded, rows, asks) if facts["weights"] else {}))
    return out, facts


def _under(tag: str, found: Mapping[str, Score]) -> dict[str, Score]:
    return {f"{AXIS}.{tag}.{name}": value for name, value in found.items()}
