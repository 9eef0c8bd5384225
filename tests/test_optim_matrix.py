"""Matrix optimizers: what they take, how stacks behave, Newton-Schulz, spectral powers, AdamW for the rest."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_paths import ABSENT, cases, norm_difference, path_of
from pydantic import ValidationError
from tiny_text import random_llama
from torch import Tensor, nn

from harness.errors import SubmissionError
from harness.optim import matrix, muon, spectral_power
from harness.optim.matrix import MatrixOptimizer, MatrixOptions
from harness.optim.newton_schulz import QUINTIC, orthogonalised
from harness.optim.stacks import Stack
from harness.specs import OptimizerSpec

NAMES = ["muon", "spectral_power"]
MODULES = {"muon": muon, "spectral_power": spectral_power}


class Momentum(MatrixOptimizer):
    """Counts its steps and follows an average of the gradients, skipping the weights in the first step."""

    decay_first = False

    def direction(self, stack: Stack, G: Tensor) -> Tensor | None:
        stack.state["t"] = stack.state.get("t", 0) + 1
        m = stack.state.setdefault("m", stack.zeros(stack.rows, stack.cols))
        m.lerp_(G, 0.1)
        return None if stack.state["t"] == 1 else m


def spec(lr: float = 0.01, **more: Any) -> OptimizerSpec:
    return OptimizerSpec(name="muon", lr=lr, **{"weight_decay": 0.1, **more})


def build(name: str, model: nn.Module, lr: float = 0.01, decay: float = 0.1, **options: Any) -> Any:
    return MODULES[name].build(spec(lr, weight_decay=decay, options=options), model)


class Net(nn.Module):
    """Embedding, two blocks of two linear maps of one shape, head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(10, 6)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(6, 9), "down": nn.Linear(9, 6)}) for _ in range(2)
        )
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 10, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block["down"](torch.tanh(block["up"](x)))
        return self.head(self.norm(x))


def loss(model: nn.Module, seed: int) -> Tensor:
    ids = torch.randint(10, (12,), generator=torch.Generator().manual_seed(seed))
    return nn.functional.cross_entropy(model(ids), (ids + 1) % 10)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        optimizer.zero_grad()
        loss(model, seed).backward()
        optimizer.step()


def one(weight: Tensor) -> nn.Module:
    """A model of nothing but the matrix [out, in]."""
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    with torch.no_grad():
        model.weight.copy_(weight)
    return model


def step(optimizer: torch.optim.Optimizer, model: nn.Module, *grads: Tensor | None) -> None:
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = None if grad is None else grad.clone()
    optimizer.step()


# --- Newton-Schulz ---------------------------------------------------------------------------------------------------
def scalar_map(s: Tensor, iteration: str, steps: int) -> Tensor:
    s = s / (s.square().sum(-1, keepdim=True).sqrt() + (1e-7 if iteration == "quintic" else 0))
    a, b, c = QUINTIC
    for _ in range(steps):
        s = 1.5 * s - 0.5 * s**3 if iteration == "cubic" else a * s + b * s**3 + c * s**5
    return s


@pytest.mark.parametrize("iteration", ["cubic", "quintic"])
@pytest.mark.parametrize("shape", [(7, 7), (5, 11), (11, 5), (1, 6)])
def test_an_iteration_is_its_scalar_map_on_the_singular_values(
    iteration: str, shape: tuple[int, int]
) -> None:
    torch.manual_seed(1)
    M = torch.randn(3, *shape, dtype=torch.float64)
    U, S, Vh = torch.linalg.svd(M, full_matrices=False)
    want = (U * scalar_map(S, iteration, 5)[:, None, :]) @ Vh
    assert torch.allclose(orthogonalised(M, iteration, 5), want, atol=1e-12)  # type: ignore[arg-type]


