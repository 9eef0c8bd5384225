"""Methods whose loss is a sum over forget and retain rows: each is pinned to its formula, and each forgets."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from tiny_text import random_llama, word_tokenizer
from torch import Tensor

from harness import losses
from harness.batches import Batch
from harness.clock import Allowance, Clock
from harness.entries import resolve
from harness.errors import SubmissionError
from harness.job import Job, Plan
from harness.loop import fit
from harness.models import MINI, LoadedModel, load
from harness.plugins import load_submission, load_task
from harness.scoring import row_means, score, token_logp
from harness.specs import Batching, OptimizerSpec, TaskRef, Template
from harness.text import Encoder
from harness.types import TextRow

METHODS = (
    "bs_t", "ce_u", "dpo", "grad_ascent", "grad_diff", "max_entropy", "npo", "pdu", "random_label", "retain_finetune",
    "satimp", "simnpo", "undial", "wga",
)  # fmt: skip


def rows(prompt: str, answers: tuple[str, ...]) -> list[TextRow]:
    return [TextRow(f"{prompt}/{i}", f"{prompt} {'bird ' * i}?", answer) for i, answer in enumerate(answers)]


FORGET = rows("Who kept the light", ("Ada Finch kept the light .", "A grey heron", "Tarn", "Marl Point ."))
RETAIN = rows("Which bird nests there", ("the old bridge of Tarn .", "thirty years", "each spring .", "Hi"))
OTHER = [
    TextRow(r.id, r.prompt, t) for r, t in zip(FORGET, ("Hi", "Be brief .", "A bird", "years"), strict=True)
]


@pytest.fixture(scope="module")
def taught() -> LoadedModel:
    """A small Llama that knows all rows."""
    tokenizer = word_tokenizer()
    loaded = LoadedModel(random_llama(len(tokenizer)), Encoder(tokenizer, Template(), 64))
    job = make_job(loaded, updates=60, lr=1e-2, batching=Batching(effective="full"))

    def loss(batch: Batch) -> Tensor:
        outputs = [job.forward(x) for x in (batch.forget, batch.retain)]
        return sum((losses.nll(token_logp(o), o.mask) for o in outputs), torch.zeros(()))

    fit(job, loss)
    assert min(row_means(score(loaded.model, FORGET + RETAIN, loaded.encoder))) > 0.9
    return loaded


def make_job(
    loaded: LoadedModel, *, updates: int = 6, lr: float = 1e-3, batching: Batching | None = None,
    folder: Path | None = None,
) -> Job:  # fmt: skip
    optimizer = OptimizerSpec(lr=lr, warmup=0, decay="constant", weight_decay=0)
    plan = Plan(0, batching or Batching(effective=4, micro=2), optimizer, folder=folder)
    clock = Clock(Allowance(updates=updates))
    other = {"alternative_answers": lambda: OTHER, "random_labels": lambda: OTHER[::-1]}
    return Job(loaded, FORGET, RETAIN, clock, plan, resources=other)


def fresh(loaded: LoadedModel, **more: Any) -> Job:
    return make_job(LoadedModel(copy.deepcopy(loaded.model), loaded.encoder), **more)


def method(name: str, **settings: Any) -> Any:
    return resolve(load_submission(name, [ROOT / "submissions"]), {}, settings).method


def caught(
    name: str, job: Job, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[Callable[[Batch], Tensor], Mapping[str, Any]]:
    """The loss that a method hands to `fit`, and what else it hands over."""
    given: list[tuple[Callable[[Batch], Tensor], dict[str, Any]]] = []
    made = method(name, **settings)
    monkeypatch.setattr(
        sys.modules[type(made).__module__], "fit", lambda _, loss, **more: given.append((loss, more))
    )
    made.unlearn(job)
    return given[0]


Formula = Callable[[Job, Batch, Callable[..., Any]], Tensor]


def kept(job: Job, batch: Batch) -> Tensor:
    retain = job.forward(batch.retain)
    return losses.nll(token_logp(retain), retain.mask)


def on_forget(away: Callable[[Any, Tensor], Tensor], gamma: float, alpha: float) -> Formula:
    """gamma x away(outputs, log p) + alpha x the retain rows' NLL."""

    def formula(job: Job, batch: Batch, _: Callable[..., Any]) -> Tensor:
        outputs = job.forward(batch.forget)
        return gamma * away(outputs, token_logp(outputs)) + alpha * kept(job, batch)

    return formula


