"""Gradient norms of rows: the membership attack that looks at how hard a row would pull at the weights.

One backward pass a row: an option of a board, about three times as dear as a likelihood of the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from harness import scoring
from harness.text import Encoder
from harness.types import TextRow


def gradient_norms(
    model: nn.Module, rows: Sequence[TextRow], encoder: Encoder | None
) -> tuple[float | None, ...]:
    """Mean over the parameter tensors of the 2-norm of the gradient of a row's loss, row by row.

    Args:
        model: its gradients are cleared; its weights and mode stay as they are.
        rows: questions and answers.
        encoder: of the model.

    Returns:
        Per row, at least 0: the larger, the less the row looks like a member. None for a row whose answer has
        no token before its last one, which is left out whatever it is.

    Source: open-unlearning d3d7cf9, mia/gradnorm (p = 2, its TOFU setting); arXiv 2402.17012.
    """
    device = str(next(model.parameters()).device)
    tensors = [p for p in model.parameters() if p.requires_grad]
    out: list[float | None] = []
    for row in rows:
        outputs = scoring.forward(model, scoring.collate([row], encoder, device=device))
        logp = scoring.token_logp(outputs)[outputs.mask][:-1]
        if not len(logp):
            out.append(None)
            continue
        gradients = torch.autograd.grad(-logp.mean(), tensors, allow_unused=True)
        norms = [g.float().norm() for g in gradients if g is not None]
        out.append(float(torch.stack(norms).mean()))
    return tuple(out)
