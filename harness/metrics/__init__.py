"""Metrics: numpy functions over `TokenScores`, arrays and strings; no files, no torch, no tasks.

A function that scores rows returns one value per row, None where the row has nothing to score. `described`
attaches the facts that hold wherever a metric is used (range, unit, source); `metric_info` adds the ones that
depend on the probe (id, direction) and makes the column's `MetricInfo`; `mean_score` makes a `Score` of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from harness.types import MetricInfo, Score

Direction = Literal["higher", "lower", "target", "none"]
F = TypeVar("F", bound=Callable[..., Any])

OPEN_UNLEARNING = "locuslab/open-unlearning d3d7cf9"
"""The public evaluator whose rules the `.published` variants and the TOFU numbers follow."""


@dataclass(frozen=True)
class Described:
    """What is true of a metric on any probe."""

    low: float | None
    high: float | None
    unit: str
    source: str


def described(*, low: float | None, high: float | None, unit: str, source: str) -> Callable[[F], F]:
    """Attach range, unit and source to a metric function, where `metric_info` finds them."""

    def attach(function: F) -> F:
        setattr(function, "described", Described(low, high, unit, source))  # noqa: B010
        return function

    return attach


def metric_info(
    function: Callable[..., Any], id: str, direction: Direction, text: str = "", **more: Any
) -> MetricInfo:
    """The `MetricInfo` of a described function under one id.

    Args:
        function: what `described` was put on.
        id: `probe.metric.variant`.
        direction: which way is better on this probe.
        text: one sentence; default is the first line of the function's docstring.
        more: `target`, `roles`, or a `low`, `high`, `unit` that differs on this probe.

    >>> from harness.metrics.memorization import probability
    >>> metric_info(probability, "forget.prob", "lower").unit
    'probability'
    """
    facts: Described = getattr(function, "described")  # noqa: B009
    line = text or (function.__doc__ or "").strip().splitlines()[0]
    values = {"low": facts.low, "high": facts.high, "unit": facts.unit, "source": facts.source} | more
    return MetricInfo(id=id, direction=direction, text=line, **values)


def mean_score(
    values: Mapping[str, float | None] | None,
    why: str = "",
    *,
    shown: Mapping[str, float | None] | None = None,
) -> Score:
    """The mean over rows as a `Score`.

    Args:
        values: row id -> value; None for a row that has nothing to score, which is left out and not counted.
        why: the reason when there are no values at all.
        shown: per-row values to store when they differ from the averaged ones.

    A row that is NaN or infinite makes the mean null (its row is stored as None); it is never dropped
    silently.

    >>> mean_score({"a": 1.0, "b": None}).value
    1.0
    >>> mean_score({"a": 1.0, "b": float("nan")}).why
    '1 of 2 rows are not finite'
    """
    if values is None:
        return Score(None, why=why or "nothing was answered")
    per_row = {key: _finite(value) for key, value in (values if shown is None else shown).items()}
    kept = np.array([value for value in values.values() if value is not None], dtype=np.float64)
    bad = int((~np.isfinite(kept)).sum())
    if bad:
        return Score(None, n=len(kept), why=f"{bad} of {len(kept)} rows are not finite", per_row=per_row)
    if not len(kept):
        return Score(None, why=why or f"none of {len(values)} rows has a value", per_row=per_row)
    return Score(float(kept.mean()), n=len(kept), per_row=per_row)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
