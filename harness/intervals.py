"""Means, intervals and paired tests over seeds within cases, as plain functions of numbers.

Cases are fixed strata: a board always asks all of them, so only the seeds within a case vary. With cases
c = 1..C, n_c seeds and sample variances s_c^2, the mean is the mean of the case means, its variance is
sum_c (s_c^2 / n_c) / C^2, and the degrees of freedom are those of Welch and Satterthwaite (Welch 1947,
Biometrika 34). With one case this is the one-sample Student t.

Further parts of the variance, such as that of drawing other rows (`bootstrap`), are added to those of the seeds.
Because they bring many degrees of freedom, the sum can give a narrower interval than the few seeds alone; then that
of the seeds stands. So a further part never makes anything surer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over cases and seeds.

    Attributes:
        mean: mean over cases of the mean over seeds.
        sd: standard deviation between seeds, pooled over cases with equal weight; None if one has one seed.
        low, high: 95 % Student t interval of the mean; None where `sd` is.
        df: degrees of freedom; infinite where nothing varies.
        n: numbers that went in.
        why: why there is no interval.
    """

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    df: float | None
    n: int
    why: str = ""


def estimate(strata: Sequence[Sequence[float]], parts: Sequence[tuple[float, float]] = ()) -> Estimate:
    """The mean of `strata` (one list of values per case) and its interval.

    Args:
        strata: values of the seeds of each case.
        parts: (variance of the mean, degrees of freedom) that come on top of what the seeds vary by.

    >>> e = estimate([[1.0, 2.0, 3.0]])
    >>> e.mean, e.sd, round(e.low, 3), round(e.high, 3), e.df
    (2.0, 1.0, -0.484, 4.484, 2.0)
    >>> estimate([[1.0]]).why
    'one seed: no interval'
    """
    n = sum(len(values) for values in strata)
    scale = _scale([*(v for values in strata for v in values), *(math.sqrt(part) for part, _ in parts)])
    scaled = strata if scale == 1.0 else [[value / scale for value in values] for values in strata]
    means = [math.fsum(values) / len(values) for values in scaled]
    mean = math.fsum(means) / len(means)
    if any(len(values) < 2 for values in scaled):
        why = "one seed: no interval" if len(strata) == 1 else "a case with one seed: no interval"
        return Estimate(mean * scale, None, None, None, None, n, why)
    variances = [_variance(values, m) for values, m in zip(scaled, means, strict=True)]
    sd = math.sqrt(math.fsum(variances) / len(variances))
    counts = [len(values) for values in scaled]
    half, df = max(
        (_t_quantile(0.5 + LEVEL / 2, df) * error if error else 0.0, df)
        for error, df in (_error(variances, counts, some, scale) for some in ((), parts))
    )
    low, high = (mean - half) * scale, (mean + half) * scale
    if not (math.isfinite(low) and math.isfinite(high)):
        return Estimate(mean * scale, None, None, None, None, n, "the interval is too wide for a number")
    return Estimate(mean * scale, sd * scale, low, high, df, n)


def _scale(values: Iterable[float]) -> float:
    """A power of two by which values are divided so that squares neither overflow nor lose digits."""
    largest = max(map(abs, values), default=0.0)
    if largest == 0.0 or 1e-50 < largest < 1e50:
        return 1.0
    return math.ldexp(1.0, min(math.frexp(largest)[1], 1023))


def _variance(values: Sequence[float], mean: float) -> float:
    spread = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return spread if len(set(values)) > 1 else 0.0


def _error(
    variances: Sequence[float], counts: Sequence[int], more: Sequence[tuple[float, float]], scale: float
) -> tuple[float, float]:
    """Standard error of the mean over cases, in units of `scale`, and its degrees of freedom."""
    parts = [(s / n / len(variances) ** 2, n - 1) for s, n in zip(variances, counts, strict=True)]
    parts += [(part / scale / scale, df) for part, df in more]
    total = math.fsum(part for part, _ in parts)
    weight = math.fsum(part**2 / df for part, df in parts)
    return math.sqrt(total), total**2 / weight if weight > 0 else math.inf


@functools.lru_cache(maxsize=4096)
def _t_quantile(p: float, df: float) -> float:
    from scipy.special import ndtri, stdtrit

    return float(ndtri(p) if math.isinf(df) else stdtrit(df, p))
