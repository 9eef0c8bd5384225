"""KLShampoo as Spectral Unlearning (section 3.2) writes it: -L^-1/4 G R^-1/4. Another name of `shampoo_quarter`.

The paper's form is not the published KL-Shampoo (Lin et al. 2025, arXiv 2509.03378), which is `kl_shampoo`.
"""

from __future__ import annotations

from torch import nn

from harness.optim import shampoo_quarter
from harness.optim.shampoo_quarter import Options, ShampooQuarter
from harness.specs import OptimizerSpec

__all__ = ["Options", "build"]


def build(spec: OptimizerSpec, model: nn.Module) -> ShampooQuarter:
    """The optimizer of `harness.optim.shampoo_quarter`."""
    return shampoo_quarter.build(spec, model)
