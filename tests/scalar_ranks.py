"""The paired test and Holm's correction for one pair and one list at a time: the oracle of `harness.paired`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import ndtr, stdtr

from harness.intervals import _error, _scale, _variance


def paired_p(
    differences: Sequence[Sequence[float]], parts: Sequence[tuple[float, float]] = ()
) -> float | None:
    """Two-sided p of the stratified paired t test: are the differences (one list per case) zero on average?

    `parts` are as in `estimate`. `paired.pair_tests` does the same for all pairs of a table at once.

    None where it cannot be computed: a case with one seed. Where nothing varies, a difference of zero (up to
    rounding) gives 1 and any other gives 0.

    >>> round(paired_p([[1.0, 1.1, 0.9]]), 4), paired_p([[1.0]]), paired_p([[0.0, 0.0]])
    (0.0033, None, 1.0)
    """
    if not differences or any(len(values) < 2 for values in differences):
        return None
    scale = _scale([*(v for values in differences for v in values), *(math.sqrt(part) for part, _ in parts)])
    scaled = [[value / scale for value in values] for values in differences]
    means = [math.fsum(values) / len(values) for values in scaled]
    mean = math.fsum(means) / len(means)
    variances = [_variance(values, m) for values, m in zip(scaled, means, strict=True)]
    if mean == 0:
        return 1.0
    counts = [len(values) for values in scaled]
    tests = [_error(variances, counts, some, scale) for some in ((), parts)]
    return max(
        0.0 if error <= 1e-15 * abs(mean) else min(1.0, 2 * _t_tail(abs(mean) / error, df))
        for error, df in tests
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (Holm 1979, Scand. J. Stat. 6), in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for place, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = running
    return adjusted


def _t_tail(t: float, df: float) -> float:
    return float(ndtr(-t) if math.isinf(df) else stdtr(df, -t))
