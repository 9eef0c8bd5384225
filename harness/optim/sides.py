"""Which sides of a weight a matrix optimizer preconditions, read from the module graph.

A residual stream of width d is normalised; the hidden units of an MLP are not. So (Spectral Unlearning, section 2.6 and
Table 4) attention projections get both sides, an MLP's matrices the residual side alone, and embeddings, output heads
and everything that is no matrix get AdamW.

What is what:

- *Blocks* are the entries of the model's outermost `ModuleList`s. Linear maps outside them are heads or projectors:
  AdamW. A model without such a list is one block; if it has an embedding, its last linear map is the head.
- In a block, a linear map is attention's if a module that encloses it is called, or is of a class called, attention.
- Any other linear map in a block is an MLP's. Its residual side is the one whose length is the width of the block's
  norms (without norms: of the input embedding). So `Conv1D` of GPT-2, which stores [in, out], needs no rule of its own.
  If both lengths or neither is the width, both sides are preconditioned.
- Low-rank factors (peft) get both sides: one side of each is the rank, which is small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

Role = Literal[
    "attention", "mlp in", "mlp out", "matrix", "lora", "embedding", "head", "norm", "bias", "other"
]


@dataclass(frozen=True)
class Side:
    """How one parameter is treated.

    Attributes:
        role: what the parameter is.
        left: whether the rows' side is preconditioned (L of L^-p G R^-p); False under `adamw`.
        right: whether the columns' side is.
        adamw: whether the parameter is left to AdamW.
        why: the rule that decided, without the outcome.
        transposed: whether the weight is stored [in, out] rather than [out, in].
    """

    role: Role
    left: bool
    right: bool
    adamw: bool
    why: str
    transposed: bool = False

    @property
    def treatment(self) -> str:
        """In words: `both`, `left`, `right` or `adamw`."""
        if self.adamw:
            return "adamw"
        return "both" if self.left and self.right else "left" if self.left else "right"


def sides(model: nn.Module) -> dict[str, Side]:
    """The treatment of every parameter of `model`, by the names and in the order of `named_parameters`."""
    modules = dict(model.named_modules())
    heads = _heads(model, modules)
    embeds = any(isinstance(module, nn.Embedding) for module in modules.values())
    usual, outer = _width_of_embedding(model, modules), _lists(modules)
    found: dict[str, Side] = {}
    for name, parameter in model.named_parameters():
        owner_name, _, leaf = name.rpartition(".")
        owner = modules[owner_name]
        plain = _no_matrix(name, leaf, owner, parameter.ndim)
        if plain is not None:
            found[name] = plain
            continue
        transposed = _is_conv1d(owner)
        if any(part.startswith("lora_") for part in owner_name.split(".")):
            found[name] = Side("lora", True, True, False, "low-rank factor", transposed)
        elif owner in heads:
            found[name] = _adamw("head", "output head")
        elif (block := _block_of(owner_name, outer)) is None and outer:
            found[name] = _adamw("other", "a linear map outside the blocks")
        elif block is None and not embeds:
            found[name] = Side("matrix", True, True, False, "no residual stream known", transposed)
        elif block is not None and _in_attention(owner_name, block, modules):
            found[name] = Side("attention", True, True, False, "in an attention module", transposed)
        else:
            width = usual if block is None else _width_of_norms(modules[block], usual)
            found[name] = _by_width(parameter.shape[0], parameter.shape[1], width, transposed)
    return found


def _no_matrix(name: str, leaf: str, owner: nn.Module, ndim: int) -> Side | None:
    """The treatment of a parameter that is no linear map's weight; None for one that is."""
    if isinstance(owner, nn.Embedding) or "lora_embedding_" in name:
        return _adamw("embedding", "embedding")
    if ndim < 2:
        return _adamw("bias", "1-d") if leaf == "bias" else _adamw("norm", "1-d")
    if ndim > 2:
        return _adamw("other", f"{ndim}-d")
    if leaf == "weight" and (isinstance(owner, nn.Linear) or _is_conv1d(owner)):
        return None
    return _adamw("other", f"no linear map's weight ({type(owner).__name__})")


def _adamw(role: Role, why: str) -> Side:
    return Side(role, False, False, True, why)


def _is_conv1d(module: nn.Module) -> bool:
    """Whether a module is `transformers.pytorch_utils.Conv1D`, which stores its weight as [in, out]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _by_width(rows: int, cols: int, width: int | None, transposed: bool) -> Side:
    left, right = rows == width, cols == width
    if left == right:
        why = f"both lengths are {width}" if left else f"no length is the residual width {width}"
        return Side("matrix", True, True, False, why, transposed)
    role: Role = "mlp in" if right != transposed else "mlp out"
    return Side(role, left, right, False, f"the side of length {width}", transposed)


def _lists(modules: dict[str, nn.Module]) -> list[str]:
    """Names of the outermost lists of modules that hold parameters."""
    names = [
        n for n, m in modules.items() if isinstance(m, nn.ModuleList) and any(True for _ in m.parameters())
    ]
    return [n for n in names if not any(n.startswith(f"{other}.") for other in names)]


def _block_of(name: str, lists: list[str]) -> str | None:
    """Name of the block, an entry of one of `lists`, that module `name` is or is in."""
    for outer in lists:
        if name.startswith(f"{outer}."):
            return f"{outer}.{name.removeprefix(f'{outer}.').split('.')[0]}"
    return None


def _in_attention(name: str, block: str, modules: dict[str, nn.Module]) -> bool:
    """Whether a module strictly inside `block` that encloses `name` is attention, by its name or its class's."""
    parts = name.removeprefix(block).strip(".").split(".")
    for depth in range(1, len(parts)):
        inner = modules[f"{block}.{'.'.join(parts[:depth])}"]
        said = f"{parts[depth - 1]} {type(inner).__name__}".lower()
        if "attn" in said or "attention" in said:
            return True
    return False


def _width_of_norms(block: nn.Module, usual: int | None) -> int | None:
    """Width of the stream that the norms directly in `block` act on; `usual` where it has none."""
    widths = Counter(_vectors(block))
    return widths.most_common(1)[0][0] if widths else usual


def _vectors(block: nn.Module) -> Iterator[int]:
    for child in block.children():
        weight = getattr(child, "weight", None)
        if weight is not None and weight.ndim == 1:
            yield weight.shape[0]


def _width_of_embedding(model: nn.Module, modules: dict[str, nn.Module]) -> int | None:
    config: Any = getattr(model, "config", None)
    stated = getattr(config, "hidden_size", None)
    if isinstance(stated, int):
        return stated
    return next((m.embedding_dim for m in modules.values() if isinstance(m, nn.Embedding)), None)


def _heads(model: nn.Module, modules: dict[str, nn.Module]) -> list[nn.Module]:
    """The output head, where the model tells it; in a model without blocks, its last linear map."""
    ask: Any = getattr(model, "get_output_embeddings", None)
    told = ask() if callable(ask) else None
    if told is not None:
        return [told]
    if _lists(modules):
        return []
    linear = [m for m in modules.values() if isinstance(m, nn.Linear)]
    return linear[-1:] if any(isinstance(m, nn.Embedding) for m in modules.values()) else []
