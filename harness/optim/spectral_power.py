"""Spectral power: U S^p V^T of the momentum U S V^T, at RMS 1 (Spectral Unlearning, App. E.7, Fig. 14).

p = 1 is the direction of the momentum, p = 0 its orthogonal factor; the learning rate is the RMS of an update's
entries, as for AdamW. The decomposition is exact, and slow: this is an instrument, not a way to train. The paper does
not say how its momentum is formed; here it is a moving average with share .95, as in Muon, without bias correction
(the normalisation takes it out).
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from harness.optim.matrix import Decay, MatrixOptimizer, MatrixOptions
from harness.optim.stacks import Stack
from harness.specs import OptimizerSpec


class Options(MatrixOptions):
    """What can be set of the spectral-power family.

    Attributes:
        power: p, the exponent of the singular values, 0 to 1.
        momentum: share of the past in the momentum.
        rank_tolerance: singular values below this share of the largest count as 0 for every p (0^0 included); None:
            max(rows, cols) times float32's epsilon, as in `numpy.linalg.matrix_rank`.
    """

    power: Annotated[float, Field(ge=0, le=1)] = 0.0
    momentum: Decay = 0.95
    rank_tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None


class SpectralPower(MatrixOptimizer):
    """See the module."""

    options: Options

    def direction(self, stack: Stack, G: Tensor) -> Tensor | None:
        """U S^p V^T / RMS [n, rows, cols] float32; 0 where the momentum is 0, None where it cannot be decomposed."""
        if "momentum" not in stack.state:
            stack.state["momentum"] = stack.zeros(stack.rows, stack.cols, dtype=self.state_dtype)
        M: Tensor = stack.state["momentum"]
        M.lerp_(G.to(M.dtype), 1 - self.options.momentum)
        found = self._svd(M.float())
        return (
            None if found is None else spectral_power(*found, self.options.power, self.options.rank_tolerance)
        )

    def _svd(self, M: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """The thin decomposition in float32; after a failure (counted as `svd`) in float64; None if that fails too."""
        for dtype, failure in ((torch.float32, "svd"), (torch.float64, "svd_float64")):
            try:
                U, S, Vh = torch.linalg.svd(M.to(dtype), full_matrices=False)
            except torch.linalg.LinAlgError:
                self.count(failure)
                continue
            return U.float(), S.float(), Vh.float()
        return None


def spectral_power(
    U: Tensor, S: Tensor, Vh: Tensor, power: float, rank_tolerance: float | None = None
) -> Tensor:
    """U S^p V^T divided by its RMS [n, rows, cols], from a thin decomposition; 0 for a zero matrix.

    Args:
        U: [n, rows, r].
        S: [n, r], descending.
        Vh: [n, r, cols].
        power: p.
        rank_tolerance: see `Options`.
    """
    rows, cols = U.shape[-2], Vh.shape[-1]
    if rank_tolerance is None:
        rank_tolerance = max(rows, cols) * torch.finfo(S.dtype).eps
    share = S / S[..., :1].clamp_min(torch.finfo(S.dtype).tiny)
    kept = (share > rank_tolerance) & (S > 0)
    powers = torch.where(kept, share.pow(power), 0.0)
    rms = (powers.square().sum(-1, keepdim=True) / (rows * cols)).sqrt()
    weights = torch.where(kept, powers / rms, 0.0)
    return (U * weights[..., None, :]) @ Vh


def build(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The family on the matrices, AdamW on the rest."""
    return SpectralPower(spec, Options.model_validate(spec.options), model)
