"""Can a subspace edit reach this request? The answer before any edit, against random requests of the same size.

UNMERGE scores a request before it edits and leaves alone what it cannot separate, such as a random subset of rows; its
formula is not in the notes. Ours is the squared multiple correlation of membership with a layer's inputs: the share of
the variance of "this input belongs to a forget row" that a linear map of the input explains. It is 0 to 1, needs means
and one covariance alone, and that covariance is the same for every choice of rows: random requests cost a mean each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.edits.moments import Moments

CONTROLS = 20
"""Random requests of the same size that a request is compared with."""
DEVIATIONS = 5.0
"""A request is separable when some layer's score is so many standard deviations above the mean of the random ones.

The best of many layers is taken, hence more than the usual 2 or 3: a random request exceeds 5 at a given layer with a
probability near 4e-5 (Student t with 19 degrees of freedom).
"""


def scores(moments: Moments, ridge: float = 1e-6) -> Tensor:
    """Squared multiple correlations [G] of the marked groups' membership with one layer's inputs, 0 to 1.

    p (1 - p) d^T S^-1 d, with p the group's share of the inputs, d the difference between the group's mean input and
    that of all others, S the covariance of all inputs, its diagonal raised by `ridge` times its mean. A group without
    inputs, or with all of them, has 0.
    """
    count = float(sum(moments.count.values()))
    total = moments.total["forget"] + moments.total["retain"]
    mean = total / count
    covariance = (moments.second["forget"] + moments.second["retain"]) / count - torch.outer(mean, mean)
    damp = ridge * covariance.diagonal().mean().clamp(min=1e-300)
    damped = covariance + damp * torch.eye(len(mean), dtype=torch.float64, device=mean.device)
    inside = moments.mark_count
    share = inside / count
    gap = (
        moments.mark_total / inside.clamp(min=1)[:, None]
        - (total - moments.mark_total) / (count - inside).clamp(min=1)[:, None]
    )
    explained = (gap * torch.linalg.solve(damped, gap.T).T).sum(1)
    return (share * (1 - share) * explained).clamp(0, 1)


@dataclass(frozen=True)
class Standing:
    """One layer's score beside those of random requests: the score, their mean, and their standard deviation."""

    score: float
    control: float
    spread: float

    @property
    def deviations(self) -> float:
        """How many standard deviations the score is above the mean of the random requests."""
        return (self.score - self.control) / max(self.spread, 1e-9)


@dataclass(frozen=True)
class Verdict:
    """What all layers say of a request; `layers` is not empty."""

    layers: Mapping[str, Standing]

    @property
    def best(self) -> str:
        """The layer at which the request stands out most."""
        return max(self.layers, key=lambda name: self.layers[name].deviations)

    @property
    def separable(self) -> bool:
        """Whether the request stands out from random ones anywhere."""
        return self.layers[self.best].deviations >= DEVIATIONS

    @property
    def text(self) -> str:
        """In one line."""
        at = self.layers[self.best]
        usual = f"random requests of its size {at.control:.3g} +- {at.spread:.2g}"
        numbers = f"most at {self.best}: {at.score:.3g}, {usual}"
        if self.separable:
            return f"this request is separable, {numbers}"
        return f"this request is not separable, {numbers}: a subspace edit has nothing to remove"


def verdict(found: Mapping[str, Tensor]) -> Verdict:
    """From every layer's scores [1 + controls], the request's first."""
    return Verdict({
        name: Standing(float(v[0]), float(v[1:].mean()), float(v[1:].std())) for name, v in found.items()
    })  # fmt: skip


def random_requests(forget: Tensor, labels: Sequence[int] | None, count: int, seed: int) -> Tensor:
    """`count` random requests of the same size [count, rows] bool, a function of the seed.

    Where rows have labels, each takes as many rows of every label as the request does, so that a part of a class is
    compared with other parts of that class. Rows of a label that the request takes whole are replaced by any rows.

    Args:
        forget: which rows the request takes [rows] bool.
        labels: of all rows, or None.
        count: number of random requests.
        seed: of the draw.

    >>> drawn = random_requests(torch.tensor([True, False, False, True]), [0, 0, 1, 2], 9, 0)
    >>> drawn.sum(1).unique().tolist(), drawn[:, :2].sum(1).min().item()
    ([2], 1)
    """
    generator = torch.Generator().manual_seed(seed)
    names = torch.as_tensor(labels) if labels is not None else torch.zeros(len(forget), dtype=torch.int64)
    parts = []
    for label in names[forget].unique():
        where = (names == label).nonzero()[:, 0]
        taken = int(forget[where].sum())
        if labels is not None and taken < len(where):
            parts.append((where, taken))
    out = torch.zeros(count, len(forget), dtype=torch.bool)
    for one in out:
        for where, taken in parts:
            one[where[torch.randperm(len(where), generator=generator)[:taken]]] = True
        free = (~one).nonzero()[:, 0]
        missing = int(forget.sum() - one.sum())
        one[free[torch.randperm(len(free), generator=generator)[:missing]]] = True
    return out
