"""Bad methods: a record with status and reason, exit code 1, nothing else lost, the next submission unharmed."""

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

from harness.supervise import run_stage

Command = Callable[..., Ran]

HEAD = """
import os, signal, sys, time
from dataclasses import dataclass
import torch
from harness import Submission
@dataclass(frozen=True)
class M:
    def unlearn(self, job):
{body}
submission = Submission(method=M(), title="Bad")
"""


def write_method(workspace: Path, body: str) -> None:
    lines = "\n".join("        " + line for line in body.strip().splitlines())
    (workspace / "submissions" / "bad.py").write_text(HEAD.format(body=lines))


def record(workspace: Path, board: str = "tiny") -> dict[str, object]:
    files = sorted((workspace / "leaderboards" / board / "results").glob("bad-*.json"))
    assert len(files) == 1, files
    return json.loads(files[0].read_text())


BAD = {
    "raises": ("raise ValueError('no luck')", "failed", "ValueError: no luck (bad.py, line 9)"),
    "returns NaN weights": ("next(job.model.parameters()).data.fill_(float('nan'))", "invalid", "not finite"),
    "calls sys.exit": ("sys.exit(0)", "failed", "sys.exit(0)"),
    "leaves at once": ("os._exit(0)", "failed", "before it was done"),
    "kills itself": ("os.kill(os.getpid(), signal.SIGKILL)", "failed", "SIGKILL"),
    "segfaults": ("import ctypes; ctypes.string_at(0)", "failed", "SIGSEGV"),
    "never returns": ("time.sleep(1000)", "timeout", "still running at 1.25 x its budget"),
    "forks and hangs": ("os.fork(); time.sleep(1000)", "timeout", "still running"),
    "eats its budget": ("while job.clock.remaining_s > 0: pass\ntime.sleep(0.1)", "over_budget", "used"),
    "asks for too much": ("torch.empty(1 << 50)", "failed", "memory"),
    "asks for what is not there": ("job.resource('probes')", "failed", "no resource 'probes'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_method_is_a_record_with_a_reason(uharness: Command, workspace: Path, kind: str) -> None:
    body, status, reason = BAD[kind]
    write_board(workspace, "tiny", budget="seconds = 1.0")
    write_method(workspace, body)
    before = set(children_of_nobody())
    ran = uharness("submit", "bad", "--board", "tiny")
    found = record(workspace)
    assert (found["status"], reason in str(found["error"])) == (status, True), found["error"]
    assert ran.code == (0 if status == "over_budget" else 1)
    assert "Traceback" not in ran.err
    assert status in ran.out  # the table shows it, with its reason
    assert set(children_of_nobody()) <= before, "something that the method forked is still there"


def children_of_nobody() -> list[int]:
    """Processes that sleep in a stage's session: those with `uharness-unlearn`-like parents are gone afterwards."""
    done = subprocess.run(["ps", "-eo", "pid,ppid,cmd"], capture_output=True, text=True, check=True)
    return [int(line.split()[0]) for line in done.stdout.splitlines()[1:]
            if "multiprocessing.forkserver" in line and line.split()[1] == "1"]  # fmt: skip


def test_the_next_submission_is_unharmed(uharness: Command, workspace: Path) -> None:
    write_method(workspace, "os.kill(os.getpid(), signal.SIGKILL)")
    ran = uharness("submit", "bad", "random_label", "--board", "tiny")
    assert ran.code == 1
    records = [json.loads(p.read_text()) for p in (workspace / "leaderboards/tiny/results").glob("*.json")]
    assert {r["submission"]: r["status"] for r in records} == {"bad": "failed", "random_label": "ok"}


def test_what_a_killed_method_had_spent_is_recorded(uharness: Command, workspace: Path) -> None:
    write_board(workspace, "tiny", budget="seconds = 30.0")
    write_method(workspace, "time.sleep(0.3)\njob.clock.tick()\nos.kill(os.getpid(), signal.SIGKILL)")
    assert uharness("submit", "bad", "--board", "tiny").code == 1
    found = record(workspace)
    assert 0.3 <= found["charged_s"] < 5.0
    assert found["updates"] == 1


def test_a_mended_method_replaces_nothing_and_is_ranked(uharness: Command, workspace: Path) -> None:
    write_method(workspace, "raise ValueError('no luck')")
    assert uharness("submit", "bad", "--board", "tiny").code == 1
    write_method(workspace, "pass")
    assert uharness("submit", "bad", "--board", "tiny").code == 0
    files = list((workspace / "leaderboards/tiny/results").glob("bad-*.json"))
    assert len(files) == 2  # another source is another entry


def test_a_checkpoint_made_in_time_is_scored_when_the_method_never_ends(
    uharness: Command, workspace: Path
) -> None:
    write_board(workspace, "tiny", budget="seconds = 1.0")
    write_method(workspace, "job.checkpoint()\nnext(job.model.parameters()).data.zero_()\ntime.sleep(1000)")
    assert uharness("submit", "bad", "--board", "tiny").code == 0
    found = record(workspace)
    assert found["status"] == "over_budget"
    assert "scored by its checkpoint" in str(found["error"])
    assert 1.25 <= found["charged_s"] < 4.0  # measured when it was ended, not assumed
    assert found["scores"]["retain.p"]["value"] > 0.99  # the weights of the checkpoint, not the zeroed ones


def test_a_run_without_updates_is_ended_when_it_shows_no_life(uharness: Command, workspace: Path) -> None:
    write_board(workspace, "tiny", budget="updates = 5\nhang_s = 2.0")
    write_method(workspace, "time.sleep(1000)")
    assert uharness("submit", "bad", "--board", "tiny").code == 1
    assert record(workspace)["status"] == "timeout"
    assert "no sign of life for 2 s" in str(record(workspace)["error"])


def test_an_interrupted_run_goes_on_with_what_was_left_of_its_budget(workspace: Path) -> None:
    """kill -9 in the middle of training; the second run has the rest of the budget and both end in one record."""
    write_board(workspace, "tiny", budget="seconds = 6.0")
    write_method(workspace, "while job.clock.remaining_s > 0: time.sleep(0.01)")
    command = [
        sys.executable,
        "-c",
        "from harness.cli import main; main()",
        "submit",
        "bad",
        "--board",
        "tiny",
    ]
    process = subprocess.Popen(command, cwd=workspace, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    from harness.clock import read_journal

    deadline = time.monotonic() + 120
    spent = 0.0
    while spent < 2.0 and time.monotonic() < deadline:
        time.sleep(0.05)
        for path in (workspace / "runs").glob("tiny/*/clock.bin"):
            state = read_journal(path)
            spent = state.charged_at(time.monotonic()) if state is not None else 0.0
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 2.0 <= spent < 6.0
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = record(workspace)
    assert found["charged_s"] == pytest.approx(6.0, abs=0.5)
    lanes = found["lanes_s"]
    assert lanes["train"] == pytest.approx(6.0, abs=0.5)


def hear_ctrl_c() -> None:
    """A job in the background of a shell is started with SIGINT ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_the_stage_and_exits_130(workspace: Path) -> None:
    write_board(workspace, "tiny", budget="seconds = 60.0")
    write_method(workspace, "time.sleep(1000)")
    command = [
        sys.executable,
        "-c",
        "from harness.cli import main; main()",
        "submit",
        "bad",
        "--board",
        "tiny",
    ]
    process = subprocess.Popen(
        command,
        cwd=workspace,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
    )
    deadline = time.monotonic() + 120
    while not list((workspace / "runs").glob("tiny/*/clock.bin")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not list((workspace / "leaderboards/tiny").glob("results/*.json"))


def test_two_submissions_at_once_both_land(workspace: Path) -> None:
    command = [sys.executable, "-c", "from harness.cli import main; main()", "submit", "--board", "tiny"]
    both = [
        subprocess.Popen(
            [*command, name], cwd=workspace, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("random_label", "max_entropy")
    ]
    for process in both:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    from harness.store import Store

    files = list((workspace / "leaderboards/tiny/results").glob("*.json"))
    store = Store((workspace / "leaderboards",), workspace / "build/uharness.duckdb")
    _, rows = store.query("SELECT submission FROM runs WHERE board = 'tiny' ORDER BY submission")
    assert len(files) == 2
    assert [r[0] for r in rows] == ["max_entropy", "random_label"]


def test_the_same_run_in_two_processes_is_told(uharness: Command, workspace: Path) -> None:
    import fcntl

    assert uharness("submit", "random_label", "--board", "tiny").code == 0
    (folder,) = (workspace / "runs/tiny").glob("random_label-*")
    for path in (workspace / "leaderboards/tiny/results").iterdir():
        path.unlink()
    (folder / "record.json").unlink()
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ran = uharness("submit", "random_label", "--board", "tiny")
    assert ran.code == 2
    assert "in progress in another process" in ran.err


def shows_a_bar(folder: Path) -> None:
    """A stage: one progress bar; leaves what was asked of the system that outlives a process."""
    from multiprocessing import resource_tracker

    from tqdm import tqdm

    kinds: list[str] = []
    resource_tracker.register = lambda _name, kind: kinds.append(kind)  # type: ignore[assignment]
    assert sum(tqdm(range(3))) == 3
    (folder / "kinds.json").write_text(json.dumps(kinds))


def test_a_progress_bar_in_a_stage_leaves_no_semaphore_behind(tmp_path: Path) -> None:
    outcome = run_stage("test_survive:shows_a_bar", tmp_path)
    assert outcome.ok, outcome
    assert json.loads((tmp_path / "kinds.json").read_text()) == []
    assert "3/3" in (tmp_path / "shows_a_bar.log").read_text()
