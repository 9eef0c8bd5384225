"""What all matrix optimizers share: which parameters they take, stacking, scale, decay, state, and AdamW for the rest.

An optimizer of this family is a subclass of `MatrixOptimizer` with one method, `direction`, and a subclass of
`MatrixOptions`. Matrices of one shape, treated alike, are stepped together as a `Stack`.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from harness.errors import SubmissionError
from harness.optim.sides import Side, sides
from harness.optim.stacks import Stack
from harness.specs import OptimizerSpec, Spec

STACK_ELEMENTS = 1 << 27
"""Most elements of one stack (half a GiB in float32), so that what a step needs for a while stays bounded."""

Decay = Annotated[float, Field(ge=0, lt=1)]
"""The share of the past that a moving average keeps per step."""


class MatrixOptions(Spec):
    """Settings that all matrix optimizers have.

    Attributes:
        adam_lr: learning rate of the AdamW part; None: that of the matrices.
        adam_betas: of the AdamW part (torch's defaults).
        adam_eps: of the AdamW part.
        state_dtype: of the moving averages that are as large as the weights.
        scale: factor on a matrix's update. `none`; `rms_to_rms`: sqrt(d_out / d_in) (Spectral Unlearning, Theorem 2);
            `tall`: max(1, d_out / d_in)^0.5 (Keller Jordan, Muon, muon.py); `adam_rms`: 0.2 sqrt(max(d_out, d_in)),
            which gives U V^T the usual RMS of an AdamW step (Liu et al. 2025, arXiv 2502.16982, section 2.2).
        sides: `auto` is the rule of `harness.optim.sides`; `both` preconditions both sides of every matrix.
    """

    adam_lr: PositiveFloat | None = None
    adam_betas: tuple[Decay, Decay] = (0.9, 0.999)
    adam_eps: PositiveFloat = 1e-8
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    scale: Literal["none", "rms_to_rms", "tall", "adam_rms"] = "none"
    sides: Literal["auto", "both"] = "auto"


class MatrixOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer of matrices, with AdamW for all other parameters.

    There are two parameter groups, `kind="matrix"` and `kind="adamw"`, each with its own "lr". A parameter without a
    gradient is left out of a step: neither it nor its state changes.

    Attributes:
        options: the settings.
        stacks: the matrices.
        failures: numerical failures by kind; it goes into the run's record.
        decay_first: whether decoupled weight decay comes before the update (as in AdamW) or after it.
        state_dtype: dtype of weight-sized moving averages.
    """

    decay_first = True

    def __init__(self, spec: OptimizerSpec, options: MatrixOptions, model: nn.Module) -> None:
        self.options, self.failures = options, dict[str, int]()
        self.state_dtype: torch.dtype = getattr(torch, options.state_dtype)
        rule = sides(model)
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._matrices = [(p, _treated(rule[n], options)) for n, p in trained if not rule[n].adamw]
        rest = [p for n, p in trained if rule[n].adamw]
        if not self._matrices:
            raise SubmissionError(
                f"optimizer {spec.name} has no matrix to work on",
                f"none of the {len(trained)} trainable parameters is a linear map's weight inside the model",
                "set optimizer.name=adamw, or see `uharness list optimizers --explain MODEL`",
            )
        usual = {"lr": spec.lr, "weight_decay": spec.weight_decay}
        groups = [
            {"params": [p for p, _ in self._matrices], "kind": "matrix"},
            {"params": rest, "kind": "adamw", "lr": options.adam_lr or spec.lr},
        ]
        super().__init__(groups, usual)
        self.stacks = self._stacked()
        self._adamw = (
            torch.optim.AdamW(
                rest, lr=options.adam_lr or spec.lr, betas=options.adam_betas, eps=options.adam_eps,
                weight_decay=spec.weight_decay, fused=True,
            )
            if rest
            else None
        )  # fmt: skip

    def _stacked(self) -> list[Stack]:
        """Stacks of matrices that are alike, none larger than `STACK_ELEMENTS` unless one matrix is."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        for i, (p, side) in enumerate(self._matrices):
            key = (tuple(p.shape), side.left, side.right, side.transposed, p.device, p.dtype)
            alike.setdefault(key, []).append(i)
        stacks = []
        for members in alike.values():
            most = max(1, STACK_ELEMENTS // self._matrices[members[0]][0].numel())
            for at in range(0, len(members), most):
                stacks.append(self._stack(members[at : at + most]))
        return stacks

    def _stack(self, members: Sequence[int]) -> Stack:
        return Stack(members, [self._matrices[i][0] for i in members], self._matrices[members[0]][1])

    @abstractmethod
    def direction(self, stack: Stack, G: Tensor) -> Tensor | None:
        """The step of one stack before scale and learning rate; None leaves the weights alone this time.

        Args:
            stack: the matrices; `stack.state` is empty at the first step and may be filled and changed.
            G: gradients [n, rows, cols] float32, free to be overwritten.

        A result that is not in float32 is scaled in its own dtype, as the public Muon does.
        """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._part()
        for stack in self.stacks:
            if stack.parameters[0].grad is None:
                continue
            G = torch.stack([p.grad for p in stack.parameters]).float()  # type: ignore[misc]
            D = self.direction(stack, G)
            if D is not None:
                self._apply(stack, D)
        if self._adamw is not None:
            self._adamw.param_groups[0]["lr"] = self.param_groups[1]["lr"]
            self._adamw.step()
        return loss

    def _part(self) -> None:
        """Split stacks of which only some matrices have a gradient, so that the numbers in a state hold for all."""
        whole: list[Stack] = []
        for stack in self.stacks:
            having = [i for i, p in enumerate(stack.parameters) if p.grad is not None]
            lacking = [i for i, p in enumerate(stack.parameters) if p.grad is None]
            whole += [stack] if not having or not lacking else [stack.take(having), stack.take(lacking)]
        self.stacks = whole

    def _apply(self, stack: Stack, D: Tensor) -> None:
        """Decay the weights and subtract the scaled step, in the order of `decay_first`."""
        group = self.param_groups[0]
        lr, keep = group["lr"], 1 - group["lr"] * group["weight_decay"]
        if keep != 1 and self.decay_first:
            torch._foreach_mul_(stack.parameters, keep)
        factor = self.factor(stack)
        if D.dtype != torch.float32:
            D, factor = D.mul(factor).float(), 1.0
        torch._foreach_add_(stack.parameters, list(D.unbind(0)), alpha=-lr * factor)
        if keep != 1 and not self.decay_first:
            torch._foreach_mul_(stack.parameters, keep)

    def factor(self, stack: Stack) -> float:
        """The factor that option `scale` puts on the updates of a stack."""
        d_out, d_in = (stack.cols, stack.rows) if stack.transposed else (stack.rows, stack.cols)
        return {
            "none": 1.0,
            "rms_to_rms": math.sqrt(d_out / d_in),
            "tall": math.sqrt(max(1.0, d_out / d_in)),
            "adam_rms": 0.2 * math.sqrt(max(d_out, d_in)),
        }[self.options.scale]

    # numerical helpers ----------------------------------------------------------------------------------------------
    def count(self, kind: str) -> None:
        """Count a numerical failure."""
        self.failures[kind] = self.failures.get(kind, 0) + 1

    def eigh(self, S: Tensor) -> tuple[Tensor, Tensor] | None:
        """Eigenvalues [n, d], ascending, and eigenvectors [n, d, d] of symmetric matrices, in float32.

        If that fails or the result is not finite, it is tried once more in float64 with 1e-8 of the mean eigenvalue
        added to the diagonal, and counted as `eigh`. If that fails too, it is counted as `eigh_float64` and the result
        is None: the caller keeps what it had.
        """
        found = _eigh(S.float())
        if found is None:
            self.count("eigh")
            wide = S.double()
            wide = (wide + wide.mT) / 2
            mean = wide.diagonal(dim1=-2, dim2=-1).mean(-1).abs()
            jitter = (1e-8 * mean + 1e-30)[:, None, None] * torch.eye(S.shape[-1], device=S.device)
            found = _eigh(wide + jitter)
            if found is None:
                self.count("eigh_float64")
        return None if found is None else (found[0].float(), found[1].float())

    # state ----------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Everything that a step depends on beside weights and gradients, as tensors, numbers and lists."""
        return {
            "groups": [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups],
            "stacks": [{"index": list(stack.index), "state": dict(stack.state)} for stack in self.stacks],
            "adamw": self._adamw.state_dict() if self._adamw is not None else None,
            "failures": dict(self.failures),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave; the tensors are copied. Raises `ValueError` for another model's state."""
        there = sorted(i for saved in state_dict["stacks"] for i in saved["index"])
        if there != list(range(len(self._matrices))):
            raise ValueError(f"a state of {len(there)} matrices does not fit {len(self._matrices)}")
        if (state_dict["adamw"] is None) != (self._adamw is None):
            raise ValueError("the state and the optimizer differ in whether there is an AdamW part")
        stacks = []
        for saved in state_dict["stacks"]:
            stack = self._stack(saved["index"])
            stack.state = {
                k: v.to(stack.device, copy=True) if isinstance(v, Tensor) else v
                for k, v in saved["state"].items()
            }
            stacks.append(stack)
        self.stacks = stacks
        for group, saved in zip(self.param_groups, state_dict["groups"], strict=True):
            group.update(saved)
        if self._adamw is not None:
            self._adamw.load_state_dict(copy.deepcopy(state_dict["adamw"]))
        self.failures.clear()
        self.failures.update(state_dict["failures"])


def _treated(side: Side, options: MatrixOptions) -> Side:
    """`side` under option `sides`."""
    return side if options.sides == "auto" else Side(side.role, True, True, False, side.why, side.transposed)


def _eigh(S: Tensor) -> tuple[Tensor, Tensor] | None:
    """Eigenvalues and eigenvectors; None when the decomposition fails or is not finite."""
    try:
        values, vectors = torch.linalg.eigh(S)
    except torch.linalg.LinAlgError:
        return None
    return (values, vectors) if bool(values.isfinite().all() and vectors.isfinite().all()) else None
