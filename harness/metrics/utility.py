"""What is left of a model: harmonic means that refuse to hide a component."""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness.metrics import OPEN_UNLEARNING, described
from harness.types import Score

MODEL_UTILITY_PARTS = tuple(
    f"{probe}.{metric}"
    for probe in ("retain", "real_authors", "world_facts")
    for metric in ("prob", "rougeL_recall", "truth_ratio")
)
"""The nine numbers that model utility is made of."""


def complaint(parts: Mapping[str, float | None]) -> str:
    """What is wrong with the inputs of a harmonic mean, naming each bad one; empty when nothing is."""
    bad = [
        f"{name} is {'missing' if value is None else f'{value:g}'}"
        for name, value in parts.items()
        if value is None or not math.isfinite(value) or value < 0
    ]
    return "; ".join(bad) or ("" if parts else "there is nothing to average")


@described(low=0.0, high=None, unit="", source="plain harmonic mean")
def harmonic_mean(parts: Mapping[str, float | None]) -> Score:
    """Mean n / sum(1 / x) of named parts, strict about them.

    Args:
        parts: name -> value, all at least 0.

    Returns:
        At most the largest part; 0 when a part is 0. A part that is missing, NaN, infinite or negative
        makes the mean null, and the reason names it.

    >>> harmonic_mean({"a": 0.6, "b": 0.0, "c": 0.5}).value
    0.0
    >>> harmonic_mean({"a": 0.6, "b": -0.1, "c": None}).why
    'b is -0.1; c is missing'
    """
    why = complaint(parts)
    if why:
        return Score(None, n=len(parts), why=why)
    values = [float(value) for value in parts.values() if value is not None]
    if min(values) == 0.0:
        return Score(0.0, n=len(values))
    top = max(values)
    return Score(top * len(values) / sum(top / value for value in values), n=len(values))


@described(low=0.0, high=1.0, unit="", source=f"TOFU sec. 2.2; {OPEN_UNLEARNING}, hm_aggregate")
def model_utility(parts: Mapping[str, float | None]) -> Score:
    """Harmonic mean of nine: probability, ROUGE-L recall, truth ratio on retain, real authors, world facts.

    Args:
        parts: must have all of `MODEL_UTILITY_PARTS`; others are ignored.

    Returns:
        In 0..1, higher is better. A mean over eight is not model utility: a missing part makes it null.
    """
    return harmonic_mean({name: parts.get(name) for name in MODEL_UTILITY_PARTS})
