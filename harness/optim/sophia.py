"""Sophia-G: momentum over a diagonal curvature, clipped (Liu et al. 2023, arXiv 2305.14342, algorithms 2 and 3).

    m = b1 m + (1 - b1) g                       every step
    h = b2 h + (1 - b2) B ghat * ghat           every k steps
    w = (1 - lr wd) w - lr clip(m / (rho h + 1e-15), -1, 1)

ghat is the gradient of the mean cross-entropy over B tokens whose labels are drawn from the model itself; B undoes the
mean, so that h estimates the Gauss-Newton diagonal. There is no bias correction: where h is 0 the step is lr sign(m).
Defaults are those of the public code (Liuhong99/Sophia, sophia.py and its README); the weight decay is the spec's
(published: .1 to .2). Every parameter is treated alike, element by element.

The gradients for h come from `harness.loop`, which draws labels at all answer tokens of the update's forget and retain
rows together. Public variants do otherwise: SOUL (Jia et al. 2024, arXiv 2404.18239) feeds h with the training gradient
at every step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import nn

from harness.optim.matrix import Decay
from harness.specs import OptimizerSpec, Spec

EPS = 1e-15


class Options(Spec):
    """What can be set of Sophia-G.

    Attributes:
        betas: b1 of the momentum, b2 of the curvature.
        rho: the step is clipped where |m| exceeds rho h; the smaller, the more is clipped.
        k: steps between curvature estimates.
        bs: B; None: the number of answer tokens that an estimate was made of. The public code has a fixed number.
        estimate_at_start: whether the first estimate comes before the first step (algorithm 3) or, as in the public
            code, after k of them, so that the first k steps are sign steps.
        state_dtype: of m; h is float32 always, since bfloat16 loses its small increments.
    """

    betas: tuple[Decay, Decay] = (0.965, 0.99)
    rho: PositiveFloat = 0.04
    k: PositiveInt = 10
    bs: PositiveFloat | None = None
    estimate_at_start: bool = True
    state_dtype: Literal["float32", "bfloat16"] = "float32"


class Sophia(torch.optim.Optimizer):
    """See the module. A parameter without a gradient is left out of a step or an estimate."""

    def __init__(self, spec: OptimizerSpec, options: Options, model: nn.Module) -> None:
        self.options = options
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        super().__init__(self._parameters, {"lr": spec.lr, "weight_decay": spec.weight_decay})
        dtype = getattr(torch, options.state_dtype)
        self._m = [torch.zeros_like(p, dtype=dtype) for p in self._parameters]
        self._h = [torch.zeros_like(p, dtype=torch.float32) for p in self._parameters]
        self._t = 0

    @property
    def wants_curvature(self) -> bool:
        """Whether an estimate is due before the next step."""
        return self._t % self.options.k == 0 and (self._t > 0 or self.options.estimate_at_start)

    @torch.no_grad()
    def update_curvature(self, tokens: int) -> None:
        """Take the gradients of a mean cross-entropy over `tokens` drawn labels into h."""
        here = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        h, b2 = [self._h[i] for i in here], self.options.betas[1]
        if not here:
            return
        grads = [self._parameters[i].grad.float() for i in here]  # type: ignore[union-attr]
        torch._foreach_mul_(h, b2)
        torch._foreach_addcmul_(h, grads, grads, value=(1 - b2) * (self.options.bs or tokens))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._t += 1
        here = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        if not here:
            return loss
        lr, decay = self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]
        weights, m = [self._parameters[i] for i in here], [self._m[i] for i in here]
        torch._foreach_lerp_(
            m, [p.grad.to(b.dtype) for p, b in zip(weights, m, strict=True)], 1 - self.options.betas[0]
        )
        ratio = torch._foreach_mul([self._h[i] for i in here], self.options.rho)
        torch._foreach_add_(ratio, EPS)
        torch._foreach_reciprocal_(ratio)
        torch._foreach_mul_(ratio, [b.float() for b in m])
        torch._foreach_clamp_min_(ratio, -1.0)
        torch._foreach_clamp_max_(ratio, 1.0)
        torch._foreach_mul_(weights, 1 - lr * decay)
        torch._foreach_add_(weights, ratio, alpha=-lr)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Everything that a step depends on beside weights and gradients."""
        group = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        return {"t": self._t, "m": list(self._m), "h": list(self._h), "group": group}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave; the tensors are copied. Raises `ValueError` for another model's state."""
        shapes = [m.shape for m in state_dict["m"]]
        if shapes != [p.shape for p in self._parameters]:
            raise ValueError("the state is that of a model of other shapes")
        for mine, saved in ((self._m, state_dict["m"]), (self._h, state_dict["h"])):
            for tensor, value in zip(mine, saved, strict=True):
                tensor.copy_(value)
        self._t = int(state_dict["t"])
        self.param_groups[0].update(copy.deepcopy(state_dict["group"]))


def build(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """Sophia-G over every parameter that requires a gradient."""
    return Sophia(spec, Options.model_validate(spec.options), model)
