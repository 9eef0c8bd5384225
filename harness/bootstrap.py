"""How far a mean would move if other questions had been asked: the paired bootstrap over rows, in closed form.

A bootstrap draws as many rows as there are, with replacement, and takes the mean again. For a mean, the variance over
all n^n draws has a closed form, sum (x - mean)^2 / n^2 (Efron and Tibshirani 1993, An Introduction to the Bootstrap,
section 5.3), so nothing is drawn here: no seed, no noise of its own, and tails that a thousand draws could not
resolve, which Holm's correction over many pairs needs. It is multiplied by n / (n - 1), without which it is too small
for few rows. Paired: two entries are compared on the differences of the same rows.

Only a metric that is the mean of its rows has such a variance. Rows that differ between the seeds of a case add
nothing here: what they do is in the spread between the seeds already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_SQUARES_OVERFLOW = 1e140

Part = tuple[float, float]
"""A part of the variance of a mean, and its degrees of freedom."""


@dataclass(frozen=True)
class PerRow:
    """What a metric came to on each row of one run; rows without a value are left out.

    Attributes:
        ids: row ids, sorted.
        values: in the order of `ids` [rows] float64, finite.
    """

    ids: tuple[str, ...]
    values: np.ndarray

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.ids),) or not np.isfinite(self.values).all():
            raise ValueError("per-row values are one finite number per row id")

    def averages_to(self, value: float) -> bool:
        """Whether `value` is the mean of the rows, up to rounding; if not, resampling rows says nothing about it."""
        if len(self.ids) < 2 or np.abs(self.values).max() > _SQUARES_OVERFLOW:
            return False
        return math.isclose(float(self.values.mean()), value, rel_tol=1e-9, abs_tol=1e-12)


def together(runs: Sequence[PerRow | None]) -> PerRow | None:
    """The mean over runs of each row; None where a run has no rows or other ones."""
    first = runs[0] if runs else None
    if first is None or any(run is None or run.ids != first.ids for run in runs):
        return None
    return PerRow(first.ids, np.mean([run.values for run in runs if run is not None], axis=0))


def by_rows(cases: Sequence[PerRow | None]) -> dict[tuple[str, ...], np.ndarray]:
    """What each set of rows adds to the mean over `cases`, summed over the cases that ask the same rows.

    A question that several cases ask moves all of them at once, so it is drawn once for all.
    """
    found: dict[tuple[str, ...], np.ndarray] = {}
    for case in cases:
        if case is not None:
            found[case.ids] = found.get(case.ids, 0.0) + case.values / len(cases)
    return found


def row_parts(contributions: Mapping[tuple[str, ...], np.ndarray]) -> list[Part]:
    """The variance of the mean over draws of rows, one part per set of rows, with n - 1 degrees of freedom.

    >>> row_parts({("a", "b"): np.array([0.0, 1.0])})
    [(0.25, 1.0)]
    """
    return [(float(mean_variance(values)), len(ids) - 1.0) for ids, values in contributions.items()]


def mean_variance(values: np.ndarray) -> np.ndarray:
    """Variance of the mean over the last axis [..., rows] under resampling of rows, times n / (n - 1)."""
    n = values.shape[-1]
    centred = values - values.mean(axis=-1, keepdims=True)
    return (centred**2).sum(axis=-1) / (n * (n - 1))


def difference_variance(values: np.ndarray) -> np.ndarray:
    """Variance of the mean difference of each two entries on the same rows [entries, rows] -> [entries, entries]."""
    n = values.shape[-1]
    centred = values - values.mean(axis=-1, keepdims=True)
    cross = centred @ centred.T
    own = np.diagonal(cross)
    spread = own[:, None] + own[None, :] - 2.0 * cross
    noise = 1e-14 * (own[:, None] + own[None, :])
    return np.where(spread > noise, spread, 0.0) / (n * (n - 1))
