"""Newton-Schulz iterations: the orthogonal factor U V^T of M = U S V^T from products of matrices alone."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients a, b, c of Keller Jordan's quintic (Muon, muon.py)."""


def orthogonalised(M: Tensor, iteration: Literal["cubic", "quintic"] = "quintic", steps: int = 5) -> Tensor:
    """Matrices with the singular vectors of M and singular values near 1, in M's dtype; zero where M is zero.

    Every step maps each singular value s alone: `cubic` to 1.5 s - .5 s^3 (Spectral Unlearning, section 2.5), tending
    to 1 for every s in (0, 1]; `quintic` to a s + b s^3 + c s^5 (Muon), which is steeper at 0 and stays within about
    0.5..1.5 without tending to 1. Both start from s / |M|_F (the quintic from s / (|M|_F + 1e-7), as published). In
    bfloat16 the quintic rounds where the public code rounds; elsewhere products and sums are fused.

    Args:
        M: [n, rows, cols].
        iteration: which polynomial.
        steps: how often it is applied.
    """
    X = M.mT.contiguous() if M.shape[-2] > M.shape[-1] else M
    if iteration == "quintic":
        X = X / (torch.linalg.matrix_norm(X, keepdim=True) + 1e-7)
    else:  # the squares of small entries underflow
        X = X / X.abs().amax((-2, -1), keepdim=True).clamp_min(torch.finfo(M.dtype).tiny)
        X = X / torch.linalg.matrix_norm(X, keepdim=True).clamp_min(torch.finfo(M.dtype).tiny)
    a, b, c = QUINTIC
    for _ in range(steps):
        A = X @ X.mT
        if iteration == "cubic":
            X = torch.baddbmm(X, A, X, beta=1.5, alpha=-0.5)
        elif M.dtype == torch.bfloat16:
            X = a * X + (b * A + c * A @ A) @ X
        else:
            X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X.mT if M.shape[-2] > M.shape[-1] else X
