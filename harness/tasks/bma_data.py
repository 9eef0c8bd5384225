"""The numbers of bucketed modular addition: pairs, labels, and which are trained on, forgotten, relabelled.

All draws read the raw 64-bit stream of numpy's PCG64, which is guaranteed never to change, keyed by
`[data_seed, purpose, ...]`: purpose 1 the split, 2 the members u (with M), 3 the forget set (with its seed),
4 the wrong labels (with M and the forget seed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.errors import DataError

SPLIT, MEMBER, FORGET, WRONG = 1, 2, 3, 4


def _raw(key: Sequence[int], size: int) -> np.ndarray:
    """Raw 64-bit draws [size] uint64 for a key of whole numbers."""
    return np.random.PCG64(list(key)).random_raw(size)


def _below(key: Sequence[int], size: int, bound: int) -> np.ndarray:
    """Uniform whole numbers in 0..bound-1, [size] int64 (bias below bound / 2^32, none for powers of two)."""
    high = _raw(key, size) >> np.uint64(32)
    return ((high * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class BmaData:
    """The numbers behind the task, without rows: what training a model needs.

    Attributes:
        classes: answers, p * M for every M.
        n: a and b are in 0..n-1; pair (a, b) has the index a * n + b.
        train_fraction: share of the n^2 pairs that are trained on, the same ones for every M.
        data_seed: of the split and the labels.
    """

    classes: int = 64
    n: int = 64
    train_fraction: float = 0.6
    data_seed: int = 0

    @cached_property
    def train(self) -> np.ndarray:
        """Indices of the training pairs, ascending int64."""
        order = np.argsort(_raw((self.data_seed, SPLIT), self.n**2), kind="stable")
        return np.sort(order[: round(self.train_fraction * self.n**2)])

    @cached_property
    def test(self) -> np.ndarray:
        """Indices of all other pairs, ascending int64."""
        return np.setdiff1d(np.arange(self.n**2), self.train)

    def pairs(self, index: np.ndarray) -> np.ndarray:
        """(a, b) of pair indices, [N, 2] int64."""
        return np.stack(np.divmod(np.asarray(index, np.int64), self.n), axis=1)

    def labels(self, m: int, index: np.ndarray) -> np.ndarray:
        """Right classes of pair indices under bucket size `m`, [N] int64."""
        bucket = self.pairs(index).sum(1) % (self.classes // m)
        return m * bucket + _below((self.data_seed, MEMBER, m), self.n**2, m)[index]

    def forget(self, fraction: float, seed: int) -> np.ndarray:
        """Indices of the forget pairs, ascending: a draw from the training pairs that no M enters."""
        order = np.argsort(_raw((self.data_seed, FORGET, seed), len(self.train)), kind="stable")
        return np.sort(self.train[order[: round(fraction * len(self.train))]])

    def wrong_labels(self, m: int, index: np.ndarray, seed: int, *, in_bucket: bool) -> np.ndarray:
        """One fixed wrong class per pair index, [N] int64.

        Uniform over the `classes - 1` others, or with `in_bucket` over the M - 1 other members of the right
        bucket (BMA paper, Table 23, compares the two).
        """
        if in_bucket and m == 1:
            raise DataError(
                "bucket size M=1 has no in-bucket wrong label",
                "its buckets hold the right answer alone",
                'leave M1 out of the cases, or set wrong_labels = "all"',
            )
        right = self.labels(m, index)
        span = m if in_bucket else self.classes
        shift = 1 + _below((self.data_seed, WRONG, m, seed), self.n**2, span - 1)[index]
        if in_bucket:
            return right - right % m + (right % m + shift) % m
        return (right + shift) % self.classes
