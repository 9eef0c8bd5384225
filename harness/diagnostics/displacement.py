"""Principal components of displacements (Spectral Unlearning, Fig. 12): weights minus start, through their Gram matrix.

D displacements of P parameters: X [D, P] is never in memory; G = X X^T [D, D] is summed up piece by piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Components:
    """Where the displacements are in the plane of the first components.

    Attributes:
        coordinates: of every displacement on the first components [D, k], relative to the start (which is at 0).
        explained: share of the variance on each component [k], 0 to 1.
    """

    coordinates: np.ndarray
    explained: np.ndarray


def components(gram: np.ndarray, fitted: np.ndarray | None = None, k: int = 2) -> Components:
    """The first `k` principal components.

    Args:
        gram: inner products of the displacements [D, D] float64.
        fitted: which displacements decide the components [D] bool; default all. The start, a displacement of 0, is one
            of them too. The others are projected.
        k: how many; those beyond the rank explain 0 and have coordinates 0.

    A component's sign is such that its coordinate of largest size is positive. Raises `ValueError` when nothing moved.
    """
    d = len(gram)
    fitted = np.ones(d, dtype=bool) if fitted is None else fitted
    full = np.zeros((d + 1, d + 1))
    full[1:, 1:] = gram
    used = np.concatenate([[True], fitted])
    cross = full[:, used] - full[:, used].mean(1, keepdims=True)  # <x_i, x_j - mean>
    inner = cross[used] - cross[used].mean(0, keepdims=True)
    powers, vectors = np.linalg.eigh((inner + inner.T) / 2)
    powers, vectors = powers[::-1], vectors[:, ::-1]
    if powers[0] <= 0.0:
        raise ValueError("no displacement differs from the start")
    coordinates, explained = np.zeros((d, k)), np.zeros(k)
    for c in range(min(k, int((powers > 1e-12 * powers[0]).sum()))):
        along = cross @ vectors[:, c] / np.sqrt(powers[c])
        mine = along[1:] - along[0]
        coordinates[:, c] = mine * (1 if mine[np.abs(mine).argmax()] >= 0 else -1)
        explained[c] = powers[c] / powers.clip(min=0).sum()
    return Components(coordinates, explained)
