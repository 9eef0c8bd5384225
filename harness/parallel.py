"""The one seam for several processes. The single-process one is the default.

Rows are dealt by (seed, epoch, index), so which rows an update sees does not depend on the number of processes: every
process computes the same list and takes its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor, nn

T = TypeVar("T")


class Parallel(Protocol):
    """What the training loop needs to know of other processes."""

    world_size: int
    rank: int

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as it is trained."""
        ...

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of the micro-batches of one update; the parts are disjoint and together complete."""
        ...

    def reduce(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all processes, in place."""
        ...


class SingleProcess:
    """One process that does everything."""

    world_size = 1
    rank = 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself."""
        return model

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """All of it."""
        return items

    def reduce(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to add."""
