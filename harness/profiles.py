"""Performance profiles over many workloads, and the one number that AlgoPerf makes of them. Pure.

A workload is whatever was timed for every entry: here a (board, case, seed). With t the time to target and best the
lowest of all entries, r = t / best, and rho(tau) is the share of workloads with r <= tau (Dolan and More 2002, Math.
Programming 91). The score is the integral of rho from 1 to 4, divided by 3, on a linear axis (AlgoPerf, mlcommons/
algorithmic-efficiency, docs/DOCUMENTATION.md, "Integrating performance profiles"). rho is a staircase, so the
integral is exact: the mean over workloads of (4 - r) / 3, where r <= 4, else 0. AlgoPerf's code sums trapezoids over
100 points, which comes to the same within a step.

AlgoPerf first takes the median over a workload's seeds. Here each seed is a workload: a method that reaches the target
with two seeds of three has two thirds of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

R_MAX = 4.0

E = TypeVar("E", bound=Hashable)
W = TypeVar("W", bound=Hashable)


@dataclass(frozen=True)
class Profile:
    """One entry's profile.

    Attributes:
        ratios: time over the best time of each workload that was reached, ascending, at least 1.
        workloads: how many there are, those not reached included.
        score: the integral from 1 to `r_max`, normalised to 0..1; None without workloads.
        reached: workloads on which the target was reached, however late.
    """

    ratios: tuple[float, ...]
    workloads: int
    score: float | None
    reached: int

    def share(self, tau: float) -> float:
        """rho(tau): the share of workloads solved within `tau` times the best time, 0..1."""
        return sum(ratio <= tau for ratio in self.ratios) / self.workloads if self.workloads else 0.0

    def steps(self, r_max: float = R_MAX) -> list[tuple[float, float]]:
        """The corners of the staircase from tau = 1 to `r_max`: (tau, rho from there on)."""
        inside = sorted({1.0, *(ratio for ratio in self.ratios if ratio <= r_max)})
        return [(tau, self.share(tau)) for tau in inside] + [(r_max, self.share(r_max))] * (
            inside[-1] < r_max
        )


def profiles(
    times: Mapping[E, Mapping[W, float | None]], workloads: Sequence[W], r_max: float = R_MAX
) -> dict[E, Profile]:
    """The profile of every entry.

    Args:
        times: entry to workload to time, at least 0 and in any one unit per workload; None, or nothing, is not reached.
        workloads: all of them; one that nobody reached counts against everybody.
        r_max: the upper end of the integral, above 1.

    Raises:
        ValueError: a time that is negative or not finite, workloads that repeat, or a time of another workload.

    >>> profiles({"a": {"w": 2.0}, "b": {"w": 5.0}}, ["w"])["b"].score
    0.5
    """
    known = set(workloads)
    if len(known) != len(workloads) or not r_max > 1:
        raise ValueError("workloads repeat" if r_max > 1 else f"r_max is above 1, not {r_max}")
    for entry, mine in times.items():
        for workload, t in mine.items():
            if workload not in known or (t is not None and not (math.isfinite(t) and t >= 0)):
                raise ValueError(
                    f"the time of {entry} on {workload} is {t}: finite, at least 0, of a known workload"
                )
    best: dict[W, float] = {}
    for mine in times.values():
        for workload, t in mine.items():
            if t is not None:
                best[workload] = min(t, best.get(workload, math.inf))
    return {entry: _profile(mine, best, len(workloads), r_max) for entry, mine in times.items()}


def _profile(mine: Mapping[W, float | None], best: Mapping[W, float], count: int, r_max: float) -> Profile:
    reached = [(t, best[workload]) for workload, t in mine.items() if t is not None]
    ratios = sorted(_ratio(t, least) for t, least in reached)
    areas = [(r_max - ratio) / (r_max - 1.0) for ratio in ratios if ratio <= r_max]
    return Profile(tuple(ratios), count, math.fsum(areas) / count if count else None, len(reached))


def _ratio(t: float, least: float) -> float:
    """Time over the best; where the best took no time, whoever took some is infinitely slower."""
    if t == least:
        return 1.0
    return t / least if least > 0 else math.inf
