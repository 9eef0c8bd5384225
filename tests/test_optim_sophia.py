"""Sophia-G, and the curvature estimate that the training loop supplies."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optim_paths import ABSENT, cases, norm_difference, path_of
from pydantic import ValidationError
from tiny_text import random_llama, word_tokenizer
from torch import Tensor, nn

from harness.batches import Batch
from harness.clock import Allowance, Clock
from harness.job import Job, Plan
from harness.loop import fit
from harness.models import LoadedModel
from harness.optim import sophia
from harness.scoring import token_logp
from harness.specs import Batching, OptimizerSpec, Template
from harness.text import Encoder
from harness.types import ArrayRow, TextRow


class Two(nn.Module):
    """Two parameters."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(a), nn.Parameter(b)


def build(model: nn.Module, lr: float = 0.1, decay: float = 0.0, **options: Any) -> sophia.Sophia:
    made = sophia.build(OptimizerSpec(name="sophia", lr=lr, weight_decay=decay, options=options), model)
    assert isinstance(made, sophia.Sophia)
    return made


def give(model: nn.Module, *grads: Tensor | None) -> None:
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = None if grad is None else grad.clone()


# --- the update ------------------------------------------------------------------------------------------------------
def test_one_step_by_hand() -> None:
    """h = .01 x 10 x .2^2 = .004; m = .035 g; rho h = .04; so m / (rho h) = .4375 for g = .5, and 1 for g = 4."""
    model = Two(torch.tensor([2.0]), torch.tensor([2.0]))
    optimizer = build(model, lr=0.1, decay=0.5, rho=10.0)
    give(model, torch.tensor([0.2]), torch.tensor([-0.2]))
    optimizer.update_curvature(10)
    give(model, torch.tensor([0.5]), torch.tensor([-4.0]))
    optimizer.step()
    assert model.a.item() == pytest.approx(2 * 0.95 - 0.1 * 0.4375)
    assert model.b.item() == pytest.approx(2 * 0.95 + 0.1)


def test_without_curvature_the_step_is_the_sign() -> None:
    model = Two(torch.zeros(3), torch.zeros(1))
    optimizer = build(model, lr=0.25)
    give(model, torch.tensor([1e-3, -7.0, 0.0]), torch.tensor([0.5]))
    optimizer.step()
    assert model.a.tolist() == [-0.25, 0.25, 0.0] and model.b.tolist() == [-0.25]


@pytest.mark.parametrize(("at_start", "want"), [(True, [0, 3, 6]), (False, [3, 6])])
def test_estimates_come_every_k_steps(at_start: bool, want: list[int]) -> None:
    model = Two(torch.zeros(1), torch.zeros(1))
    optimizer = build(model, k=3, estimate_at_start=at_start)
    seen = []
    for t in range(8):
        if optimizer.wants_curvature:
            seen.append(t)
        give(model, torch.ones(1), torch.ones(1))
        optimizer.step()
    assert seen == want


def test_a_fixed_batch_size_replaces_the_tokens() -> None:
    ends = []
    for tokens, bs in ((7, None), (999, 7), (999, None)):
        model = Two(torch.zeros(2), torch.zeros(2))
        optimizer = build(model, rho=1.0, bs=bs)
        give(model, torch.ones(2), torch.ones(2))
        optimizer.update_curvature(tokens)
        optimizer.step()
        ends.append(model.a.detach())
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


