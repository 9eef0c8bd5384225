"""How much of a gradient covariance each optimizer's model of it holds (Spectral Unlearning, Fig. 2, 7, 8).

The covariance is the uncentred second moment C = E[vec(G) vec(G)^T] over gradients G_1 .. G_N of one matrix
[N, rows, cols]. It is [rows cols, rows cols] and never formed: its products with a Kronecker product or a diagonal in a
Kronecker eigenbasis need the gradients alone. The cosine of A and B is <A, B>_F / (||A||_F ||B||_F); of positive
semidefinite matrices it is 0 to 1.

What an optimizer implies: the A for which it would whiten the gradient, A^(-1/2) vec(G), were its statistics those of
the same gradients without history.

=========================  ==========================================================================
`identity`                 I: SGD
`diagonal`                 diag of E[G * G]: AdamW; the best of all diagonals, so a bound for Sophia too
`muon`                     (M M^T)^1/2 (x) (M^T M)^1/2 with M = E[G]: the orthogonal factor of M
`shampoo`                  L^1/2 (x) R^1/2 with L = E[G G^T], R = E[G^T G] (exponents -1/4)
`shampoo_square`           L (x) R (exponents -1/2): one step of the power iteration for the best fit
`kl_shampoo`               L (x) R with L = E[G R^-1 G^T] / cols, R = E[G^T L^-1 G] / rows
`soap`                     diagonal E[(Q_L^T G Q_R)^2] in the eigenbases Q_L, Q_R of Shampoo's L, R
`shampoo.one_sided`,       the same on the shorter side alone (L (x) I; Q = I on the other), for matrices that are not
`soap.one_sided`           square
`best_kronecker`           the nearest Kronecker product (Van Loan and Pitsianis 1993)
=========================  ==========================================================================

Sources: Morwani et al. 2024 (arXiv 2406.17748) for the optimal Kronecker product and Shampoo's square; Lin et al. 2025
(arXiv 2509.03378) for KL-Shampoo; Vyas et al. 2024 (arXiv 2409.11321) for SOAP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

KL_DAMPING = 1e-3
"""What is added to a factor before it is inverted: this share of its mean eigenvalue. With few gradients the factors
have no inverse."""
ITERATIONS, TOLERANCE = 100, 1e-6
"""Most power iterations for the best fit, and the relative change of its inner product at which they end."""
KL_ITERATIONS, KL_TOLERANCE = 20, 1e-2
"""Most steps towards KL-Shampoo's factors, and the relative change of the left one at which they end."""


class Implied(Protocol):
    """A model of a covariance."""

    @property
    def length(self) -> float:
        """Frobenius norm."""
        ...

    def on(self, gradients: Tensor) -> float:
        """<C, self> for the covariance of `gradients` [N, rows, cols]."""
        ...

    def with_kronecker(self, other: Kronecker) -> float:
        """<self, other>."""
        ...


@dataclass(frozen=True)
class Kronecker:
    """`left` [rows, rows] (x) `right` [cols, cols], both symmetric: vec(G) -> vec(left G right)."""

    left: Tensor
    right: Tensor

    @property
    def length(self) -> float:
        """||left||_F ||right||_F."""
        return float(self.left.norm() * self.right.norm())

    def on(self, gradients: Tensor) -> float:
        """Mean of <G, left G right>."""
        return _mean(float((g * (self.left @ g @ self.right)).sum()) for g in gradients)

    def with_kronecker(self, other: Kronecker) -> float:
        """<left, left'> <right, right'>."""
        return float((self.left * other.left).sum()) * float((self.right * other.right).sum())


@dataclass(frozen=True)
class Diagonal:
    """`values` [rows, cols] on the diagonal, in the basis `left` (x) `right` (orthogonal; None is the identity)."""

    values: Tensor
    left: Tensor | None = None
    right: Tensor | None = None

    @property
    def length(self) -> float:
        """||values||_F."""
        return float(self.values.norm())

    def on(self, gradients: Tensor) -> float:
        """Mean of <values, (left^T G right)^2>."""
        return _mean(
            float((self.values * rotated(g, self.left, self.right).square()).sum()) for g in gradients
        )

    def with_kronecker(self, other: Kronecker) -> float:
        """Sum of values_ij (left^T L left)_ii (right^T R right)_jj."""
        row, col = _diagonal(other.left, self.left), _diagonal(other.right, self.right)
        return float(row @ self.values @ col)


