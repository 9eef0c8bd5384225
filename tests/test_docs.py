"""The documents stay true: README's method runs as it stands, every command is documented, links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Ran

Command = Callable[..., Ran]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.DOTALL)


def test_the_readme_method_is_a_whole_submission(uharness: Command, workspace: Path) -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    (workspace / "submissions" / "my_method.py").write_text(code)
    ran = uharness("submit", "my_method", "--board", "tiny")
    assert ran.code == 0, ran.err
    assert "My method" in ran.out


def commands() -> list[str]:
    from harness.cli import app

    names = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        inner = group.typer_instance.registered_commands
        names += [f"{group.name} {c.name or (c.callback.__name__ if c.callback else '')}" for c in inner]
    return names


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    for name in commands():
        assert f"`uharness {name.rstrip('_')}" in text, name


def test_every_command_has_help(uharness: Command) -> None:
    for name in commands():
        assert uharness(*name.rstrip("_").split(), "--help").code == 0


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_to_files(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_every_board_in_the_readme_exists_and_every_board_is_there() -> None:
    table = re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    there = {p.stem for p in (ROOT / "leaderboards").glob("*.toml")}
    assert set(table) <= there
    assert {name for name in there if name.endswith("-mini")} <= set(table)
