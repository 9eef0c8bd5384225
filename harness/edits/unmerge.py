"""UNMERGE: learn the forget part of a task vector layer by layer, and subtract it.

Unmerge paper, section 3. With tau = W_fine - W_init [m, d], orthonormal bases Q_F
[d, k] and Q_R [d, r] of forget and retain inputs and tau_F = B Q_F^T, eq. 2 is

    ||(tau - tau_F) P_F||^2 + lam ||tau_F P_R||^2 + gam ||tau_F||^2
  = ||tau Q_F - B||^2 + lam ||B C||^2 + gam ||B||^2 + constant,    C = Q_F^T Q_R [k, r],

whose minimiser is eq. 4, B = tau Q_F ((1 + gam) I + lam C C^T)^-1: a direction that retain inputs do not use keeps
1 / (1 + gam) of its part, a shared one 1 / (1 + gam + lam). The edit is W = W_fine - alpha tau_F (eq. 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Terms:
    """Weights of the objective: `lam` on leakage into the retain span, `gam` on the size of the correction."""

    lam: float = 1.0
    gam: float = 0.0

    def __post_init__(self) -> None:
        if not (self.lam >= 0 and self.gam >= 0):
            raise ValueError(f"lam={self.lam} and gam={self.gam} are 0 or more")

    def ablations(self) -> dict[str, Terms]:
        """The objective whole, without each of its two penalties, and without both (a plain projection)."""
        return {
            "full": self,
            "without leakage": replace(self, lam=0.0),
            "without size": replace(self, gam=0.0),
            "projection": Terms(0.0, 0.0),
        }


@dataclass(frozen=True)
class Correction:
    """tau_F = `factor` [m, k] `basis`^T [k, d]."""

    factor: Tensor
    basis: Tensor

    @property
    def matrix(self) -> Tensor:
        """tau_F [m, d]."""
        return self.factor @ self.basis.T


def objective(factor: Tensor, tau: Tensor, q_f: Tensor, q_r: Tensor, terms: Terms) -> Tensor:
    """Eq. 2 for B = `factor`, in full: with the d x d projections. For tests and reports."""
    correction = factor @ q_f.T
    match = ((tau - correction) @ q_f @ q_f.T).square().sum()
    leak = (correction @ q_r @ q_r.T).square().sum()
    return match + terms.lam * leak + terms.gam * correction.square().sum()


def closed_form(tau: Tensor, q_f: Tensor, q_r: Tensor, terms: Terms) -> Tensor:
    """The minimiser B [m, k] of eq. 2 (eq. 4); one k x k solve."""
    cross = q_f.T @ q_r
    inner = (1 + terms.gam) * torch.eye(q_f.shape[1], dtype=tau.dtype, device=tau.device)
    return torch.linalg.solve(inner + terms.lam * cross @ cross.T, (tau @ q_f).T).T


def descent(
    tau: Tensor, q_f: Tensor, q_r: Tensor, terms: Terms, *, steps: int = 100, lr: float = 1e-3
) -> Tensor:
    """B [m, k] after `steps` of Adam from B_0 = tau Q_F: the paper's solver, stopped early on purpose.

    An entry moves by about lr x steps at most, so that product is a hyper-parameter; the notes do not give the rate.
    """
    start = tau @ q_f
    factor = start.clone().requires_grad_(True)
    cross = q_f.T @ q_r
    gram = cross @ cross.T
    optimizer = torch.optim.Adam([factor], lr=lr)
    for _ in range(steps):
        with torch.no_grad():
            b = factor
            factor.grad = 2 * (b - start + terms.lam * b @ gram + terms.gam * b)
        optimizer.step()
    return factor.detach()


def edited(
    weights: Mapping[str, Tensor], corrections: Mapping[str, Correction], alpha: float
) -> dict[str, Tensor]:
    """W - alpha tau_F of every layer that has a correction (eq. 3); `alpha` 0 gives the weights themselves."""
    return {name: weights[name] - alpha * part.matrix for name, part in corrections.items()}
