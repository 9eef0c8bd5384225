"""Writing a rendered site to a folder: whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from harness.errors import InputError, StoreError

MARK = ".built-by-uharness"
"""A file in every built site: only a folder that has it, or an empty one, is replaced."""


def read_static(folder: Path) -> dict[str, bytes]:
    """The files under `folder` that go into the site as they are, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def write_site(pages: Mapping[str, str | bytes], folder: Path) -> None:
    """Writes `pages` (relative path to content) into a new folder beside `folder`, and swaps the two.

    A reader sees the old site or the new one, and a crash before the swap leaves the old one. A folder that
    is not a built site is left alone.
    """
    foreign = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if foreign and not (folder / MARK).is_file():
        raise InputError(
            f"{folder} is not a site that was built here, and is left alone",
            "a new folder, an empty one, or one built before",
            "choose another folder, or empty this one",
        )
    tag = f"{os.getpid()}.{uuid.uuid4().hex[:8]}"
    fresh, old = (folder.with_name(f".{folder.name}.{tag}.{kind}") for kind in ("new", "old"))
    try:
        fresh.mkdir(parents=True)
        (fresh / MARK).write_text("This folder is made anew at each build; edit the sources instead.\n")
        for name, content in sorted(pages.items()):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise StoreError(f"a page cannot be called {name!r}")
            target = fresh / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    except OSError as error:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise StoreError(f"the site cannot be written to {folder}: {error}") from error
    finally:
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
