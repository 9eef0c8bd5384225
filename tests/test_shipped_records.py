"""The records that ship with the package are known again, wherever it lies."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness import earlier, preflight, stages
from harness.entries import resolve_spec
from harness.session import Session
from harness.store import Store
from harness.workspace import Workspace


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    workspace = Workspace(tmp_path_factory.mktemp("elsewhere"))
    store = Store(workspace.leaderboards, workspace.database)
    store.rebuild()
    return Session(workspace, store)


@pytest.mark.slow
@pytest.mark.parametrize("board", ["tofu-mini", "bma-mini", "digits-mini"])
def test_a_run_that_was_made_in_another_folder_is_not_made_again(
    session: Session, board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = session.workspace
    hardware = session.store.load_records(board)[0].env["hardware"]
    monkeypatch.setattr(preflight, "hardware", lambda: hardware)
    ready = preflight.board_ready(workspace.board(board), workspace)
    there = {record.entry for record in session.store.load_records(board)}
    methods = [
        name for name in ("no_op", "npo", "unmerge", "grad_diff", "salun") if name in methods_of(there)
    ]
    entries = [resolve_spec(name, workspace.submissions, ready.board.settings, {}) for name in methods]
    entries = [entry for entry in entries if entry.id in there]  # others were changed since, and age by right
    assert entries
    for planned in stages.plan_runs(session, ready, entries[0], ready.board.seeds):
        # an id of its own: this checkout may have made the run itself, which would be known by its id
        spec = planned.model_copy(update={"run_id": "planned-elsewhere"})
        known = earlier.recorded(session, spec)
        assert known is not None
        assert (known.entry, known.case, known.seed) == (entries[0].id, spec.case, spec.seed)
        others = [dataclasses.replace(session, again=True), session, session, session]
        changed = [spec, *(spec.model_copy(update=c) for c in (
            {"limit": 1}, {"hashes": {**spec.hashes, "data": "other"}}, {"entry": "other@123456"}))]  # fmt: skip
        assert [earlier.recorded(s, c) for s, c in zip(others, changed, strict=True)] == [None] * 4
        assert earlier.recorded(session, spec.model_copy(update={"updates": 50})) is not None
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(preflight, "hardware", lambda: "another processor")
            assert earlier.recorded(session, spec) is None  # seconds are another thing there
            assert earlier.recorded(session, spec.model_copy(update={"updates": 50})) is not None


def methods_of(entries: set[str]) -> set[str]:
    """Names of the methods of entries."""
    return {entry.partition("@")[0].partition("[")[0] for entry in entries}


def test_a_run_is_named_by_what_decides_it_and_not_by_the_folder_it_lies_in(
    session: Session, tmp_path: Path
) -> None:
    workspace = session.workspace
    ready = preflight.board_ready(workspace.board("bma-mini"), workspace)
    source = next(f for f in workspace.submissions if (f / "grad_diff.py").is_file()) / "grad_diff.py"
    (tmp_path / "grad_diff.py").write_text(source.read_text())
    ids = [
        [s.run_id for s in stages.plan_runs(session, ready, resolve_spec("grad_diff", [f], {}, {}), [17])]
        for f in (source.parent, tmp_path)
    ]
    assert ids[0] == ids[1] and len(set(ids[0])) == 4
