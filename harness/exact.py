"""Cross-entropy whose float32 gradient stays right when the model is almost certain.

The usual form ends with `p_y - 1`, which cancels: for a memorised example with a loss of 1e-8 it is 0 or off
by more than its own size. Here the right class gets `-sum_{j != y} p_j`, and the loss is `log1p` of a sum of
small terms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class ExactNLL(torch.autograd.Function):
    """`-log softmax(logits)[label]` per position; see `exact_nll`, which is how to call it.

    With m = max_j z_j, d = z_y - m and S = sum_{j != y} exp(z_j - m):

    - nll = log1p(S + expm1(d)) - d, which is log1p(S) when the right class is the first choice;
    - dnll/dz_j = exp(z_j - m) / (S + exp(d)) for j != y, and dnll/dz_y = -S / (S + exp(d)).

    Between the passes only the logits themselves and three numbers per position are kept; either pass makes
    one [..., V] buffer. Differentiable once.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """Per-position loss, [...] float32 (float64 for float64 logits)."""
        weights, top, index = _shifted_exp(logits, labels)
        gap = logits.gather(-1, index).to(weights.dtype).sub_(top)
        others = weights.scatter_(-1, index, 0.0).sum(-1, keepdim=True)
        nll = torch.log1p(others + torch.expm1(gap)).sub_(gap).squeeze(-1)
        ctx.save_for_backward(logits, index, others, gap)
        return nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        """Gradient of the logits, in their own dtype."""
        if not ctx.needs_input_grad[0]:
            return None, None
        logits, index, others, gap = ctx.saved_tensors
        scale = grad.unsqueeze(-1).to(others.dtype) / (others + gap.exp())
        weights, _, _ = _shifted_exp(logits, index.squeeze(-1))
        out = weights.mul_(scale).scatter_(-1, index, -scale * others)
        return out.to(logits.dtype), None


def _shifted_exp(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(z - max z) in a new buffer of at least float32, the maxima, and the labels as index, [..., 1]."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    top = logits.amax(-1, keepdim=True).to(dtype)
    buffer = logits.to(dtype) - top if logits.dtype == dtype else logits.to(dtype).sub_(top)
    return buffer.exp_(), top, labels.unsqueeze(-1)


def exact_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of the labels in nats, with a gradient that does not cancel.

    Half-precision logits are read as float32, and the gradient is rounded back at the very end.

    Args:
        logits: unnormalised scores [..., V]; -inf marks a class that cannot be chosen.
        labels: right classes [...] int64. A position that the caller ignores may hold any valid index.

    Returns:
        Loss per position [...], at least 0; float64 for float64 logits, else float32. Infinite only where the
        right class has a logit of -inf.

    >>> nll = exact_nll(torch.tensor([[20.0, 0.0]]), torch.tensor([0]))
    >>> f"{nll.item():.3e}"
    '2.061e-09'
    """
    return ExactNLL.apply(logits, labels)
