"""Which models the BMA boards need: `MINI` is shipped, `FULL` is the size of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.modadd import ModularConfig
from harness.modadd_train import Recipe
from harness.tasks.bma_data import BmaData


@dataclass(frozen=True)
class World:
    """A family of models: data, shape, recipe, and which forget sets have a retain model.

    Attributes:
        name: `mini` or `full`.
        data: pairs, labels, split.
        buckets: the sizes M.
        fractions: shares of the training pairs that are forgotten; with more than one the names say which.
        seeds: of the forget sets.
        config: shape of every model.
        recipe: of every model.
    """

    name: str
    data: BmaData
    buckets: tuple[int, ...]
    fractions: tuple[float, ...]
    seeds: tuple[int, ...]
    config: ModularConfig
    recipe: Recipe

    def plans(self) -> dict[str, Plan]:
        """Every model of this world by name, targets first."""
        targets = {f"M{m}": Plan(m) for m in self.buckets}
        retained = {}
        for m in self.buckets:
            for fraction in self.fractions:
                share = f"{100 * fraction:g}pct-" if len(self.fractions) > 1 else ""
                for seed in self.seeds:
                    retained[f"M{m}-retain-{share}{seed}"] = Plan(m, fraction, seed)
        return targets | retained


@dataclass(frozen=True)
class Plan:
    """What one model is trained on: bucket size, and the forget set it never sees (None for a target)."""

    m: int
    fraction: float | None = None
    seed: int | None = None

    def forget(self, data: BmaData) -> np.ndarray:
        """Indices of the pairs that are left out; empty for a target."""
        if self.fraction is None or self.seed is None:
            return np.empty(0, np.int64)
        return data.forget(self.fraction, self.seed)

    def rows(self, data: BmaData) -> np.ndarray:
        """Indices of the pairs that are trained on."""
        return np.setdiff1d(data.train, self.forget(data))


MINI = World(
    "mini",
    BmaData(64, 64, 0.6, 0),
    (1, 4, 16, 64),
    (0.05,),
    (17, 26, 42),
    ModularConfig(64, 64, 128, 4, 512),
    Recipe(),
)
"""Board `bma-mini`: 16 models, about half a minute each on one CPU core."""
FULL = World(
    "full", BmaData(256, 256, 0.3, 0), (1, 4, 16, 64, 256), (0.01, 0.05, 0.1), (17, 26, 42),
    ModularConfig(256, 256, 256, 4, 1024), Recipe(epochs=30_000, lr=1e-3, every=100),
)  # fmt: skip
"""The paper's size (BMA paper: 256 classes, doubled width, 30 % of pairs, 30,000 epochs). Our choices
where it is
silent: a and b below 256, and learning rate and decay of Nanda et al. (2023). Hours per model on two CPU
cores."""
WORLDS = {world.name: world for world in (MINI, FULL)}
