"""What optimizers that keep Kronecker factors and their eigenbases share, on stacks of matrices.

Legend: G [n, rows, cols] gradients; L [n, rows, rows] and R [n, cols, cols] factors; `left` [n, rows, rows] and `right`
[n, cols, cols] orthonormal bases in columns, None where a side is not preconditioned (the basis is I there).

Factors are symmetric, so only their blocks on and below the diagonal are kept up to date; `mirrored_` sets the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from harness.optim.matrix import MatrixOptimizer
from harness.optim.stacks import Stack

BLOCK = 64
"""Least side of a factor's blocks, of which a side has at most eight."""


def turned(X: Tensor, spare: Tensor, left: Tensor | None, right: Tensor | None) -> tuple[Tensor, Tensor]:
    """The product left X right, in one of the two buffers it is given; the other one is the second result.

    Into the bases with `left.mT` and `right`, back with `left` and `right.mT`. Both buffers [n, rows, cols] float32 are
    overwritten: a new one for every product would cost a CPU as much as the product's sums.
    """
    if left is not None:
        X, spare = torch.bmm(left.float(), X, out=spare), X
    if right is not None:
        X, spare = torch.bmm(X, right.float(), out=spare), X
    return X, spare


def transposed(basis: Tensor | None) -> Tensor | None:
    """The inverse of a basis."""
    return None if basis is None else basis.mT


def _edges(d: int) -> list[int]:
    count = max(1, min(8, d // BLOCK))
    return [d * i // count for i in range(count + 1)]


def add_gram_(S: Tensor, A: Tensor, keep: float) -> None:
    """S <- keep S + (1 - keep) A A^T in the blocks on and below the diagonal; S [n, d, d], A [n, d, k].

    With 8 blocks that is 9/16 of the multiplications of the whole product.
    """
    for a, b in pairwise(_edges(S.shape[-1])):
        S[:, a:b, :b].lerp_(A[:, a:b] @ A[:, :b].mT, 1 - keep)


def mirrored_(S: Tensor) -> Tensor:
    """S itself, after its blocks below the diagonal have been copied to those above."""
    for a, b in pairwise(_edges(S.shape[-1])):
        S[:, a:b, b:].copy_(S[:, b:, a:b].mT)
    return S


def ema_(average: Tensor, value: Tensor, keep: float) -> Tensor:
    """The moving average keep average + (1 - keep) value, in place in its own dtype; returned in that of `value`."""
    if average.dtype == value.dtype:
        return average.lerp_(value, 1 - keep)
    wide = average.to(value.dtype).lerp_(value, 1 - keep)
    average.copy_(wide)
    return wide


def power_step(S: Tensor, basis: Tensor, *, sort: bool) -> tuple[Tensor, Tensor | None]:
    """One power iteration S Q, still to be made orthonormal; so a basis follows the eigenvectors of S.

    With `sort`, the columns go by falling diag(Q^T S Q), and the second result [n, d] tells where each came from.
    """
    A = mirrored_(S) @ basis
    if not sort:
        return A, None
    order = (basis * A).sum(-2).argsort(dim=-1, descending=True)
    return A.gather(-1, order[:, None, :].expand_as(A)), order


class EigenbasisOptimizer(MatrixOptimizer):
    """A matrix optimizer with the two decompositions that find bases; what fails is counted.

    Its first moment `m` is kept in the bases `left` and `right` of a stack's state.
    """

    def turn_moment(self, stack: Stack, turns: Mapping[str, Tensor]) -> None:
        """Turn `m` into new bases: `turns` has (old basis)^T (new basis) for those that are new."""
        m = stack.state["m"].float()
        new, _ = turned(m, torch.empty_like(m), transposed(turns.get("left")), turns.get("right"))
        stack.state["m"] = new.to(self.state_dtype)

    def eigenbasis(self, S: Tensor) -> Tensor:
        """Eigenvectors of the factors S [n, d, d] in columns, by falling eigenvalue; I where they are not found."""
        found = self.eigh(mirrored_(S))
        if found is None:
            return torch.eye(S.shape[-1], device=S.device).repeat(len(S), 1, 1)
        return found[1].flip(-1)

    def orthonormal(self, A: Tensor) -> Tensor | None:
        """Q of A = QR [n, d, d] in float32, with a second try in float64; None when that is not finite either.

        These are the two routines of `torch.linalg.qr`, without the time it takes to cut R out.
        """
        for kind, dtype in (("qr", torch.float32), ("qr_float64", torch.float64)):
            try:
                Q = torch.linalg.householder_product(*torch.geqrf(A.to(dtype))).float()
            except torch.linalg.LinAlgError:
                Q = A.new_full((), torch.nan)
            if bool(Q.isfinite().all()):
                return Q
            self.count(kind)
        return None
