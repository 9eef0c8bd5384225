"""The way a run went: forgetting against utility, and losses (Spectral Unlearning, Fig. 1, 3, 11)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

UTILITIES = ("util.own_fluency", "util")
FORGETTING = ("mem",)
LIKELIHOOD_UTIL = "util.likelihood"
_PARTS = tuple(f"{rows}.{metric}" for rows in ("retain", "real_authors", "world_facts")
               for metric in ("prob", "truth_ratio"))  # fmt: skip


def likelihood_util(values: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Harmonic mean of the six parts of `util` that need no texts, at every point; None where a part is absent.

    Points along a run are not asked for texts, so `util` itself, which has ROUGE and fluency in it, is not known there.

    >>> parts = {p: np.array([0.5, 1.0]) for p in _PARTS}
    >>> likelihood_util(parts).tolist()
    [0.5, 1.0]
    """
    if any(part not in values for part in _PARTS):
        return None
    stacked = np.stack([np.maximum(values[part], 1e-12) for part in _PARTS])
    return len(_PARTS) / (1.0 / stacked).sum(0)


def pick(asked: str, usual: Sequence[str], values: Mapping[str, np.ndarray]) -> str:
    """The series to draw: the one asked for, or the first usual one that has a value somewhere; empty when none."""
    return next(
        (name for name in ([asked] if asked else usual) if name in values and _known(values[name])), ""
    )


def _known(values: np.ndarray) -> bool:
    return any(map(math.isfinite, values))
