"""What a classifier over modular sums knows: right answers, buckets, crossings, and its Fourier circuit.

All functions take and return numpy arrays; sums and softmax are in float64. Per-example functions return one
value per row, so that a caller can average, select or store them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def right_prob(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Softmax probability of the right class, per row.

    Args:
        logits: [N, C]; -inf marks an impossible class.
        labels: right classes [N] int.

    Returns:
        [N] float64 in 0..1 (Pf and Pr of the BMA paper are means of it).
    """
    z = np.asarray(logits, np.float64)
    weights = np.exp(z - z.max(1, keepdims=True))
    return np.take_along_axis(weights, np.asarray(labels)[:, None], 1)[:, 0] / weights.sum(1)


def hits(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether the first choice is the right class, per row [N] bool; of tied classes the lowest is chosen."""
    return np.argmax(logits, axis=1) == labels


def bucket_hits(logits: np.ndarray, labels: np.ndarray, m: int) -> np.ndarray:
    """Whether the first choice lies in the right bucket of `m` neighbouring classes, per row [N] bool.

    Args:
        logits: [N, C]; m divides C.
        labels: right classes [N]; label // m is the right bucket.
        m: bucket size. 1 is plain accuracy; C is true for every row.
    """
    _check_bucket(logits, m)
    return np.argmax(logits, axis=1) // m == np.asarray(labels) // m


def bucket_accuracy(logits: np.ndarray, labels: np.ndarray, m: int) -> float:
    """Share of rows whose first choice lies in the right bucket (BMA paper, bucket accuracy), 0..1.

    >>> bucket_accuracy(np.array([[0., 1, 2, 0], [0, 1, 0, 0]]), np.array([3, 3]), 2)
    0.5
    """
    return float(bucket_hits(logits, labels, m).mean())


def within_bucket_hits(logits: np.ndarray, labels: np.ndarray, m: int) -> np.ndarray:
    """Whether the right class is the first choice among the `m` classes of its own bucket, per row [N] bool.

    True for every row when m = 1. What the model thinks of other buckets does not enter.
    """
    _check_bucket(logits, m)
    labels = np.asarray(labels)
    members = (labels - labels % m)[:, None] + np.arange(m)
    return np.argmax(np.take_along_axis(np.asarray(logits), members, 1), axis=1) == labels % m


def within_bucket_accuracy(logits: np.ndarray, labels: np.ndarray, m: int) -> float:
    """Share of rows whose right class wins among its bucket's members (BMA paper), 0..1; chance is 1/m.

    >>> within_bucket_accuracy(np.array([[9., 0, 1, 2], [9, 0, 2, 1]]), np.array([3, 3]), 2)
    0.5
    """
    return float(within_bucket_hits(logits, labels, m).mean())


def _check_bucket(logits: np.ndarray, m: int) -> None:
    if m < 1 or logits.shape[1] % m:
        raise ValueError(f"buckets of {m} do not divide {logits.shape[1]} classes")


def first_crossing(values: ArrayLike, threshold: float) -> int | None:
    """Index of the first value at most `threshold`; None if there is none. NaN never crosses.

    >>> first_crossing([.9, float("nan"), .1, .05], .1)
    2
    """
    below = np.flatnonzero(np.asarray(values, np.float64) <= threshold)
    return int(below[0]) if len(below) else None


def interpolated_crossing(x: ArrayLike, y: ArrayLike, threshold: float) -> float | None:
    """`y` where `x` first comes down to `threshold`, linear in x between the two checks around the crossing.

    Args:
        x: what must fall, one value per check [T].
        y: what is read off [T].
        threshold: where.

    Returns:
        The interpolated y; y[0] if x starts at or below the threshold; None if x never crosses or a value
        beside the crossing is not finite.

    >>> interpolated_crossing([1.0, 0.5, 0.0], [1.0, 0.75, 0.25], 0.25)
    0.5
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    at = first_crossing(x, threshold)
    if at is None:
        return None
    if at == 0:
        return float(y[0]) if np.isfinite(y[0]) else None
    if not np.isfinite([x[at - 1], x[at], y[at - 1], y[at]]).all():
        return None
    part = (x[at - 1] - threshold) / (x[at - 1] - x[at])
    return float(y[at - 1] + part * (y[at] - y[at - 1]))


# --- the Fourier circuit of modular addition (n = classes = p) ---
def _centred(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits [n, n, n] centred over classes, split into their mean over pairs [n] and the rest [n, n, n]."""
    z = np.asarray(logits, np.float64)
    if z.ndim != 3 or len(set(z.shape)) != 1:
        raise ValueError(f"wanted logits [n, n, n] over the grid of pairs, got {list(z.shape)}")
    z = z - z.mean(2, keepdims=True)
    mean = z.mean((0, 1))
    return mean, z - mean


def _by_sum(grid: np.ndarray) -> np.ndarray:
    """Sum of grid[a, b, c] over the pairs with (a + b) mod n = s, as [s, c]."""
    n = len(grid)
    sums = np.add.outer(np.arange(n), np.arange(n)) % n
    table = np.zeros((n, n))
    np.add.at(table, sums.ravel(), grid.reshape(n * n, n))
    return table


def frequency_shares(logits: np.ndarray) -> np.ndarray:
    """Share of the logit variance along cos(2 pi k (a + b - c) / n), for k = 1 .. n // 2.

    The directions are orthogonal, so shares add up: FVE_k = <L, u_k>^2 / (<u_k, u_k> <L, L>), L the logits
    centred over classes and then over pairs.

    Args:
        logits: [n, n, n], [a, b, c] = logit of class c for the pair (a, b).

    Returns:
        [n // 2] float64 in 0..1, entry k - 1 for frequency k; all NaN when logits do not depend on the pair.
    """
    _, rest = _centred(logits)
    n = len(rest)
    table = _by_sum(rest)
    s, c = np.indices((n, n))
    along = np.bincount(((s - c) % n).ravel(), weights=table.ravel(), minlength=n)  # sum over s - c = t
    k = np.arange(1, n // 2 + 1)
    waves = np.cos(2 * np.pi * np.outer(k, np.arange(n)) / n)
    norm = n**2 * (waves**2).sum(1)
    total = (rest**2).sum()
    if total == 0:
        return np.full(len(k), np.nan)
    return (waves @ along) ** 2 / norm / total


def key_frequencies(logits: np.ndarray, share: float = 0.01) -> tuple[int, ...]:
    """Frequencies 1 .. n // 2 that explain more than `share` of the logit variance.

    Take them from the final checkpoint and reuse them for the others (the BMA paper lists {14, 35, 42, 52,
    55} for p = 113).
    """
    return tuple(int(k) + 1 for k in np.flatnonzero(frequency_shares(logits) > share))


def fve(logits: np.ndarray, keys: tuple[int, ...]) -> float:
    """Fraction of the logit variance that the key frequencies explain, 0..1; NaN for constant logits.

    Sum of `frequency_shares` over `keys`. The BMA paper does not define its basis; this is the one direction
    cos(w (a + b - c)) per frequency of Nanda et al. (2023, arXiv:2301.05217), centred over classes and pairs.
    """
    return float(frequency_shares(logits)[np.array(keys, dtype=np.int64) - 1].sum())


def restricted_logits(logits: np.ndarray, keys: tuple[int, ...]) -> np.ndarray:
    """Logits rebuilt from the key frequencies alone, [n, n, n].

    Mean over pairs plus the projection on {cos, sin}(2 pi k (a + b) / n) times any function of c, k in
    `keys`. (A wider span than that of `fve`; the BMA paper defines neither.)
    """
    mean, rest = _centred(logits)
    n = len(rest)
    s = np.arange(n)
    angles = 2 * np.pi * np.outer(np.array(keys, dtype=np.float64), s) / n
    waves = np.concatenate([np.cos(angles), np.sin(angles)])
    waves = waves[(waves**2).sum(1) > 1e-9]  # sin of frequency n/2 is 0
    waves /= np.sqrt((waves**2).sum(1, keepdims=True))
    table = waves.T @ (waves @ _by_sum(rest)) / n
    return mean + table[np.add.outer(s, s) % n]


def restricted_loss(logits: np.ndarray, keys: tuple[int, ...], index: np.ndarray) -> float:
    """Mean cross-entropy in nats of `restricted_logits` on the pairs a * n + b in `index`.

    The label is (a + b) mod n. At least 0; near 0 when the circuit alone answers; meaningless (1e3 and
    more) after unbounded gradient ascent.
    """
    n = len(logits)
    index = np.asarray(index)
    z = restricted_logits(logits, keys).reshape(n * n, n)[index]
    labels = (index // n + index % n) % n
    gap = z - np.take_along_axis(z, labels[:, None], 1)
    top = gap.max(1, keepdims=True)
    return float((top[:, 0] + np.log(np.exp(gap - top).sum(1))).mean())
