"""Matrices that are stepped together, with what an optimizer remembers of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from harness.optim.sides import Side


class Stack:
    """Matrices of one shape that are treated alike, with their state.

    Attributes:
        index: position of each matrix among the optimizer's matrix parameters.
        parameters: the n matrices, each [rows, cols].
        left: whether the rows' side is preconditioned.
        right: whether the columns' side is.
        transposed: whether the weights are stored [in, out] rather than [out, in].
        state: what the optimizer remembers: tensors [n, ...] (first axis: the matrix) and plain numbers, which count
            for every matrix of the stack. Empty before the first step.
    """

    def __init__(self, index: Sequence[int], parameters: Sequence[nn.Parameter], side: Side) -> None:
        self.index, self.parameters, self.side = list(index), list(parameters), side
        self.left, self.right, self.transposed = side.left, side.right, side.transposed
        self.state: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def rows(self) -> int:
        """Rows of each matrix as it is stored."""
        return self.parameters[0].shape[0]

    @property
    def cols(self) -> int:
        """Columns of each matrix as it is stored."""
        return self.parameters[0].shape[1]

    @property
    def device(self) -> torch.device:
        """Where the matrices are."""
        return self.parameters[0].device

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """New zeros [n, *shape] on the stack's device."""
        return torch.zeros(len(self), *shape, dtype=dtype, device=self.device)

    def take(self, which: Sequence[int]) -> Stack:
        """A new stack of some of the matrices, with their part of the state."""
        part = Stack([self.index[i] for i in which], [self.parameters[i] for i in which], self.side)
        rows = torch.tensor(which, device=self.device)
        part.state = {k: v[rows] if isinstance(v, Tensor) else v for k, v in self.state.items()}
        return part
