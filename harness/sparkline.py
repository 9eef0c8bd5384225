"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 12


@dataclass(frozen=True)
class Curve:
    """What one metric was along one run, in the order of its checks; a check without a value is None.

    Attributes:
        run_id, metric: whose, and of what.
        charged_s: charged seconds at each check.
        values: as many.
    """

    run_id: str
    metric: str
    charged_s: tuple[float, ...]
    values: tuple[float | None, ...]


def sparkline(values: Sequence[float | None], low: float, high: float, width: int = WIDTH) -> str:
    """Blocks of eight heights between `low` and `high`; a check without a finite value is a space.

    Of more checks than `width` some are left out, at equal steps; the first and the last are always there.

    >>> sparkline([0.0, 0.5, 1.0, None, 0.2], 0.0, 1.0)
    '▁▅█ ▂'
    """
    count = len(values)
    kept = values if count <= width else [values[round(i * (count - 1) / (width - 1))] for i in range(width)]
    return "".join(_block(value, low, high) for value in kept)


def span(curves: Sequence[Curve]) -> tuple[float, float]:
    """One scale for several curves: 0 to 1 where all values are in it, else from the lowest to the highest."""
    finite = [v for curve in curves for v in curve.values if v is not None and math.isfinite(v)]
    if all(0.0 <= v <= 1.0 for v in finite):
        return 0.0, 1.0
    return min(finite), max(finite)


def _block(value: float | None, low: float, high: float) -> str:
    if value is None or not math.isfinite(value):
        return " "
    half = 0.5 * high - 0.5 * low
    share = (0.5 * value - 0.5 * low) / half if half > 0 else 0.5
    return BLOCKS[min(max(int(share * len(BLOCKS)), 0), len(BLOCKS) - 1)]
