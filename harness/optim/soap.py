"""SOAP (Vyas et al. 2024, arXiv 2409.11321): Adam in the eigenbasis of Shampoo's factors.

Written after the paper's algorithm 3 and the authors' code, nikhilvyas/SOAP soap.py at a1e5535, whose weights it
follows step by step:

- L and R are moving averages of G G^T and G^T G. The first step only sets them and their eigenbases up: the weights
  stay where they are.
- Then G' = Q_L^T G Q_R, m and v are Adam's moments of G', and the step is Q_L (m / (sqrt(v) + eps)) Q_R^T with Adam's
  bias correction. Weight decay comes after the step, and after that L and R take G in.
- Every `precondition_frequency` steps Q becomes the Q of the QR decomposition of S Q, its columns by falling
  diag(Q^T S Q). v is permuted alike; m is turned from the old basis into the new one.

A side without preconditioning, or longer than `max_precond_dim`, has Q = I. Dimensions are never merged, and what is no
matrix gets AdamW. m is kept in the eigenbasis, so that a step needs two products a side beside its factor's.
"""

from __future__ import annotations

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from harness.optim.eigenbasis import EigenbasisOptimizer, add_gram_, ema_, power_step, transposed, turned
from harness.optim.matrix import Decay, MatrixOptions
from harness.optim.stacks import Stack
from harness.specs import OptimizerSpec


class Options(MatrixOptions):
    """Defaults are the authors' (soap.py); Spectral Unlearning sets `max_precond_dim` to the hidden size.

    Attributes:
        betas: of m and v.
        shampoo_beta: of L and R; None: the second of `betas`.
        eps: added to sqrt(v).
        precondition_frequency: steps between refreshes of the bases.
        max_precond_dim: the longest side that gets a factor.
        normalize_grads: divide each matrix's step by its RMS.
        correct_bias: Adam's bias correction.
        state_dtype: of m and of the bases; L, R and v stay float32, where small increments would be lost.
    """

    betas: tuple[Decay, Decay] = (0.95, 0.95)
    shampoo_beta: Decay | None = None
    eps: PositiveFloat = 1e-8
    precondition_frequency: PositiveInt = 10
    max_precond_dim: PositiveInt = 10000
    normalize_grads: bool = False
    correct_bias: bool = True


class SOAP(EigenbasisOptimizer):
    """State of a stack: `step`, `m`, `v`, and for each side with a factor `L` and `left`, `R` and `right`."""

    options: Options
    decay_first = False

    def direction(self, stack: Stack, G: Tensor) -> Tensor | None:
        """Adam's step in the current bases; None at the first step, which only finds them."""
        options, state = self.options, stack.state
        if not state:
            self._start(stack, G)
            return None
        state["step"] += 1
        self._observe(stack, G)  # does not change the bases, and G's memory is used from here on
        left, right = state.get("left"), state.get("right")
        P, spare = turned(G, torch.empty_like(G), transposed(left), right)
        m = ema_(state["m"], P, options.betas[0])
        v = state["v"].mul_(options.betas[1]).addcmul_(P, P, value=1 - options.betas[1])
        torch.sqrt(v, out=spare).add_(options.eps)
        D, _ = turned(torch.div(m, spare, out=spare), P, left, transposed(right))
        if options.normalize_grads:
            D.div_(D.square().mean((1, 2), keepdim=True).sqrt_().add_(1e-30))
        if state["step"] % options.precondition_frequency == 0:
            self._refresh(stack)
        return D

    def factor(self, stack: Stack) -> float:
        """Option `scale` and Adam's bias correction."""
        if not self.options.correct_bias:
            return super().factor(stack)
        first, second = (1 - beta ** stack.state["step"] for beta in self.options.betas)
        return super().factor(stack) * second**0.5 / first

    def _start(self, stack: Stack, G: Tensor) -> None:
        state, longest = stack.state, self.options.max_precond_dim
        state["step"] = 0
        state["m"] = stack.zeros(stack.rows, stack.cols, dtype=self.state_dtype)
        state["v"] = stack.zeros(stack.rows, stack.cols)
        if stack.left and stack.rows <= longest:
            state["L"] = stack.zeros(stack.rows, stack.rows)
        if stack.right and stack.cols <= longest:
            state["R"] = stack.zeros(stack.cols, stack.cols)
        self._observe(stack, G)
        for factor, basis in (("L", "left"), ("R", "right")):
            if factor in state:
                state[basis] = self.eigenbasis(state[factor]).to(self.state_dtype)

    def _observe(self, stack: Stack, G: Tensor) -> None:
        beta = self.options.shampoo_beta
        beta = self.options.betas[1] if beta is None else beta
        if "L" in stack.state:
            add_gram_(stack.state["L"], G, beta)
        if "R" in stack.state:
            add_gram_(stack.state["R"], G.mT, beta)

    def _refresh(self, stack: Stack) -> None:
        """New bases; v follows their order, m is turned."""
        state, turns = stack.state, dict[str, Tensor]()
        for factor, basis, side in (("L", "left", 1), ("R", "right", 2)):
            if factor not in state:
                continue
            old = state[basis].float()
            A, order = power_step(state[factor], old, sort=True)
            new = self.orthonormal(A)
            if new is None:
                continue
            turns[basis] = old.mT @ new
            state[basis] = new.to(self.state_dtype)
            where = order[:, :, None] if side == 1 else order[:, None, :]
            state["v"] = state["v"].gather(side, where.expand_as(state["v"]))
        self.turn_moment(stack, turns)


def build(spec: OptimizerSpec, model: nn.Module) -> SOAP:
    """SOAP on the matrices of `model`, AdamW on the rest."""
    return SOAP(spec, Options.model_validate(spec.options), model)
