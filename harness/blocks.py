"""The blocks of a model: which there are, what one of them puts out, and the matrix that ends its MLP."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from harness import scoring, vision
from harness.errors import SubmissionError
from harness.optim.sides import sides
from harness.scoring import Inputs


class _Reached(Exception):
    """Ends a pass at a block; carries what the block put out."""

    def __init__(self, states: Tensor) -> None:
        self.states = states


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a Hugging Face decoder or image classifier, from input to output; empty for other models."""
    inner = _inner(model)
    if vision.reads_pixels(inner):
        return vision.blocks(inner)
    count = getattr(getattr(inner, "config", None), "num_hidden_layers", None)
    lists = [m for m in inner.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    return list(lists[0]) if lists else []


def depth(model: nn.Module) -> int:
    """Number of blocks whose output can be had; 1 for the modular-addition transformer, 0 where there is none."""
    if found := blocks(model):
        return len(found)
    return int("hidden" in inspect.signature(_inner(model).forward).parameters)


def layer_at(fraction: float, count: int) -> int:
    """The block at a fraction of the depth: the largest whole number that is not above `fraction` x `count`.

    A layer that a paper names for a model of n blocks carries over to other depths so: 7 of 16 is 7/16.

    >>> layer_at(7 / 16, 16), layer_at(7 / 16, 28), layer_at(22 / 32, 4), layer_at(7 / 16, 1)
    (7, 12, 2, 0)
    """
    return min(math.floor(fraction * count + 1e-9), count - 1)


def check_layer(model: nn.Module, layer: int) -> None:
    """Refuse a block that the model does not have."""
    count = depth(model)
    if not count:
        raise SubmissionError(
            f"{type(_inner(model)).__name__} gives no hidden states",
            "methods on activations need a Hugging Face decoder or the modular-addition transformer",
            "choose another method or board",
        )
    if not 0 <= layer < count:
        raise SubmissionError(
            f"no block {layer}", f"the model has {count}, from 0 to {count - 1}", "change layer"
        )


def hidden_states(model: nn.Module, inputs: Inputs, layer: int) -> Tensor:
    """Output of block `layer` [B, T, d] (arrays: [B, 1, d]), differentiable; the pass ends there.

    Of the last block too it is the block's own output, before the model's final norm.
    """
    if inputs.attention is None:
        return scoring.forward(model, inputs, (layer,)).hidden[layer]

    def leave(_block: nn.Module, _given: Any, output: Any) -> None:
        raise _Reached(output[0] if isinstance(output, tuple) else output)

    handle = blocks(model)[layer].register_forward_hook(leave)
    try:
        model(input_ids=inputs.x, attention_mask=inputs.attention.long(), use_cache=False)
    except _Reached as reached:
        return reached.states
    finally:
        handle.remove()
    raise AssertionError("the pass did not reach its block")


def down_projection(model: nn.Module, layer: int) -> nn.Module:
    """The linear map with which the MLP of block `layer` writes into the residual stream; its weight is a parameter.

    It is told by the module graph (`harness.optim.sides`), not by its name.
    """
    check_layer(model, layer)
    inner, block = _inner(model), (blocks(model) or [None])[layer]
    owners = {f"{name}.weight": module for name, module in inner.named_modules()}
    mine = set(block.modules()) if block is not None else set(inner.modules())
    found = [
        owners[name]
        for name, side in sides(inner).items()
        if side.role == "mlp out" and owners.get(name) in mine
    ]
    if len(found) != 1:
        raise SubmissionError(
            f"block {layer} of {type(inner).__name__} has {len(found)} matrices that end an MLP",
            "one is needed",
            "choose another method",
        )
    return found[0]


class Frozen:
    """A frozen copy of a model; nothing that it gives has a gradient.

    Args:
        model: the copy.
        precision: makes the context of a pass.
    """

    def __init__(self, model: nn.Module, precision: Callable[[], Any]) -> None:
        self._model, self._precision = model.requires_grad_(False), precision

    def __call__(self, inputs: Inputs, hidden: tuple[int, ...] = ()) -> scoring.Outputs:
        """As `Job.forward`."""
        with torch.no_grad(), self._precision():
            return scoring.forward(self._model, inputs, hidden)

    def hidden(self, inputs: Inputs, layer: int) -> Tensor:
        """As `Job.hidden`."""
        with torch.no_grad(), self._precision():
            return hidden_states(self._model, inputs, layer)


def _inner(model: nn.Module) -> Any:
    return getattr(model, "get_base_model", lambda: model)()
