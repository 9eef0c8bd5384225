"""Shampoo with powers -1/4 on momentum, as Spectral Unlearning (section 3.2) writes what it calls KLShampoo.

The step is L^-1/4 M R^-1/4, with M, L and R the moving averages of G, G G^T and G^T G. On one G of full rank it is
U V^T (Gupta et al. 2018, arXiv 1802.09568, give the powers). A matrix of which one side is preconditioned takes -1/2 on
that side, since (G G^T)^-1/2 G = U V^T, whereas -1/4 would leave U S^1/2 V^T (Spectral Unlearning, section 2.6). The
published KL-Shampoo is `harness.optim.kl_shampoo`; it differs in powers, in units, and in what the factors average.

The paper names no more than that. Choices made here: all three averages are divided by 1 - beta^t, so that the first
step is U V^T too. Eigenvectors are found anew every `precondition_frequency` steps; in between the eigenvalues follow
diag(Q^T L Q) at every step, so that a direction first seen after a refresh is not blown up. M is kept in the bases.

The spectral norm of a step is near 1, its RMS near sqrt(rank / (rows cols)).
"""

from __future__ import annotations

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from harness.optim.eigenbasis import EigenbasisOptimizer, add_gram_, ema_, mirrored_, transposed, turned
from harness.optim.matrix import Decay, MatrixOptions
from harness.optim.stacks import Stack
from harness.specs import OptimizerSpec

TINY = 1e-30
"""Added to eigenvalues, so that a zero gradient gives a zero step."""


class Options(MatrixOptions):
    """The paper tells the powers and the refresh every 10 steps; betas are those of the published KL-Shampoo.

    Attributes:
        betas: of M, and of L and R.
        eps: added to the eigenvalues, relative to the largest of each factor; float32 resolves about 1e-7 of it.
        precondition_frequency: steps between eigen-decompositions.
        state_dtype: of M and of the bases; L, R and the eigenvalues stay float32.
    """

    betas: tuple[Decay, Decay] = (0.9, 0.98)
    eps: PositiveFloat = 1e-6
    precondition_frequency: PositiveInt = 10


class ShampooQuarter(EigenbasisOptimizer):
    """State of a stack: `step`, `m`, and for each preconditioned side a factor, its basis, and its eigenvalues.

    They are `L`, `left`, `left_values` and `R`, `right`, `right_values`.
    """

    options: Options

    def direction(self, stack: Stack, G: Tensor) -> Tensor:
        """L^-1/4 M R^-1/4, or with -1/2 where only one side is preconditioned."""
        options, state = self.options, stack.state
        if not state:
            self._start(stack)
        state["step"] += 1
        if stack.left:
            add_gram_(state["L"], G, options.betas[1])
        if stack.right:
            add_gram_(state["R"], G.mT, options.betas[1])
        fresh = (state["step"] - 1) % options.precondition_frequency == 0
        found = self._refresh(stack) if fresh else ()
        left, right = state.get("left"), state.get("right")
        P, spare = turned(G, torch.empty_like(G), transposed(left), right)
        square = torch.mul(P, P, out=spare)
        if stack.left and "left" not in found:
            state["left_values"].lerp_(square.sum(2), 1 - options.betas[1])
        if stack.right and "right" not in found:
            state["right_values"].lerp_(square.sum(1), 1 - options.betas[1])
        first, second = (1 - beta ** state["step"] for beta in options.betas)
        D = torch.div(ema_(state["m"], P, options.betas[0]), first, out=spare)
        power = -0.25 if stack.left and stack.right else -0.5
        if stack.left:
            D.mul_(self._roots(state["left_values"] / second, power)[:, :, None])
        if stack.right:
            D.mul_(self._roots(state["right_values"] / second, power)[:, None, :])
        return turned(D, P, left, transposed(right))[0]

    def _start(self, stack: Stack) -> None:
        state = stack.state
        state["step"] = 0
        state["m"] = stack.zeros(stack.rows, stack.cols, dtype=self.state_dtype)
        for there, factor, basis, d in (
            (stack.left, "L", "left", stack.rows),
            (stack.right, "R", "right", stack.cols),
        ):
            if there:
                state[factor] = stack.zeros(d, d)
                state[basis] = torch.eye(d, dtype=self.state_dtype, device=stack.device).repeat(
                    len(stack), 1, 1
                )
                state[f"{basis}_values"] = stack.zeros(d)

    def _refresh(self, stack: Stack) -> set[str]:
        """New bases and eigenvalues where they are found; M is turned."""
        state, turns = stack.state, dict[str, Tensor]()
        for factor, basis in (("L", "left"), ("R", "right")):
            found = self.eigh(mirrored_(state[factor])) if factor in state else None
            if found is None:
                continue
            turns[basis] = state[basis].float().mT @ found[1]
            state[f"{basis}_values"] = found[0].clamp_(min=0)
            state[basis] = found[1].to(self.state_dtype)
        self.turn_moment(stack, turns)
        return set(turns)

    def _roots(self, values: Tensor, power: float) -> Tensor:
        """(values + eps max values)^power [n, d]."""
        return (values + self.options.eps * values.amax(-1, keepdim=True) + TINY).pow_(power)


def build(spec: OptimizerSpec, model: nn.Module) -> ShampooQuarter:
    """Shampoo with powers -1/4 on the matrices of `model`, AdamW on the rest."""
    return ShampooQuarter(spec, Options.model_validate(spec.options), model)
