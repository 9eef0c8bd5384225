"""What a built site's folder tells of itself: the parts that it was made from, and whether their files are still whole.

Each site has a file `MARK` that lists the parts: a part's name, its key (the same key means the same files) and the
sizes of its files. The list is in the folder itself, so that it can never tell of another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = ".built-by-uharness"
"""A file in every built site: only a folder that has it, or an empty one, is replaced."""
FORMAT = 1


@dataclass(frozen=True)
class Kept:
    """A part of a site as it lies in a folder: its key, and the size in bytes of each of its files."""

    key: str
    files: Mapping[str, int]


def is_site(folder: Path) -> bool:
    """Whether a folder was built here."""
    return (folder / MARK).is_file()


def read_parts(
    folder: Path, seen: dict[str, tuple[int, int]] | None = None, numbers: Mapping[str, int] | None = None
) -> dict[str, Kept]:
    """The parts of a built site whose files are all as they were made; none where there is no site.

    Args:
        folder: of the site.
        seen: number (inode) and size of files by path, found whole in another folder: those are not looked at again
            where they are the same file here, a link. Is given what is found here.
        numbers: those of the files here.
    """
    mark = folder / MARK
    try:
        made = mark.stat().st_mtime_ns
        told = json.loads(mark.read_bytes())
        if told["format"] != FORMAT:
            return {}
        parts = {name: Kept(part["key"], part["files"]) for name, part in told["parts"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    seen = {} if seen is None else seen
    links = {name for name, number in (numbers or {}).items() if seen.get(name, (0, 0))[0] == number}
    return {name: part for name, part in parts.items() if _untouched(folder, part, made, seen, links)}


def _untouched(
    folder: Path, part: Kept, made: int, seen: dict[str, tuple[int, int]], links: Collection[str]
) -> bool:
    """Files are written before the mark; one that is younger was changed by hand."""
    for name, size in part.files.items():
        if name in links and seen[name][1] == size:
            continue
        try:
            stat = os.stat(f"{folder}/{name}")  # noqa: PTH116 - a Path a file doubles the time of 60,000 files
        except OSError:
            return False
        if stat.st_size != size or stat.st_mtime_ns > made:
            return False
        seen[name] = stat.st_ino, size
    return True


def numbers_in(folder: Path) -> Iterator[tuple[str, int]]:
    """All files with their numbers (inodes), which a folder tells without a look at the file."""
    left = [""]
    while left:
        at = left.pop()
        with os.scandir(folder / at) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(f"{at}{entry.name}/")
                else:
                    yield f"{at}{entry.name}", entry.inode()


def write_list(folder: Path, parts: Mapping[str, Kept]) -> None:
    """Lists the parts of a site in its folder: the last file to be written, as `read_parts` compares times with it."""
    told = {name: {"key": part.key, "files": part.files} for name, part in sorted(parts.items())}
    (folder / MARK).write_text(json.dumps({"format": FORMAT, "parts": told}) + "\n")
