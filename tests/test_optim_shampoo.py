"""`kl_shampoo` and `shampoo_quarter`: closed forms, the published loop, one-sided forms, ends, state, failures."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from harness.optim import kl_shampoo, klshampoo, shampoo_quarter
from harness.optim.eigenbasis import mirrored_
from harness.optim.matrix import MatrixOptimizer
from harness.plugins import optimizer_names
from harness.specs import OptimizerSpec

BUILD: dict[str, Callable[[OptimizerSpec, nn.Module], MatrixOptimizer]] = {
    "kl_shampoo": kl_shampoo.build,
    "shampoo_quarter": shampoo_quarter.build,
}


class Square(nn.Module):
    """One linear map without a residual stream: both sides."""

    def __init__(self, rows: int, cols: int) -> None:
        super().__init__()
        self.map = nn.Linear(cols, rows, bias=False)
        nn.init.zeros_(self.map.weight)


class OneSided(nn.Module):
    """An MLP's map in a block whose norm has width `residual`."""

    def __init__(self, rows: int, cols: int, residual: int) -> None:
        super().__init__()
        block = nn.Module()
        block.norm, block.map = nn.LayerNorm(residual), nn.Linear(cols, rows, bias=False)
        nn.init.zeros_(block.map.weight)
        self.layers = nn.ModuleList([block])

    @property
    def map(self) -> nn.Linear:
        return self.layers[0].map