def test_many_cubic_iterations_give_the_polar_factor() -> None:
    torch.manual_seed(2)
    M = torch.randn(2, 6, 9, dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(M, full_matrices=False)
    assert torch.allclose(orthogonalised(M, "cubic", 60), U @ Vh, atol=1e-13)


def test_five_cubic_iterations_leave_small_singular_values_small() -> None:
    flat = torch.linalg.qr(
        torch.randn(400, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    )[0]
    few = torch.linalg.svdvals(orthogonalised(flat[None], "cubic", 5))
    assert few.max() < 1.5**5 * 400**-0.5 and few.max() < 0.38
    assert torch.allclose(
        torch.linalg.svdvals(orthogonalised(flat[None], "cubic", 15)), torch.ones(1, 400).double()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_quintic_stays_in_its_band(dtype: torch.dtype) -> None:
    """5 steps bring every s / |M|_F in [.01, 1] to [.65, 1.23]; the published claim is about [.5, 1.5]."""
    low, high = (0.65, 1.23) if dtype == torch.float32 else (0.6, 1.28)
    torch.manual_seed(4)
    U, V = (torch.linalg.qr(torch.randn(20, 64, 64))[0] for _ in range(2))
    S = torch.logspace(0, -1, 64)[None, :]
    got = torch.linalg.svdvals(orthogonalised(((U * S[:, None, :]) @ V).to(dtype), "quintic", 5).float())
    assert low < float(got.min()) and float(got.max()) < high
    scalars = torch.linspace(0.01, 1, 100_001, dtype=torch.float64)
    a, b, c = QUINTIC
    for _ in range(5):
        scalars = a * scalars + b * scalars**3 + c * scalars**5
    assert float(scalars.min()) > 0.65 and float(scalars.max()) < 1.23


@given(st.integers(0, 10_000), st.sampled_from([1e-12, 1e-3, 1.0, 1e12]))
@settings(max_examples=25, deadline=None)
def test_the_cubic_does_not_depend_on_scale_and_turns_with_its_argument(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    M = torch.randn(1, 4, 7, dtype=torch.float64, generator=generator)
    Q = torch.linalg.qr(torch.randn(1, 4, 4, dtype=torch.float64, generator=generator))[0]
    want = orthogonalised(M, "cubic", 5)
    assert torch.allclose(orthogonalised(M * scale, "cubic", 5), want, atol=1e-10)
    assert torch.allclose(orthogonalised(Q @ M, "cubic", 5), Q @ want, atol=1e-10)
    assert torch.allclose(orthogonalised(M.mT, "cubic", 5), want.mT, atol=1e-10)


@pytest.mark.parametrize("iteration", ["cubic", "quintic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_stays_zero(iteration: str, dtype: torch.dtype) -> None:
    assert not orthogonalised(torch.zeros(2, 3, 5, dtype=dtype), iteration, 5).any()  # type: ignore[arg-type]


# --- Muon ------------------------------------------------------------------------------------------------------------
def test_one_step_of_muon_in_closed_form() -> None:
    """Orthogonal gradient c Q [2, 2]: s / |M|_F = 2^-.5 for both singular values, so the step is f^5(2^-.5) Q."""
    Q = torch.tensor([[0.6, 0.8], [-0.8, 0.6]])
    model = one(torch.ones(2, 2))
    optimizer = build("muon", model, lr=0.1, decay=0.5, iteration_dtype="float32")
    step(optimizer, model, 3 * Q)
    s = float(scalar_map(torch.ones(2, dtype=torch.float64), "quintic", 5)[0])
    assert torch.allclose(model.weight, torch.ones(2, 2) * (1 - 0.1 * 0.5) - 0.1 * s * Q, atol=1e-6)


@pytest.mark.parametrize("nesterov", [True, False])
def test_both_momentum_forms_go_the_same_way(nesterov: bool) -> None:
    torch.manual_seed(5)
    grads = torch.randn(6, 5, 8)
    ends = []
    for form in ("ema", "classic"):
        model = one(torch.zeros(5, 8))
        optimizer = build("muon", model, momentum_form=form, nesterov=nesterov, iteration_dtype="float32")
        for grad in grads:
            step(optimizer, model, grad)
        ends.append(model.weight.detach())
    assert ends[0].abs().max() > 0.01
    assert torch.allclose(*ends, atol=1e-5)


@pytest.mark.parametrize(
    ("scale", "tall", "wide"),
    [("none", 1, 1), ("rms_to_rms", 2, 0.5), ("tall", 2, 1), ("adam_rms", 0.2 * 8**0.5, 0.2 * 8**0.5)],
)
def test_scales(scale: str, tall: float, wide: float) -> None:
    for shape, factor in (((8, 2), tall), ((2, 8), wide)):
        optimizer = build("muon", one(torch.zeros(shape)), scale=scale)
        assert optimizer.factor(optimizer.stacks[0]) == pytest.approx(factor)


def test_the_scale_of_a_transposed_weight_goes_by_its_outputs() -> None:
    from transformers.pytorch_utils import Conv1D

    optimizer = build("muon", Conv1D(8, 2), scale="rms_to_rms")
    assert optimizer.stacks[0].rows == 2 and optimizer.factor(optimizer.stacks[0]) == pytest.approx(2)


@pytest.mark.shared
@pytest.mark.skipif(ABSENT, reason="the reference data is not beside this checkout")
@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 2e-2), ("float32", 6e-2)])
@pytest.mark.parametrize("case", cases("muon"))
def test_the_path_of_the_public_muon(case: int, dtype: str, most: float) -> None:
    path = path_of(case)
    h = path.hyper
    model = one(path.start)
    optimizer = build(
        "muon", model, lr=h["lr"], decay=h["weight_decay"], momentum=h["momentum"], steps=h["ns_steps"],
        nesterov=h["nesterov"], iteration_dtype=dtype,
    )  # fmt: skip
    for t, want in enumerate(path.weights):
        step(optimizer, model, path.gradient(model.weight.detach(), t))
        assert norm_difference(model.weight.detach(), want) < most


# --- spectral power --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
def test_spectral_power_against_the_formula(power: float) -> None:
    torch.manual_seed(6)
    G, model = torch.randn(5, 8), one(torch.zeros(5, 8))
    step(build("spectral_power", model, lr=0.5, decay=0, power=power), model, G)
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    want = (U * S**power) @ Vh
    want = want / want.square().mean().sqrt()
    assert torch.allclose(model.weight.double(), -0.5 * want, atol=1e-5)
    if power == 1:
        assert torch.allclose(model.weight, -0.5 * G / G.square().mean().sqrt(), atol=1e-5)
    if power == 0:
        assert torch.allclose(model.weight.double(), -0.5 * 8**0.5 * U @ Vh, atol=1e-5)


def test_a_flat_spectrum_counts_only_directions_that_are_there() -> None:
    """Rank 1: u v^T at RMS 1, not noise in the directions that rounding fills."""
    u, v = torch.tensor([1.0, 2.0, 2.0]) / 3, torch.tensor([2.0, -1.0, 0.0, 2.0]) / 3
    model = one(torch.zeros(3, 4))
    step(build("spectral_power", model, lr=1.0, decay=0), model, 7 * torch.outer(u, v))
    assert torch.allclose(model.weight, -(12**0.5) * torch.outer(u, v), atol=1e-5)


def test_a_rank_tolerance_cuts_small_directions() -> None:
    G = torch.diag(torch.tensor([1.0, 0.1, 0.001]))
    model = one(torch.zeros(3, 3))
    step(build("spectral_power", model, lr=1.0, decay=0, rank_tolerance=0.01), model, G)
    assert torch.allclose(
        model.weight, -torch.diag(torch.tensor([1.0, 1.0, 0.0])) * (9 / 2) ** 0.5, atol=1e-5
    )


def test_a_failing_decomposition_is_counted_and_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = one(torch.ones(3, 3))
    optimizer = build("spectral_power", model)
    svd = torch.linalg.svd

    def fails(M: Tensor, *, full_matrices: bool) -> Any:
        if M.dtype in broken:
            raise torch.linalg.LinAlgError("no convergence")
        return svd(M, full_matrices=full_matrices)

    monkeypatch.setattr(torch.linalg, "svd", fails)
    broken = {torch.float32}
    step(optimizer, model, torch.eye(3))
    assert optimizer.failures == {"svd": 1} and not torch.equal(model.weight, torch.ones(3, 3))
    before = model.weight.detach().clone()
    broken = {torch.float32, torch.float64}
    step(optimizer, model, torch.eye(3))
    assert optimizer.failures == {"svd": 2, "svd_float64": 1} and torch.equal(model.weight, before)


# --- what all of them share ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("adam_lr", [None, 0.003])
def test_the_rest_is_stepped_by_torchs_adamw_to_the_bit(adam_lr: float | None) -> None:
    model, grads = Net(), torch.Generator().manual_seed(0)
    rest = [n for n, _ in model.named_parameters() if "blocks" not in n or "bias" in n]
    twin = copy.deepcopy(model)
    theirs = dict(twin.named_parameters())
    options = {"adam_betas": (0.8, 0.95), "adam_eps": 1e-6, "adam_lr": adam_lr}
    ours = build("muon", model, **options)
    adamw = torch.optim.AdamW(
        [theirs[n] for n in rest], lr=adam_lr or 0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, fused=True
    )  # fmt: skip
    for t in range(7):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=grads)
            theirs[name].grad = parameter.grad.clone()
        for group, base in zip(ours.param_groups, (0.01, adam_lr or 0.01), strict=True):
            group["lr"] = base * (1 - t / 10)
        adamw.param_groups[0]["lr"] = (adam_lr or 0.01) * (1 - t / 10)
        ours.step()
        adamw.step()
    mine = dict(model.named_parameters())
    assert all(torch.equal(mine[n], theirs[n]) for n in rest)
    assert not any(torch.equal(mine[n], theirs[n]) for n in mine if n not in rest)


def test_groups_are_told_apart() -> None:
    optimizer = build("muon", Net(), adam_lr=0.002)
    assert [(g["kind"], g["lr"], g["weight_decay"], len(g["params"])) for g in optimizer.param_groups] == [
        ("matrix", 0.01, 0.1, 4),
        ("adamw", 0.002, 0.1, 8),
    ]
    assert [len(stack) for stack in optimizer.stacks] == [2, 2]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_training_goes_on_to_the_bit_after_a_reload(name: str, state_dtype: str, tmp_path: Path) -> None:
    model = Net()
    optimizer = build(name, model, state_dtype=state_dtype)
    train(model, optimizer, range(4))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    twin = copy.deepcopy(model)
    again = build(name, twin, state_dtype=state_dtype)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert [s.state["momentum"].dtype for s in again.stacks] == [getattr(torch, state_dtype)] * 2
    train(model, optimizer, range(4, 9))
    train(twin, again, range(4, 9))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_loaded_state_is_a_copy() -> None:
    model, twin = Net(), Net()
    optimizer, again = build("muon", model), build("muon", twin)
    train(model, optimizer, range(2))
    kept = copy.deepcopy(optimizer.state_dict())
    again.load_state_dict(optimizer.state_dict())
    train(twin, again, range(3))
    now = optimizer.state_dict()
    for before, after in zip(kept["stacks"], now["stacks"], strict=True):
        assert torch.equal(before["state"]["momentum"], after["state"]["momentum"])
    for i, values in kept["adamw"]["state"].items():
        assert torch.equal(values["exp_avg"], now["adamw"]["state"][i]["exp_avg"])


def test_a_state_of_another_model_is_refused() -> None:
    optimizer = build("muon", Net())
    with pytest.raises(ValueError, match="1 matrices does not fit 4"):
        optimizer.load_state_dict(build("muon", one(torch.ones(2, 2))).state_dict())


@given(st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_a_matrix_without_a_gradient_is_absent(pattern: list[set[int]]) -> None:
    """Four matrices in one stack, each with a gradient only at times, go as four optimizers of one matrix would."""
    options, rule = MatrixOptions(), spec(0.1)
    torch.manual_seed(7)
    together = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(4)))
    alone = [copy.deepcopy(layer) for layer in together]
    stacked = Momentum(rule, options, together)
    single = [Momentum(rule, options, layer) for layer in alone]
    for having in pattern:
        grads = torch.randn(4, 3, 3)
        step(stacked, together, *(grads[i] if i in having else None for i in range(4)))
        for i in having:
            step(single[i], alone[i], grads[i])
        held = io.BytesIO()
        torch.save(stacked.state_dict(), held)
        held.seek(0)
        stacked = Momentum(rule, options, together)
        stacked.load_state_dict(torch.load(held, weights_only=True))
    for a, b in zip(together, alone, strict=True):
        assert torch.equal(a.weight, b.weight)
    for stack in stacked.stacks:
        for i in stack.index:
            assert stack.state.get("t", 0) == sum(i in having for having in pattern)


def test_decay_comes_before_or_after_the_step() -> None:
    W, G = torch.full((2, 2), 3.0), torch.eye(2)
    for first in (True, False):
        model = one(W)
        optimizer = Momentum(spec(0.5, weight_decay=0.2), MatrixOptions(), model)
        optimizer.decay_first = first
        step(optimizer, model, G)
        assert torch.equal(model.weight, W)  # no direction, so no decay either
        step(optimizer, model, G)
        d = 0.19 * G
        want = 0.9 * W - 0.5 * d if first else 0.9 * (W - 0.5 * d)
        assert torch.allclose(model.weight, want)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["zero", "rank one", "strided", "tiny", "huge"])
