"""NegGrad+, SalUn, SCRUB and the controls on the built-in digits: each is pinned to what its source says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_images import image_job, method, model, run
from tiny_job import text_job

from harness import losses, vision
from harness.errors import SubmissionError
from harness.scoring import classify, token_logp


def weights(job):
    return {name: p.detach().clone() for name, p in job.model.named_parameters()}


def flat(job):
    return torch.cat([p.detach().flatten() for p in job.model.parameters()])


def gradient(job, loss):
    """The flat gradient of a loss at the job's weights."""
    parameters = list(job.model.parameters())
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])


def trained_once(name, monkeypatch, *, effective=16, at=0, **settings):
    """(job, first batch, gradient that the method's own loss has on it) without a step being made."""
    import harness.loop

    job = image_job(effective=effective)
    job.clock.updates = at
    seen = {}

    def look(given, loss, *_args, **_more):
        batch = next(given.batches()).micros[0]
        seen["batch"], seen["gradient"] = batch, gradient(given, loss(batch))

    made = method(name, **settings)
    monkeypatch.setattr(sys_module(made), "fit", look)
    made.unlearn(job)
    assert harness.loop.fit is not look
    return job, seen["batch"], seen["gradient"]


def sys_module(made):
    import sys

    return sys.modules[type(made).__module__]


def nll(job, inputs):
    out = job.forward(inputs)
    return losses.nll(token_logp(out), out.mask)


# --- NegGrad+ ---
def test_neg_grad_plus_is_the_weighted_sum(monkeypatch):
    job, batch, found = trained_once("neg_grad_plus", monkeypatch, alpha=0.8)
    expected = gradient(job, 0.8 * nll(job, batch.retain) - 0.2 * nll(job, batch.forget))
    assert torch.allclose(found, expected, atol=1e-6)
    assert len(batch.forget) == len(batch.retain) == 16


# --- SalUn ---
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_salun_masks_the_share_with_the_largest_gradients(share):
    job = image_job()
    masks = sys_module(method("salun")).saliency_masks(job, share)
    on = torch.cat([m.flatten() for m in masks.values()])
    assert int(on.sum()) == round(share * len(on))
    size = gradient(job, nll(job, job.collate(job.forget))).abs()
    if share < 1:
        assert size[on].min() >= size[~on].max() - 1e-6
    assert all(p.grad is None for p in job.model.parameters())


def test_salun_moves_masked_weights_only_even_under_weight_decay():
    job = image_job(updates=3, weight_decay=0.5)
    masks = sys_module(method("salun")).saliency_masks(job, 0.2)
    before = weights(job)
    run("salun", job, share=0.2)
    for name, p in job.model.named_parameters():
        assert torch.equal(p[~masks[name]], before[name][~masks[name]]), name
    assert sum(int((p != before[n]).sum()) for n, p in job.model.named_parameters()) > 0
    assert all(not p._backward_hooks for p in job.model.parameters())


def test_salun_with_all_weights_is_random_label():
    one, other = image_job(updates=2), image_job(updates=2)
    run("salun", one, share=1.0, alpha=2.0)
    run("random_label", other, alpha=2.0)
    assert torch.allclose(flat(one), flat(other), atol=1e-6)


def test_salun_works_on_texts():
    job = text_job(updates=1)
    before = weights(job)
    run("salun", job, share=0.25)
    moved = sum(int((p != before[n]).sum()) for n, p in job.model.named_parameters())
    assert 0 < moved <= round(0.25 * sum(p.numel() for p in before.values()))


# --- SCRUB ---
def kl(job, teacher, inputs, t):
    p = (teacher(inputs).logits[:, 0] / t).log_softmax(-1)
    q = (job.forward(inputs).logits[:, 0] / t).log_softmax(-1)
    return t**2 * (p.exp() * (p - q)).sum(-1).mean()


def disturbed(job):
    torch.manual_seed(0)
    with torch.no_grad():
        for p in job.model.parameters():
            p.add_(0.05 * p.abs().mean() * torch.randn_like(p))
    return job


@pytest.mark.parametrize("away", [True, False])
def test_scrub_by_turns(monkeypatch, away):
    """92 forget rows in batches of 16 are 6 updates, 809 retain rows 51."""
    made = method("scrub", alpha=0.5, gamma=0.7, temperature=2.0, away_epochs=2)
    phases = [made.away(k, 6, 51) for k in range(200)]
    assert phases[:6] == [True] * 6 and phases[6:57] == [False] * 51
    assert phases[57:63] == [True] * 6 and not any(phases[63:])
    job = image_job()
    teacher = job.frozen_reference()
    job.clock.updates = 0 if away else 10
    seen = {}

    def look(given, loss, *_args, **_more):
        batch = next(given.batches()).micros[0]
        disturbed(given)
        seen["found"] = gradient(given, loss(batch))
        if away:
            seen["expected"] = gradient(given, -kl(given, teacher, batch.forget, 2.0))
        else:
            total = 0.7 * nll(given, batch.retain) + 0.5 * kl(given, teacher, batch.retain, 2.0)
            seen["expected"] = gradient(given, total)

    monkeypatch.setattr(sys_module(made), "fit", look)
    made.unlearn(job)
    assert torch.allclose(seen["found"], seen["expected"], atol=1e-5)
    assert seen["found"].abs().max() > 1e-4


def test_scrub_of_whole_sets_is_one_update_an_epoch(monkeypatch):
    job, batch, found = trained_once("scrub", monkeypatch, effective="full", at=1, alpha=0.0, gamma=1.0)
    assert len(batch.retain) == 809
    assert torch.allclose(found, gradient(job, nll(job, batch.retain)), atol=1e-6)


# --- controls ---
def test_a_masked_logit_is_never_the_first_choice_and_the_rest_is_as_it_was():
    job = image_job()
    before = classify(job.model, job.forget)
    run("logit_mask", job)
    after = classify(job.model, job.forget)
    kept = np.arange(10) != 3
    assert np.allclose(after[:, kept], before[:, kept], atol=1e-5) and set(after[:, 3]) == {-100.0}
    assert job.seen.log[-1]["value"] == 1
    for case in ("half", "random"):
        other = image_job(case)
        was = flat(other)
        run("logit_mask", other)
        assert torch.equal(flat(other), was)


def test_logit_masking_needs_a_head_with_a_bias():
    loaded = model()
    vision.head(loaded.model).bias = None
    with pytest.raises(SubmissionError, match="no bias"):
        run("logit_mask", image_job(loaded=loaded))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neg_grad_plus", "salun", "scrub", "random_label"])
def test_each_forgets_a_class_and_keeps_the_others(name):
    settings = {"alpha": 0.99} if name == "neg_grad_plus" else {}
    job = run(name, image_job(updates=60, lr=1e-3, effective=64), **settings)
    rows = (job.forget, job.retain)
    forget, retain = ((classify(job.model, r).argmax(1) == [x.label for x in r]).mean() for r in rows)
    assert forget < 0.3 and retain > 0.8
