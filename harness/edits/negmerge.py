"""NegMerge: one task vector from several fine-tuned models, where their signs agree.

Kim et al. 2024, NegMerge: Sign-Consensual Weight Merging for Machine Unlearning (arXiv 2410.05583).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from harness.edits.task_vectors import State


class SignMerge:
    """Adds up task vectors one at a time; holds a sum, the first signs and a mask, however many vectors there are.

    An entry counts where it has one and the same sign in all vectors; 0 agrees with nothing, not even with 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: dict[str, Tensor] = {}
        self._sign: dict[str, Tensor] = {}
        self._agree: dict[str, Tensor] = {}

    def add(self, vector: State) -> None:
        """One more model's task vector."""
        if self.count and set(vector) != set(self._sum):
            raise ValueError("task vectors of different models")
        for name, value in vector.items():
            sign = value.sign().to(torch.int8)
            if not self.count:
                self._sum[name], self._sign[name], self._agree[name] = value.clone(), sign, sign != 0
            else:
                self._sum[name] += value
                self._agree[name] &= sign == self._sign[name]
        self.count += 1

    def merged(self) -> dict[str, Tensor]:
        """The mean over the models where all signs agree, 0 elsewhere. Of one model it is its own vector."""
        if not self.count:
            raise ValueError("no task vector was added")
        return {name: total / self.count * self._agree[name] for name, total in self._sum.items()}

    @property
    def agreement(self) -> float:
        """Share of the entries on which all models agree, 0 to 1."""
        total = sum(mask.numel() for mask in self._agree.values())
        return sum(int(mask.sum()) for mask in self._agree.values()) / total if total else 0.0


def merged(vectors: Iterable[State]) -> dict[str, Tensor]:
    """`SignMerge` over all vectors at once.

    >>> one, other = {"w": torch.tensor([1.0, -2.0, 0.0])}, {"w": torch.tensor([3.0, 2.0, 0.0])}
    >>> merged([one, other])["w"].tolist()
    [2.0, 0.0, 0.0]
    """
    merge = SignMerge()
    for vector in vectors:
        merge.add(vector)
    return merge.merged()
