"""Hugging Face image classifiers as models of arrays: pixels in, class logits and the head's input out.

Rows hold raw pixels, uint8 [C, H, W]. What a model wants done to them (`Pixels`) stands in its `config.json` under
`pixels`, or in the `preprocessor_config.json` of a checkpoint from the hub, and is done on the model's device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.errors import ModelError

BATCH_PIXELS = 1 << 25
"""Numbers of resized pixels that go through a model at once when nothing is trained."""


@dataclass(frozen=True)
class Pixels:
    """From raw pixels to a model's input: `(x * scale - mean) / std` per channel, resized to `size` x `size`.

    Attributes:
        size: side of the input.
        scale: of raw pixels; 1/255 for uint8 images.
        mean, std: per channel, of scaled pixels.
    """

    size: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Pixels:
        """The ones that `read` has put on a model's configuration."""
        given: Mapping[str, Any] = model.config.pixels  # type: ignore[union-attr, assignment]
        return cls(int(given["size"]), float(given["scale"]), tuple(given["mean"]), tuple(given["std"]))

    def apply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Raw pixels [B, C, H, W] as a model's input [B, C, size, size]."""
        shape = (1, -1, 1, 1)
        mean, std = (torch.tensor(v, device=x.device).view(shape) for v in (self.mean, self.std))
        x = (x.float() * self.scale - mean) / std
        if x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False)
        return x.to(dtype)

    def as_json(self) -> dict[str, Any]:
        """For `config.json`."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}


def read(folder: Path, config: Any) -> dict[str, Any]:
    """The pixels of a model folder: those of its configuration, else those of `preprocessor_config.json`.

    Raises:
        ModelError: the folder says neither.
    """
    if getattr(config, "pixels", None):
        return dict(config.pixels)
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} does not say what is done to pixels",
            "its config.json has no `pixels`, and it has no preprocessor_config.json",
            "copy the checkpoint's preprocessor_config.json into the folder",
        )
    given = json.loads(path.read_text(encoding="utf-8"))
    size = given.get("size", 224)
    if isinstance(size, Mapping):
        size = size.get("height", size.get("shortest_edge", 224))
    channels = int(getattr(config, "num_channels", 3))
    mean, std = (given.get(key) or [0.5] * channels for key in ("image_mean", "image_std"))
    return Pixels(int(size), float(given.get("rescale_factor", 1 / 255)), tuple(mean), tuple(std)).as_json()


def reads_pixels(model: Any) -> bool:
    """Whether `model` is a Hugging Face image classifier."""
    return getattr(model, "main_input_name", "") == "pixel_values"


def blocks(model: Any) -> list[nn.Module]:
    """Its residual stages (ResNet) or layers (ViT), from the input to the output; empty where there are none."""
    config = model.config
    count = getattr(config, "num_hidden_layers", None) or len(getattr(config, "depths", ()))
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    return list(lists[0]) if lists else []


def head(model: nn.Module) -> nn.Linear:
    """The last linear map, which makes the logits: of an image classifier, or any module with a `classifier`.

    Raises:
        ModelError: the model has no such map.
    """
    last = [m for m in getattr(model, "classifier", nn.Identity()).modules() if isinstance(m, nn.Linear)]
    if not last:
        raise ModelError(f"{type(model).__name__} has no linear head", "", "choose a board of images")
    return last[-1]


def forward(model: Any, x: Tensor, hidden: Sequence[int] = ()) -> tuple[Tensor, dict[int, Tensor], Tensor]:
    """One pass over raw pixels [B, C, H, W].

    Returns:
        logits [B, V]; block -> its output [B, 1, d]: the mean over positions of a map of channels, the class token of
        a sequence; and the features that the head reads [B, d].
    """
    states: dict[int, Tensor] = {}
    features: list[Tensor] = []

    def keep(layer: int) -> Any:
        def hook(_module: nn.Module, _given: Any, output: Any) -> None:
            states[layer] = _pooled(output[0] if isinstance(output, tuple) else output)

        return hook

    found = blocks(model) if hidden else []
    handles = [found[layer].register_forward_hook(keep(layer)) for layer in hidden]
    handles.append(head(model).register_forward_pre_hook(lambda _module, given: features.append(given[0])))
    try:
        logits = model(pixel_values=Pixels.of(model).apply(x, next(model.parameters()).dtype)).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits, states, features[0]


def _pooled(output: Tensor) -> Tensor:
    return output.mean((2, 3))[:, None] if output.ndim == 4 else output[:, :1]


def batch(model: nn.Module) -> int:
    """Rows that go through the model at once when nothing is trained."""
    size = Pixels.of(model).size
    return max(1, BATCH_PIXELS // (size * size * int(model.config.num_channels)))  # type: ignore[union-attr, arg-type]
