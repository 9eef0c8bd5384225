"""Float32 master weights on a board of lower precision, options of an optimizer, and weights that do not move."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import ROOT
from test_loop import make_job
from tiny_job import moved, run, text_job, weights
from tiny_text import random_llama, word_tokenizer
from torch import Tensor

from harness import losses
from harness.batches import Batch, Update
from harness.entries import resolve
from harness.errors import InvalidRun, SubmissionError
from harness.job import Job
from harness.loop import fit
from harness.models import LoadedModel
from harness.plugins import load_submission
from harness.runs import RunSpec
from harness.scoring import token_logp
from harness.specs import Batching, Board, LoraSpec, OptimizerSpec, Template
from harness.text import Encoder
from harness.worker import _job as job_of

SMALL = OptimizerSpec(lr=1e-6, warmup=0, weight_decay=0.0)


def bfloat_job(dtype: str) -> Job:
    encoder = Encoder(word_tokenizer(), Template(), 64)
    model = random_llama(len(encoder.tokenizer)).to(getattr(torch, dtype))
    return text_job(loaded=LoadedModel(model, encoder), passes="bfloat16", optimizer=SMALL, updates=4)


def descend(job: Job) -> None:
    def loss(batch: Batch) -> Tensor:
        out = job.forward(batch.forget)
        assert out.logits.dtype == torch.bfloat16
        return losses.nll(token_logp(out), out.mask)

    with job.clock.lane("train"):
        fit(job, loss)


def share_of_large_weights_moved(job: Job) -> float:
    """Of the weights of at least 2^-3 (spacing 2^-10 and more in bfloat16) that had a gradient."""
    before = weights(job)
    descend(job)
    moved, all_ = 0, 0
    for name, p in job.model.named_parameters():
        large = (before[name].abs() >= 2**-3) & (p.grad != 0)
        moved += int((p != before[name])[large].sum())
        all_ += int(large.sum())
    return moved / all_


def test_an_update_below_the_spacing_of_bfloat16_moves_float32_weights_and_no_bfloat16_ones() -> None:
    assert share_of_large_weights_moved(bfloat_job("float32")) > 0.99
    assert share_of_large_weights_moved(bfloat_job("bfloat16")) == 0


def test_passes_run_in_the_boards_precision_and_float32_boards_are_left_alone() -> None:
    job = bfloat_job("float32")
    inputs = job.collate(job.forget)
    assert job.forward(inputs).logits.dtype == torch.bfloat16
    assert job.frozen_reference()(inputs).logits.dtype == torch.bfloat16
    assert job.hidden(inputs, 0).dtype in (torch.bfloat16, torch.float32)
    assert {p.dtype for p in job.model.parameters()} == {torch.float32}
    assert text_job(rows=2).forward(text_job(rows=2).collate(job.forget[:2])).logits.dtype == torch.float32
    exact, rough = text_job(rows=4), text_job(rows=4, passes="bfloat16")
    assert not torch.equal(exact.sequence_logp(exact.forget), rough.sequence_logp(rough.forget))
    torch.testing.assert_close(
        rough.sequence_logp(rough.forget), exact.sequence_logp(exact.forget), atol=0.5, rtol=0.2
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["rmu", "lunar", "idk_dpo", "altpo"])
def test_methods_train_on_a_bfloat16_board_in_either_precision(name: str, dtype: str) -> None:
    job = bfloat_job(dtype)
    job.plan.__dict__["optimizer"] = OptimizerSpec(lr=0.1, warmup=0)
    before = weights(job)
    run(name, job, **({"max_tokens": 4} if name == "altpo" else {}))
    changed = moved(job, before)
    assert changed and {p.dtype for p in job.model.parameters()} == {getattr(torch, dtype)}


@pytest.mark.parametrize(
    ("lora", "master", "dtype"),
    [(0, True, "float32"), (0, False, "bfloat16"), (4, True, "float32")],
)
def test_a_worker_loads_the_weights_in_the_precision_that_is_trained(
    lora: int, master: bool, dtype: str
) -> None:
    from harness.clock import Allowance, Clock
    from harness.mini.world import data_folder
    from harness.models import MINI

    data = str(data_folder("tofu"))
    board = Board.model_validate({
        "name": "b", "task": {"name": "tofu", "split": "forget10", "data": data},
        "models": {"target": "mini:tofu-full"},
        "dtype": "bfloat16", "budget": {"updates": 1}, "seeds": (0,), "columns": ("forget.p",), "rank_by": "forget.p",
    })  # fmt: skip
    spec = RunSpec(
        run_id="r", board=board, entry="e", submission="s", case="forget10", seed=0, data=data, limit=2,
        models={"target": str(MINI / "tofu-full")},
    )  # fmt: skip
    spec_of = OptimizerSpec(master_weights=master)
    job = job_of(spec, Clock(Allowance(updates=1)), spec_of, lora=LoraSpec(rank=lora))
    trained = {str(p.dtype) for p in job.model.parameters() if p.requires_grad}
    assert trained == {f"torch.{dtype}"} and job.plan.dtype == "bfloat16"
    assert job.forward(job.collate(job.forget)).logits.dtype == torch.bfloat16


# --- options of the optimizer ---
def resolved(**settings: object) -> OptimizerSpec:
    return resolve(load_submission("npo", [ROOT / "submissions"]), {}, settings).optimizer


def test_an_optimizers_own_options_reach_it_through_set() -> None:
    spec = resolved(**{"optimizer.betas": [0.8, 0.9], "optimizer.eps": 1e-6, "optimizer.lr": 0.5})
    job, _ = make_job(optimizer=spec)
    group = job.optimizer().inner.param_groups[0]
    assert (group["betas"], group["eps"], group["lr"]) == ((0.8, 0.9), 1e-6, 0.5)
    for key, value, says in (
        ("optimizer.beta", 0.9, "did you mean optimizer.beta"),
        ("optimizer.eps", -1, "optimizer.eps=-1"),
        ("optimizer.name", "adamv", "did you mean adamw"),
    ):
        with pytest.raises(SubmissionError, match=says):
            resolved(**{key: value})


# --- fit: state, after_update, weights that do not move ---
def counting(job: Job, state: dict[str, object], dies_at: int = 99) -> None:
    """A loss whose weight grows with what `after_update` has counted."""

    def loss(batch: Batch) -> Tensor:
        if job.clock.updates == dies_at:
            raise KeyboardInterrupt
        return token_logp(job.forward(batch.forget)).mean() * float(state["count"]) * state["scale"].sum()  # type: ignore[arg-type,attr-defined]

    def after(update: Update) -> None:
        assert update.index == job.clock.updates
        state["count"] = int(state["count"]) + 1  # type: ignore[call-overload]
        state["scale"] = state["scale"] * 1.5  # type: ignore[operator]

    with job.clock.lane("train"):
        fit(job, loss, after_update=after, state=state)


def fresh() -> dict[str, object]:
    return {"count": 1, "scale": torch.ones(2)}


def test_a_methods_state_goes_on_where_its_checkpoint_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.job.CHECKPOINT_EVERY_S", -1.0)
    whole, broken, resumed = text_job(updates=6), text_job(updates=6, folder=tmp_path), None
    seen = [fresh(), fresh(), fresh()]
    counting(whole, seen[0])
    assert seen[0]["count"] == 7 and torch.equal(seen[0]["scale"], torch.full((2,), 1.5**6))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        counting(broken, seen[1], dies_at=4)
    resumed = text_job(updates=6, folder=tmp_path)
    counting(resumed, seen[2])
    assert seen[2]["count"] == 7 and torch.equal(seen[2]["scale"], seen[0]["scale"])  # type: ignore[arg-type]
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_frozen_weights_are_an_invalid_run_after_five_updates() -> None:
    job, _ = make_job(updates=50)
    optimizer = job.optimizer()
    job.model.requires_grad_(False)
    with pytest.raises(InvalidRun, match="did not move in 5 updates"), job.clock.lane("train"):
        fit(job, lambda _: torch.zeros((), requires_grad=True), optimizer)


def test_a_first_update_with_a_rate_of_zero_is_fine() -> None:
    job, _ = make_job(updates=3, optimizer=OptimizerSpec(lr=0.1, warmup=0.5))
    with job.clock.lane("train"):
        fit(job, lambda batch: token_logp(job.forward(batch.forget)).mean())
    assert job.clock.updates == 3
    assert not torch.equal(job.model.layer.bias, torch.zeros(2))


def test_own_updates_are_trained_on_and_no_curvature_is_estimated_of_them() -> None:
    job, _ = make_job(updates=2, batching=Batching(effective="full"))
    rows = job.collate(job.forget[:2])

    def mine():
        for k in range(job.clock.updates, 9):
            yield Update(k, [Batch(rows, rows, 1.0)], 5)

    with job.clock.lane("train"):
        fit(job, lambda batch: token_logp(job.forward(batch.forget)).mean(), updates=mine())
    assert (job.clock.updates, job.seen.examples, job.seen.tokens) == (2, 10, 8)
    job, _ = make_job(updates=2)
    optimizer = job.optimizer()
    optimizer.inner.wants_curvature = True  # type: ignore[attr-defined]
    with pytest.raises(SubmissionError, match="needs rows"), job.clock.lane("train"):
        fit(job, lambda batch: token_logp(job.forward(batch.forget)).mean(), optimizer, updates=mine())
