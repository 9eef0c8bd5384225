"""Where things are: a checkout, a user's own folder, or the copies inside the installed wheel.

A workspace is the nearest folder, from the current one upwards, that has `uharness.toml`, `leaderboards/` or
`submissions/`; without one it is the current folder. What is not found there is looked for in the package's own
copies, which are never written to.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.errors import BoardError, near
from harness.specs import Board

DEFAULT_BOARD = "bma-mini"
CONFIG = "uharness.toml"


def bundled() -> Path:
    """The folder with the package's own submissions/, leaderboards/ and site/; a checkout when installed editable."""
    package = Path(__file__).parent
    inside = package / "_bundled"
    return inside if inside.is_dir() else package.parent


@dataclass(frozen=True)
class Workspace:
    """A root that is written to, and the package's copies behind it."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """The workspace of `start` (default: the current folder); `UHARNESS_WORKSPACE` overrides the search."""
        if given := os.environ.get("UHARNESS_WORKSPACE"):
            return cls(Path(given).resolve())
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            if any((folder / name).exists() for name in (CONFIG, "leaderboards", "submissions")):
                return cls(folder)
        return cls(here)

    @property
    def roots(self) -> tuple[Path, ...]:
        """The workspace, then the package's copies (once, when they are the same)."""
        inside = bundled()
        return (self.root,) if inside.resolve() == self.root else (self.root, inside)

    @property
    def runs(self) -> Path:
        """Working files of runs: weights, answers, logs."""
        return self.root / "runs"

    @property
    def build(self) -> Path:
        """Derived files that can be deleted: database, references, site."""
        return self.root / "build"

    @property
    def database(self) -> Path:
        """The DuckDB file."""
        return self.build / "uharness.duckdb"

    @property
    def leaderboards(self) -> tuple[Path, ...]:
        """Folders with boards and records; the first one is written to."""
        return tuple(root / "leaderboards" for root in self.roots)

    @property
    def submissions(self) -> tuple[Path, ...]:
        """Folders with submission files."""
        return tuple(root / "submissions" for root in self.roots)

    @property
    def site_sources(self) -> Path:
        """The folder with templates/ and static/."""
        for root in self.roots:
            if (root / "site" / "templates").is_dir():
                return root / "site"
        return bundled() / "site"

    def board_names(self) -> list[str]:
        """Names of all boards."""
        return sorted({p.stem for folder in self.leaderboards for p in folder.glob("*.toml")})

    def default_board(self) -> str:
        """`UHARNESS_BOARD`, else `default_board` of the workspace's uharness.toml, else the built-in one."""
        if given := os.environ.get("UHARNESS_BOARD"):
            return given
        path = self.root / CONFIG
        if path.exists():
            settings = _read_toml(path)
            if unknown := sorted(set(settings) - {"default_board"}):
                raise BoardError(
                    f"{path}: unknown key {unknown[0]!r}", near(unknown[0], ["default_board"]), f"edit {path}"
                )
            return str(settings.get("default_board", DEFAULT_BOARD))
        return DEFAULT_BOARD

    def set_default_board(self, name: str) -> Path:
        """Write the default board into the workspace's uharness.toml."""
        self.board(name)
        path = self.root / CONFIG
        path.write_text(f'default_board = "{name}"\n')
        return path

    def board(self, name: str) -> Board:
        """The board called `name`, or the one in the file `name` when it ends in .toml."""
        return load_board(self.board_path(name))

    def board_path(self, name: str) -> Path:
        """The TOML file of a board."""
        if name.endswith(".toml"):
            path = Path(name)
            if not path.exists():
                raise BoardError(
                    f"board file {name!r} does not exist", near(path.stem, self.board_names()), ""
                )
            return path
        for folder in self.leaderboards:
            if (folder / f"{name}.toml").exists():
                return folder / f"{name}.toml"
        raise BoardError(f"no board {name!r}", near(name, self.board_names()), "see `uharness board list`")


def load_board(path: Path) -> Board:
    """A board file, checked; every complaint is one line that names the key and the file."""
    data = _read_toml(path)
    data.setdefault("name", path.stem)
    for key, value in _numbers(data):
        if not math.isfinite(value):
            raise BoardError(f"{path}: {key} is {value}, which is not finite", "", f"edit {path}")
    try:
        board = Board.model_validate(data)
    except ValidationError as error:
        raise BoardError(f"{path}: {explain(error, Board)}", "", f"edit {path}") from None
    if board.name != path.stem:
        raise BoardError(
            f"{path}: name is {board.name!r}", f"the file is called {path.name}", "make them the same"
        )
    return board


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Every fraction in a nest of tables and lists, with its dotted key."""
    if isinstance(value, float):
        yield key, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in pairs:
        yield from _numbers(inner, f"{key}.{part}" if key else str(part))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BoardError(f"{path} is not valid TOML: {error}", "", f"edit {path}") from None


def explain(error: ValidationError, model: Any) -> str:
    """The first complaint of a pydantic error as one phrase, with near matches for an unknown key."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        inner = model
        for part in first["loc"][:-1]:
            annotation = inner.model_fields[str(part)].annotation if hasattr(inner, "model_fields") else None
            options = [
                a for a in (annotation, *getattr(annotation, "__args__", ())) if hasattr(a, "model_fields")
            ]
            inner = options[0] if options else None
        known = list(inner.model_fields) if inner is not None else []
        return f"unknown key {where!r} ({near(str(first['loc'][-1]), known)})"
    message = first["msg"].removeprefix("Value error, ")
    shown = (
        f" (got {first['input']!r})"
        if first["type"] != "missing" and not isinstance(first["input"], dict)
        else ""
    )
    more = len(error.errors()) - 1
    return f"{where + ': ' if where else ''}{message}{shown}" + (f" (and {more} more)" if more else "")
