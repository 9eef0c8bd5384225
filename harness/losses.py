"""Losses: pure functions of tensors. None of them runs a model.

Shapes: `logp` [B, K] is the log-probability of each label, 0 where masked (`harness.scoring.token_logp`);
`mask` [B, K] is True on answer tokens; `logits` [B, K, V]. All return a scalar to be minimised unless they say [B].

Reductions differ between papers and change numbers, so the name carries them: `token_mean` weighs every answer token
of the micro-batch alike (the `loss` of Hugging Face), `sequence_sum` and `sequence_mean` first reduce a row.

Logits of lower precision are read as float32; float64 stays float64. Only answer tokens count: positions of the prompt
and of padding have no influence on a value or a gradient.
"""

from __future__ import annotations

import math
from typing import Literal

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


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities over the last axis, in at least float32."""
    return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)


def after_first(mask: Tensor, count: int) -> Tensor:
    """`mask` [B, K] without the first `count` answer tokens of each row; a row with no more than that stays whole.

    >>> after_first(torch.tensor([[False, True, True], [False, False, True]]), 1).tolist()
    [[False, False, True], [False, False, True]]
    """
    later = mask & (mask.cumsum(-1) > count)
    return torch.where(later.any(-1, keepdim=True), later, mask)


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


def simnpo(logp_mean: Tensor, beta: float, delta: float = 0.0) -> Tensor:
    """Negative preference optimisation without a reference: -(2 / beta) mean log sigmoid(beta (A - delta)) over rows.

    Args:
        logp_mean: log p(answer) per row, averaged over its tokens [B]; A = -logp_mean.
        beta: inverse temperature.
        delta: margin in nats per token. The paper subtracts its margin gamma outside of beta: delta = gamma / beta.

    Source: Fan et al. 2024 (arXiv 2410.07163); delta as in open-unlearning, src/trainer/unlearn/simnpo.py.

    >>> round(simnpo(torch.tensor([-.5]), 4.5, .5).item(), 4) == round(2 / 4.5 * math.log(2), 4)
    True
    """
    return -(2.0 / beta) * F.logsigmoid(-beta * (logp_mean + delta)).mean()


def wga(logp: Tensor, mask: Tensor, beta: float) -> Tensor:
    """Weighted gradient ascent: each token's log p weighed by its probability p^beta (a constant), token mean.

    beta 0 is gradient ascent. Source: Wang et al. 2025 (arXiv 2502.19301).
    """
    return _weighted_ascent(logp, (beta * logp.detach()).exp(), mask)


def satimp(logp: Tensor, mask: Tensor, beta1: float, beta2: float) -> Tensor:
    """Saturation and importance: ascent with the constant weights p^beta1 (1 - p)^beta2, token mean.

    1 - p is taken from log p by expm1, so the weight of a token learnt to 1 - 1e-8 is not 0. beta1 = beta2 = 0 is
    gradient ascent. Source: Yang et al. 2025 (arXiv 2505.11953).
    """
    fixed = logp.detach()
    return _weighted_ascent(logp, (beta1 * fixed).exp() * (-torch.expm1(fixed)).pow(beta2), mask)


def _weighted_ascent(logp: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    return token_mean(weight * torch.where(weight > 0, logp, 0.0), mask)


def ce_u(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy unlearning: cross-entropy to the model's own distribution without the label, token mean.

    The target q is softmax of the logits (a constant) with the label's at -inf. The gradient is p_y at the label and
    -p_v p_y / (1 - p_y) elsewhere: bounded, and gone once p_y is 0. Source: Yang 2025 (arXiv 2503.01224).
    """
    without = logits.detach().scatter(-1, labels.unsqueeze(-1), float("-inf"))
    return token_mean(_cross_entropy(log_softmax(without).exp(), logits), mask)


