"""The strength of an edit, from the accuracy on forget rows alone: no retrained model, no retain or test rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """What a line search chose.

    Attributes:
        alpha: the strength.
        accuracy: forget accuracy there, 0 to 1.
        reached: whether that is at most the wanted accuracy.
        tried: every (alpha, accuracy), in the order tried.
    """

    alpha: float
    accuracy: float
    reached: bool
    tried: tuple[tuple[float, float], ...]


def line_search(
    accuracy: Callable[[float], float], alphas: Sequence[float], wanted: float, halvings: int = 3
) -> Found:
    """The smallest strength at which the forget accuracy is at most `wanted`.

    The grid is tried from the smallest on until one is strong enough; then the gap below it (down to 0) is halved
    `halvings` times. When none is strong enough: the one with the lowest accuracy, the weakest on a tie. An accuracy
    that is not a number ends the search: stronger edits are no better.

    Args:
        accuracy: of the model edited with a given strength, on forget rows.
        alphas: positive strengths.
        wanted: forget accuracy, 0 to 1.
        halvings: evaluations after the grid.

    >>> line_search(lambda a: max(0.0, 1 - a), [0.5, 1.0, 2.0], 0.3, halvings=1).alpha
    0.75
    """
    grid = sorted(set(alphas))
    if not grid or grid[0] <= 0:
        raise ValueError("a line search needs strengths above 0")
    tried: list[tuple[float, float]] = []

    def at(alpha: float) -> float:
        tried.append((alpha, accuracy(alpha)))
        return tried[-1][1]

    below = 0.0
    for alpha in grid:
        value = at(alpha)
        if math.isnan(value):
            break
        if value <= wanted:
            return _halved(at, below, (alpha, value), wanted, halvings, tried)
        below = alpha
    known = [(value, alpha) for alpha, value in tried if not math.isnan(value)]
    if not known:
        return Found(0.0, math.nan, False, tuple(tried))
    value, alpha = min(known)
    return Found(alpha, value, False, tuple(tried))


def _halved(
    at: Callable[[float], float], below: float, best: tuple[float, float], wanted: float, halvings: int,
    tried: list[tuple[float, float]],
) -> Found:  # fmt: skip
    for _ in range(halvings):
        middle = (below + best[0]) / 2
        value = at(middle)
        if value <= wanted:
            best = (middle, value)
        else:
            below = middle
    return Found(best[0], best[1], True, tuple(tried))
