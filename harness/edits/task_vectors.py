"""Task vectors: what fine-tuning added to a model's weights, and how to subtract it.

Ilharco et al. 2023, Editing Models with Task Arithmetic (arXiv 2212.04089); Negation: tau = theta(fine-tuned) -
theta(start), theta(new) = theta(start) - alpha tau. MUSE's public code (task_vector.py) subtracts element by element.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.errors import ModelError

State = Mapping[str, Tensor]
LEAST_COSINE = 0.5
"""A start whose matrices have a smaller median cosine with the fine-tuned ones is another model."""


def task_vector(after: State, before: State) -> dict[str, Tensor]:
    """`after` - `before`, tensor by tensor; whole-number buffers (counters) are left out.

    Raises `ModelError` when names or shapes differ.
    """
    _same_shapes(after, before)
    return {name: after[name] - before[name] for name in after if after[name].is_floating_point()}


def subtracted(start: State, vector: State, alpha: float) -> dict[str, Tensor]:
    """`start` - `alpha` x `vector`; tensors that the vector lacks are the start's own. alpha 0 gives the start."""
    return {n: p - alpha * vector[n].to(p) if n in vector else p.clone() for n, p in start.items()}


def norm(vector: State) -> float:
    """Euclidean norm over all tensors, in float64."""
    return sum(float(t.double().square().sum()) for t in vector.values()) ** 0.5


@dataclass(frozen=True)
class Size:
    """How far a matrix is from its start.

    Attributes:
        norm: ||W - W0||_F.
        relative: norm / ||W||_F; 1 when W0 is 0, about sqrt(2) for an unrelated W0 of the same scale.
        cosine: of W and W0, -1 to 1; 0 when one of them is 0.
    """

    norm: float
    relative: float
    cosine: float


def size(after: Tensor, before: Tensor) -> Size:
    """Size of the task vector of one matrix."""
    a, b = after.double(), before.double()
    moved, na, nb = float((a - b).norm()), float(a.norm()), float(b.norm())
    cosine = float((a * b).sum()) / (na * nb) if na and nb else 0.0
    return Size(moved, moved / na if na else float(moved > 0), cosine)


def check_start(after: State, before: State) -> dict[str, Size]:
    """Sizes of all matrices' task vectors; refuses a start that the fine-tuned model did not come from.

    Refused, with `ModelError`: other names or shapes; a task vector that is 0 everywhere; a start that is as far from
    the fine-tuned weights as 0 is (median relative norm of the matrices at least 1), or points elsewhere (median cosine
    below .5). Two models that were trained apart have relative norms near sqrt(2) and cosines near 0; a model that is
    fine-tuned stays close to its start. A sibling, fine-tuned from the same start on other rows, cannot be told so.
    """
    _same_shapes(after, before)
    sizes = {n: size(after[n], before[n]) for n, p in after.items() if p.ndim > 1 and p.is_floating_point()}
    if not sizes:
        raise ModelError("the model has no matrices", "", "use another model")
    if not any(s.norm for s in sizes.values()):
        raise ModelError(
            "the starting model's weights are the target's own",
            "the task vector is 0",
            "name another model in role init",
        )
    relative = statistics.median(s.relative for s in sizes.values())
    cosine = statistics.median(s.cosine for s in sizes.values())
    if relative >= 1 or cosine < LEAST_COSINE:
        raise ModelError(
            "the target was not fine-tuned from this starting model",
            f"median of the task vector's relative norm {relative:.2f} (below 1 is expected), "
            f"median cosine {cosine:.2f} (at least {LEAST_COSINE})",
            "name the very checkpoint in role init, or start from zero (start=zero)",
        )
    return sizes


def _same_shapes(after: State, before: State) -> None:
    names = set(after) ^ set(before)
    shapes = [n for n in after if n in before and after[n].shape != before[n].shape]
    if names or shapes:
        wrong = min(names or shapes)
        told = (
            f"{wrong} is in one of them alone"
            if names
            else f"{wrong} is {tuple(after[wrong].shape)} and {tuple(before[wrong].shape)}"
        )
        raise ModelError("the two models have different weights", told, "name a model of the same shape")


def state_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers of a model; tied weights are there under each of their names."""
    return {name: p.detach().clone() for name, p in model.state_dict().items()}
