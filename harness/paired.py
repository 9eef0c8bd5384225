"""Which entries differ: a paired t test of every two, all pairs at once, with Holm's correction.

Paired over the same (case, seed) and, where a metric is a mean over rows, the same rows. The parts of the variance of
a difference add up: seeds within cases, and rows by the bootstrap; the degrees of freedom are those of Welch and
Satterthwaite. The rows never make a difference surer than the seeds alone do.

Why t and no percentile of a bootstrap over seeds: with three seeds that all point one way, no draw of seeds points the
other way, so such a test calls one of four equal pairs different.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.bootstrap import difference_variance

_AT_ONCE = 1 << 20


def pair_tests(
    gains: np.ndarray, seeds: Sequence[int], rows: Sequence[np.ndarray] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Two-sided p and sign of the difference of every two entries i < j, in the order of `np.triu_indices(n, 1)`.

    Args:
        gains: more is better [entries, units] float64, finite; the units of a case stand together.
        seeds: units of each case, at least 2 each; their sum is the number of units.
        rows: what each set of shared rows adds to the mean over cases [entries, rows], in the unit of `gains`.

    Returns:
        p in 0..1, and 1 where i is better, -1 where j is, 0 where they are the same up to rounding. Where nothing
        varies, p is 0 for a difference and 1 for none.
    """
    if len(gains) < 2:
        return np.zeros(0), np.zeros(0, np.int8)
    if sum(seeds) != gains.shape[1] or min(seeds) < 2:
        raise ValueError(f"{list(seeds)} seeds do not part {gains.shape[1]} units into cases of two or more")
    spreads = [(difference_variance(0.5 * values), values.shape[1] - 1.0) for values in rows]
    step = max(1, _AT_ONCE // gains.size)
    ps, signs = [], []
    for start in range(0, len(gains), step):
        stop = min(start + step, len(gains))
        half = _half_differences(gains[start:stop, None], gains[None, start:])
        parts = [(spread[start:stop, start:], df) for spread, df in spreads]
        p, sign = _t_tests(half, seeds, parts)
        later = np.arange(start, len(gains))[None, :] > np.arange(start, stop)[:, None]
        ps.append(p[later])
        signs.append(sign[later])
    return np.concatenate(ps), np.concatenate(signs)


def count_better(
    gains: np.ndarray, seeds: Sequence[int], rows: Sequence[np.ndarray] = (), *, alpha: float
) -> np.ndarray:
    """How many entries are significantly better than each, at `alpha` after Holm's correction over all pairs."""
    p, sign = pair_tests(gains, seeds, rows)
    rejected = significant(p, alpha)
    first, second = np.triu_indices(len(gains), 1)
    losers = np.where(sign > 0, second, first)[rejected & (sign != 0)]
    return np.bincount(losers, minlength=len(gains))


def significant(p: np.ndarray, alpha: float) -> np.ndarray:
    """Which hypotheses Holm's step-down procedure rejects at `alpha` (Holm 1979, Scand. J. Stat. 6).

    >>> significant(np.array([0.04, 0.01, 0.03]), 0.05).tolist()
    [False, True, False]
    """
    if not len(p):
        return np.zeros(0, bool)
    first = alpha / len(p)
    sure = int((p < first).sum())
    rest = np.sort(p[(p >= first) & (p < alpha)])
    holds = rest * (len(p) - sure - np.arange(len(rest))) < alpha
    more = len(rest) if holds.all() else int(np.argmin(holds))
    return p <= rest[more - 1] if more else p < first


def _half_differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Half of a - b, which cannot overflow; zero where they differ by rounding only."""
    half = 0.5 * a - 0.5 * b
    return np.where(np.abs(half) <= 0.5e-12 * np.maximum(np.abs(a), np.abs(b)), 0.0, half)


def _t_tests(
    differences: np.ndarray, seeds: Sequence[int], parts: Sequence[tuple[np.ndarray, float]]
) -> tuple[np.ndarray, np.ndarray]:
    """The p-values and signs of mean differences [..., units]; `parts` are further variances of that mean [...]."""
    largest = np.maximum.reduce([np.abs(differences).max(axis=-1), *(np.sqrt(spread) for spread, _ in parts)])
    scale = np.ldexp(1.0, np.minimum(np.frexp(largest)[1], 1023))
    scaled = differences / scale[..., None]
    cases = len(seeds)
    mean = np.zeros(largest.shape)
    total = np.zeros(largest.shape)
    weight = np.zeros(largest.shape)
    with np.errstate(under="ignore", over="ignore", divide="ignore", invalid="ignore"):
        for n, group in zip(seeds, np.split(scaled, np.cumsum(seeds)[:-1], axis=-1), strict=True):
            middle = group.sum(axis=-1) / n
            varies = group.max(axis=-1) > group.min(axis=-1)
            variance = ((group - middle[..., None]) ** 2).sum(axis=-1) / (n - 1)
            part = np.where(varies, variance, 0.0) / n / cases**2
            mean += np.where(varies, middle, group[..., 0]) / cases
            total += part
            weight += part**2 / (n - 1)
        p = _p_values(mean, total, weight)
        if parts:
            for spread, df in parts:
                part = spread / scale / scale
                total += part
                weight += part**2 / df
            p = np.maximum(p, _p_values(mean, total, weight))
    return np.where(mean == 0, 1.0, p), np.sign(mean).astype(np.int8)


def _p_values(mean: np.ndarray, total: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Two-sided p from means, their variances and the sum of each part squared over its degrees of freedom."""
    from scipy.special import ndtr, stdtr

    error = np.sqrt(total)
    t = -np.abs(mean) / error
    df = np.where(weight > 0, total**2 / weight, np.inf)
    finite = np.isfinite(df)
    p = 2.0 * np.where(finite, stdtr(np.where(finite, df, 1.0), t), ndtr(t))
    return np.where(error <= 1e-15 * np.abs(mean), 0.0, np.minimum(p, 1.0))
