"""Adapters in place of full training: what is trained, what is saved, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Ran, write_board
from test_methods_records import TEXT_BOARD
from tiny_job import moved, run, text_job, weights

from harness.errors import ModelError, SubmissionError
from harness.job import Job
from harness.models import load, save
from harness.scoring import token_logp
from harness.specs import LoraSpec, OptimizerSpec

Command = Callable[..., Ran]
FOUR = LoraSpec(rank=4)
FAST = OptimizerSpec(lr=1e-2, warmup=0)


def logp(job: Job) -> torch.Tensor:
    with torch.no_grad():
        return token_logp(job.forward(job.collate(job.forget)))


def test_rank_0_is_the_model_itself_and_adapters_start_without_effect() -> None:
    plain, off, on = (text_job(lora=lora, rows=4) for lora in (None, LoraSpec(), FOUR))
    assert not off.loaded.adapters and type(off.model) is type(plain.model)
    assert on.loaded.adapters
    assert torch.equal(logp(plain), logp(off))
    torch.testing.assert_close(logp(on), logp(plain), rtol=0, atol=1e-6)
    assert on.generate([r.prompt for r in on.forget], max_tokens=12) == plain.generate(
        [r.prompt for r in plain.forget], max_tokens=12
    )


def test_only_adapters_are_trained_and_they_are_drawn_by_the_seed() -> None:
    torch.manual_seed(1)
    job = text_job(lora=FOUR, updates=2)
    before = weights(job)
    after_draw = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(after_draw, torch.get_rng_state())
    run("npo", job)
    changed = moved(job, before)
    assert changed and all("lora_" in name for name in changed)
    trained = {name for name, p in job.model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 4 * 7  # A and B of the seven linear maps in each of four blocks
    assert all(before[name].shape[0 if "lora_A" in name else 1] == 4 for name in trained)
    assert not any(
        not a.equal(b) for a, b in zip(before.values(), weights(text_job(lora=FOUR)).values(), strict=True)
    )
    other = weights(text_job(lora=FOUR, seed=1))
    assert any(not before[name].equal(other[name]) for name in trained if "lora_A" in name)


def test_alpha_scales_the_update_and_is_twice_the_rank_by_default() -> None:
    for lora, scale in ((FOUR, 2.0), (LoraSpec(rank=4, alpha=2.0), 0.5)):
        layer = text_job(lora=lora).model.base_model.model.model.layers[0].mlp.down_proj
        assert layer.scaling == {"default": scale}


def test_targets_pick_the_maps_and_a_pattern_that_fits_none_is_told() -> None:
    job = text_job(lora=LoraSpec(rank=2, targets=r".*\.(q|v)_proj"))
    assert {n.split(".")[-4] for n, p in job.model.named_parameters() if p.requires_grad} == {
        "q_proj",
        "v_proj",
    }
    with pytest.raises(ModelError, match=r"no module fits lora.targets='.*nothing'"):
        text_job(lora=LoraSpec(rank=2, targets=".*nothing"))


def test_what_is_saved_is_merged_and_answers_alike(tmp_path: Path) -> None:
    job = text_job(lora=FOUR, optimizer=FAST, updates=4, folder=tmp_path)
    job.plan.__dict__["points"] = (0.5, 1.0)
    first = logp(job)
    run("npo", job)
    now = logp(job)
    assert not torch.allclose(first, now, atol=1e-2)
    save(job.loaded, tmp_path / "model")
    job.checkpoint()
    assert job.loaded.adapters and torch.equal(logp(job), now)  # saving merges a copy
    for folder in ("model", "points/1", "checkpoint/model"):
        again = load(str(tmp_path / folder))
        assert not again.adapters and not any("lora" in name for name, _ in again.model.named_parameters())
        plain = text_job(loaded=again)
        torch.testing.assert_close(logp(plain), now, rtol=1e-4, atol=1e-4)
    half = logp(text_job(loaded=load(str(tmp_path / "points/0"))))
    assert not torch.allclose(half, now, atol=1e-3)


def test_an_interrupted_run_with_adapters_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.job.CHECKPOINT_EVERY_S", -1.0)
    whole = run("npo", text_job(lora=FOUR, updates=5))
    broken = text_job(lora=FOUR, updates=5, folder=tmp_path)
    passes = broken.forward

    def dies(inputs: object, hidden: tuple[int, ...] = ()) -> object:
        if broken.clock.updates == 3:
            raise KeyboardInterrupt
        return passes(inputs, hidden)  # type: ignore[arg-type]

    broken.forward = dies  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        run("npo", broken)
    resumed = run("npo", text_job(lora=FOUR, updates=5, folder=tmp_path))
    assert not moved(resumed, weights(whole))
    assert resumed.seen.examples == whole.seen.examples


def test_methods_that_choose_their_weights_take_no_adapters() -> None:
    for name, settings in (("lunar", {}), ("rmu", {"form": "wmdp", "layer": 2})):
        with pytest.raises(SubmissionError, match=r"leave lora\.rank at 0"):
            run(name, text_job(lora=FOUR), **settings)
    job = run("rmu", text_job(lora=FOUR))
    assert job.clock.updates == 3


def test_a_board_without_text_refuses_adapters_before_anything_runs(
    uharness: Command, workspace: Path
) -> None:
    write_board(workspace, "tiny")
    ran = uharness("submit", "npo", "--board", "tiny", "--set", "lora.rank=4")
    assert (ran.code, len(ran.err.strip().splitlines())) == (2, 1) and "lora.rank=4" in ran.err
    ran = uharness("submit", "npo", "--board", "tiny", "--set", "lora.rank=-1")
    assert ran.code == 2 and "lora.rank" in ran.err


@pytest.mark.slow
def test_a_run_with_adapters_leaves_a_record(uharness: Command, workspace: Path) -> None:
    (workspace / "leaderboards/text.toml").write_text(TEXT_BOARD)
    ran = uharness("submit", "npo", "--board", "text", "--set", "lora.rank=4", "--set", "optimizer.lr=1e-2")
    assert ran.code == 0, ran.err
    wrong = ("--set", "lora.rank=4", "--set", "lora.targets=nothing")
    assert uharness("submit", "npo", "--board", "text", *wrong).code == 1
    found = [
        json.loads(p.read_text()) for p in sorted((workspace / "leaderboards/text/results").glob("*.json"))
    ]
    by_status = {r["status"]: r for r in found}
    assert set(by_status) == {"ok", "failed"}
    assert by_status["ok"]["config"]["lora.rank"] == 4
    assert "no module fits lora.targets='nothing'" in by_status["failed"]["error"]
    assert "\n" not in by_status["failed"]["error"]
