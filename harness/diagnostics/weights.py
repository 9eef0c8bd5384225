"""Saved weights read piece by piece, so that no more than a piece of each model is in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from harness.errors import InputError

AT_ONCE = 1 << 24
"""Numbers of all models together that are in memory while displacements are multiplied."""


@dataclass(frozen=True)
class Saved:
    """The safetensors files of one model folder."""

    folder: Path

    @cached_property
    def files(self) -> dict[str, Path]:
        """Parameter name -> file. Raises `InputError` when there are none."""
        found: dict[str, Path] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        if not found:
            raise InputError(f"{self.folder} has no safetensors", "", "save the model with safetensors")
        return found

    def read(self, name: str) -> Tensor:
        """One parameter, as stored."""
        with safe_open(self.files[name], "pt") as file:
            return file.get_tensor(name)

    def pieces(self, name: str, rows: int) -> Iterator[Tensor]:
        """One parameter, flat, `rows` of its first dimension at a time."""
        with safe_open(self.files[name], "pt") as file:
            shape = file.get_slice(name).get_shape()
            if not shape:
                yield file.get_tensor(name).reshape(-1)
                return
            for at in range(0, shape[0], rows):
                yield file.get_slice(name)[at : at + rows].reshape(-1)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one parameter."""
        with safe_open(self.files[name], "pt") as file:
            return tuple(file.get_slice(name).get_shape())


def common(models: Sequence[Saved]) -> list[str]:
    """Names of the parameters of all `models`, which must have them with the same shapes.

    Raises `InputError` when the models are not of one kind.
    """
    names = set(models[0].files)
    for model in models[1:]:
        if other := names ^ set(model.files):
            raise InputError(
                f"{model.folder} and {models[0].folder} have different parameters",
                f"for example {min(other)}", "compare runs of one model",
            )  # fmt: skip
        bad = [n for n in sorted(names) if model.shape(n) != models[0].shape(n)]
        if bad:
            raise InputError(
                f"{bad[0]} has another shape in {model.folder} than in {models[0].folder}",
                "", "compare runs of one model",
            )  # fmt: skip
    return sorted(names)


def displacement_gram(start: Saved, models: Sequence[Saved], names: Sequence[str]) -> np.ndarray:
    """Inner products of `model - start` over the parameters `names` [models, models] float64."""
    gram = np.zeros((len(models), len(models)))
    for name in names:
        shape = start.shape(name)
        width = max(1, int(np.prod(shape[1:], dtype=np.int64)))
        rows = max(1, AT_ONCE // (width * (len(models) + 1)))
        streams = [m.pieces(name, rows) for m in models]
        for origin in start.pieces(name, rows):
            moved = torch.stack([next(s).double() for s in streams]) - origin.double()
            gram += (moved @ moved.T).numpy()
    return gram