@pytest.mark.shared
@pytest.mark.skipif(ABSENT, reason="the reference data is not beside this checkout")
@pytest.mark.parametrize("case", cases("sophia"))
def test_the_path_of_the_public_sophia(case: int) -> None:
    path = path_of(case)
    h = path.hyper
    model = Two(path.start.clone(), torch.zeros(1))
    optimizer = build(
        model, lr=h["lr"], decay=h["weight_decay"], betas=h["betas"], rho=h["rho"], bs=h["bs"], k=h["k"]
    )
    for t, want in enumerate(path.weights):
        give(model, path.gradient(model.a.detach(), t), None)
        assert optimizer.wants_curvature == (t % h["k"] == 0)
        if optimizer.wants_curvature:
            optimizer.update_curvature(1)
        optimizer.step()
        assert norm_difference(model.a.detach(), want) < 1e-4


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_training_goes_on_to_the_bit_after_a_reload(state_dtype: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Two(torch.randn(3, 4), torch.randn(5))
    optimizer = build(model, decay=0.1, k=2, state_dtype=state_dtype)
    grads = [(torch.randn(3, 4), torch.randn(5)) for _ in range(9)]

    def run(module: nn.Module, steps: sophia.Sophia, part: slice) -> None:
        for pair in grads[part]:
            give(module, *pair)
            if steps.wants_curvature:
                steps.update_curvature(5)
            steps.step()

    run(model, optimizer, slice(0, 5))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    twin = copy.deepcopy(model)
    again = build(twin, decay=0.1, k=2, state_dtype=state_dtype)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    run(model, optimizer, slice(5, 9))
    run(twin, again, slice(5, 9))
    assert torch.equal(model.a, twin.a) and torch.equal(model.b, twin.b)
    with pytest.raises(ValueError, match="other shapes"):
        again.load_state_dict(build(Two(torch.zeros(1), torch.zeros(1))).state_dict())


def test_a_parameter_without_a_gradient_is_left_out() -> None:
    model = Two(torch.ones(2), torch.ones(2))
    optimizer = build(model, decay=0.1)
    give(model, torch.ones(2), None)
    optimizer.update_curvature(3)
    optimizer.step()
    assert model.b.tolist() == [1.0, 1.0] and model.a.tolist() != [1.0, 1.0]
    state = optimizer.state_dict()
    assert state["h"][0].any() and not state["h"][1].any() and not state["m"][1].any()
    give(model, None, None)
    optimizer.update_curvature(3)
    optimizer.step()
    assert optimizer.state_dict()["t"] == 2


def test_odd_gradients_and_bfloat16_weights() -> None:
    model = Two(torch.zeros(3, 5, dtype=torch.bfloat16), torch.zeros(4))
    optimizer = build(model)
    strided = torch.randn(5, 6)[:, ::2].T.bfloat16()
    for grad in (torch.tensor([0.0, 1e-30, 1e15, -1e-30]), torch.zeros(4)):
        give(model, strided, grad)
        optimizer.update_curvature(2)
        optimizer.step()
        assert torch.isfinite(model.a).all() and torch.isfinite(model.b).all()
    assert model.a.dtype == torch.bfloat16 and model.a.any() and model.b[0] == 0


@pytest.mark.parametrize(
    "options", [{"k": 0}, {"rho": 0}, {"betas": [1.0, 0.9]}, {"bs": -1}, {"momentum": 0.9}]
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        sophia.Options.model_validate(options)


# --- the estimate ----------------------------------------------------------------------------------------------------
Estimate = tuple[int, list[Tensor]]


@pytest.fixture
def estimates(monkeypatch: pytest.MonkeyPatch) -> list[Estimate]:
    """What the loop hands over: answer tokens, and the gradients that stand in `.grad` at that time."""
    noted: list[Estimate] = []
    takes = sophia.Sophia.update_curvature

    def update_curvature(self: sophia.Sophia, tokens: int) -> None:
        noted.append((tokens, [p.grad.clone() for p in self.param_groups[0]["params"] if p.grad is not None]))
        takes(self, tokens)

    monkeypatch.setattr(sophia.Sophia, "update_curvature", update_curvature)
    return noted


def run(loaded: LoadedModel, forget: list[Any], retain: list[Any], *, updates: int, micro: int | None = None,
        seed: int = 0, k: int = 1, lr: float = 1e-6) -> None:  # fmt: skip
    spec = OptimizerSpec(name="sophia", lr=lr, warmup=0, weight_decay=0, decay="constant", options={"k": k})
    plan = Plan(seed, Batching(effective="full", micro=micro), spec)
    job = Job(loaded, forget, retain, Clock(Allowance(None, updates)), plan)

    def loss(batch: Batch) -> Tensor:
        out = job.forward(batch.retain)
        return -token_logp(out).sum() / out.mask.sum()

    fit(job, loss)


def classifier(inputs: int, classes: int) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(inputs, classes, bias=False)


def arrays(count: int, inputs: int, seed: int) -> list[ArrayRow]:
    x = np.random.default_rng(seed).normal(size=(count, inputs)).astype(np.float32)
    return [ArrayRow(f"{seed}/{i}", row, 0) for i, row in enumerate(x)]


def test_the_estimate_is_the_gradient_of_the_mean_over_both_sets(estimates: list[Estimate]) -> None:
    """One row in each set, two classes: four pairs of drawn labels, so four gradients, seen in proportion."""
    model, forget, retain = classifier(3, 2), arrays(1, 3, 1), arrays(1, 3, 2)
    x = torch.tensor(np.stack([forget[0].inputs, retain[0].inputs]))
    W = model.weight.detach().clone().requires_grad_()
    chance = (x @ W.T).softmax(-1).detach()
    pairs = {}
    for pair in ((0, 0), (0, 1), (1, 0), (1, 1)):
        nn.functional.cross_entropy(x @ W.T, torch.tensor(pair)).backward()
        pairs[pair], W.grad = W.grad, None
    run(LoadedModel(model, None), forget, retain, updates=400)
    counts = dict.fromkeys(pairs, 0)
    for tokens, (grad,) in estimates:
        near = [pair for pair, want in pairs.items() if torch.allclose(grad, want, atol=2e-3)]
        assert tokens == 2 and len(near) == 1
        counts[near[0]] += 1
    for (i, j), count in counts.items():
        p = float(chance[0, i] * chance[1, j])
        assert abs(count - 400 * p) < 4 * (400 * p * (1 - p)) ** 0.5


def test_its_square_estimates_the_gauss_newton_diagonal(estimates: list[Estimate]) -> None:
    """For logits W x the diagonal of the mean is the mean over rows of x_j^2 p_c (1 - p_c)."""
    model, forget, retain = classifier(3, 4), arrays(5, 3, 1), arrays(7, 3, 2)
    x = torch.tensor(np.stack([row.inputs for row in (*forget, *retain)]))
    p = (x @ model.weight.detach().T).softmax(-1)
    want = torch.einsum("nc,nj->cj", p * (1 - p), x.square()) / 12
    run(LoadedModel(model, None), forget, retain, updates=1500)
    assert {tokens for tokens, _ in estimates} == {12}
    grads = torch.stack([grad for _, (grad,) in estimates])
    got = 12 * grads.square().mean(0)
    assert float((got / want - 1).abs().max()) < 5 * (2 / 1500) ** 0.5
    assert float((grads.mean(0).square() / grads.square().mean(0)).max()) < 25 / 1500


def test_h_follows_the_estimates(estimates: list[Estimate], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[sophia.Sophia] = []
    starts = sophia.Sophia.__init__

    def init(self: sophia.Sophia, *args: Any) -> None:
        starts(self, *args)
        made.append(self)

    monkeypatch.setattr(sophia.Sophia, "__init__", init)
    run(LoadedModel(classifier(3, 4), None), arrays(5, 3, 1), arrays(7, 3, 2), updates=7, k=3)
    assert len(estimates) == 3
    want = torch.zeros(4, 3)
    for tokens, (grad,) in estimates:
        want = 0.99 * want + 0.01 * tokens * grad**2
    assert torch.allclose(made[0].state_dict()["h"][0], want, rtol=1e-5)


def test_the_estimate_does_not_depend_on_micro_batches(estimates: list[Estimate]) -> None:
    """Texts of unequal length: as many labels are drawn as there are answer tokens, whatever is padded beside them."""
    encoder = Encoder(word_tokenizer(), Template(), 64)
    answers = ["Ada Finch", "A grey heron nests there each spring .", "light", "Marl Point the old bridge"]
    texts = [TextRow(f"t/{i}", "Who kept the light ?", answer) for i, answer in enumerate(answers)]
    counted = 0
    for row in texts:
        encoded = encoder.encode(row)
        counted += len(encoded.ids) - encoded.start
    found = []
    for micro in (None, 1, 2, 4):
        estimates.clear()
        model = random_llama(len(encoder.tokenizer))
        run(LoadedModel(model, encoder), texts, texts[::-1], updates=1, micro=micro, lr=1e-3)
        ((tokens, grads),) = estimates
        assert tokens == 2 * counted
        found.append(torch.cat([g.flatten() for g in grads]))
    assert float(found[0].norm()) > 0.01
    for other in found[1:]:
        assert norm_difference(other, found[0]) < 1e-4


def test_seeds_and_updates_draw_anew(estimates: list[Estimate]) -> None:
    for seed in (0, 0, 1):
        run(LoadedModel(classifier(3, 4), None), arrays(5, 3, 1), arrays(7, 3, 2), updates=2, seed=seed)
    grads = [grad for _, (grad,) in estimates]
    assert torch.equal(grads[0], grads[2]) and torch.equal(grads[1], grads[3])
    assert not torch.allclose(grads[0], grads[1], atol=1e-3)
    assert not torch.allclose(grads[0], grads[4], atol=1e-3)
