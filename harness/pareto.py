"""Which entries nobody beats in all respects at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Direction = Literal["higher", "lower"]


@dataclass(frozen=True)
class Front:
    """The Pareto front of some points.

    Attributes:
        best: indices of points that no other dominates, best in the first respect first; equal points are all in it.
        dominated: indices of points that another is at least as good as in every respect, and better in one.
        left_out: (index, why) of points that lack a value.
    """

    best: tuple[int, ...]
    dominated: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...]


def front(points: Sequence[Sequence[float | None]], directions: Sequence[Direction]) -> Front:
    """The Pareto front of `points`, each with one value per direction; None is missing, and leaves a point out.

    Raises:
        ValueError: a value that is NaN or infinite, or a point with another number of values.

    >>> front([(0.9, 1.0), (0.5, 0.5), (0.4, 0.9), (None, 2.0)], ("higher", "lower")).best
    (0, 1)
    """
    if not directions or any(len(point) != len(directions) for point in points):
        raise ValueError(f"every point has one value for each of the {len(directions)} directions")
    there = [i for i, point in enumerate(points) if None not in point]
    names = [", ".join(str(k + 1) for k, v in enumerate(point) if v is None) for point in points]
    left_out = tuple(
        (i, f"no value in respect {names[i]}") for i in range(len(points)) if i not in set(there)
    )
    if not there:
        return Front((), (), left_out)
    values = np.array([points[i] for i in there], np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a value is finite or None")
    signs = np.array([1.0 if direction == "higher" else -1.0 for direction in directions])
    beaten = _beaten(values * signs)
    order = np.lexsort((there, *(-(values * signs)).T[::-1]))
    best = tuple(there[i] for i in order if not beaten[i])
    return Front(best, tuple(i for i, b in zip(there, beaten.tolist(), strict=True) if b), left_out)


def _beaten(gains: np.ndarray) -> np.ndarray:
    """Whether another point is at least as good everywhere and better somewhere [points, respects] -> [points]."""
    out = np.zeros(len(gains), bool)
    for i, mine in enumerate(gains):
        out[i] = bool(((gains >= mine).all(axis=1) & (gains > mine).any(axis=1)).any())
    return out