def undial(logits: Tensor, teacher_logits: Tensor, labels: Tensor, mask: Tensor, beta: float) -> Tensor:
    """Self-distillation on adjusted logits: cross-entropy to softmax(teacher - beta at the label), token mean.

    At the start with beta 0 it is the teacher's entropy, with gradient 0. Source: Dong et al. 2024 (arXiv 2402.10052).
    The public code averages over prompt and padding too, where its label -100 lowers the logit of entry V - 100.
    """
    index = labels.unsqueeze(-1)
    teacher = teacher_logits.detach()
    adjusted = teacher.scatter(-1, index, teacher.gather(-1, index) - beta)
    return token_mean(_cross_entropy(log_softmax(adjusted).exp(), logits), mask)


def bs_t(logits: Tensor, logp: Tensor, mask: Tensor, lam: float, top_k: int) -> Tensor:
    """Bootstrapping by tokens: ascent on the label and on the model's own first choices; mean of sequence means.

    Args:
        logits: [B, K, V].
        logp: log p of the labels [B, K], from the same logits.
        mask: [B, K].
        lam: weight of the belief, 0 to 1; 0 is gradient ascent with sequence means.
        top_k: the belief is the softmax (a constant) over this many largest logits.

    Minimises sum_v t_v log p_v with t = lam x belief + (1 - lam) x label. Where the belief holds all mass (top_k of V)
    it has no gradient. Source: Li et al. 2025 (arXiv 2510.19422), eq. 6 and 7.
    """
    fixed = logits.detach()
    values, index = fixed.topk(min(top_k, fixed.shape[-1]), dim=-1)
    believed = (log_softmax(values).exp() * log_softmax(logits).gather(-1, index)).sum(-1)
    return sequence_mean(lam * believed + (1.0 - lam) * logp, mask).mean()


def logit_margin(logits: Tensor, mask: Tensor) -> Tensor:
    """(largest logit - mean logit) squared, token mean: 0 exactly where the prediction is uniform.

    Source: Entesari et al. 2025 (arXiv 2506.05314). The public code masks the positions of the answer tokens
    themselves, not those that predict them.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return token_mean((wide.amax(-1) - wide.mean(-1)).square(), mask)


def dual_step(multiplier: float, violation: float, step: float) -> float:
    """Projected ascent on the multiplier of a constraint `violation <= 0`.

    >>> dual_step(1.0, .5, 2.0), dual_step(1.0, -.5, 4.0)
    (2.0, 0.0)
    """
    return max(0.0, multiplier + step * violation)


def negative_entropy(logits: Tensor, mask: Tensor) -> Tensor:
    """Sum of p log p, token mean: the literal "maximise entropy". Saturates where p is near 1 (gradient p log p)."""
    logp = log_softmax(logits)
    return token_mean((logp.exp() * logp).sum(-1), mask)


def kl_from_uniform(logits: Tensor, mask: Tensor) -> Tensor:
    """KL(uniform || p), token mean: the same optimum as maximal entropy, with a gradient p - 1/V that never dies."""
    return token_mean(-log_softmax(logits).mean(-1) - math.log(logits.shape[-1]), mask)


def kl_to_reference(logits: Tensor, reference_logits: Tensor, mask: Tensor) -> Tensor:
    """KL(p_ref || p), mean over answer tokens only (public code often averages over prompt and padding too)."""
    reference = log_softmax(reference_logits.detach())
    return token_mean((reference.exp() * (reference - log_softmax(logits))).sum(-1), mask)


def _cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    return -(target * log_softmax(logits)).sum(-1)


# --- on hidden states -----------------------------------------------------------------------------------------------
def activation_distance(
    states: Tensor, target: Tensor, mask: Tensor, reduction: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Squared distance of hidden states to a target: mean over a row's masked tokens, then over rows.

    Args:
        states: [B, T, d].
        target: what they should be, of any shape that broadcasts to [B, T, d].
        mask: which tokens count [B, T].
        reduction: over the d numbers of a token. `mean` is the public code's (open-unlearning, rmu.py); `sum` is the
            squared norm of RMU's paper (Li et al. 2024, arXiv 2403.03218), d times as large.
    """
    squared = (states.to(torch.promote_types(states.dtype, torch.float32)) - target).square()
    return sequence_mean(squared.mean(-1) if reduction == "mean" else squared.sum(-1), mask).mean()
