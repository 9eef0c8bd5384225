"""Muon: momentum made orthogonal by Newton-Schulz (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

The defaults are the public code's (KellerJordan/Muon, muon.py): momentum .95 as a moving average with Nesterov's look
ahead, 5 quintic iterations in bfloat16, factor max(1, d_out / d_in)^0.5. They differ in the AdamW part, which has
torch's defaults and the same learning rate (published: 3e-4, betas .9 and .95, eps 1e-10); set `adam_lr` and
`adam_betas`. The published learning rate of the matrices is .02, in units of the spectral norm of an update.

The form of Spectral Unlearning (section 2.5) is `iteration=cubic`, `scale=none`. Five cubic iterations multiply a
small singular value by at most 1.5^5 = 7.6, and a wide matrix starts with small ones (|M|_F = 1): the result is then
far from U V^T.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from harness.optim.matrix import Decay, MatrixOptimizer, MatrixOptions
from harness.optim.newton_schulz import orthogonalised
from harness.optim.stacks import Stack
from harness.specs import OptimizerSpec


class Options(MatrixOptions):
    """What can be set of Muon.

    Attributes:
        momentum: share of the past in the momentum M.
        momentum_form: `ema` is M = momentum M + (1 - momentum) G; `classic` is M = momentum M + G. They differ by a
            constant factor, which the iteration divides out up to rounding and the 1e-7.
        nesterov: whether the momentum as it would be one step later is made orthogonal.
        iteration: `quintic` (public code) or `cubic` (Spectral Unlearning).
        steps: iterations per update.
        iteration_dtype: bfloat16 as published; float32 is faster on a CPU without bfloat16 instructions.
    """

    momentum: Decay = 0.95
    momentum_form: Literal["ema", "classic"] = "ema"
    nesterov: bool = True
    iteration: Literal["cubic", "quintic"] = "quintic"
    steps: PositiveInt = 5
    iteration_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    scale: Literal["none", "rms_to_rms", "tall", "adam_rms"] = "tall"


class Muon(MatrixOptimizer):
    """See the module."""

    options: Options

    def direction(self, stack: Stack, G: Tensor) -> Tensor:
        """The orthogonalised momentum [n, rows, cols] in `iteration_dtype`."""
        options = self.options
        if "momentum" not in stack.state:
            stack.state["momentum"] = stack.zeros(stack.rows, stack.cols, dtype=self.state_dtype)
        M: Tensor = stack.state["momentum"]
        beta = options.momentum
        if options.momentum_form == "ema":
            M.lerp_(G.to(M.dtype), 1 - beta)
            ahead = G.lerp_(M.float(), beta) if options.nesterov else M
        else:
            M.mul_(beta).add_(G)
            ahead = G.add_(M, alpha=beta) if options.nesterov else M
        ahead = ahead.to(getattr(torch, options.iteration_dtype))
        return orthogonalised(ahead, options.iteration, options.steps)


def build(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """Muon on the matrices, AdamW on the rest."""
    return Muon(spec, Options.model_validate(spec.options), model)
