"""Which rows an update sees: a function of (seed, update) alone, so it does not depend on the number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.scoring import Inputs


@dataclass(frozen=True)
class Batch:
    """One micro-batch. `weight` is its share of the update's rows; the weights of an update sum to 1."""

    forget: Inputs
    retain: Inputs
    weight: float


@dataclass(frozen=True)
class Update:
    """The micro-batches of one optimizer step: this process's share of them.

    `examples` counts the forget and retain rows of all processes.
    """

    index: int
    micros: Sequence[Batch]
    examples: int

    @property
    def tokens(self) -> int:
        """Input tokens without padding (rows, for arrays)."""
        return sum(b.forget.tokens + b.retain.tokens for b in self.micros)


def deal(seed: int, stream: int, rows: int, start: int, count: int) -> np.ndarray:
    """Row numbers at positions start..start+count of an endless sequence of reshuffled epochs.

    A function of its arguments alone, so any process can compute any update's rows.

    >>> sorted(deal(0, 0, 5, 5, 5).tolist()) == [0, 1, 2, 3, 4]
    True
    """
    out: list[np.ndarray] = []
    epoch, offset = divmod(start, rows)
    while count > 0:
        order = np.random.default_rng([seed, stream, epoch]).permutation(rows)[offset : offset + count]
        out.append(order)
        count -= len(order)
        epoch, offset = epoch + 1, 0
    return np.concatenate(out)