def preferred(job: Job, batch: Batch, start: Callable[..., Any]) -> Tensor:
    def sums(inputs: Any) -> tuple[Tensor, Tensor]:
        return tuple(token_logp(run(inputs)).sum(-1) for run in (job.forward, start))

    win = job.collate([OTHER[i] for i in batch.forget.index.tolist()])
    return losses.dpo(*sums(win), *sums(batch.forget), 0.1) + kept(job, batch)


def wrong(job: Job, batch: Batch, _: Callable[..., Any]) -> Tensor:
    outputs = job.forward(job.collate([OTHER[::-1][i] for i in batch.forget.index.tolist()]))
    return losses.nll(token_logp(outputs), outputs.mask) + kept(job, batch)


def unlike_start(beta: float, alpha: float) -> Formula:
    def formula(job: Job, batch: Batch, start: Callable[..., Any]) -> Tensor:
        now, then = (token_logp(run(batch.forget)).sum(-1) for run in (job.forward, start))
        return losses.npo(now, then, beta) + alpha * kept(job, batch)

    return formula


def distilled(job: Job, batch: Batch, start: Callable[..., Any]) -> Tensor:
    out, then = job.forward(batch.forget), start(batch.forget)
    return losses.undial(out.logits, then.logits, out.labels, out.mask, 10.0)


def ascent_and_kl(job: Job, batch: Batch, start: Callable[..., Any]) -> Tensor:
    forget, retain, then = job.forward(batch.forget), job.forward(batch.retain), start(batch.retain)
    keep = losses.kl_to_reference(retain.logits, then.logits, retain.mask)
    return losses.grad_ascent(token_logp(forget), forget.mask) + 2 * keep


def npo_and_kl(job: Job, batch: Batch, start: Callable[..., Any]) -> Tensor:
    retain, then = job.forward(batch.retain), start(batch.retain)
    return unlike_start(0.1, 0)(job, batch, start) + losses.kl_to_reference(
        retain.logits, then.logits, retain.mask
    )


FORMULAS: list[tuple[str, dict[str, Any], Formula]] = [
    ("grad_ascent", {}, on_forget(lambda o, p: losses.grad_ascent(p, o.mask), 1, 0)),
    ("grad_diff", {}, on_forget(lambda o, p: losses.grad_ascent(p, o.mask), 1, 1)),
    ("grad_diff", {"gamma": 2.0, "alpha": 5.0}, on_forget(lambda o, p: losses.grad_ascent(p, o.mask), 2, 5)),
    ("grad_diff", {"retain": "kl", "alpha": 2.0}, ascent_and_kl),
    ("npo", {}, unlike_start(0.1, 1)),
    ("npo", {"beta": 0.5, "alpha": 3.0}, unlike_start(0.5, 3)),
    ("npo", {"retain": "kl"}, npo_and_kl),
    ("dpo", {}, preferred),
    ("random_label", {}, wrong),
    ("max_entropy", {}, on_forget(lambda o, p: losses.kl_from_uniform(o.logits, o.mask), 1, 1)),
    ("max_entropy", {"form": "entropy"}, on_forget(lambda o, p: losses.negative_entropy(o.logits, o.mask), 1, 1)),
    ("retain_finetune", {}, lambda job, batch, _: kept(job, batch)),
    ("simnpo", {}, on_forget(lambda o, p: losses.simnpo(losses.sequence_mean(p, o.mask), 4.5), 0.125, 1)),
    ("simnpo", {"delta": 0.5, "gamma": 1.0, "alpha": 0.0},
     on_forget(lambda o, p: losses.simnpo(losses.sequence_mean(p, o.mask), 4.5, 0.5), 1, 0)),
    ("wga", {}, on_forget(lambda o, p: losses.wga(p, o.mask, 1.0), 1, 1)),
    ("satimp", {}, on_forget(lambda o, p: losses.satimp(p, o.mask, 5.0, 1.0), 1, 0.1)),
    ("satimp", {"beta2": 0.1, "gamma": 0.1, "alpha": 1.0},
     on_forget(lambda o, p: losses.satimp(p, o.mask, 5.0, 0.1), 0.1, 1)),
    ("ce_u", {}, on_forget(lambda o, p: losses.ce_u(o.logits, o.labels, losses.after_first(o.mask, 1)), 1, 0)),
    ("ce_u", {"skip_first": 0, "alpha": 1.0}, on_forget(lambda o, p: losses.ce_u(o.logits, o.labels, o.mask), 1, 1)),
    ("undial", {}, distilled),
    ("bs_t", {}, on_forget(lambda o, p: losses.bs_t(o.logits, p, o.mask, 0.2, 20), 1, 1)),
    ("pdu", {}, lambda job, batch, _: on_forget(lambda o, p: losses.logit_margin(o.logits, o.mask), 1, 100)(
        job, batch, _) - 100 * 0.3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "formula"), FORMULAS, ids=[f"{n} {s}" for n, s, _ in FORMULAS])
