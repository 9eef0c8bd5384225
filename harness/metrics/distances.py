"""How far two samples of feature vectors are apart: four distances, all 0 for equal samples.

Legend: x [n, d], y [m, d], any real type; everything is in float64. They are squared distances between the *empirical*
distributions (biased estimates, never negative), so that a ratio of two of them is meaningful.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.metrics import described

SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Bandwidths of `mmd2_multi`, as multiples of the median one. The Unmerge paper's are not known: a usual set."""
DIRECTIONS = 256
"""Directions of `sliced_w2`. The Unmerge paper's number is not known."""
UNMERGE = "Unmerge paper, section 4.5 and table 3 (the distances' settings are not given there)"


def squared_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances of all pairs [n, m]."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    gaps = (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2.0 * x @ y.T
    return np.maximum(gaps, 0.0)


def median_distance(x: np.ndarray, y: np.ndarray) -> float:
    """Median distance between different points of both samples together: the usual bandwidth; 0 if most are equal."""
    both = np.concatenate([x, y])
    above = np.triu_indices(len(both), 1)
    return float(np.sqrt(np.median(squared_distances(both, both)[above]))) if len(above[0]) else 0.0


@described(low=0.0, high=None, unit="squared distance", source=UNMERGE)
def mmd2(x: np.ndarray, y: np.ndarray, bandwidth: float) -> float:
    """Squared maximum mean discrepancy under exp(-|a - b|^2 / (2 bandwidth^2)), diagonal included, 0..2.

    Source: Gretton et al. 2012, JMLR 13, eq. 5. NaN when the bandwidth is 0.

    >>> x = np.array([[0.0], [1.0]])
    >>> mmd2(x, x, 1.0)
    0.0
    """
    return mmd2_multi(x, y, bandwidth, (1.0,))


@described(low=0.0, high=None, unit="squared distance", source=UNMERGE)
def mmd2_multi(x: np.ndarray, y: np.ndarray, bandwidth: float, scales: Sequence[float] = SCALES) -> float:
    """Mean of `mmd2` over bandwidths that are multiples of one, 0..2."""
    if not bandwidth > 0:
        return float("nan")
    gaps = [squared_distances(a, b) for a, b in ((x, x), (y, y), (x, y))]
    found = []
    for scale in scales:
        xx, yy, xy = (np.exp(-g / (2.0 * (scale * bandwidth) ** 2)).mean() for g in gaps)
        found.append(max(xx + yy - 2.0 * xy, 0.0))
    return float(np.mean(found))


@described(low=0.0, high=None, unit="squared distance", source=UNMERGE)
def bures_w2(x: np.ndarray, y: np.ndarray) -> float:
    """Squared 2-Wasserstein distance of the normal distributions with the samples' means and covariances.

    |mu - nu|^2 + tr(S + T - 2 (S^1/2 T S^1/2)^1/2), covariances with 1/n. With S = A A^T and T = B B^T the last trace
    is the sum of the singular values of A^T B: exact also when there are fewer rows than dimensions.

    >>> round(bures_w2(np.array([[-1.0], [1.0]]), np.array([[0.0], [6.0]])), 12)  # (3 - 0)^2 + (3 - 1)^2
    13.0
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    a, b = (x - x.mean(0)) / np.sqrt(len(x)), (y - y.mean(0)) / np.sqrt(len(y))
    if (
        len(a) > a.shape[1] or len(b) > b.shape[1]
    ):  # the smaller matrix: triangular factors of the same covariances
        a, b = (np.linalg.qr(m, mode="r") if len(m) > m.shape[1] else m for m in (a, b))
    shared = np.linalg.svd(a @ b.T, compute_uv=False).sum()
    value = ((x.mean(0) - y.mean(0)) ** 2).sum() + (a**2).sum() + (b**2).sum() - 2.0 * shared
    return float(max(value, 0.0))


@described(low=0.0, high=None, unit="squared distance", source=UNMERGE)
def sliced_w2(x: np.ndarray, y: np.ndarray, directions: int = DIRECTIONS, seed: int = 0) -> float:
    """Squared 2-Wasserstein distance of one-dimensional projections, mean over random unit directions.

    Equal sizes match sorted values; else both quantile functions are compared step by step, which is exact too.

    >>> sliced_w2(np.array([[0.0], [1.0]]), np.array([[2.0], [3.0]]))
    4.0
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    axes = np.random.default_rng(seed).standard_normal((x.shape[1], directions))
    axes /= np.sqrt((axes**2).sum(0))
    p, q = np.sort(x @ axes, axis=0), np.sort(y @ axes, axis=0)
    ends = np.unique(np.concatenate([np.arange(1, len(p) + 1) / len(p), np.arange(1, len(q) + 1) / len(q)]))
    steps = np.diff(ends, prepend=0.0)
    middle = ends - steps / 2
    i, j = (np.minimum((middle * len(s)).astype(np.int64), len(s) - 1) for s in (p, q))
    return float((steps @ (p[i] - q[j]) ** 2).mean())
