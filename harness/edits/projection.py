"""Kodge et al.: turn a layer away from the directions of forget inputs that retain inputs do not need.

Kodge, Saha and Roy 2024, Deep Unlearning: Fast and Efficient Gradient-free Class Forgetting (TMLR, arXiv 2312.00761);
public code sangamesh-kodge/class_forgetting. With X = U S V^T the layer's inputs, directions are weighed by
lam_i = a e_i / ((a - 1) e_i + 1), e_i the share of direction i in the energy, M = U diag(lam) U^T, and
W <- W (I - (M_f - M_f M_r))^T.
"""

from __future__ import annotations

import torch
from torch import Tensor


def importance(moment: Tensor, alpha: float) -> Tensor:
    """M [d, d] of a second moment X^T X [d, d], whose eigenvalues are the squared singular values of X.

    Symmetric, with eigenvalues in 0..1: a large `alpha` lets every direction that occurs count fully, `alpha` 1 is the
    share of energy itself. Inputs that are all 0 give 0.
    """
    values, vectors = torch.linalg.eigh(moment.double())
    values = values.clamp(min=0)
    total = values.sum()
    if not total:
        return torch.zeros_like(vectors)
    share = values / total
    weight = alpha * share / ((alpha - 1) * share + 1)
    return (vectors * weight) @ vectors.T


def projected(weight: Tensor, forget: Tensor, retain: Tensor, alpha_f: float, alpha_r: float) -> Tensor:
    """The new matrix [m, d] of a layer.

    Args:
        weight: [m, d].
        forget: second moment of its inputs on forget rows [d, d], on any scale.
        retain: likewise on retain rows.
        alpha_f: how soon a direction counts as one to forget; positive.
        alpha_r: how soon a direction counts as needed; positive.
    """
    m_f, m_r = importance(forget, alpha_f), importance(retain, alpha_r)
    keep = torch.eye(len(m_f), dtype=m_f.dtype, device=m_f.device) - (m_f - m_f @ m_r)
    return weight.double() @ keep.T