def test_a_method_is_its_formula(
    name: str, settings: dict[str, Any], formula: Formula, taught: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """At the start and after the weights have moved: what is frozen is the starting model."""
    job = fresh(taught)
    start = job.frozen_reference()
    loss, _ = caught(name, job, monkeypatch, **settings)
    update = next(job.batches())
    for _ in range(2):
        for batch in update.micros:
            torch.testing.assert_close(loss(batch), formula(job, batch, start))
        with torch.no_grad():
            for parameter in job.model.parameters():
                parameter.mul_(0.9)


def test_every_method_is_pinned() -> None:
    assert {name for name, *_ in FORMULAS} == set(METHODS)


def test_the_kl_term_is_0_at_the_start(taught: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    job = fresh(taught)
    loss, _ = caught("npo", job, monkeypatch, retain="kl", alpha=1000.0)
    for batch in next(job.batches()).micros:
        assert loss(batch).item() == pytest.approx(13.863, abs=2e-3)


STRONG = {"satimp": {"beta2": 0.1, "alpha": 1.0}, "pdu": {"multiplier": 10.0}, "simnpo": {"gamma": 1.0}}
"""Settings under which a model that knows its rows to 99 % starts to move within a few updates."""


@pytest.mark.parametrize("name", [n for n in METHODS if n != "retain_finetune"])
def test_forgotten_rows_become_less_likely(name: str, taught: LoadedModel) -> None:
    job = fresh(taught, updates=12, lr=3e-3)
    method(name, **STRONG.get(name, {})).unlearn(job)
    assert job.clock.updates == 12
    before, _ = row_means(score(taught.model, FORGET, taught.encoder))
    after, _ = row_means(score(job.model, FORGET, taught.encoder))
    assert after < 0.5 * before


def test_fine_tuning_learns_the_retain_rows_and_nothing_else(taught: LoadedModel) -> None:
    unknowing = LoadedModel(random_llama(len(word_tokenizer()), seed=1), taught.encoder)
    job = make_job(unknowing, updates=40, lr=1e-2)
    method("retain_finetune").unlearn(job)
    (forget, _), (retain, _) = (row_means(score(job.model, r, job.encoder)) for r in (FORGET, RETAIN))
    assert retain > 0.9
    assert forget < 0.5


@pytest.mark.parametrize("name", METHODS)
def test_array_rows_work_too(name: str) -> None:
    """A class label is an answer of one token, which CE-U must not skip."""
    task = load_task(TaskRef(name="bma"), Template())
    case = task.case("M4", 17)
    plan = Plan(17, Batching(effective=64), OptimizerSpec(lr=1e-3, warmup=0, weight_decay=0))
    resources = {n: (lambda n=n: task.resource(n, case, 17)) for n in task.resources()}
    loaded = load(str(MINI / "bma" / "M4"))
    job = Job(loaded, case.forget, case.retain, Clock(Allowance(updates=20)), plan, resources=resources)
    before = row_means(score(loaded.model, case.forget))[0]
    method(name).unlearn(job)
    after = row_means(score(loaded.model, case.forget))[0]
    assert job.clock.updates == 20
    assert torch.isfinite(torch.tensor(after))
    if name not in ("retain_finetune", "satimp"):  # SatImp's weight 1 - p is 1e-7 here
        assert after < before


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("npo", {"beta": 0}),
        ("simnpo", {"beta": 0.0}),
        ("dpo", {"beta": -1}),
        ("wga", {"beta": -1}),
        ("satimp", {"beta2": -0.1}),
        ("bs_t", {"lam": 1.5}),
        ("bs_t", {"top_k": 0}),
        ("pdu", {"dual_step": -1}),
        ("grad_diff", {"retain": "kld"}),
    ],
)
def test_values_that_mean_nothing_are_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(SubmissionError, match=f"{name}.*{next(iter(settings))}"):
        method(name, **settings)


