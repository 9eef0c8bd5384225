"""The workflow for maintainers, its own shell steps run as a pull request and as a push, against a local remote."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, write_board
from test_site import a_record

FILE = ROOT / "docs" / "workflows" / "leaderboard.yml"
OWN = "from harness.workspace import Workspace; Workspace.roots = property(lambda self: (self.root,))"
"""The package's own boards and records would only make the test longer."""


def steps(job: str) -> list[dict[str, Any]]:
    """The job's shell steps but those that install."""
    found = yaml.safe_load(FILE.read_text())["jobs"][job]["steps"]
    return [step for step in found if "run" in step and not step["run"].startswith("pip install")]


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the workspace."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture
def checkout(workspace: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with two records on main, pushed to a bare repository `origin`; `uharness` is on the path."""
    tools = elsewhere / "tools"
    tools.mkdir()
    command = tools / "uharness"
    command.write_text(f"#!{sys.executable}\n{OWN}\nfrom harness.cli import main\nmain()\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(elsewhere / "gitconfig"))
    (elsewhere / "gitconfig").write_text(
        "[user]\nname = Tester\nemail = t@example.org\n[init]\ndefaultBranch = main\n"
    )
    write_board(workspace, "other")
    for entry in ("npo", "dpo"):
        a_record(workspace, f"{entry}-1", entry, 0.2)
    (workspace / ".gitignore").write_text("/build/\n/runs/\n")
    sh(elsewhere, "git init --bare origin.git")
    sh(workspace, f"git init && git remote add origin {elsewhere / 'origin.git'}")
    sh(workspace, "git add -A && git commit -m start && git push origin main")
    return workspace


def sh(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """As the workflow's runner calls a step: bash -e, stopped at the first command that fails."""
    ran = attempt(folder, script, **env)
    assert ran.returncode == 0, f"{script}\n{ran.stdout}\n{ran.stderr}"
    return ran


def attempt(folder: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The same, whether or not it fails."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True)


@pytest.mark.slow
def test_the_workflows_own_steps_check_a_pull_request_and_publish_a_push(
    checkout: Path, elsewhere: Path
) -> None:
    once = re.search(r"^#   (uharness site publish .*)$", FILE.read_text(), re.MULTILINE)
    assert once is not None
    sh(checkout, once[1])
    env = {"BASE": sh(checkout, "git rev-parse HEAD").stdout.strip(), "RUNNER_TEMP": str(elsewhere)}

    sh(checkout, "git switch -c pull")
    record = a_record(checkout, "npo-2", "npo", 0.4)
    sh(checkout, "git add -A && git commit -m 'add a record'")
    checks = steps("check")
    assert [step["name"] for step in checks] == ["new records", "the site"]
    for step in checks:
        sh(checkout, step["run"], **env)

    good = record.read_text()
    record.write_text(json.dumps(json.loads(good) | {"board_version": "0-0000000000"}))
    sh(checkout, "git commit -am 'make it old'")
    refused = attempt(checkout, checks[0]["run"], **env)
    assert refused.returncode != 0 and "npo-2" in refused.stdout + refused.stderr
    record.write_text(good)
    sh(
        checkout,
        "git commit -am 'mend it' && git switch main && git merge --ff-only pull && git push origin main",
    )

    for step in steps("publish"):
        sh(checkout, step["run"])
    there = sh(elsewhere / "origin.git", "git ls-tree -r --name-only gh-pages").stdout.splitlines()
    assert {"index.html", ".nojekyll", "runs/npo-2.html"} <= set(there)
    assert "github-actions[bot]" in sh(elsewhere / "origin.git", "git log -1 --format=%an gh-pages").stdout
