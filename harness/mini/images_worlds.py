"""Which image classifiers the boards of images need: the digits are shipped, the others are trained on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.mini.world import data_folder
from harness.specs import TaskRef, Template
from harness.tasks.images import ImagesTask, build
from harness.workspace import Workspace


@dataclass(frozen=True)
class Recipe:
    """How every model of a world is trained: AdamW, linear warm-up, linear decay to 0.

    Attributes:
        epochs: over the training rows.
        batch: rows an update.
        lr: highest learning rate.
        weight_decay: decoupled.
        warmup: share of the updates.
        dtype: of the stored weights.
    """

    epochs: int
    batch: int
    lr: float
    weight_decay: float = 0.01
    warmup: float = 0.1
    dtype: str = "float32"


@dataclass(frozen=True)
class Plan:
    """One model: the request whose rows it never sees (empty for none), the seeds of its start and of the rows' order.

    One that is not `trained` is what the others of its seed start from.
    """

    case: str
    seed: int
    order: int
    trained: bool = True


@dataclass(frozen=True)
class World:
    """A family of models of one board.

    Attributes:
        name: of the family.
        board: whose task names data and requests.
        start: hub id of pre-trained weights; empty for random ones.
        shape: `model_type` and settings of the configuration, where the start is random.
        pixels: size, scale, mean, std (`harness.vision.Pixels`); empty takes the start's own.
        seeds: of targets and retrained models.
        again: added to a seed, it is that of the rows' order in the second retrained model.
        general: least accuracy on test rows of classes that were trained on, for a model to be good.
        recipe: of every model.
    """

    name: str
    board: str
    recipe: Recipe
    start: str = ""
    shape: Mapping[str, Any] = field(default_factory=dict)
    pixels: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    again: int = 1000
    general: float = 0.7

    def reference(self) -> TaskRef:
        """What the board asks, with the shipped folder for `mini:NAME`."""
        ref = Workspace.find().board(self.board).task
        shipped = ref.data.startswith("mini:")
        data = str(data_folder(ref.data.removeprefix("mini:"))) if shipped else ref.data
        return ref.model_copy(update={"data": data})

    @cached_property
    def task(self) -> ImagesTask:
        """The task of the board, with its data."""
        return build(self.reference(), Template())

    def plans(self) -> dict[str, Plan]:
        """Every model of this world by name, targets first."""
        cases = self.reference().options["requests"]
        plans = {f"target-{seed}": Plan("", seed, seed) for seed in self.seeds}
        if self.start:
            plans |= {f"init-{seed}": Plan("", seed, seed, trained=False) for seed in self.seeds}
        for name, other in (("retain", 0), ("again", self.again)):
            plans |= {f"{c}-{name}-{seed}": Plan(c, seed, seed + other) for c in cases for seed in self.seeds}
        return plans


DIGITS = World(
    "digits", "digits-mini", Recipe(epochs=20, batch=64, lr=3e-3, dtype="bfloat16"), general=0.9,
    shape={"model_type": "resnet", "num_channels": 1, "embedding_size": 8, "hidden_sizes": [8, 16, 32],
           "depths": [1, 1, 1], "layer_type": "basic"},
    pixels={"size": 32, "scale": 1 / 16, "mean": [0.5], "std": [0.5]},
)  # fmt: skip
"""20,130 parameters; the 8 x 8 images are enlarged to 32 x 32, which the stem of a ResNet makes 8 x 8 again."""

RESNET50 = {"model_type": "resnet"}
"""transformers' defaults are ResNet-50."""
RGB = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "scale": 1 / 255}
"""ImageNet's, which the pre-trained checkpoints were trained with."""
FINE_TUNED = Recipe(epochs=10, batch=128, lr=1e-4)
SCRATCH = Recipe(epochs=60, batch=128, lr=1e-3, weight_decay=0.05)

WORLDS = {
    world.name: world
    for world in (
        DIGITS,
        World("cifar100-resnet50", "images-cifar100-resnet50", FINE_TUNED, start="microsoft/resnet-50",
              pixels={"size": 224, **RGB}),
        World("cifar100-resnet50-scratch", "images-cifar100-resnet50-scratch", SCRATCH, shape=RESNET50, general=0.3,
              pixels={"size": 128, **RGB}),
        World("cifar100-vit", "images-cifar100-vit", FINE_TUNED, start="WinKawaks/vit-small-patch16-224",
              pixels={"size": 224, "mean": [0.5] * 3, "std": [0.5] * 3, "scale": 1 / 255}),
        World("tinyimagenet-resnet50", "images-tinyimagenet-resnet50", FINE_TUNED, start="microsoft/resnet-50",
              pixels={"size": 224, **RGB}, general=0.6),
        World("tinyimagenet-resnet50-scratch", "images-tinyimagenet-resnet50-scratch", SCRATCH, shape=RESNET50,
              general=0.3, pixels={"size": 128, **RGB}),
    )
}  # fmt: skip
"""By family. Epochs, rates and sizes of all but the digits are settings to start from: nobody has run them here."""
