"""Board `tofu-mini`: no download, the same code path as the real benchmark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Ran

from harness import scoring
from harness.generate.hf import HFGenerator
from harness.models import load, resolve
from harness.preflight import board_ready
from harness.types import Likelihood
from harness.workspace import Workspace

Command = Callable[..., Ran]


def board_of_updates(workspace: Path, updates: int) -> None:
    text = (ROOT / "leaderboards" / "tofu-mini.toml").read_text()
    text = re.sub(r"reference_steps = \d+", f"updates = {updates}", text)
    (workspace / "leaderboards" / "few.toml").write_text(text)


def test_the_same_seed_and_updates_give_the_same_digits(uharness: Command, workspace: Path) -> None:
    board_of_updates(workspace, 3)
    for _ in range(2):
        ran = uharness("submit", "npo", "--board", "few", "--seed", "0", "--again")
        assert ran.code == 0, ran.err
    first, second = (
        {k: v for k, v in json.loads(p.read_text())["scores"].items() if not k.startswith("cost.")}
        for p in sorted((workspace / "leaderboards/few/results").glob("*.json"))
    )
    assert first == second
    assert first["agg.own_fluency"]["value"] is not None
    assert first["forget_quality.log10p"]["value"] is not None


def test_the_retrained_model_is_its_own_reference_and_says_so(uharness: Command, workspace: Path) -> None:
    board_of_updates(workspace, 3)
    assert uharness("submit", "retrain", "no_op", "--board", "few", "--seed", "0").code == 0
    found = {r["submission"]: r for r in map(json.loads, (p.read_text() for p in
             (workspace / "leaderboards/few/results").glob("*.json")))}  # fmt: skip
    assert found["retrain"]["reference"] is True
    assert found["retrain"]["scores"]["forget_quality.p"]["value"] == 1.0
    assert found["retrain"]["scores"]["priv"]["value"] == pytest.approx(1.0)
    assert found["no_op"]["scores"]["forget_quality.p"]["value"] < 1e-3
    assert found["no_op"]["scores"]["forget.prob"]["value"] > 0.8
    assert found["retrain"]["scores"]["forget.prob"]["value"] < 0.3
    agg = {name: r["scores"]["agg.own_fluency"]["value"] for name, r in found.items()}
    assert agg["no_op"] < agg["retrain"] / 2


def test_a_reference_that_is_the_target_is_refused(uharness: Command, workspace: Path) -> None:
    board_of_updates(workspace, 3)
    path = workspace / "leaderboards" / "few.toml"
    path.write_text(path.read_text().replace("mini:tofu-retain90", "mini:tofu-full"))
    ran = uharness("submit", "npo", "--board", "few", "--seed", "0")
    assert ran.code == 2
    assert "same weights as the target" in ran.err.splitlines()[-1]


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_values_do_not_depend_on_the_batch(rows: int) -> None:
    """Likelihoods and greedy texts of a few questions, in batches of 1, 7 and 64 rows, are those of the default."""
    ready = board_ready(Workspace(ROOT).board("tofu-mini"), Workspace(ROOT))
    case = ready.task.case("forget10", 0)
    asked = [row for p in ready.task.probes(case) if isinstance(p, Likelihood) for row in p.rows[:12]]
    loaded = load(resolve("mini:tofu-full"))
    assert loaded.encoder is not None
    usual = scoring.score(loaded.model, asked, loaded.encoder)
    width = max(len(loaded.encoder.encode(row).ids) for row in asked)
    mine = scoring.score(loaded.model, asked, loaded.encoder, batch_tokens=rows * width)
    np.testing.assert_allclose(mine.logp, usual.logp, atol=1e-4)
    np.testing.assert_array_equal(mine.hit, usual.hit)
    prompts = [loaded.encoder.prompt(row) for row in asked[:16]]
    texts = HFGenerator(loaded.model, loaded.encoder, batch_size=rows).generate(prompts, max_tokens=12)
    assert texts == HFGenerator(loaded.model, loaded.encoder).generate(prompts, max_tokens=12)


def test_packed_answers_have_the_values_of_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = board_ready(Workspace(ROOT).board("tofu-mini"), Workspace(ROOT))
    case = ready.task.case("forget10", 0)
    asked = [row for p in ready.task.probes(case) if isinstance(p, Likelihood) for row in p.rows[:10]]
    loaded = load(resolve("mini:tofu-full"))
    packed = scoring.score(loaded.model, asked, loaded.encoder)
    calls: list[int] = []
    monkeypatch.setattr(scoring.packing, "usable", lambda *_: bool(calls.append(1)))
    single = scoring.score(loaded.model, asked, loaded.encoder)
    assert calls
    np.testing.assert_allclose(packed.logp, single.logp, atol=1e-4)
    np.testing.assert_allclose(packed.mean_logp, single.mean_logp, atol=1e-4)
    np.testing.assert_allclose(packed.var_logp, single.var_logp, atol=1e-3)
    np.testing.assert_array_equal(packed.is_eos, single.is_eos)
