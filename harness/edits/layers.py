"""The linear maps of a model as matrices, and their inputs as rows of features."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.errors import SubmissionError


@dataclass(frozen=True)
class Layer:
    """One linear map: `nn.Linear`, an ungrouped `nn.Conv2d`, or the transposed `Conv1D` of GPT-2.

    Attributes:
        name: of the weight, as in `model.named_parameters()`.
        module: that owns it.
    """

    name: str
    module: nn.Module

    @property
    def width(self) -> int:
        """Number of input features d."""
        weight = self._weight
        return weight.shape[0] if _transposed(self.module) else weight[0].numel()

    @property
    def _weight(self) -> Tensor:
        weight: Any = self.module.weight
        return weight

    def as_matrix(self, weight: Tensor) -> Tensor:
        """A tensor of the weight's shape as a float64 matrix [m, d], a copy."""
        flat = weight.detach().double().flatten(1)
        return flat.T.clone() if _transposed(self.module) else flat.clone()

    @property
    def matrix(self) -> Tensor:
        """The weight as a float64 matrix [m, d], a copy."""
        return self.as_matrix(self._weight)

    def write(self, matrix: Tensor) -> None:
        """Set the weight to a matrix [m, d]; the bias stays."""
        weight = self._weight
        with torch.no_grad():
            weight.copy_((matrix.T if _transposed(self.module) else matrix).reshape(weight.shape))

    def features(self, x: Tensor) -> Tensor:
        """What the map is applied to, [B, positions, d]: tokens of a text, patches of an image, else one position."""
        module = self.module
        if isinstance(module, nn.Conv2d):
            if isinstance(module.padding, str) or module.padding_mode != "zeros":
                raise SubmissionError(
                    f"{self.name} pads with {module.padding!r} and {module.padding_mode!r}",
                    "edits know numbers of zeros", "leave the layer out with `only`",
                )  # fmt: skip
            patches = F.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
            return patches.transpose(1, 2)
        return x.reshape(len(x), -1, x.shape[-1])


def _transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def editable(model: nn.Module, *, only: str = "", skip: float = 0.0) -> list[Layer]:
    """The linear maps of a model in the order of its modules, from the input on.

    Args:
        model: any module. Embeddings, grouped convolutions and a head that is tied to the embedding are left out.
        only: regular expression on the weights' names.
        skip: share of the layers, 0 to 1, that is left alone, from the input on: .875 skips 35 of 40.

    Raises `SubmissionError` when nothing is left.
    """
    if not 0 <= skip <= 1:
        raise SubmissionError(f"skip={skip} is no share", "0 to 1", "change skip")
    try:
        wanted = re.compile(only)
    except re.error as error:
        raise SubmissionError(f"only={only!r} is no regular expression: {error}", "", "change only") from None
    tied = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    every = [
        Layer(f"{name}.weight", module)
        for name, module in model.named_modules()
        if _is_map(module) and id(module.weight) not in tied
    ]
    kept = every[int(skip * len(every) + 1e-9) :]
    found = [layer for layer in kept if wanted.search(layer.name)]
    if not found:
        raise SubmissionError(
            f"no layer is left to edit (only={only!r}, skip={skip})",
            f"{type(model).__name__} has {', '.join(x.name for x in every[:6]) or 'no linear map'}",
            "change only or skip",
        )
    return found


def _is_map(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return module.groups == 1
    return isinstance(module, nn.Linear) or _transposed(module)


def matrices(layers: Sequence[Layer], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The layers' weights in another model's state as float64 matrices [m, d]."""
    return {layer.name: layer.as_matrix(state[layer.name]) for layer in layers}
