"""SOAP: the public code's paths, its ends, its state, and what happens when a decomposition fails."""

from __future__ import annotations

import io

import pytest
import torch
from optim_paths import cases, norm_difference, path_of
from torch import Tensor, nn

from harness.optim import soap
from harness.optim.eigenbasis import add_gram_, mirrored_
from harness.specs import OptimizerSpec


def linear(W: Tensor) -> nn.Linear:
    """One linear map; the rule of sides preconditions both of its."""
    model = nn.Linear(W.shape[1], W.shape[0], bias=False)
    model.weight.data = W.clone()
    return model


def optimizer(
    model: nn.Module, lr: float = 0.003, weight_decay: float = 0.01, **options: object
) -> soap.SOAP:
    return soap.build(OptimizerSpec(name="soap", lr=lr, weight_decay=weight_decay, options=options), model)


def gradients(steps: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(steps, *shape, generator=torch.Generator().manual_seed(seed))


def walk(model: nn.Linear, opt: torch.optim.Optimizer, G: Tensor) -> Tensor:
    """The weights after each step along given gradients."""
    seen = []
    for g in G:
        model.weight.grad = g.clone()
        opt.step()
        seen.append(model.weight.detach().clone())
    return torch.stack(seen)


@pytest.mark.shared
@pytest.mark.parametrize("case", cases("soap"))
def test_the_public_path_is_followed_at_every_step(case: int) -> None:
    """25 steps of nikhilvyas/SOAP, soap.py; bases may differ in sign, weights may not.

    Case 0 leaves little room: one rounding of the weights after step 2 moves the public code itself by 7e-5.
    """
    path = path_of(case)
    model = linear(path.start)
    options = dict(path.hyper)
    opt = optimizer(model, options.pop("lr"), options.pop("weight_decay"), **options)
    assert opt.stacks[0].left
    assert opt.stacks[0].right
    for step, wanted in enumerate(path.weights):
        model.weight.grad = path.gradient(model.weight.detach(), step)
        opt.step()
        assert norm_difference(model.weight.detach(), wanted) < 1e-4, step
    assert opt.failures == {}


def test_the_first_step_sets_up_and_leaves_the_weights() -> None:
    model = linear(gradients(1, 6, 9)[0])
    before = model.weight.detach().clone()
    opt = optimizer(model)
    walk(model, opt, gradients(1, 6, 9, seed=1))
    assert torch.equal(model.weight, before)
    assert set(opt.stacks[0].state) == {"step", "m", "v", "L", "R", "left", "right"}


def test_without_bases_it_is_adam() -> None:
    """All sides too long: Q = I. The skipped first step aside, the path is Adam's, with decay after the step."""
    W, G = gradients(1, 5, 8)[0], gradients(12, 5, 8, seed=1)
    model, lr, decay = linear(W), 0.01, 0.1
    path = walk(model, optimizer(model, lr, decay, max_precond_dim=1, betas=(0.9, 0.99)), G)
    p = nn.Parameter(W.clone().double())
    adam = torch.optim.Adam([p], lr=lr, betas=(0.9, 0.99))
    for t in range(1, 12):
        p.grad = G[t].double()
        adam.step()
        p.data.mul_(1 - lr * decay)
        torch.testing.assert_close(path[t].double(), p.data, rtol=1e-5, atol=1e-6)


def test_a_long_side_has_no_factor_and_the_other_one_has() -> None:
    model = linear(gradients(1, 12, 32)[0])
    opt = optimizer(model, max_precond_dim=16)
    walk(model, opt, gradients(12, 12, 32))
    assert opt.stacks[0].state["L"].shape == (1, 12, 12)
    assert "right" not in opt.stacks[0].state


def test_the_bases_diagonalise_the_factors_when_the_gradients_repeat() -> None:
    """Power iterations on a fixed matrix end at its eigenvectors: Q^T G G^T Q is diagonal, largest first."""
    G = gradients(1, 7, 7)[0]
    model = linear(torch.zeros(7, 7))
    opt = optimizer(model, precondition_frequency=1)
    walk(model, opt, G.expand(60, 7, 7))
    state = opt.stacks[0].state
    for factor, basis in (("L", "left"), ("R", "right")):
        Q = state[basis][0].double()
        turned = Q.mT @ mirrored_(state[factor])[0].double() @ Q
        values = torch.linalg.svdvals(G.double()).square() * (1 - 0.95**60)
        torch.testing.assert_close(turned, torch.diag(values), rtol=1e-4, atol=1e-4 * values.max().item())
        torch.testing.assert_close(Q.mT @ Q, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("d", [1, 5, 130, 300, 515])
def test_a_factor_from_blocks_is_the_whole_product(d: int) -> None:
    A, S = gradients(2, d, 17), torch.zeros(2, d, d)
    add_gram_(S, A, 0.75)
    add_gram_(S, A, 0.5)
    torch.testing.assert_close(mirrored_(S), 0.625 * A @ A.mT, rtol=1e-4, atol=1e-4)


def test_normalised_steps_have_rms_one() -> None:
    model = linear(torch.zeros(6, 10))
    opt = optimizer(model, lr=1.0, weight_decay=0.0, normalize_grads=True, correct_bias=False)
    path = walk(model, opt, 1e-3 * gradients(4, 6, 10))
    rms = (path[1:] - path[:-1]).square().mean((1, 2)).sqrt()
    torch.testing.assert_close(rms, torch.ones(3), rtol=1e-5, atol=0)


@pytest.mark.parametrize("rank", [0, 1])
def test_gradients_without_full_rank_give_finite_updates(rank: int) -> None:
    G = gradients(25, 8, rank) @ gradients(25, rank, 5, seed=1)
    model = linear(torch.ones(8, 5))
    path = walk(model, optimizer(model), G)
    assert path.isfinite().all()
    assert (path[-1] - 1).abs().max() < 0.2


def test_a_gradient_that_is_not_contiguous_is_the_same_gradient() -> None:
    G = gradients(12, 6, 4)
    one, other = linear(torch.zeros(6, 4)), linear(torch.zeros(6, 4))
    first, second = optimizer(one), optimizer(other)
    for g in G:
        one.weight.grad, other.weight.grad = g.clone(), g.mT.contiguous().mT
        first.step()
        second.step()
    assert torch.equal(one.weight, other.weight)


class Decoder(nn.Module):
    """A vocabulary larger than any `max_precond_dim`, an MLP, and a map that two of a kind make a stack of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20000, 8)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 20000, bias=False)


class Block(nn.Module):
    """The norm tells the residual width 8; the hidden width is 24."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 24, bias=False), nn.Linear(24, 8, bias=False)


def give_gradients(model: nn.Module, seed: int, without: str = "") -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        g = torch.randn(p.shape, generator=generator)
        p.grad = None if without and without in name else g


def test_an_mlp_is_preconditioned_on_its_residual_side_and_a_vocabulary_by_adamw() -> None:
    model = Decoder()
    opt = optimizer(model)
    give_gradients(model, 0)
    opt.step()
    kept = {(s.rows, s.cols): sorted(k for k in s.state if k in ("L", "R")) for s in opt.stacks}
    assert kept == {(24, 8): ["R"], (8, 24): ["L"]}
    assert {p.shape[0] for p in opt.param_groups[1]["params"]} == {20000, 8}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_state_survives_a_file_and_goes_on_exactly(dtype: str) -> None:
    whole, broken = Decoder(), Decoder()
    first, second = optimizer(whole, state_dtype=dtype), optimizer(broken, state_dtype=dtype)
    for step in range(12):
        for model, opt in ((whole, first), (broken, second)):
            give_gradients(model, step)
            opt.step()
    file = io.BytesIO()
    torch.save({"model": broken.state_dict(), "opt": second.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = Decoder()
    resumed.load_state_dict(saved["model"])
    third = optimizer(resumed, state_dtype=dtype)
    third.load_state_dict(saved["opt"])
    for step in range(12, 24):
        for model, opt in ((whole, first), (resumed, third)):
            give_gradients(model, step)
            opt.step()
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_bfloat16_keeps_half_the_state_and_nearly_the_path() -> None:
    G = gradients(1, 16, 16) + 0.3 * gradients(25, 16, 16, seed=1)
    paths, states = [], []
    for dtype in ("float32", "bfloat16"):
        model = linear(torch.zeros(16, 16))
        opt = optimizer(model, state_dtype=dtype)
        paths.append(walk(model, opt, G))
        states.append({k: v.dtype for k, v in opt.stacks[0].state.items() if isinstance(v, Tensor)})
    halves = {k for k, v in states[1].items() if v == torch.bfloat16}
    assert halves == {"m", "left", "right"}
    assert set(states[0].values()) == {torch.float32}
    assert (paths[1][-1] - paths[0][-1]).norm() / paths[0][-1].norm() < 0.05


def test_a_parameter_without_a_gradient_waits_and_joins_later() -> None:
    """The late layer's path is the one it would have had alone."""
    model, alone = Decoder(), Decoder()
    opt, other = optimizer(model), optimizer(alone)
    late = model.layers[1].up.weight
    before = late.detach().clone()
    for step in range(3):
        give_gradients(model, step, without="layers.1.up")
        opt.step()
    assert torch.equal(late, before)
    for step in range(3, 20):
        for m, o in ((model, opt), (alone, other)):
            give_gradients(m, step)
            o.step()
    torch.testing.assert_close(late, alone.layers[1].up.weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("routine", ["eigh", "qr"])
@pytest.mark.parametrize("times", [1, 1000])
def test_a_decomposition_that_fails_is_counted_and_training_goes_on(
    routine: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, function = (torch.linalg, "eigh") if routine == "eigh" else (torch, "geqrf")
    works, left = getattr(home, function), [times]

    def sometimes(S: Tensor) -> object:
        left[0] -= 1
        if left[0] >= 0:
            raise torch.linalg.LinAlgError(f"{routine} did not converge")
        return works(S)

    monkeypatch.setattr(home, function, sometimes)
    model = linear(torch.zeros(6, 6))
    opt = optimizer(model)
    path = walk(model, opt, gradients(12, 6, 6))
    assert opt.failures[routine] == (1 if times == 1 else 2)
    assert opt.failures.get(f"{routine}_float64", 0) == (0 if times == 1 else 2)
    assert path.isfinite().all()
    assert (path[-1] != path[0]).all()
    assert opt.state_dict()["failures"] == opt.failures
