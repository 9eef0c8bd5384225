"""KL-Shampoo as published: Lin et al. 2025, arXiv 2509.03378.

The paper is Understanding and Improving Shampoo and SOAP via Kullback-Leibler Minimization; the practical loop is the
authors', yorkerlin/KL-Methods optim/kl_opt.py at a02e622. The factors are each whitened by the other, and both go in
with power -1/2. For gradients of m rows and n columns:

- L <- b L + (1 - b) G R^-1 G^T / n and R <- b R + (1 - b) G^T L^-1 G / m; the step is L^-1/2 M R^-1/2, M the moving
  average of G. Where one G of full rank repeats, the step ends at sqrt(n) U V^T if m = n: RMS 1.
- L = Q_L D_L Q_L^T and R alike, and only Q and D are used. Each D follows its diagonal at every step: the mean of
  (Q_L^T G Q_R)^2 over the other axis, whitened by the other D. Q becomes the Q of the QR decomposition of L Q every
  `precondition_frequency` steps, in the order it has.
- The first step sets up and leaves the weights: L = (1 - b) G G^T / n, its eigenvectors, D = `init_factor`.
- There is no bias correction, so D forgets `init_factor` at the pace of b: while it has not, a step is a multiple of M,
  and the learning rate depends on the gradient's size.

A side without preconditioning has the factor I. Where one G repeats, L alone ends at sqrt(n) U V^T and R alone at
sqrt(m) U V^T. M is kept in the bases and turned at a refresh. The authors compute in bfloat16; this is float32.
"""

from __future__ import annotations

import math

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from harness.optim.eigenbasis import EigenbasisOptimizer, add_gram_, ema_, power_step, transposed, turned
from harness.optim.matrix import Decay, MatrixOptions
from harness.optim.stacks import Stack
from harness.specs import OptimizerSpec


class Options(MatrixOptions):
    """Defaults are the authors' (kl_opt.py).

    Attributes:
        betas: of M, and of L, R and their eigenvalues.
        eps: added to sqrt(D_L D_R).
        precondition_frequency: steps between refreshes of the bases.
        init_factor: eigenvalues at the start.
        max_clamp: D^-1/2 of a side of length d is at most max(10, min(d, `max_clamp`)).
        state_dtype: of M and of the bases; L, R and D stay float32.
    """

    betas: tuple[Decay, Decay] = (0.9, 0.98)
    eps: PositiveFloat = 1e-8
    precondition_frequency: PositiveInt = 10
    init_factor: PositiveFloat = 0.1
    max_clamp: PositiveInt = 4000


