"""`uharness sweep`: grids, one table, going on after an interruption, and what a dry run says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran, write_board

from harness.errors import SubmissionError
from harness.sweep import parse_grid

Command = Callable[..., Ran]
SWEEP = ("sweep", "random_label", "--board", "tiny", "--grid", "optimizer.lr=1e-3,1e-4")

BAD = """
from dataclasses import dataclass
from harness import Submission
@dataclass(frozen=True)
class M:
    how: str = "fails"
    def unlearn(self, job):
        if self.how == "fails":
            raise ValueError("no luck")
        if self.how == "diverges":
            next(job.model.parameters()).data.fill_(float("nan"))
submission = Submission(method=M(), title="Bad")
"""


def records(workspace: Path, board: str = "tiny") -> dict[str, dict[str, object]]:
    files = sorted((workspace / "leaderboards" / board / "results").glob("*.json"))
    return {p.stem: json.loads(p.read_text()) for p in files}


def test_a_grid_is_all_combinations_in_order() -> None:
    points = parse_grid(["optimizer.name=adamw,soap", "alpha=1,2.5"])
    assert [tuple(p.values()) for p in points] == [("adamw", 1), ("adamw", 2.5), ("soap", 1), ("soap", 2.5)]
    assert parse_grid([]) == [{}]
    assert parse_grid(["optimizer.betas=[0.9,0.98],[0.9,0.999]"]) == [
        {"optimizer.betas": [0.9, 0.98]}, {"optimizer.betas": [0.9, 0.999]}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "match"),
    [
        (["alpha"], "not key=value"),
        (["alpha="], "not key=value"),
        (["a=1", "a=2"], "'a' twice"),
        (["a=1,1"], "twice"),
    ],
)
def test_a_grid_that_is_none_is_told(pairs: list[str], match: str) -> None:
    with pytest.raises(SubmissionError, match=match):
        parse_grid(pairs)


def test_a_sweep_is_one_table_and_is_not_run_twice(uharness: Command, workspace: Path) -> None:
    asked = uharness(*SWEEP, "--seed", "17", "--dry-run")
    assert asked.code == 0
    assert asked.out.count("would run") == 2
    assert "how long is unknown" in asked.out
    assert not records(workspace)
    ran = uharness(*SWEEP, "--seed", "17", "--format", "json")
    assert ran.code == 0, ran.err
    (table,) = json.loads(ran.out)
    found = records(workspace)
    assert len(found) == 2
    by_rate = {r["config"]["optimizer.lr"]: r for r in found.values()}
    for row in table["rows"]:
        mine = by_rate[row["optimizer.lr"]]
        assert row["entry"] == mine["entry"]
        assert row["forget.p"]["mean"] == mine["scores"]["forget.p"]["value"]
        assert (row["runs"], row["status"], row["forget.p"]["sd"]) == ("1/1", "1 ok", None)
    asked = uharness(*SWEEP, "--seed", "17", "--seed", "26", "--dry-run")
    assert (asked.out.count("recorded as"), asked.out.count("would run")) == (2, 2)
    assert "4 runs, 2 recorded, 2 to run; about" in asked.out
    again = uharness(*SWEEP, "--seed", "17", "--format", "csv", "--out", "table.csv")
    assert again.err.count("already recorded") == 2
    assert records(workspace) == found
    assert (workspace / "table.csv").read_text().startswith("submission,entry,optimizer.lr,runs,status,")


def test_a_failed_run_stops_nothing_and_is_tried_again_while_an_invalid_one_is_a_result(
    uharness: Command, workspace: Path
) -> None:
    (workspace / "submissions" / "bad.py").write_text(BAD)
    command = ("sweep", "bad", "--board", "tiny", "--grid", "how=fails,diverges,works")
    ran = uharness(*command)
    assert ran.code == 1
    statuses = sorted(str(r["status"]) for r in records(workspace).values())
    assert statuses == ["failed", "invalid", "ok"]
    assert "0/1" in ran.out and "1 failed" in ran.out and "1 invalid" in ran.out
    again = uharness(*command)
    assert again.code == 1
    assert again.err.count("already recorded") == 2
    assert sorted(str(r["status"]) for r in records(workspace).values()) == [
        "failed",
        "failed",
        "invalid",
        "ok",
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--set", "optimizer.lr=1e-5"), "in both --grid and --set"),
        (("--case", "M5"), "has no case 'M5'"),
        (("--grid", "optimizer.name=adam"), "did you mean adamw"),
        (("--grid", "optimizer.rate=1"), "no setting 'optimizer.rate'"),
        (("--format", "yaml"), "no format 'yaml'"),
    ],
)
def test_bad_input_is_a_line_before_anything_runs(
    uharness: Command, workspace: Path, more: tuple[str, ...], message: str
) -> None:
    ran = uharness(*SWEEP, *more)
    assert ran.code == 2
    assert message in ran.err.splitlines()[-1]
    assert not records(workspace)


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_repeats_nothing(workspace: Path) -> None:
    """kill -9 while the third run trains: what was recorded stays as it is, and the rest is made."""
    write_board(workspace, "tiny", budget="updates = 15")
    grid = ["--grid", "optimizer.lr=1e-6,2e-6,3e-6,4e-6"]
    command = [
        sys.executable,
        "-c",
        "from harness.cli import main; main()",
        "sweep",
        "grad_diff",
        "--board",
        "tiny",
        *grid,
    ]
    process = subprocess.Popen(command, cwd=workspace, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300

    def training() -> bool:
        return len(list((workspace / "runs/tiny").glob("*/clock.bin"))) == 3

    while not training() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    results = workspace / "leaderboards/tiny/results"
    before = {p.name: p.stat().st_mtime_ns for p in results.glob("*")}
    assert sum(name.endswith(".json") for name in before) == 2
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("already recorded") == 2
    assert {name: (results / name).stat().st_mtime_ns for name in before} == before
    assert len(records(workspace)) == 4
    assert not any(name.endswith("-r2") for name in records(workspace))