def gradients(steps: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(steps, *shape, generator=torch.Generator().manual_seed(seed))


def walk(name: str, model: nn.Module, G: Tensor, lr: float = 1.0, **options: object) -> Tensor:
    """Minus the update of each step along given gradients, without decay."""
    opt = BUILD[name](OptimizerSpec(name=name, lr=lr, weight_decay=0.0, options=options), model)
    seen = [model.map.weight.detach().clone()]
    for g in G:
        model.map.weight.grad = g.clone()
        opt.step()
        seen.append(model.map.weight.detach().clone())
    return (torch.stack(seen[:-1]) - torch.stack(seen[1:])) / lr


def polar(G: Tensor) -> Tensor:
    """U V^T of the thin singular value decomposition, in float64."""
    U, _, V = torch.linalg.svd(G.double(), full_matrices=False)
    return (U @ V).float()


# --- shampoo_quarter ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(7, 7), (12, 5), (5, 12), (1, 6)])
def test_quarter_powers_on_one_gradient_are_the_polar_factor_at_every_step(shape: tuple[int, int]) -> None:
    G = gradients(1, *shape)
    steps = walk("shampoo_quarter", Square(*shape), G.expand(13, *shape), eps=1e-7)
    torch.testing.assert_close(steps, polar(G).expand_as(steps), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("rows", "cols", "residual", "side"), [(12, 5, 5, "right"), (5, 12, 5, "left"), (5, 12, 12, "right")]
)
def test_a_single_side_takes_the_power_one_half(rows: int, cols: int, residual: int, side: str) -> None:
    """G (G^T G)^-1/2 = U V^T, also where the preconditioned side is the long one and its factor is singular."""
    G = gradients(1, rows, cols)
    model = OneSided(rows, cols, residual)
    opt = shampoo_quarter.build(OptimizerSpec(), model)
    assert (opt.stacks[0].left, opt.stacks[0].right) == (side == "left", side == "right")
    steps = walk("shampoo_quarter", model, G.expand(3, rows, cols), eps=1e-7)
    torch.testing.assert_close(steps, polar(G).expand_as(steps), rtol=0, atol=1e-3)


def test_quarter_powers_follow_the_averages() -> None:
    """Where the bases are found at every step, the step is L^-1/4 M R^-1/4 of the bias-corrected averages."""
    G = gradients(6, 6, 9)
    b1, b2 = 0.9, 0.98
    steps = walk("shampoo_quarter", Square(6, 9), G, precondition_frequency=1, eps=1e-9)
    L, R, M = (torch.zeros(a, b, dtype=torch.float64) for a, b in ((6, 6), (9, 9), (6, 9)))
    for t, g in enumerate(G.double(), start=1):
        L, R, M = (
            b2 * L + (1 - b2) * g @ g.mT,
            b2 * R + (1 - b2) * g.mT @ g,
            b1 * M + (1 - b1) * g,
        )
        if t < 3:
            continue  # R is singular before
        wanted = power(L / (1 - b2**t), -0.25) @ (M / (1 - b1**t)) @ power(R / (1 - b2**t), -0.25)
        torch.testing.assert_close(steps[t - 1].double(), wanted, rtol=1e-3, atol=1e-3)


def power(S: Tensor, exponent: float) -> Tensor:
    values, Q = torch.linalg.eigh(S)
    return Q @ torch.diag(values**exponent) @ Q.mT


def test_between_refreshes_the_eigenvalues_are_the_diagonal_in_the_old_basis() -> None:
    model = Square(6, 6)
    opt = shampoo_quarter.build(OptimizerSpec(), model)
    for g in gradients(8, 6, 6):
        model.map.weight.grad = g
        opt.step()
    state = opt.stacks[0].state
    Q, L = state["left"][0], mirrored_(state["L"])[0]
    torch.testing.assert_close(state["left_values"][0], (Q.mT @ L @ Q).diagonal(), rtol=1e-3, atol=1e-5)
    assert ((Q.mT @ L @ Q) - torch.diag(state["left_values"][0])).abs().max() > 1e-3


def test_a_direction_that_comes_late_is_not_blown_up() -> None:
    """Rank 1 at the refresh, full rank after it: eigenvalues frozen at the refresh would divide by eps."""
    first = gradients(1, 8, 1) @ gradients(1, 1, 8, seed=1)
    steps = walk("shampoo_quarter", Square(8, 8), torch.cat([first, gradients(8, 8, 8, seed=2)]))
    assert torch.linalg.matrix_norm(steps, 2).max() < 3


def test_klshampoo_is_the_papers_name_of_shampoo_quarter() -> None:
    G, built = gradients(4, 5, 5), []
    for build in (klshampoo.build, shampoo_quarter.build):
        model = Square(5, 5)
        opt = build(OptimizerSpec(lr=0.1), model)
        for g in G:
            model.map.weight.grad = g.clone()
            opt.step()
        built.append(model.map.weight.detach())
    assert torch.equal(*built)
    assert klshampoo.Options is shampoo_quarter.Options
    assert {"klshampoo", "kl_shampoo", "shampoo_quarter", "soap"} <= set(optimizer_names())


# --- kl_shampoo -----------------------------------------------------------------------------------------------------
def test_the_fixed_point_on_one_square_gradient_has_rms_one() -> None:
    """The step ends at sqrt(n) U V^T, whatever the size of G."""
    for size in (0.3, 3.0):
        G = size * gradients(1, 8, 8, seed=3)
        steps = walk("kl_shampoo", Square(8, 8), G.expand(400, 8, 8), betas=(0.5, 0.9))
        torch.testing.assert_close(steps[-1], math.sqrt(8) * polar(G)[0], rtol=0, atol=0.02)
        assert steps[-1].square().mean().sqrt().item() == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize(
    ("rows", "cols", "residual", "units"),
    [(12, 5, 5, math.sqrt(12)), (5, 12, 5, math.sqrt(12))],
)
def test_a_single_side_of_kl_shampoo_ends_at_the_polar_factor(
    rows: int, cols: int, residual: int, units: float
) -> None:
    """L = G G^T / n alone gives L^-1/2 G = sqrt(n) U V^T; R alone sqrt(m) U V^T."""
    G = gradients(1, rows, cols)
    steps = walk("kl_shampoo", OneSided(rows, cols, residual), G.expand(300, rows, cols), betas=(0.5, 0.9))
    torch.testing.assert_close(steps[-1], units * polar(G)[0], rtol=0, atol=0.01)


def published(G: Tensor, QL: Tensor, QR: Tensor, b1: float, b2: float, every: int) -> Tensor:
    """The loop of the paper on one matrix in float64, from given first bases; minus the update of each step.

    The first bases are not unique: the longer side's factor is singular.
    """
    m, n = G.shape[1:]
    M = torch.zeros(m, n, dtype=torch.float64)
    steps = [torch.zeros(m, n)]
    g = G[0].double()
    L, R = (1 - b2) * g @ g.mT / n, (1 - b2) * g.mT @ g / m
    QL, QR = QL.double(), QR.double()
    for S, Q in ((L, QL), (R, QR)):
        turned = Q.mT @ S @ Q
        assert (turned - torch.diag(turned.diagonal().sort(descending=True)[0])).norm() < 1e-5 * S.norm()
    DL, DR = (torch.full((d,), 0.1, dtype=torch.float64) for d in (m, n))
    for t, g in enumerate(G[1:].double(), start=1):
        M = b1 * M + (1 - b1) * g
        steps.append(QL @ ((QL.mT @ M @ QR) / ((DL[:, None] * DR).sqrt() + 1e-8)) @ QR.mT)
        L = b2 * L + (1 - b2) * g @ QR @ torch.diag(1 / DR) @ QR.mT @ g.mT / n
        R = b2 * R + (1 - b2) * g.mT @ QL @ torch.diag(1 / DL) @ QL.mT @ g / m
        P = (QL.mT @ g @ QR).square()
        DL, DR = (
            b2 * DL + (1 - b2) * (P / DR).mean(1),
            b2 * DR + (1 - b2) * (P / DL[:, None]).mean(0),
        )
        DL, DR = DL.clamp(min=max(10, m) ** -2.0), DR.clamp(min=max(10, n) ** -2.0)
        if t % every == 0:
            QL, QR = torch.linalg.qr(L @ QL)[0], torch.linalg.qr(R @ QR)[0]
    return torch.stack([s.float() for s in steps])


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9)])
@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_kl_shampoo_is_the_published_loop(shape: tuple[int, int], size: float) -> None:
    """Also where the eigenvalues meet their clamp, which small gradients do."""
    G = size * gradients(40, *shape)
    options = {"betas": (0.9, 0.8), "precondition_frequency": 3}
    model = Square(*shape)
    opt = kl_shampoo.build(OptimizerSpec(options=options), model)
    model.map.weight.grad = G[0]
    opt.step()
    first = opt.stacks[0].state
    wanted = published(G, first["left"][0], first["right"][0], 0.9, 0.8, 3)
    steps = walk("kl_shampoo", Square(*shape), G, **options)
    assert torch.equal(steps[0], torch.zeros(shape))
    for t in range(1, 40):
        assert (steps[t] - wanted[t]).norm() / wanted[t].norm() < 1e-3, t


