"""Soups: convex mixes of models that come from one start, tensor by tensor, and the searches over their weights.

A source is a mapping from parameter names to tensors: a state dict, or `Stored`, which reads a folder's safetensors one
tensor at a time. So a mix of N models needs the memory of the model that it goes into, and of a few tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from harness.errors import ModelError

ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
SUM_TOLERANCE = 1e-6

Source = Mapping[str, Tensor]


class Stored(Mapping[str, Tensor]):
    """The weights of a model folder, read from its safetensors when they are asked for, and not kept.

    Raises:
        ModelError: the folder has adapters instead of weights, no safetensors, or a file that cannot be read.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if any((self.folder / name).exists() for name in ADAPTERS):
            raise ModelError(
                f"{self.folder} holds low-rank adapters", "a soup mixes whole weights",
                "merge the adapters into the weights and save those",
            )  # fmt: skip
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                with safe_open(path, "pt") as file:
                    for name in file.keys():  # noqa: SIM118 (no mapping)
                        self._files[name] = path
                        self._shapes[name] = tuple(file.get_slice(name).get_shape())
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} cannot be read", str(error), "save the model again") from None
        if not self._files:
            raise ModelError(f"{self.folder} has no safetensors", "", "save the model with safetensors")

    def __getitem__(self, name: str) -> Tensor:
        # a file is opened anew for every tensor: an open one keeps in memory what was read from it
        with safe_open(self._files[name], "pt") as file:
            return file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one tensor, from the file's header."""
        return self._shapes[name]


# --- mixing ---------------------------------------------------------------------------------------------------------
def check_alike(sources: Sequence[Source]) -> None:
    """Refuse sources that do not have the same names with the same shapes (`ModelError`)."""
    first, said = sources[0], _name(sources[0], 0)
    for k, other in enumerate(sources[1:], 1):
        different = sorted(set(first) ^ set(other))
        if different:
            raise ModelError(
                f"{_name(other, k)} and {said} cannot be mixed: {different[0]} is in one of them only",
                f"{len(different)} names differ", "mix models of one architecture, from one start",
            )  # fmt: skip
        for name in first:
            if _shape(first, name) != _shape(other, name):
                raise ModelError(
                    f"{_name(other, k)} and {said} cannot be mixed: {name} is {_shape(other, name)} in one and "
                    f"{_shape(first, name)} in the other", "", "mix models of one architecture, from one start",
                )  # fmt: skip


def _name(source: Source, k: int) -> str:
    return str(source.folder) if isinstance(source, Stored) else f"source {k}"


def _shape(source: Source, name: str) -> tuple[int, ...]:
    return source.shape(name) if isinstance(source, Stored) else tuple(source[name].shape)


def check_weights(weights: Sequence[float], count: int) -> None:
    """A soup's weights are one a source, finite, never negative, and sum to 1; `ValueError` otherwise."""
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} models")
    if not all(math.isfinite(w) and w >= 0 for w in weights):
        raise ValueError(f"a soup's weights are finite and not negative; got {[*weights]}")
    if abs(math.fsum(weights) - 1.0) > SUM_TOLERANCE:
        raise ValueError(f"a soup's weights sum to 1; these sum to {math.fsum(weights)}")


def mixed(sources: Sequence[Source], weights: Sequence[float]) -> Iterator[tuple[str, Tensor]]:
    """(name, sum_i w_i theta_i) for every tensor, in the order of the first source.

    Args:
        sources: models with the same names and shapes.
        weights: convex; see `check_weights`.

    Sums are made in float32 (float64 where a source is) and rounded once, to the widest dtype among the sources. A
    source of weight 1 comes out as it is; one of weight 0 is not read. Tensors of integers must be equal in all.

    >>> ones, threes = {"w": torch.ones(2)}, {"w": torch.full((2,), 3.0)}
    >>> dict(mixed([ones, threes], [0.25, 0.75]))["w"].tolist()
    [2.5, 2.5]
    """
    check_weights(weights, len(sources))
    return combined(sources, weights)


