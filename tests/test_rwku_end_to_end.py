"""A board of one person, from the command line: the original's gain, refusals and an instruction, the weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran

Command = Callable[..., Ran]

BOARD = """
title = "One person"
rank_by = "gain.chance_floored"
columns = ["gain.chance_floored", "gain", "forget_qa.rougeL_recall.rwku", "mmlu.acc"]
seeds = [0]
[task]
name = "rwku"
data = "mini:people"
[task.options]
targets = ["Varek Keldgard"]
corpus = "mini"
prompts = "plain"
[task.options.mmlu]
tasks = ["mmlu_mini_guilds_continuation"]
shots = 0
limit = 6
chat_template = true
folder = "mini:lmeval"
[models]
target = "mini:base"
original = "mini:base"
[budget]
updates = 12
"""


@pytest.mark.slow
def test_original_refusals_and_an_instruction(uharness: Command, workspace: Path) -> None:
    (workspace / "leaderboards/person.toml").write_text(BOARD)
    ran = uharness("submit", "no_op", "in_context", "--board", "person", "--keep-model")
    assert ran.code == 0, ran.err
    ran = uharness("submit", "rejection_tuning", "--board", "person", "--set", "optimizer.lr=1e-3")
    assert ran.code == 0, ran.err
    records = [json.loads(p.read_text()) for p in (workspace / "leaderboards/person/results").glob("*.json")]
    found = {r["submission"]: r for r in records}
    value = {name: {k: s["value"] for k, s in r["scores"].items()} for name, r in found.items()}
    assert {(r["case"], r["status"]) for r in records} == {("2_Varek_Keldgard", "ok")}
    assert value["no_op"]["gain"] == value["no_op"]["gain.chance_floored"] == 0.0
    assert value["no_op"]["forget_qa.rougeL_recall.rwku"] > 0.7 < value["no_op"]["mmlu.acc"]
    assert "Varek Keldgard" in found["in_context"]["env"]["encoder"]["instruction"]
    assert value["rejection_tuning"]["gain"] is not None and found["rejection_tuning"]["updates"] == 12
    assert value["rejection_tuning"]["forget_qa.rougeL_recall.rwku"] < 0.7
    kept = {p.parent.name.split("-")[0] for p in (workspace / "runs/person").glob("*/model")}
    assert kept == {"no_op", "in_context"}