def rotated(g: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """left^T g right; None is the identity."""
    g = g if left is None else left.T @ g
    return g if right is None else g @ right


def length(gradients: Tensor) -> float:
    """||C||_F, from the gradients' inner products [N, N]."""
    flat = gradients.flatten(1)
    return float((flat @ flat.T).norm()) / len(flat)


def best_kronecker(gradients: Tensor) -> tuple[Kronecker, float]:
    """The Kronecker product nearest to C, scaled to length 1, and its inner product with C (the largest possible).

    It is the first singular pair of C rearranged to [rows^2, cols^2], found by power iteration: X <- E[G Y G^T],
    Y <- E[G^T X G], from Y = I. All iterates are positive semidefinite, as the pair is.
    """
    left, right = factors(gradients)
    before = 0.0
    for _ in range(ITERATIONS):
        left = left / left.norm()
        right = _mean_of(g.T @ left @ g for g in gradients)
        right = right / right.norm()
        left = _mean_of(g @ right @ g.T for g in gradients)
        now = float(left.norm())
        if abs(now - before) <= TOLERANCE * now:
            break
        before = now
    return Kronecker(left / left.norm(), right), float(left.norm())


def factors(gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Shampoo's E[G G^T] [rows, rows] and E[G^T G] [cols, cols]."""
    return _mean_of(g @ g.T for g in gradients), _mean_of(g.T @ g for g in gradients)


def kl_factors(gradients: Tensor) -> tuple[Tensor, Tensor]:
    """KL-Shampoo's fixed point, damped by `KL_DAMPING`, the left factor at length 1.

    Each step makes one factor from the other. With few gradients it creeps; `KL_ITERATIONS` end it.
    """
    _, rows, cols = gradients.shape
    left, right = factors(gradients)
    left = left / left.norm()
    for _ in range(KL_ITERATIONS):
        inverse = _inverse(left)
        right = _mean_of(g.T @ inverse @ g for g in gradients) / rows
        inverse = _inverse(right)
        fresh = _mean_of(g @ inverse @ g.T for g in gradients) / cols
        fresh = fresh / fresh.norm()
        moved, left = float((fresh - left).norm()), fresh
        if moved <= KL_TOLERANCE:
            break
    return left, right


def models(gradients: Tensor) -> dict[str, Implied]:
    """Every model of the table above but the best fit, from the same gradients."""
    _, rows, cols = gradients.shape
    left, right = factors(gradients)
    q_left, q_right = torch.linalg.eigh(left)[1], torch.linalg.eigh(right)[1]
    u, s, vh = torch.linalg.svd(gradients.mean(0), full_matrices=False)

    def squares(a: Tensor | None, b: Tensor | None) -> Tensor:
        return _mean_of(rotated(g, a, b).square() for g in gradients)

    out: dict[str, Implied] = {
        "identity": Diagonal(torch.ones_like(gradients[0])),
        "diagonal": Diagonal(squares(None, None)),
        "muon": Kronecker((u * s) @ u.T, (vh.T * s) @ vh),
        "shampoo": Kronecker(_root(left), _root(right)),
        "shampoo_square": Kronecker(left, right),
        "kl_shampoo": Kronecker(*kl_factors(gradients)),
        "soap": Diagonal(squares(q_left, q_right), q_left, q_right),
    }
    if rows != cols:
        eye = torch.eye(max(rows, cols), dtype=left.dtype, device=left.device)
        short = rows < cols
        out["shampoo.one_sided"] = Kronecker(left, eye) if short else Kronecker(eye, right)
        basis = (q_left, None) if short else (None, q_right)
        out["soap.one_sided"] = Diagonal(squares(*basis), *basis)
    return out


def cosines(gradients: Tensor) -> dict[str, dict[str, float]]:
    """`cosine`: model -> cosine with C, the best Kronecker product among them; `kronecker`: with that best product.

    Args:
        gradients: [N, rows, cols] float, N at least 1, not all 0.

    Raises:
        ValueError: all gradients are 0.
    """
    whole = length(gradients)
    if whole == 0.0:
        raise ValueError("all gradients are 0")
    gradients = gradients / math.sqrt(whole)  # ||C|| = 1
    best, shared = best_kronecker(gradients)
    out = {"cosine": {"best_kronecker": shared}, "kronecker": {}}
    for name, model in models(gradients).items():
        size = model.length
        out["cosine"][name] = model.on(gradients) / size if size else 0.0
        out["kronecker"][name] = model.with_kronecker(best) / size if size else 0.0
    return out


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T


def _inverse(matrix: Tensor) -> Tensor:
    """Of the damped matrix, in float64; by eigenvalues where rounding has made it indefinite."""
    damping = KL_DAMPING * float(matrix.diagonal().mean())
    exact = matrix.double()
    factor, failed = torch.linalg.cholesky_ex(
        exact + damping * torch.eye(len(exact), dtype=exact.dtype, device=exact.device)
    )
    if not int(failed):
        return torch.cholesky_inverse(factor).to(matrix.dtype)
    values, vectors = torch.linalg.eigh(exact)
    return ((vectors / (values.clamp_min(0.0) + damping)) @ vectors.T).to(matrix.dtype)


def _diagonal(matrix: Tensor, basis: Tensor | None) -> Tensor:
    return matrix.diagonal() if basis is None else ((matrix @ basis) * basis).sum(0)


def _mean_of(parts) -> Tensor:
    total, count = None, 0
    for part in parts:
        total, count = part if total is None else total + part, count + 1
    assert total is not None
    return total / count


def _mean(parts) -> float:
    values = list(parts)
    return sum(values) / len(values)
