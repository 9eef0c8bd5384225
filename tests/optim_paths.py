"""Steps of public optimizers on small quadratic problems with noise, kept beside a maintainer's checkout."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

PATHS = Path(__file__).resolve().parents[2] / "shared" / "reference" / "optimizers"
ABSENT = not PATHS.exists() and os.environ.get("CI") != "true"
"""In CI the data has to be there: a test that misses it fails."""


@dataclass(frozen=True)
class OptimizerPath:
    """A start [rows, cols] and the weights after each step [steps, rows, cols]."""

    hyper: dict[str, Any]
    start: Tensor
    weights: Tensor
    arrays: dict[str, Tensor]

    def gradient(self, W: Tensor, t: int) -> Tensor:
        """A^T (A (W - target) B) B^T + noise[t]."""
        a = self.arrays
        return a["A"].T @ (a["A"] @ (W - a["target"]) @ a["B"]) @ a["B"].T + a["noise"][t]


def cases(optimizer: str) -> list[int]:
    """Numbers of the cases of one optimizer; none without the data."""
    if ABSENT:
        return []
    listed = json.loads((PATHS / "trajectories.json").read_text())
    return [c["case"] for c in listed if c["optimizer"] == optimizer]


def path_of(case: int) -> OptimizerPath:
    """One case."""
    listed = {c["case"]: c for c in json.loads((PATHS / "trajectories.json").read_text())}
    with np.load(PATHS / "trajectories.npz") as file:
        names = ("W0", "A", "B", "target", "noise", "W")
        arrays = {name: torch.from_numpy(file[f"{case}/{name}"]) for name in names}
    return OptimizerPath(listed[case]["hyperparameters"], arrays["W0"], arrays["W"], arrays)


def norm_difference(W: Tensor, want: Tensor) -> float:
    """|W - want| / |want|, Frobenius."""
    return float(torch.linalg.norm(W - want) / torch.linalg.norm(want))
