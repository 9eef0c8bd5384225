"""The boards on the full TOFU: what the files say, and what can be known of them without the hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import doctor, preflight
from harness.entries import resolve_spec
from harness.specs import TaskRef
from harness.tasks.tofu_data import PAIRS
from harness.workspace import Workspace

ROOT = Path(__file__).parent.parent
STEPS = {
    "1b": {"forget01": 13, "forget05": 63, "forget10": 125},
    "3b": {"forget01": 25, "forget05": 125, "forget10": 250},
}
BOARDS = [
    (size, split, form) for size in STEPS for split in STEPS[size] for form in ("reference_steps", "updates")
]


def name_of(size, split, form):
    return f"tofu-{size}-{split}" + ("-updates" if form == "updates" else "")


@pytest.fixture(scope="module")
def shipped():
    return Workspace(ROOT)


@pytest.mark.parametrize(("size", "split", "form"), BOARDS)
def test_a_board_has_the_papers_budget_and_the_right_pair(shipped, size, split, form):
    board = shipped.board(name_of(size, split, form))
    base = f"Llama-3.2-{size.upper()}-Instruct"
    assert board.models == {
        "target": f"open-unlearning/tofu_{base}_full", "retain": f"open-unlearning/tofu_{base}_{PAIRS[split][0]}",
        "init": f"meta-llama/{base}",
    }  # fmt: skip
    assert board.settings["unmerge"] == {"basis": "retain_pca", "solver": "closed"}
    assert (board.budget.kind, getattr(board.budget, form)) == (form, STEPS[size][split])
    assert (board.batch.effective, board.batch.micro) == ((32, 8) if size == "1b" else (16, 4))
    assert (board.task.split, board.task.options["fluency"], board.dtype) == (split, "hub", "float32")
    assert (board.template.system, board.template.date) == ("You are a helpful assistant.", "10 Apr 2025")
    rows = {"forget01": 40, "forget05": 200, "forget10": 400}[split]
    assert STEPS[size][split] == pytest.approx(10 * rows / board.batch.effective, abs=0.5)
    for method in board.settings:
        entry = resolve_spec(method, shipped.submissions, board.settings, {})
        assert (entry.optimizer.lr, entry.optimizer.warmup, entry.optimizer.weight_decay) == (1e-5, 0.1, 0.01)


def test_both_forms_of_a_board_differ_in_the_budget_only(shipped):
    for size, splits in STEPS.items():
        for split in splits:
            two = [
                shipped.board(name_of(size, split, form)).model_dump(
                    mode="json", exclude={"name", "title", "budget"}
                )
                for form in ("reference_steps", "updates")
            ]
            assert two[0] == two[1]


def test_what_a_page_shows_first_has_soup_quality_and_the_whole_cost(shipped):
    boards = [
        shipped.board(name)
        for name in ("tofu-mini", "tofu-8b-forget10-updates", *(name_of(*b) for b in BOARDS))
    ]
    for board in boards:
        assert board.columns[0] == board.rank_by and {"sbq", "cost.total_s"} < set(board.columns[:6])
        assert "tow" in board.columns
        assert board.columns[-3:] == ("cost.trainings", "cost.proxy_evaluations", "cost.full_evaluations")


def no_data(*_, **__):
    raise AssertionError("the hub was asked")


def test_columns_are_known_without_the_hub(shipped, monkeypatch):
    monkeypatch.setattr("harness.tasks.sources.Hub.rows", no_data)
    known = preflight.described(shipped.board("tofu-1b-forget10"), shipped)
    assert known.cases == ("forget10",) and known.hub == ("locuslab/TOFU",)
    assert set(known.board.columns) <= set(known.metrics)


def test_an_outline_is_what_the_task_says(tmp_path):
    from test_tofu import build, save, world

    from harness.tasks.tofu import outline

    task = build(save(tmp_path / "data", world()), mia=["reference"])
    ref = TaskRef(name="tofu", split="forget05", data=str(tmp_path / "data"), options={"mia": ["reference"]})
    known = outline(ref)
    assert (known.cases, known.metrics, known.hub) == (task.case_ids(), task.metrics(), ())


def test_the_doctor_says_what_the_hub_is_needed_for(shipped, monkeypatch):
    monkeypatch.setattr("harness.tasks.sources.Hub.rows", no_data)
    finding = doctor._try("board", lambda: doctor._board(shipped, "tofu-3b-forget05"))
    assert finding.ok and "locuslab/TOFU" in finding.text
    assert "needs the hub" in finding.text


def test_commands_list_these_boards_without_the_hub(uharness, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("harness.tasks.sources.Hub.rows", no_data)
    boards = json.loads(uharness("board", "list", "--json").out)
    assert {name_of(*b) for b in BOARDS} <= {b["name"] for b in boards}
    assert not [b for b in boards if b["title"].startswith("broken")]
    metrics = {
        m["id"] for m in json.loads(uharness("list", "metrics", "--board", "tofu-1b-forget01", "--json").out)
    }
    assert {"agg", "util", "forget.fluency", "agg.own_fluency.corrected"} <= metrics