def test_odd_gradients(name: str, kind: str) -> None:
    torch.manual_seed(8)
    G = torch.randn(5, 7)
    G = {
        "zero": torch.zeros(5, 7), "rank one": torch.outer(G[:, 0], G[0]), "strided": torch.randn(7, 10)[:, ::2].T,
        "tiny": G * 1e-30, "huge": G * 1e15,
    }[kind]  # fmt: skip
    ends = []
    for grad in (G, G.contiguous()):
        model = one(torch.zeros(5, 7))
        optimizer = build(name, model)
        for _ in range(3):
            model.weight.grad = grad
            optimizer.step()
        ends.append(model.weight.detach())
    assert torch.isfinite(ends[0]).all() and torch.equal(*ends)
    if kind in ("rank one", "strided", "huge"):
        assert ends[0].abs().max() > 0.001
    if kind == "zero":
        assert not ends[0].any()


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_weights(name: str) -> None:
    model = Net().bfloat16()
    before = [p.detach().clone() for p in model.parameters()]
    train(model, build(name, model, lr=0.05), range(3))
    for a, b in zip(before, model.parameters(), strict=True):
        assert b.dtype == torch.bfloat16 and torch.isfinite(b).all() and not torch.equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_learning(name: str) -> None:
    model = Net()
    before = loss(model, 0).item()
    train(model, build(name, model, lr=0.02, decay=0), range(60))
    assert loss(model, 0).item() < 0.5 * before