class KLShampoo(EigenbasisOptimizer):
    """State of a stack: `step`, `m`, and for each preconditioned side a factor, its basis, and D^-1/2.

    They are `L`, `left`, `left_root` and `R`, `right`, `right_root`.
    """

    options: Options
    decay_first = False

    def direction(self, stack: Stack, G: Tensor) -> Tensor | None:
        """L^-1/2 M R^-1/2 with the factors as they were before G; None at the first step."""
        options, state = self.options, stack.state
        if not state:
            self._start(stack, G)
            return None
        state["step"] += 1
        left, right = state.get("left"), state.get("right")
        by_left, by_right, P = self._seen(G, left, right)
        M = ema_(state["m"], P, options.betas[0])
        roots = self._roots(stack)
        self._observe(stack, by_left, by_right, P)
        D = torch.mul(M, roots, out=P).div_(roots.mul_(options.eps).add_(1))
        D, _ = turned(D, roots, left, transposed(right))
        if state["step"] % options.precondition_frequency == 0:
            self._refresh(stack)
        return D

    def _seen(self, G: Tensor, left: Tensor | None, right: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Q_L^T G, G Q_R and Q_L^T G Q_R; G is overwritten, and a basis that is I makes two of the three one tensor."""
        by_left, by_right = G, G
        if left is not None:
            by_left = left.float().mT @ G
        if right is not None:
            right = right.float()
            by_right = G @ right
        if left is None or right is None:
            return by_left, by_right, by_left if right is None else by_right
        return by_left, by_right, torch.bmm(by_left, right, out=G)

    def _start(self, stack: Stack, G: Tensor) -> None:
        state, beta = stack.state, self.options.betas[1]
        state["step"] = 0
        state["m"] = stack.zeros(stack.rows, stack.cols, dtype=self.state_dtype)
        for there, names, A in (
            (stack.left, ("L", "left", "left_root"), G),
            (stack.right, ("R", "right", "right_root"), G.mT),
        ):
            if not there:
                continue
            factor, basis, root = names
            state[factor] = stack.zeros(A.shape[1], A.shape[1])
            add_gram_(state[factor], A / math.sqrt(A.shape[2]), beta)
            state[basis] = self.eigenbasis(state[factor]).to(self.state_dtype)
            state[root] = stack.zeros(A.shape[1]).add_(self.options.init_factor**-0.5)

    def _roots(self, stack: Stack) -> Tensor:
        """1 / sqrt(D_L D_R) [n, rows, cols]."""
        left, right = (
            root if root is not None else stack.zeros(d).add_(1)
            for root, d in ((stack.state.get("left_root"), stack.rows), (stack.state.get("right_root"), stack.cols))
        )  # fmt: skip
        return left[:, :, None] * right[:, None, :]

    def _observe(self, stack: Stack, by_left: Tensor, by_right: Tensor, P: Tensor) -> None:
        """Take G into the factors and their eigenvalues, each whitened by the other side.

        `by_left` is Q_L^T G, `by_right` is G Q_R, `P` is Q_L^T G Q_R; all are overwritten.
        """
        state, beta = stack.state, self.options.betas[1]
        left, right = state.get("left_root"), state.get("right_root")
        if left is not None:
            white = by_right if right is None else by_right.mul_(right[:, None, :])
            add_gram_(state["L"], white.mul_(1 / math.sqrt(stack.cols)), beta)
        if right is not None:
            white = by_left if left is None else by_left.mul_(left[:, :, None])
            add_gram_(state["R"], white.mul_(1 / math.sqrt(stack.rows)).mT, beta)
        square = P.square_()
        if left is not None:
            state["left_root"] = self._eigenvalues(left, _mean(square, right), beta)
        if right is not None:
            state["right_root"] = self._eigenvalues(right, _mean(square.mT, left), beta)

    def _eigenvalues(self, root: Tensor, seen: Tensor, beta: float) -> Tensor:
        """D^-1/2 after D <- beta D + (1 - beta) seen, clamped."""
        most = max(10, min(root.shape[-1], self.options.max_clamp))
        return root.pow(-2).lerp_(seen, 1 - beta).rsqrt_().clamp_(max=most)

    def _refresh(self, stack: Stack) -> None:
        """New bases; M is turned."""
        state, turns = stack.state, dict[str, Tensor]()
        for factor, basis in (("L", "left"), ("R", "right")):
            if factor not in state:
                continue
            old = state[basis].float()
            new = self.orthonormal(power_step(state[factor], old, sort=False)[0])
            if new is not None:
                turns[basis] = old.mT @ new
                state[basis] = new.to(self.state_dtype)
        self.turn_moment(stack, turns)


def _mean(square: Tensor, root: Tensor | None) -> Tensor:
    """Mean over the last axis of square [n, a, b] times root^2 [n, b]."""
    if root is None:
        return square.mean(-1)
    return (square @ root.square()[:, :, None]).squeeze(-1) / square.shape[-1]


def build(spec: OptimizerSpec, model: nn.Module) -> KLShampoo:
    """KL-Shampoo on the matrices of `model`, AdamW on the rest."""
    return KLShampoo(spec, Options.model_validate(spec.options), model)
