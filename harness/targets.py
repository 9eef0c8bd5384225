"""When a run reached a target: from its trajectory, in charged seconds. Pure.

What counts is the first check at which the target is reached, as AlgoPerf counts it: a time at which it was seen, never
one that was inferred. Beside it stands the time at which the straight line between that check and the one before it
crosses the target. A target that was reached for a while and lost again counts: the time is the first one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.specs import Board, RunRecord, Target
from harness.types import Trajectory


@dataclass(frozen=True)
class Reached:
    """When a target was first reached; every number is None exactly when `why` says why it never was.

    Attributes:
        charged_s: charged seconds at the first check at which it is reached, at least 0.
        interpolated_s: where the line from the check before crosses it; at most `charged_s`.
        updates: optimizer steps at that check.
    """

    charged_s: float | None
    interpolated_s: float | None
    updates: int | None
    why: str = ""


def target_of(board: Board) -> Target | None:
    """What a board's time-to-target is taken to: its `target`, else its stop, else nothing."""
    if board.target is not None or board.stop is None:
        return board.target
    stop = board.stop
    return Target(metric=stop.metric, at_most=stop.at_most, at_least=stop.at_least)


def time_to(target: Target, trajectory: Trajectory | None) -> Reached:
    """The first time at which `trajectory` is on the far side of `target`; checks without a value are passed over.

    >>> curve = Trajectory(np.array([0, 4, 8]), np.array([0.0, 2.0, 4.0]), {"forget.p": np.array([0.9, 0.3, 0.1])})
    >>> time_to(Target(metric="forget.p", at_most=0.2), curve)
    Reached(charged_s=4.0, interpolated_s=3.0, updates=8, why='')
    """
    if trajectory is None:
        return Reached(None, None, None, "no trajectory was recorded for this run")
    if target.metric not in trajectory.values:
        return Reached(None, None, None, f"the trajectory has no {target.metric}")
    values = np.asarray(trajectory.values[target.metric], np.float64)
    seen = np.flatnonzero(np.isfinite(values) & np.isfinite(trajectory.charged_s))
    seen = seen[np.argsort(trajectory.charged_s[seen], kind="stable")]
    there = [int(i) for i in seen if target.reached(float(values[i]))]
    if not there:
        best = (
            "no check has a value"
            if not len(seen)
            else f"the closest was {_closest(target, values[seen]):.4g}"
        )
        return Reached(None, None, None, f"{target.text} was never reached: {best}")
    at = there[0]
    place = int(np.flatnonzero(seen == at)[0])
    charged = float(trajectory.charged_s[at])
    before = int(seen[place - 1]) if place else at
    return Reached(charged, _crossing(target, trajectory, values, before, at), int(trajectory.updates[at]))


def times_to_target(
    target: Target, records: Sequence[RunRecord], trajectories: Mapping[str, Trajectory]
) -> dict[tuple[str, str, int], Reached]:
    """By (entry, case, seed): the median over repeats, of which one that never reached it counts as the slowest."""
    found: dict[tuple[str, str, int], list[Reached]] = {}
    for record in sorted(records, key=lambda r: r.run_id):
        reached = time_to(target, trajectories.get(record.run_id))
        found.setdefault((record.entry, record.case, record.seed), []).append(reached)
    return {key: _median(repeats) for key, repeats in sorted(found.items())}


def _median(repeats: Sequence[Reached]) -> Reached:
    """The lower of the two in the middle where their number is even, so that it is one that was measured."""
    order = sorted(repeats, key=lambda r: math.inf if r.charged_s is None else r.charged_s)
    return order[(len(order) - 1) // 2]


def _crossing(target: Target, trajectory: Trajectory, values: np.ndarray, before: int, at: int) -> float:
    a, b = float(values[before]), float(values[at])
    start, end = float(trajectory.charged_s[before]), float(trajectory.charged_s[at])
    return start + (target.level - a) / (b - a) * (end - start) if a != b else end


def _closest(target: Target, values: np.ndarray) -> float:
    return float(values.min() if target.at_most is not None else values.max())
