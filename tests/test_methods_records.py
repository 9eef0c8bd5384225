"""Methods that need more of the job than a loss, through the command line: their records, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran, write_board

from harness.models import MINI, load

Command = Callable[..., Ran]
TEXT_BOARD = """
rank_by = "forget.prob"
columns = ["forget.prob", "forget.es", "model_utility"]
seeds = [0]
[task]
name = "tofu"
split = "forget10"
data = "mini:tofu"
[models]
target = "mini:tofu-full"
[batch]
effective = 4
[budget]
updates = 2
"""


TALKS = """
from dataclasses import dataclass
from harness import Submission

@dataclass(frozen=True)
class Talks:
    def unlearn(self, job):
        for text in ("Say nothing.",):
            job.instruct(text)

submission = Submission(method=Talks())
"""
"""What it does is in a loop, so that nothing can be told before it runs."""


def record(workspace: Path, board: str) -> dict[str, object]:
    (path,) = (workspace / "leaderboards" / board / "results").glob("*.json")
    return json.loads(path.read_text())


@pytest.mark.slow
def test_an_in_context_row_is_recorded_with_its_instruction(uharness: Command, workspace: Path) -> None:
    (workspace / "leaderboards/text.toml").write_text(TEXT_BOARD)
    ran = uharness("submit", "in_context", "--board", "text", "--limit", "2")
    assert ran.code == 0, ran.err
    found = record(workspace, "text")
    assert (found["status"], found["updates"]) == ("limited", 0), found["error"]
    assert "Harno Ivermere" in found["env"]["encoder"]["instruction"]  # type: ignore[index]
    (folder,) = (workspace / "runs/text").glob("in_context-*")
    kept, target = load(str(folder / "model")).model, load(str(MINI / "tofu-full")).model
    for a, b in zip(kept.parameters(), target.parameters(), strict=True):
        assert a.equal(b)


@pytest.mark.slow
def test_a_selector_refuses_a_method_that_changes_no_weights(uharness: Command, workspace: Path) -> None:
    (workspace / "leaderboards/text.toml").write_text(TEXT_BOARD)
    (workspace / "submissions/mine.py").write_text(TALKS)
    ran = uharness("submit", "best_of:mine", "--set", "n=2", "--board", "text", "--limit", "2")
    assert ran.code == 1 and "picks among weights" in ran.out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lunar", "needs 'refusal_prompts', which board tiny does not supply"),
        ("idk_dpo", "needs 'idk_answers', which board tiny does not supply"),
        ("rejection_tuning", "needs 'refusals'"),
        ("in_context", "needs 'subjects'"),
        ("altpo", "needs 'texts'"),
    ],
)
def test_what_a_board_does_not_supply_is_told_before_anything_runs(
    uharness: Command, workspace: Path, name: str, says: str
) -> None:
    ran = uharness("submit", name, "--board", "tiny")
    assert (ran.code, len(ran.err.strip().splitlines())) == (2, 1) and says in ran.err
    assert not (workspace / "runs").exists()


def test_a_board_on_rows_without_refusal_prompts_refuses_lunar(uharness: Command, workspace: Path) -> None:
    from harness.mini.world import data_folder

    shutil.copytree(data_folder("tofu"), workspace / "rows")
    (workspace / "rows/refusal_prompts.jsonl").unlink()
    (workspace / "leaderboards/text.toml").write_text(TEXT_BOARD.replace('mini:tofu"', 'rows"', 1))
    ran = uharness("submit", "lunar", "--board", "text")
    assert ran.code == 2 and "needs 'refusal_prompts'" in ran.err


HEAD = """
from dataclasses import dataclass
import torch
from harness import Submission
from harness.loop import fit
@dataclass(frozen=True)
class M:
    def unlearn(self, job):
        {body}
submission = Submission(method=M(), title="Bad")
"""


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB.\\n  more')", "failed",
         "out of memory: CUDA out of memory. Tried to allocate 2 GiB."),
        ("raise MemoryError", "failed", "out of memory: MemoryError"),
        ("torch.empty(1 << 50)", "failed", "out of memory: "),
        ("fit(job, lambda b: job.model.unembed.weight.sum() * float('inf'))", "invalid", "the loss is"),
        ("o = job.optimizer(); job.model.requires_grad_(False); "
         "fit(job, lambda b: torch.zeros((), requires_grad=True), o)", "invalid", "the trainable weights did not move"),
    ],
)  # fmt: skip
def test_a_run_that_goes_wrong_is_a_record_without_a_trace(
    uharness: Command, workspace: Path, body: str, status: str, says: str
) -> None:
    write_board(workspace, "tiny", budget="updates = 3")
    (workspace / "submissions/bad.py").write_text(HEAD.format(body=body))
    ran = uharness("submit", "bad", "--board", "tiny", "--set", "optimizer.lr=1e-3")
    found = record(workspace, "tiny")
    assert found["status"] == status and str(found["error"]).startswith(says), found["error"]
    assert "\n" not in str(found["error"]) and "Traceback" not in ran.err
