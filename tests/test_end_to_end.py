"""The main job from one end to the other: a run, its record, the database and the page say the same."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Ran, write_board

from harness.markup import slug
from harness.store import Store

Command = Callable[..., Ran]


def records(workspace: Path, board: str = "tiny") -> dict[str, dict[str, object]]:
    folder = workspace / "leaderboards" / board / "results"
    return {r["submission"]: r for r in (json.loads(p.read_text()) for p in sorted(folder.glob("*.json")))}


def test_record_database_table_and_page_show_the_same_numbers(uharness: Command, workspace: Path) -> None:
    write_board(workspace, "tiny", budget="updates = 400")
    ran = uharness("submit", "random_label", "no_op", "retrain", "--board", "tiny")
    assert ran.code == 0, ran.err
    found = records(workspace)
    assert {r["status"] for r in found.values()} == {"ok"}
    mine = found["random_label"]
    damage = mine["scores"]["retain.damage"]["value"]
    assert 0 < damage < 1
    assert mine["stopped"].startswith("forget.p")
    assert mine["scores"]["forget.p"]["value"] <= 0.1
    missing = found["no_op"]["scores"]["retain.damage"]
    assert missing["value"] is None
    assert "forget.p never came down to 0.1" in missing["why"]
    assert found["retrain"]["reference"] is True
    store = Store((workspace / "leaderboards",), workspace / "build/uharness.duckdb")
    _, rows = store.query(
        "SELECT s.value FROM scores s JOIN runs r USING (run_id) "
        "WHERE r.board = 'tiny' AND r.submission = 'random_label' AND s.metric = 'retain.damage'"
    )
    assert rows == [(damage,)]
    table = json.loads(uharness("board", "show", "tiny", "--format", "json").out)
    row = next(r for r in table["rows"] if r["entry"] == mine["entry"])
    assert row["cells"]["retain.damage"]["mean"] == damage
    assert row["rank"] == 1
    assert [r["rank"] for r in table["rows"] if r["reference"]] == [None, None]
    assert uharness("site", "build").code == 0
    board_page = (workspace / "build/site/boards/tiny.html").read_text()
    run_page = (workspace / f"build/site/runs/{slug(str(mine['run_id']))}.html").read_text()
    assert repr(damage) in board_page
    assert repr(damage) in run_page
    curve = store.load_trajectory(mine["run_id"])
    assert curve is not None
    first = int((curve.values["forget.p"] <= 0.1).argmax())
    assert 1 - curve.values["retain.p"][first] == pytest.approx(damage, abs=1e-12)


def test_a_recorded_run_is_not_repeated_unless_asked(uharness: Command, workspace: Path) -> None:
    assert uharness("submit", "random_label", "--board", "tiny").code == 0
    again = uharness("submit", "random_label", "--board", "tiny")
    assert "already recorded" in again.err
    assert len(records(workspace)) == 1
    assert uharness("submit", "random_label", "--board", "tiny", "--again").code == 0
    names = sorted((p.stem for p in (workspace / "leaderboards/tiny/results").glob("*.json")), key=len)
    assert names == [names[0], f"{names[0]}-r2"]


def test_the_same_seed_and_updates_give_the_same_digits(uharness: Command, workspace: Path) -> None:
    for _ in range(2):
        assert uharness("submit", "random_label", "--board", "tiny", "--again").code == 0
    first, second = (
        json.loads(p.read_text())["scores"]
        for p in sorted((workspace / "leaderboards/tiny/results").glob("*.json"))
    )
    assert {k: v for k, v in first.items() if not k.startswith("cost.")} == {
        k: v for k, v in second.items() if not k.startswith("cost.")
    }


def test_set_makes_another_entry_and_limit_is_never_ranked(uharness: Command, workspace: Path) -> None:
    assert uharness("submit", "random_label", "--board", "tiny", "--set", "optimizer.lr=0.01").code == 0
    assert uharness("submit", "random_label", "--board", "tiny", "--limit", "5").code == 0
    table = json.loads(uharness("board", "show", "tiny", "--format", "json").out)
    entries = {r["entry"]: r for r in table["rows"]}
    assert any(
        e.startswith("random_label[optimizer.lr=0.01]@") and r["rank"] == 1 for e, r in entries.items()
    )
    limited = [r for r in table["rows"] if r["section"] == "unranked"]
    assert len(limited) == 1
    assert limited[0]["rank"] is None
    assert "first 5 rows" in json.dumps(limited[0])


def test_a_case_that_the_board_leaves_out_is_run_and_listed_apart(uharness: Command, workspace: Path) -> None:
    ran = uharness("submit", "no_op", "--board", "tiny", "--case", "M5")
    assert (ran.code, len(ran.err.strip().splitlines())) == (2, 1) and "has no case 'M5'" in ran.err
    assert uharness("submit", "no_op", "--board", "tiny", "--case", "M16", "--case", "M16").code == 0
    (path,) = (workspace / "leaderboards/tiny/results").glob("*.json")
    assert json.loads(path.read_text())["case"] == "M16"
    (row,) = json.loads(uharness("board", "show", "tiny", "--format", "json").out)["rows"]
    assert (row["section"], row["why"]) == ("unranked", "the board does not have case M16")
    assert "already recorded" in uharness("submit", "no_op", "--board", "tiny", "--case", "M16").err


def test_rescore_needs_no_model_and_changes_nothing(uharness: Command, workspace: Path) -> None:
    assert uharness("submit", "random_label", "--board", "tiny", "--no-keep-model").code == 0
    before = records(workspace)["random_label"]
    assert not list((workspace / "runs/tiny").glob("random_label-*/model"))
    ran = uharness("rescore", str(before["run_id"]))
    assert ran.code == 0, ran.err
    assert records(workspace)["random_label"]["scores"] == before["scores"]


def test_a_trajectory_is_scored_along_the_budget(uharness: Command, workspace: Path) -> None:
    write_board(workspace, "tiny", budget="updates = 20")
    path = workspace / "leaderboards/tiny.toml"
    path.write_text(path.read_text().replace('[stop]\nmetric = "forget.p"\nat_most = 0.1\n', ""))
    assert uharness("submit", "random_label", "--board", "tiny", "--trajectory").code == 0
    run_id = records(workspace)["random_label"]["run_id"]
    store = Store((workspace / "leaderboards",), workspace / "build/uharness.duckdb")
    curve = store.load_trajectory(str(run_id))
    assert curve is not None
    assert curve.updates.tolist() == list(range(2, 21, 2))
    assert curve.values["test.acc"].shape == (10,)
    assert curve.values["forget.p"][-1] < curve.values["forget.p"][0]


def test_reference_steps_are_timed_and_shared(uharness: Command, workspace: Path) -> None:
    write_board(workspace, "tiny", budget="reference_steps = 20")
    assert uharness("submit", "random_label", "grad_diff", "--board", "tiny").code == 0
    found = records(workspace)
    budgets = {r["budget"]["seconds"] for r in found.values()}
    assert len(budgets) == 1
    step = found["grad_diff"]["budget"]["reference_step_s"]
    assert budgets.pop() == pytest.approx(20 * step)
    for record in found.values():
        assert record["status"] in ("ok", "drift")
        assert record["overshoot_s"] <= max(0.01 * 20 * step, 10 * step)
        assert record["budget"]["drift"] is not None


def test_a_selector_trains_children_and_counts_them(uharness: Command, workspace: Path) -> None:
    ran = uharness("submit", "best_of:random_label", "--board", "tiny", "--set", "n=2")
    assert ran.code == 0, ran.err
    found = records(workspace)["best_of:random_label"]
    assert found["ledger"]["trainings"] == 2
    assert found["ledger"]["proxy_evaluations"] == 2
    assert found["selection"]["kind"] == "proxy"
    assert found["selection"]["proxy_rows"] == 2 * 123
    assert found["selection"]["proxy_rows_in_probes"] == 2 * 123  # this task asks about the rows themselves
    assert found["updates"] == 6


def test_a_method_from_outside(
    uharness: Command, workspace: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("elsewhere") / "halve.py"
    other.write_text((ROOT / "tests/plugin_package/uharness_halve/__init__.py").read_text())
    assert uharness("submit", str(other), "--board", "tiny").code == 0
    assert records(workspace)["halve"]["status"] == "ok"


def test_evaluate_agrees_with_the_record(uharness: Command, workspace: Path) -> None:
    assert uharness("submit", "no_op", "--board", "tiny").code == 0
    ran = uharness("evaluate", "mini:bma/M4", "--board", "tiny", "--json", "out.json")
    assert ran.code == 0, ran.err
    report = json.loads((workspace / "out.json").read_text())
    mine = records(workspace)["no_op"]["scores"]
    same = ["forget.p", "retain.p", "bucket.acc", "within_bucket.acc", "test.acc", "floor.bits"]
    assert {k: report["scores"][k]["value"] for k in same} == {k: mine[k]["value"] for k in same}
    assert report["format"] == 1
    assert report["status"] == "ok"
    rows = report["rows"]["forget"]
    assert len(rows) == 123
    assert all(math.isfinite(row["forget.p"]) for row in rows)


def test_the_default_board_is_printed_and_settable(uharness: Command, workspace: Path) -> None:
    assert uharness("board", "default").out.strip() == "bma-mini"
    assert uharness("board", "default", "tiny").code == 0
    assert uharness("board", "default").out.strip() == "tiny"
    assert re.search(r"^\* +tiny ", uharness("board", "list").out, re.MULTILINE)
    ran = uharness("submit", "no_op")
    assert "board: tiny" in ran.err
    assert ran.code == 0


def test_lists_and_queries(uharness: Command, workspace: Path) -> None:
    assert uharness("submit", "no_op", "--board", "tiny").code == 0
    assert "NPO" in uharness("list", "methods").out
    assert "alpha = 1.0" in uharness("list", "methods", "grad_diff").out
    assert {"bma", "tofu"} <= set(uharness("list", "tasks").out.split())
    assert "adamw" in uharness("list", "optimizers").out
    assert "retain.damage" in uharness("list", "metrics", "--board", "tiny").out
    assert "no_op-M4-s17" in uharness("run", "list").out
    assert "retain.damage" in uharness("run", "show", next(iter(records(workspace).values()))["run_id"]).out
    assert json.loads(
        uharness("db", "query", "SELECT count(*) AS n FROM runs WHERE board = 'tiny'", "--format", "json").out
    ) == [{"n": 1}]
    assert re.match(r"\d+ runs in ", uharness("db", "rebuild").out)
    counted = uharness("db", "query", "SELECT count(*) FROM runs WHERE board = 'tiny'", "--format", "csv").out
    assert counted.splitlines()[1] == "1"
    assert "uharness reference" not in uharness("reference", "tiny").err


def test_the_doctor_finds_what_is_broken(uharness: Command, workspace: Path) -> None:
    assert uharness("doctor").code == 0
    (workspace / "submissions" / "mine.py").write_text("x = \n")
    ran = uharness("doctor")
    assert ran.code == 1
    assert "FAIL  method mine" in ran.out


@pytest.mark.slow
def test_a_stranger_with_a_wheel_in_an_empty_folder(tmp_path: Path) -> None:
    """The built wheel in an environment of its own, no checkout: the main job runs on the package's own copies."""
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
                   check=True, capture_output=True)  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    home = tmp_path / "env"
    venv.create(home, with_pip=False, symlinks=True)
    target = next((home / "lib").glob("python*")) / "site-packages"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    here = [p for p in sys.path if p.endswith("site-packages")]
    (target / "dependencies.pth").write_text(
        "\n".join(here)
    )  # a path in a .pth does not follow that folder's own
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "UHARNESS_WORKSPACE")}
    command = [str(home / "bin/python"), "-c", "from harness.cli import main; main()"]
    where = subprocess.run([*command[:2], "import harness; print(harness.__file__)"], cwd=folder, env=environment,
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert str(target) in where.stdout
    ask = ("submit", "grad_diff", "--board", "bma-mini", "--seed", "17", "--again")
    done = subprocess.run(
        [*command, *ask], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "GradDiff" in done.stdout
    assert len(list((folder / "leaderboards/bma-mini/results").glob("grad_diff-*.json"))) == 4
    done = subprocess.run(
        [*command, "site", "build"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "build/site/boards/bma-mini.html").exists()
