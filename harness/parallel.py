"""The one seam for several processes. The single-process one is the default.

Rows are dealt by (seed, epoch, index), so which rows an update sees does not depend on the number of processes: every
process computes the same list and takes its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.errors import InputError

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

    def agree(self, value: float) -> float:
        """The first process's number (or flag): clocks differ, and nobody may go on alone."""
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

    def agree(self, value: float) -> float:
        """Its own number."""
        return value


class Distributed:
    """Data parallelism over a `torch.distributed` process group that exists already (gloo, NCCL).

    Every process holds the whole model and takes the micro-batches rank, rank + world_size, ... of an update; gradients
    are summed, and all follow the first process's clock. Weights therefore stay equal without being sent.
    """

    def __init__(self) -> None:
        self.world_size, self.rank = dist.get_world_size(), dist.get_rank()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself: `fit` sums the gradients, so that each is sent once an update."""
        return model

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Every `world_size`-th; raises `InputError` where a process would be left without any."""
        if len(items) < self.world_size:
            raise InputError(
                f"an update of {len(items)} micro-batches cannot be dealt to {self.world_size} processes",
                "", "set the board's batch.micro lower, or use fewer processes",
            )  # fmt: skip
        return items[self.rank :: self.world_size]

    def reduce(self, tensors: Sequence[Tensor]) -> None:
        """Sum, in place, with one message a dtype."""
        for dtype in sorted({t.dtype for t in tensors}, key=str):
            group = [t for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.reshape(-1) for t in group])
            dist.all_reduce(flat)
            for t, part in zip(group, flat.split([t.numel() for t in group]), strict=True):
                t.copy_(part.view_as(t))

    def agree(self, value: float) -> float:
        """What process 0 says."""
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        decided = torch.tensor([value], dtype=torch.float64, device=device)
        dist.broadcast(decided, 0)
        return float(decided)
