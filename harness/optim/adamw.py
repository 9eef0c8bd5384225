"""AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), torch's own."""

from __future__ import annotations

import torch
from torch import nn

from harness.specs import OptimizerSpec


def build(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW over every parameter that requires a gradient; decay is decoupled, moments are float32."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        parameters, lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay, foreach=True
    )