# --- both -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("rank", [0, 1])
def test_gradients_without_full_rank_give_finite_updates(name: str, rank: int) -> None:
    for model in (Square(8, 5), OneSided(8, 5, 5), OneSided(8, 5, 8)):
        steps = walk(name, model, gradients(25, 8, rank) @ gradients(25, rank, 5, seed=1))
        assert steps.isfinite().all()
        assert bool((steps != 0).any()) == bool(rank)


@pytest.mark.parametrize("name", BUILD)
def test_a_gradient_that_is_not_contiguous_is_the_same_gradient(name: str) -> None:
    G = gradients(12, 6, 4)
    strided = torch.stack([g.mT for g in G]).mT
    assert not strided[0].is_contiguous()
    plain, other = Square(6, 4), Square(6, 4)
    first, second = (BUILD[name](OptimizerSpec(lr=0.1), m) for m in (plain, other))
    for g, s in zip(G, strided, strict=True):
        plain.map.weight.grad, other.map.weight.grad = g.clone(), s
        first.step()
        second.step()
    assert torch.equal(plain.map.weight, other.map.weight)


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_state_survives_a_file_and_goes_on_exactly(name: str, dtype: str) -> None:
    G = gradients(24, 6, 9)
    spec = OptimizerSpec(lr=0.01, options={"state_dtype": dtype})

    def go(model: Square, opt: MatrixOptimizer, part: Tensor) -> None:
        for g in part:
            model.map.weight.grad = g.clone()
            opt.step()

    whole, resumed = Square(6, 9), Square(6, 9)
    first = BUILD[name](spec, whole)
    go(whole, first, G[:12])
    file = io.BytesIO()
    torch.save({"model": whole.state_dict(), "opt": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed.load_state_dict(saved["model"])
    second = BUILD[name](spec, resumed)
    second.load_state_dict(saved["opt"])
    go(whole, first, G[12:])
    go(resumed, second, G[12:])
    assert torch.equal(whole.map.weight, resumed.map.weight)
    halves = {k for k, v in first.stacks[0].state.items() if getattr(v, "dtype", None) == torch.bfloat16}
    assert halves == ({"m", "left", "right"} if dtype == "bfloat16" else set())


@pytest.mark.parametrize("name", BUILD)
def test_bfloat16_state_stays_near_the_path(name: str) -> None:
    G = gradients(1, 12, 12) + 0.3 * gradients(25, 12, 12, seed=1)
    one, other = (walk(name, Square(12, 12), G, state_dtype=d).sum(0) for d in ("float32", "bfloat16"))
    assert 0 < (one - other).norm() / one.norm() < 0.05


@pytest.mark.parametrize("name", BUILD)
def test_stacked_matrices_do_not_touch_each_other(name: str) -> None:
    """Two maps of one shape in one model walk as each would alone; the second starts later."""
    model = nn.Module()
    model.a, model.b = nn.Linear(5, 7, bias=False), nn.Linear(5, 7, bias=False)
    for p in model.parameters():
        nn.init.zeros_(p)
    G, H = gradients(20, 7, 5), gradients(20, 7, 5, seed=1)
    opt = BUILD[name](OptimizerSpec(lr=1.0, weight_decay=0.0), model)
    for t in range(20):
        model.a.weight.grad = G[t].clone()
        model.b.weight.grad = H[t].clone() if t >= 4 else None
        opt.step()
    for p, part in ((model.a.weight, G), (model.b.weight, H[4:])):
        torch.testing.assert_close(-p.detach(), walk(name, Square(7, 5), part).sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "routine"), [("kl_shampoo", "eigh"), ("kl_shampoo", "qr"), ("shampoo_quarter", "eigh")]
)
@pytest.mark.parametrize("times", [1, 1000])
def test_a_decomposition_that_fails_is_counted_and_training_goes_on(
    name: str, routine: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, function = (torch.linalg, "eigh") if routine == "eigh" else (torch, "geqrf")
    works, left = getattr(home, function), [times]

    def sometimes(S: Tensor) -> object:
        left[0] -= 1
        if left[0] >= 0:
            raise torch.linalg.LinAlgError(f"{routine} did not converge")
        return works(S)

    monkeypatch.setattr(home, function, sometimes)
    model = Square(6, 6)
    opt = BUILD[name](OptimizerSpec(lr=0.01), model)
    for g in gradients(11, 6, 6):
        model.map.weight.grad = g
        opt.step()
    sought = 2 if name == "kl_shampoo" else 4  # both sides, at one refresh or at two
    assert opt.failures[routine] == (1 if times == 1 else sought)
    assert opt.failures.get(f"{routine}_float64", 0) == (0 if times == 1 else sought)
    assert model.map.weight.isfinite().all()
    assert (model.map.weight != 0).all()
