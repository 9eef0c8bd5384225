"""Robustness axes of runs: asked for with a run or afterwards, stored, shown; what cannot be measured says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Ran
from test_robustness import a_board

from harness import measures
from harness.pages.runs import _relearning
from harness.robustness import report
from harness.runs import RunSpec, read_json
from harness.session import Session
from harness.sitecontent import collect
from harness.specs import Quantise, Relearn, Robustness, RunRecord
from harness.store import Store
from harness.supervise import Outcome
from harness.workspace import Workspace

Command = Callable[..., Ran]

BOARD = """
rank_by = "forget.es"
columns = ["forget.es", "relearn.forget.es.unseen"]
seeds = [0]
[task]
name = "tofu"
split = "forget05"
data = "mini:tofu"
[models]
target = "mini:tofu-full"
retain = "mini:tofu-retain95"
[budget]
updates = 2
"""
TABLE = "[robustness.relearn]\nsteps = 2\nevery = 1\nlr = 1e-3\nshare = 0.5\n"


def a_run(tmp_path: Path) -> tuple[Session, RunSpec, Path]:
    folder = tmp_path / "runs" / "b" / "r"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    workspace: Any = Workspace(root=tmp_path)
    spec = RunSpec(run_id="r", board=a_board(), entry="e", submission="s", case="c", seed=0)
    return Session(workspace, SimpleNamespace()), spec, folder  # type: ignore[arg-type]


def test_an_axis_is_measured_once_for_its_settings_and_one_that_dies_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, spec, folder = a_run(tmp_path)
    asked: list[str] = []

    def stage(function: str, place: Path, **_: Any) -> Outcome:
        axis = function.rpartition(":")[2]
        asked.append(axis)
        if axis == "quantise":
            return Outcome("died", "no memory")
        settings = Relearn.model_validate(read_json(place / f"{axis}.request.json")["settings"])
        report.write_note(place, axis, settings, {}, {"lr": settings.lr})
        return Outcome("ok")

    monkeypatch.setattr(measures, "run_stage", stage)
    both = Robustness(relearn=Relearn(lr=1e-4), quantise=Quantise(bits=(8,)))
    measures.measure_axes(session, spec, folder, both)
    measures.measure_axes(session, spec, folder, both)
    assert asked == ["relearn", "quantise", "quantise"]  # what failed is tried again
    found = report.scores(report.notes(folder))
    assert found["quantise.int8.forget.es"].why == "stage quantise: no memory"
    assert all(s.value is None for name, s in found.items() if name.startswith("quantise"))
    measures.measure_axes(session, spec, folder, Robustness(relearn=Relearn(lr=1e-3)))
    assert asked[-1] == "relearn" and report.notes(folder)["relearn"]["facts"] == {"lr": 1e-3}


def test_array_boards_have_no_axes(tmp_path: Path) -> None:
    session, _, _ = a_run(tmp_path)
    session.robustness = "all"
    texts, arrays = (SimpleNamespace(board=a_board(), text=text) for text in (True, False))
    assert len(measures.axes_of(session, texts).axes) == 3  # type: ignore[arg-type]
    assert measures.axes_of(session, arrays) == Robustness()  # type: ignore[arg-type]


@pytest.mark.slow
def test_axes_are_added_to_a_recorded_run_without_training_again(uharness: Command, workspace: Path) -> None:
    board = workspace / "leaderboards" / "b.toml"
    board.write_text(BOARD)
    submit = ("submit", "no_op", "--board", "b", "--limit", "6")
    assert uharness(*submit).code == 0
    (path,) = (workspace / "leaderboards/b/results").glob("*.json")
    before = json.loads(path.read_text())
    assert not [name for name in before["scores"] if name.startswith("relearn")]

    board.write_text(BOARD + TABLE)
    ran = uharness(*submit)
    assert ran.code == 0 and "measured relearn" in ran.err, ran.err
    after = json.loads(path.read_text())
    extra = {name: s for name, s in after["scores"].items() if name not in before["scores"]}
    assert {name.split(".")[0] for name in extra} == {"relearn"}
    assert {k: after["scores"][k] for k in before["scores"]} == before["scores"]
    assert after["started"] == before["started"] and after["charged_s"] == before["charged_s"]
    assert after["env"]["robustness"]["relearn"]["steps"] == 2
    assert extra["relearn.forget.es.unseen"]["n"] == 3 and extra["relearn.excess"]["value"] > 0
    assert "measured" not in uharness(*submit).err

    store = Store((workspace / "leaderboards",), workspace / "build/uharness.duckdb")
    curve = store.query(
        "SELECT name, step, value FROM diagnostics WHERE kind = 'relearn' AND measure = 'forget.es'"
        f" AND run_id = '{after['run_id']}' ORDER BY ALL"
    )[1]
    assert [(name, step) for name, step, _ in curve] == [(w, s) for w in ("retain", "run") for s in (0, 1, 2)]
    assert curve[-1][2] == extra["relearn.forget.es"]["value"]
    assert curve[3][2] == after["scores"]["forget.es"]["value"]
    shown = uharness("board", "show", "b", "--columns", "relearn.auc", "--format", "csv")
    assert "relearn.auc" in shown.out
    lines = collect(Workspace(workspace), store, ["b"]).relearning[after["run_id"]]
    charts, data = _relearning(RunRecord.model_validate(after), lines)
    assert (
        [name for name, _ in charts] == list(data) == ["chart-relearning-rows"]
    )  # TOFU's rows are its questions
    assert set(data["chart-relearning-rows"]["lines"]) == {"run", "run, unseen", "retain", "retain, unseen"}

    shutil.rmtree(workspace / "runs" / "b" / after["run_id"] / "model")
    ran = uharness(*submit, "--robustness", "relearn,paraphrase")
    assert "weights were not kept" in ran.err and "--again" in ran.err
    last = json.loads(path.read_text())
    assert last["scores"]["relearn.auc"] == after["scores"]["relearn.auc"]
    assert "--again" in last["scores"]["paraphrase.forget.prob"]["why"]


@pytest.mark.slow
def test_all_axes_with_the_run_and_a_line_for_an_array_board(uharness: Command, workspace: Path) -> None:
    (workspace / "leaderboards" / "b.toml").write_text(BOARD + TABLE)
    ran = uharness("submit", "no_op", "--board", "b", "--board", "tiny", "--limit", "4", "--no-keep-model",
                   "--robustness", "all")  # fmt: skip
    assert ran.code == 0, ran.err
    assert "board tiny: robustness axes are for language boards" in ran.err
    (path,) = (workspace / "leaderboards/b/results").glob("*.json")
    scores = json.loads(path.read_text())["scores"]
    missing = {name for name in scores if name.startswith("translated")}
    assert all(scores[name]["why"] == "task tofu has no translated prompts on these data" for name in missing)
    for name in ("relearn.excess", "quantise.int4.retain.rougeL_recall", "paraphrase.forget.rougeL_recall"):
        assert scores[name]["value"] is not None
    assert scores["quantise.int8.changed"]["value"] == 0.0  # the untouched model
    assert scores["quantise.full.forget.es"]["value"] == scores["forget.es"]["value"]
    assert not (path.parent.parent.parent.parent / "runs" / "b" / path.stem / "model").exists()
