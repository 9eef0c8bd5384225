"""An optimizer whose learning rates follow the clock, so that every budget sees a whole schedule."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.clock import Clock
from harness.parallel import Parallel, SingleProcess
from harness.specs import OptimizerSpec


class Scheduled:
    """An optimizer and its schedule; with several processes, all follow the first one's clock.

    Attributes:
        inner: the optimizer itself.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        spec: OptimizerSpec,
        clock: Clock,
        parallel: Parallel | None = None,
    ) -> None:
        self.inner, self._spec, self._clock = inner, spec, clock
        self._parallel = parallel or SingleProcess()
        self._base = [group["lr"] for group in inner.param_groups]

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters that are stepped."""
        return [p for group in self.inner.param_groups for p in group["params"]]

    @property
    def wants_curvature(self) -> bool:
        """Whether the optimizer asks for a curvature estimate before the next update."""
        return bool(getattr(self.inner, "wants_curvature", False))

    def update_curvature(self, tokens: int) -> None:
        """Hand over the gradients in `.grad` as a curvature estimate over `tokens` answer tokens."""
        self.inner.update_curvature(tokens)  # type: ignore[attr-defined]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.inner.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Clip if asked, set the learning rate for the clock's fraction, and step."""
        if self._spec.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self._spec.max_grad_norm)
        factor = self._spec.factor(self._parallel.agree(self._clock.fraction))
        for group, base in zip(self.inner.param_groups, self._base, strict=True):
            group["lr"] = base * factor
        self.inner.step()
