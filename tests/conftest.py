"""Fixtures that tests share: a workspace of one's own, the command line in this process, a tiny board."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = Path(__file__).parent.parent

TINY_BOARD = """
title = "Tiny"
rank_by = "retain.damage"
columns = ["retain.damage", "forget.p", "retain.p", "bucket.acc", "cost.charged_s"]
seeds = [17]
cases = ["M4"]
[task]
name = "bma"
options = {{ classes = 64, buckets = [1, 4, 16, 64], train_fraction = 0.6, forget_fraction = 0.05 }}
[models]
target = "mini:bma/{{case}}"
retain = "mini:bma/{{case}}-retain-{{seed}}"
[batch]
effective = "full"
[budget]
{budget}
[stop]
metric = "forget.p"
at_most = 0.1
[settings.random_label]
alpha = 0.0
"optimizer.lr" = 1e-3
"optimizer.warmup" = 0.0
"optimizer.decay" = "constant"
"""


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace with the board `tiny` (3 updates) and nothing else; the current folder is in it."""
    (tmp_path / "leaderboards").mkdir()
    (tmp_path / "submissions").mkdir()
    write_board(tmp_path, "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UHARNESS_BOARD", raising=False)
    monkeypatch.delenv("UHARNESS_WORKSPACE", raising=False)
    return tmp_path


def write_board(root: Path, name: str, budget: str = "updates = 3", extra: str = "") -> Path:
    """A board on the built-in model for four-element buckets."""
    path = root / "leaderboards" / f"{name}.toml"
    path.write_text(TINY_BOARD.format(budget=budget) + extra)
    return path


@pytest.fixture
def uharness(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Call the command line in this process; stages still get processes of their own."""

    def call(*arguments: str) -> Ran:
        from harness.cli import main

        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["uharness", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capfd.readouterr()
        return Ran(int(exit_.value.code or 0), out, err)

    return call
