"""What a comparison comes to, as plain functions of numbers: learning-rate curves, families, equal time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.rank import gain
from harness.types import MetricInfo

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "element-wise": ("adamw", "sophia"),
    "spectral": ("muon", "klshampoo", "kl_shampoo", "shampoo_quarter", "soap"),
}
"""Families of optimizers as Spectral Unlearning, Table 6 has them: do steps see single weights or matrices."""
TOLERANCE = 0.02
PLATEAU = 0.9


# --- learning-rate curves -------------------------------------------------------------------------------------------
def height(info: MetricInfo, value: float | None) -> float | None:
    """How good a value is, from 0 for the worst possible, so that a share of the best means something.

    `higher` is the value above its lower bound, `lower` the room below its upper bound; None without such a bound.

    >>> height(MetricInfo("a", "lower", 0, 1, "", ""), 0.25)
    0.75
    """
    if value is None:
        return None
    if info.direction == "higher" and info.low is not None:
        return value - info.low
    if info.direction == "lower" and info.high is not None:
        return info.high - value
    return None


def peak(heights: Sequence[float | None]) -> int | None:
    """Where the highest value is; the first of equals; None where there is no value."""
    known = [(h, -i) for i, h in enumerate(heights) if h is not None]
    return -max(known)[1] if known else None


def normalised(heights: Sequence[float | None]) -> list[float | None]:
    """Heights as shares of the peak's; all None where the peak is not above 0."""
    at = peak(heights)
    top = None if at is None else heights[at]
    if top is None or top <= 0:
        return [None] * len(heights)
    return [None if h is None else h / top for h in heights]


@dataclass(frozen=True)
class Width:
    """How wide the plateau around a curve's peak is.

    Attributes:
        decades: log10 of its highest over its lowest rate; None for the reason in `why`.
        low, high: its ends, as rates.
        open_low, open_high: the curve is still above the threshold where the grid, or what is known of it, ends; the
            width is a lower bound then.
    """

    decades: float | None
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    why: str = ""


def width(rates: Sequence[float], heights: Sequence[float | None], share: float = PLATEAU) -> Width:
    """The stretch of rates around the peak in which the curve stays above `share` of it.

    Between two rates the curve is linear in log10 of the rate. After the plateaus of Spectral Unlearning, Fig. 9.

    Args:
        rates: ascending.
        heights: 0 or more, one a rate; None where a run has no value: nothing is known beyond it.
        share: of the peak, in 0..1.

    >>> w = width([1e-5, 1e-4, 1e-3], [0.0, 1.0, 0.0])
    >>> round(w.decades, 9), w.open_low
    (0.2, False)
    """
    at = peak(heights)
    top = None if at is None else heights[at]
    if at is None or top is None:
        return Width(None, why="no rate has a value")
    if top <= 0:
        return Width(None, why="the peak is not above the worst possible value")
    if sum(h is not None for h in heights) < 2:
        return Width(None, why="one rate is no curve")
    high, open_high = _end(rates[at:], heights[at:], share * top)
    low, open_low = _end(rates[at::-1], heights[at::-1], share * top)
    return Width(math.log10(high / low), low, high, open_low, open_high)


def _end(rates: Sequence[float], heights: Sequence[float | None], threshold: float) -> tuple[float, bool]:
    """Where a curve that begins at its peak first falls below the threshold, and whether it never does."""
    last, above = rates[0], heights[0]
    for rate, value in zip(rates[1:], heights[1:], strict=True):
        if value is None or above is None:
            return last, True
        if value < threshold:
            part = (above - threshold) / (above - value)
            return 10 ** (math.log10(last) + part * (math.log10(rate) - math.log10(last))), False
        last, above = rate, value
    return last, True


# --- families -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FamilyScore:
    """One metric, over the cells (loss, case, seed) in which every optimizer of both families has a value.

    Attributes:
        means: family to mean over cells of the mean over its optimizers.
        wins: family to cells in which its mean is the better one; a tie is half a win for each.
        cells: how many cells count; `left_out` of them lack a value.
    """

    means: Mapping[str, float | None]
    wins: Mapping[str, float]
    cells: int
    left_out: int


def families(
    info: MetricInfo,
    values: Sequence[Mapping[str, float | None]],
    members: Mapping[str, Sequence[str]],
) -> FamilyScore:
    """Family means and win counts of one metric (Spectral Unlearning, Table 6, whose cells are model, split and loss).

    Args:
        info: its direction decides who wins; without one there are no wins.
        values: per cell, optimizer to value.
        members: family to the optimizers that were compared; none is empty.
    """
    sums: dict[str, list[float]] = {name: [] for name in members}
    wins = dict.fromkeys(members, 0.0)
    left_out = 0
    for cell in values:
        found = {name: _mean([cell.get(o) for o in own]) for name, own in members.items()}
        known = {name: mean for name, mean in found.items() if mean is not None}
        if len(known) < len(members):
            left_out += 1
            continue
        for name, mean in known.items():
            sums[name].append(mean)
        if info.direction in ("higher", "lower") or info.target is not None:
            better = {name: gain(info, mean) for name, mean in known.items()}
            top = max(better.values())
            first = [n for n, g in better.items() if math.isclose(g, top, rel_tol=1e-12, abs_tol=1e-300)]
            for name in first:
                wins[name] += 1 / len(first)
    means = {name: _mean(found) for name, found in sums.items()}
    return FamilyScore(means, wins, len(values) - left_out, left_out)


def _mean(values: Sequence[float | None]) -> float | None:
    """Plain mean; None where there is none, or one value is missing."""
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


# --- equal time -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Spent:
    """What one run used: charged seconds, its longest step, and whether a threshold of the board ended it early."""

    charged_s: float
    step_s: float
    stopped: bool = False


@dataclass(frozen=True)
class TimeCheck:
    """Whether the entries of a comparison had the same time.

    Attributes:
        low, high: least and most mean charged seconds of an entry.
        spread: (high - low) / budget; None where nothing was charged.
        apart: entry to what is wrong with its time: it is further from the budget than the larger of 2 % and one step.
        stopped: entries of which runs were ended early by the board's threshold; they are not judged.
    """

    low: float | None
    high: float | None
    spread: float | None
    apart: Mapping[str, str]
    stopped: tuple[str, ...]


def time_check(budget_s: float, spent: Mapping[str, Sequence[Spent]]) -> TimeCheck:
    """Compare each entry's mean charged seconds with the budget in seconds.

    >>> time_check(10.0, {"a": [Spent(9.9, 0.1)], "b": [Spent(9.0, 0.1)]}).apart
    {'b': '9.000 s of 10.000 s: -10.0 %, more than 2 % and than its longest step of 0.100 s'}
    """
    apart: dict[str, str] = {}
    means: dict[str, float] = {}
    stopped = []
    for entry, runs in spent.items():
        if any(run.stopped for run in runs):
            stopped.append(entry)
            continue
        if not runs:
            continue
        means[entry] = math.fsum(run.charged_s for run in runs) / len(runs)
        step = max(run.step_s for run in runs)
        off = means[entry] - budget_s
        if abs(off) > max(TOLERANCE * budget_s, step):
            apart[entry] = (
                f"{means[entry]:.3f} s of {budget_s:.3f} s: {off / budget_s:+.1%}, more than 2 % and than its longest "
                f"step of {step:.3f} s"
            ).replace("%,", " %,")
    low, high = min(means.values(), default=None), max(means.values(), default=None)
    spread = None if low is None or high is None else (high - low) / budget_s
    return TimeCheck(low, high, spread, apart, tuple(stopped))