def test_a_closure_is_called_with_gradients() -> None:
    model = Net()
    optimizer = build("muon", model)

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(model, 0)
        value.backward()
        return value.item()

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first


def test_stacks_hold_matrices_that_are_treated_alike() -> None:
    """Of a Llama: q and o, k and v, gate and up, down; `sides=both` overrules the rule, not the stacking by shape."""
    auto = build("muon", random_llama(40))
    seen = {(s.rows, s.cols, s.left, s.right, len(s)) for s in auto.stacks}
    mlp = {(48, 32, False, True, 4), (32, 48, True, False, 2)}
    assert seen == {(32, 32, True, True, 4), (16, 32, True, True, 4)} | mlp
    both = build("muon", random_llama(40), sides="both")
    assert {(s.left, s.right) for s in both.stacks} == {(True, True)} and len(both.stacks) == 4


def test_large_stacks_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Net()
    parts = copy.deepcopy(whole)
    train(whole, build("muon", whole, iteration_dtype="float32"), range(3))
    monkeypatch.setattr(matrix, "STACK_ELEMENTS", 54)
    optimizer = build("muon", parts, iteration_dtype="float32")
    assert [len(stack) for stack in optimizer.stacks] == [1, 1, 1, 1]
    train(parts, optimizer, range(3))
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_frozen_parameters_are_left_out() -> None:
    model = Net()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "blocks.1.up.weight")
    optimizer = build("muon", model)
    assert [len(g["params"]) for g in optimizer.param_groups] == [1, 0]
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, range(2))
    moved = [n for (n, p), b in zip(model.named_parameters(), before, strict=True) if not torch.equal(p, b)]
    assert moved == ["blocks.1.up.weight"]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_without_a_matrix_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(SubmissionError, match="has no matrix to work on") as refused:
        build(name, nn.Sequential(nn.Embedding(4, 3), nn.LayerNorm(3)))
    assert "\n" not in str(refused.value) and "set optimizer.name=adamw" in str(refused.value)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (muon, {"momentum": 1.0}), (muon, {"steps": 0}), (muon, {"adam_betas": [0.9, 1.5]}), (muon, {"scale": "big"}),
        (spectral_power, {"power": 1.5}), (spectral_power, {"iteration": "cubic"}), (muon, {"sides": "left"}),
    ],
)  # fmt: skip
def test_bad_options(module: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        module.Options.model_validate(options)


# --- the decomposition that others use -------------------------------------------------------------------------------
def symmetric(count: int, d: int) -> Tensor:
    A = torch.randn(count, d, d, generator=torch.Generator().manual_seed(9))
    return A @ A.mT


def test_eigh_gives_the_matrix_back() -> None:
    S, optimizer = symmetric(3, 6), Momentum(spec(), MatrixOptions(), one(torch.ones(2, 2)))
    found = optimizer.eigh(S)
    assert found is not None and optimizer.failures == {}
    values, vectors = found
    assert torch.allclose((vectors * values[:, None, :]) @ vectors.mT, S, atol=1e-4)
    assert bool((values.diff(dim=-1) >= 0).all())


def test_eigh_tries_again_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    S, optimizer = symmetric(2, 4), Momentum(spec(), MatrixOptions(), one(torch.ones(2, 2)))
    eigh = torch.linalg.eigh

    def fails(A: Tensor) -> Any:
        if A.dtype == torch.float32:
            raise torch.linalg.LinAlgError("no convergence")
        return eigh(A)

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    found = optimizer.eigh(S)
    assert found is not None and optimizer.failures == {"eigh": 1}
    values, vectors = found
    assert values.dtype == torch.float32
    assert torch.allclose((vectors * values[:, None, :]) @ vectors.mT, S, atol=1e-4)


def test_eigh_gives_up_on_what_is_not_finite() -> None:
    optimizer = Momentum(spec(), MatrixOptions(), one(torch.ones(2, 2)))
    S = symmetric(2, 4)
    S[1, 0, 0] = float("nan")
    assert optimizer.eigh(S) is None
    assert optimizer.failures == {"eigh": 1, "eigh_float64": 1}


@pytest.mark.parametrize("name", NAMES)
def test_a_transformer_learns(name: str) -> None:
    model = random_llama(40)
    ids = torch.arange(24).view(1, -1) + 8
    optimizer = build(name, model, lr=0.02, decay=0, adam_lr=0.003)
    seen = []
    for _ in range(10):
        optimizer.zero_grad()
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        optimizer.step()
        seen.append(out.loss.item())
    assert seen[-1] < 0.5 * seen[0]
