"""Losses: pure functions of tensors. None of them runs a model.

Shapes: `logp` [B, K] is the log-probability of each label, 0 where masked (`harness.scoring.token_logp`);
`mask` [B, K] is True on answer tokens; `logits` [B, K, V]. All return a scalar to be minimised unless they say [B].

Reductions differ between papers and change numbers, so the name carries them: `token_mean` weighs every answer token
of the micro-batch alike (the `loss` of Hugging Face), `sequence_sum` and `sequence_mean` first reduce a row.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values` [B, K] over the positions where `mask` is True; 0 when there is none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def sequence_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum over each row's answer tokens [B]."""
    return (values * mask).sum(-1)


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's answer tokens [B]; 0 for a row without any."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def nll(logp: Tensor, mask: Tensor) -> Tensor:
    """Negative log-likelihood, token mean: what a language model is trained on."""
    return -token_mean(logp, mask)


def grad_ascent(logp: Tensor, mask: Tensor) -> Tensor:
    """Minus the negative log-likelihood: pushes the answers' probability down, without bound.

    Source: Jang et al. 2023 (arXiv 2210.01504); reduction as in open-unlearning's GradAscent.
    """
    return token_mean(logp, mask)


def npo(logp_sum: Tensor, reference_sum: Tensor, beta: float) -> Tensor:
    """Negative preference optimisation: (2 / beta) mean log(1 + (p / p_ref)^beta) over rows.

    Args:
        logp_sum: log p(answer) per row, summed over tokens [B].
        reference_sum: the same under the frozen starting model [B].
        beta: inverse temperature; beta -> 0 gives gradient ascent on sequence sums.

    At p = p_ref the loss is (2 / beta) ln 2, 13.863 for beta = .1. Source: Zhang et al. 2024 (arXiv 2404.05868), eq. 3.

    >>> zero = torch.zeros(2)
    >>> round(npo(zero, zero, .1).item(), 3)
    13.863
    """
    return -(2.0 / beta) * F.logsigmoid(-beta * (logp_sum - reference_sum)).mean()


def dpo(
    win_sum: Tensor,
    win_reference: Tensor,
    lose_sum: Tensor,
    lose_reference: Tensor,
    beta: float,
    scale: float = 2.0,
) -> Tensor:
    """Direct preference optimisation of a preferred answer over the forget answer; sequence sums [B].

    -(scale / beta) mean log sigmoid(beta ((win - win_ref) - (lose - lose_ref))). `scale` 2 keeps parity with NPO, as
    the public unlearning code has it; 1 is the loss of Rafailov et al. 2023 (arXiv 2305.18290), eq. 7, over beta.
    """
    margin = (win_sum - win_reference) - (lose_sum - lose_reference)
    return -(scale / beta) * F.logsigmoid(beta * margin).mean()


def negative_entropy(logits: Tensor, mask: Tensor) -> Tensor:
    """Sum of p log p, token mean: the literal "maximise entropy". Saturates where p is near 1 (gradient p log p)."""
    logp = torch.log_softmax(logits.float(), dim=-1)
    return token_mean((logp.exp() * logp).sum(-1), mask)


def kl_from_uniform(logits: Tensor, mask: Tensor) -> Tensor:
    """KL(uniform || p), token mean: the same optimum as maximal entropy, with a gradient p - 1/V that never dies."""
    logp = torch.log_softmax(logits.float(), dim=-1)
    return token_mean(-logp.mean(-1) - math.log(logits.shape[-1]), mask)


def kl_to_reference(logits: Tensor, reference_logits: Tensor, mask: Tensor) -> Tensor:
    """KL(p_ref || p), mean over answer tokens only (public code often averages over prompt and padding too)."""
    ref = torch.log_softmax(reference_logits.float(), dim=-1)
    return token_mean((ref.exp() * (ref - torch.log_softmax(logits.float(), dim=-1))).sum(-1), mask)