# --- the primal-dual method -------------------------------------------------------------------------------------------
STANDING = 1e-7
"""A learning rate that moves float32 weights in their last digits only."""


def multipliers(job: Job) -> list[float]:
    return [note["value"] for note in job.seen.log if note["name"] == "multiplier"]


def retain_losses(job: Job, updates: int) -> list[float]:
    """The retain loss of each update of a model that does not change: a mean of its micro-batches' means."""
    found = []
    for update in (u for u, _ in zip(job.batches(), range(updates), strict=False)):
        found.append(sum(kept(job, batch).item() * batch.weight for batch in update.micros))
    return found


def test_the_multiplier_follows_the_constraint_by_hand(taught: LoadedModel) -> None:
    """Three updates of two micro-batches each, with weights that stay where they are."""
    seen = retain_losses(fresh(taught), 3)
    eps = sum(seen) / 3
    job = fresh(taught, updates=3, lr=STANDING)
    method("pdu", multiplier=1.0, dual_step=700.0, eps=eps, dual_warmup=0.0).unlearn(job)
    expected = [1.0]
    for retain_loss in seen:
        expected.append(max(0.0, expected[-1] + 700.0 * (retain_loss - eps)))
    assert multipliers(job) == pytest.approx(expected[1:], rel=1e-3)
    assert len(set(multipliers(job))) == 3


def test_the_multiplier_rises_while_the_constraint_is_violated_and_falls_to_0(taught: LoadedModel) -> None:
    job = fresh(taught, updates=4)
    method("pdu", multiplier=1.0, eps=-1.0, dual_warmup=0.0).unlearn(job)
    rising = multipliers(job)
    assert rising == sorted(rising)
    assert rising[0] > 5.0
    job = fresh(taught, updates=4, lr=STANDING)
    method("pdu", multiplier=1.0, dual_step=0.5, eps=1.0, dual_warmup=0.0).unlearn(job)
    falling = multipliers(job)
    assert falling[0] == pytest.approx(0.5, abs=0.1)
    assert falling[-1] == 0.0


def test_the_multiplier_stands_still_during_warm_up(taught: LoadedModel) -> None:
    job = fresh(taught, updates=8)
    method("pdu", multiplier=3.0, eps=-1.0, dual_warmup=0.5).unlearn(job)
    assert multipliers(job)[:4] == [3.0] * 4
    assert multipliers(job)[4] > 3.0


def test_eps_may_be_relative_to_the_starting_loss(taught: LoadedModel) -> None:
    job = fresh(taught, updates=1, lr=STANDING, batching=Batching(effective="full"))
    method("pdu", multiplier=1.0, dual_step=1.0, tolerance=0.5, dual_warmup=0.0).unlearn(job)
    (start,) = retain_losses(fresh(taught, batching=Batching(effective="full")), 1)
    assert multipliers(job) == pytest.approx([1.0 - 0.5 * start], rel=1e-5)


class Stopped(Exception):
    """Somebody pulls the plug."""


def test_the_multiplier_survives_an_interruption(
    taught: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.job.CHECKPOINT_EVERY_S", -1.0)
    settings = {"multiplier": 1.0, "eps": -1.0, "dual_warmup": 0.0}
    whole = fresh(taught)
    method("pdu", **settings).unlearn(whole)
    broken = fresh(taught, folder=tmp_path)
    forward = broken.forward

    def dies(inputs: Any, hidden: Any = ()) -> Any:
        if broken.clock.updates == 4:
            raise Stopped
        return forward(inputs, hidden)

    monkeypatch.setattr(broken, "forward", dies)
    with pytest.raises(Stopped):
        method("pdu", **settings).unlearn(broken)
    resumed = fresh(taught, folder=tmp_path)
    method("pdu", **settings).unlearn(resumed)
    assert multipliers(broken) + multipliers(resumed) == pytest.approx(multipliers(whole), rel=1e-6)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
