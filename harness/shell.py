"""What every command needs: the workspace, its store, a session, and the two streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from harness.errors import InputError

if TYPE_CHECKING:
    from harness.session import Session
    from harness.store import Store
    from harness.workspace import Workspace


def find_workspace() -> Workspace:
    """The workspace of the current folder."""
    from harness.workspace import Workspace

    return Workspace.find()


def open_store(workspace: Workspace) -> Store:
    """Its records and database, brought up to date."""
    from harness.store import Store

    store = Store(workspace.leaderboards, workspace.database)
    store.ingest_missing()
    return store


def open_session(workspace: Workspace, **options: Any) -> Session:
    """One invocation; see `stages.Session`."""
    from harness.session import Session

    return Session(workspace, open_store(workspace), **options)


def check_files(*places: str) -> None:
    """Refuse, before anything is computed, files to write that have no folder; empty and `-` are no files."""
    for place in places:
        if place not in ("", "-") and not Path(place).absolute().parent.is_dir():
            raise InputError(f"the folder of {place!r} does not exist", "", "make it, or name another file")
        if place not in ("", "-") and Path(place).is_dir():
            raise InputError(f"{place!r} is a folder", "", "name a file in it")


def say(text: str) -> None:
    """A line on standard error."""
    typer.echo(text, err=True)


def print_json(value: Any) -> None:
    """JSON on standard output: sorted keys, no NaN."""
    import json

    typer.echo(json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False))


def print_table(
    workspace: Workspace,
    name: str,
    style: str,
    mark: Sequence[str] | set[str] = (),
    *,
    all_columns: bool = False,
    columns: Sequence[str] = (),
) -> None:
    """A board's table on standard output."""
    from harness.show import board_table

    board_table(workspace, open_store(workspace), name, style, frozenset(mark), all_columns, columns)
