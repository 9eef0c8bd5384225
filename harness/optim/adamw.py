"""AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), torch's own."""

from __future__ import annotations

import torch
from pydantic import PositiveFloat
from torch import nn

from harness.specs import OptimizerSpec, Spec


class Options(Spec):
    """Defaults are torch's and Hugging Face's."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8


def build(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW over every parameter that requires a gradient; decay is decoupled, moments have the parameters' dtype."""
    options = Options.model_validate(spec.options)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        parameters,
        lr=spec.lr,
        betas=options.betas,
        eps=options.eps,
        weight_decay=spec.weight_decay,
        fused=True,
    )