def combined(sources: Sequence[Source], factors: Sequence[float]) -> Iterator[tuple[str, Tensor]]:
    """As `mixed` for any real factors: what lies outside of the models' convex hull too."""
    used = [(source, factor) for source, factor in zip(sources, factors, strict=True) if factor != 0]
    if not used:
        raise ValueError("all factors are 0")
    check_alike([source for source, _ in used])
    for name in used[0][0]:
        yield name, _sum(name, used)


def _sum(name: str, used: Sequence[tuple[Source, float]]) -> Tensor:
    first = used[0][0][name]
    if len(used) == 1 and used[0][1] == 1.0:
        return first
    kind = first.dtype
    if not first.is_floating_point():
        if any(not torch.equal(first, source[name]) for source, _ in used[1:]):
            raise ModelError(
                f"{name} holds {kind} and differs between the models", "", "mix models of one start"
            )
        return first
    total = first.to(torch.promote_types(kind, torch.float32)) * used[0][1]
    del first
    for source, factor in used[1:]:
        tensor = source[name]
        kind = torch.promote_types(kind, tensor.dtype)
        total = total.to(torch.promote_types(kind, torch.float32))
        total.add_(tensor.to(total.dtype), alpha=factor)
    return total.to(kind)


def interpolated(start: Source, end: Source, t: float) -> dict[str, Tensor]:
    """(1 - t) start + t end, t in 0..1."""
    return dict(mixed([start, end], [1.0 - t, t]))


def uniform(count: int) -> list[float]:
    """Equal weights of `count` models."""
    return [1.0 / count] * count


def proportional(performances: Sequence[float]) -> list[float]:
    """Weights P_i / sum P; every P must be positive (`ValueError`). Source: UnlearningSoup, algorithm 1.

    >>> proportional([0.75, 0.25])
    [0.75, 0.25]
    """
    if not performances or not all(math.isfinite(p) and p > 0 for p in performances):
        raise ValueError(f"weights are made of positive performances; got {[*performances]}")
    total = math.fsum(performances)
    return [p / total for p in performances]


@torch.no_grad()
def pour(tensors: Iterable[tuple[str, Tensor]], model: nn.Module) -> None:
    """Put tensors into a model, one at a time; a tied name is written through the one it is tied to.

    Raises:
        ModelError: a name that the model lacks, or a tensor of the model that nothing was written to.
    """
    state = model.state_dict()
    written: set[int] = set()
    for name, tensor in tensors:
        if name not in state:
            raise ModelError(f"the model has no {name}", "", "mix models of one architecture")
        state[name].copy_(tensor)
        written.add(state[name].data_ptr())
    left = [name for name, tensor in state.items() if tensor.numel() and tensor.data_ptr() not in written]
    if left:
        raise ModelError(
            f"nothing was written to {left[0]}", f"nor to {len(left) - 1} more", "save whole models"
        )


# --- searching ------------------------------------------------------------------------------------------------------
def search_edge(judge: Callable[[float], float], at_start: float, depth: int) -> tuple[float, float]:
    """The best point of an edge by bisection: (t, value), t = 0 the start, t = 1 the end.

    Args:
        judge: value at t in 0..1, lower is better; called `depth` - 1 times.
        at_start: value at t = 0, known already: the first of the `depth`.
        depth: at least 1, which is the start itself.

    Each step judges the middle between the best point so far and the nearest one that was no better (the end at first,
    which is not judged). A middle that is better becomes the best, and the search goes on towards the end; else it
    draws back. The notes on UnlearningSoup say bisection and not which half is kept: this rule is ours, and is the one
    that needs no evaluation of the end, which the paper's counts leave no room for.

    >>> search_edge(lambda t: (t - 0.75) ** 2, 0.75**2, 3)
    (0.75, 0.0)
    """
    if depth < 1:
        raise ValueError(f"the depth of a search is at least 1; got {depth}")
    best, value, far = 0.0, at_start, 1.0
    for _ in range(depth - 1):
        middle = (best + far) / 2
        found = judge(middle)
        if found < value:
            best, value = middle, found
        else:
            far = middle
    return best, value
