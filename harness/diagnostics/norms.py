"""How large an update is, and how many directions it has: W - W0 of one matrix, of a block, of a role.

Sums run in float64. Shapes: W and W0 [rows, cols]; tensors of more than two dimensions are flattened after the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from harness.diagnostics.places import Place

STILL = "it did not move"
CHUNK = 1 << 22
"""Elements of a matrix that are float64 at once."""

Value = tuple[float | None, str]
"""A number, or None with the reason."""


def update_norms(start: Tensor, end: Tensor) -> dict[str, Value]:
    """Norms and ranks of `end - start`.

    `fro` = ||W - W0||_F; `relative` = fro / ||W0||_F; of matrices also `spectral` = the largest singular value s_1;
    `stable_rank` = fro^2 / s_1^2 (1 to the rank); `effective_rank` = exp of the entropy of s_i / sum s (Roy and
    Vetterli 2007), 1 to the rank. Ranks of an update that is 0 are None. Singular values come from the smaller Gram
    matrix in float64; those below sqrt(eps) of the largest, which it cannot tell from 0, count as 0.
    """
    fro, begun = math.sqrt(squared_distance(start, end)), math.sqrt(squared_distance(start))
    out: dict[str, Value] = {
        "fro": (fro, ""),
        "start": (begun, ""),
        "relative": (fro / begun, "") if begun else (None, "the start is 0"),
    }
    if start.ndim < 2:
        return out
    if fro == 0.0:
        return {**out, "spectral": (0.0, ""), "stable_rank": (None, STILL), "effective_rank": (None, STILL)}
    powers = spectrum(start, end)
    share = powers.sqrt() / powers.sqrt().sum()
    share = share[share > 0]
    return {
        **out,
        "spectral": (float(powers[0].sqrt()), ""),
        "stable_rank": (float(powers.sum() / powers[0]), ""),
        "effective_rank": (float(torch.exp(-(share * share.log()).sum())), ""),
    }


def spectrum(start: Tensor, end: Tensor) -> Tensor:
    """Squared singular values of `end - start`, descending [min(rows, cols)] float64."""
    a, b = start.flatten(1), end.flatten(1)
    if a.shape[0] < a.shape[1]:
        a, b = a.T, b.T
    gram = torch.zeros(a.shape[1], a.shape[1], dtype=torch.float64)
    for x, y in _chunks(a, b):
        delta = y.double() - x.double()
        gram += delta.T @ delta
    powers = torch.linalg.eigvalsh(gram).flip(0)
    return torch.where(powers > max(a.shape) * torch.finfo(torch.float64).eps * powers[0], powers, 0.0)


def squared_distance(start: Tensor, end: Tensor | None = None) -> float:
    """||end - start||_F^2 in float64, or ||start||_F^2 without `end`."""
    a = start.reshape(len(start), -1) if start.ndim else start.reshape(1, 1)
    b = end.reshape(a.shape) if end is not None else None
    total = 0.0
    for x, y in _chunks(a, b):
        delta = x.double() if y is None else y.double() - x.double()
        total += float(delta.square().sum())
    return total


def _chunks(a: Tensor, b: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    step = max(1, CHUNK // max(1, a.shape[1]))
    for at in range(0, len(a), step):
        yield a[at : at + step], None if b is None else b[at : at + step]


def grouped(squares: Mapping[str, tuple[Place, float]]) -> dict[tuple[int | None, str], float]:
    """Sums of squares over parameters, by (block, role), (block, "all"), (None, role) and (None, "all").

    Parameters outside the blocks (embeddings, head) count in (None, role) and (None, "all") alone.
    """
    out: dict[tuple[int | None, str], float] = {}
    for where, square in squares.values():
        for key in _groups(where):
            out[key] = out.get(key, 0.0) + square
    return out


def _groups(where: Place) -> Iterable[tuple[int | None, str]]:
    outer: list[tuple[int | None, str]] = [(None, where.role), (None, "all")]
    return outer if where.block is None else [*outer, (where.block, where.role), (where.block, "all")]
