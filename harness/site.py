"""A built site as a folder: written beside the old one and swapped in whole, with what has not changed taken over."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from harness.errors import InputError, StoreError
from harness.siteparts import MARK, Kept, is_site, numbers_in, read_parts, write_list

WAIT_S = 120.0
"""How long to wait for another build of a site in the same folder."""
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of linux/fs.h


def read_static(folder: Path) -> dict[str, bytes]:
    """The files under `folder` that go into the site as they are, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def write_files(files: Mapping[str, str | bytes], folder: Path) -> dict[str, int]:
    """Writes `files` (relative path to content) under `folder`; returns their sizes. A file is never replaced."""
    sizes = {}
    for name, content in sorted(files.items()):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or name == MARK:
            raise StoreError(f"a page cannot be called {name!r}")
        data = content.encode() if isinstance(content, str) else content
        try:
            with _opened(f"{folder}/{name}") as file:
                file.write(data)
        except FileExistsError:
            raise StoreError(f"two parts of the site make {name!r}") from None
        sizes[name] = len(data)
    return sizes


def _opened(target: str) -> io.BufferedWriter:
    try:
        return open(target, "xb")  # noqa: PTH123 - as in `_untouched`
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        return open(target, "xb")  # noqa: PTH123


@dataclass
class Draft:
    """A new site beside the old one, not yet to be seen.

    Attributes:
        folder: what is written to.
        old: the site that it will replace; not there before the first build.
        before: the old one's parts.
        there: parts that lie in `folder` already, from the site before the old one.
        parts: what has been put in.
    """

    folder: Path
    old: Path
    before: Mapping[str, Kept]
    there: Mapping[str, Kept] = field(default_factory=dict)
    parts: dict[str, Kept] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)

    def clear(self, found: Collection[str]) -> None:
        """Removes those of these files that belong to no part that lies here whole."""
        whole = {path for part in self.there.values() for path in part.files}
        for path in sorted(set(found) - whole):
            self._remove(path)

    def _remove(self, path: str) -> None:
        (self.folder / path).unlink(missing_ok=True)
        self._left.add(os.path.dirname(path))  # noqa: PTH120

    def only(self, kept: Collection[str]) -> None:
        """Says which of the old site's parts will be kept; call it before anything else. All else is cleared away."""
        (self.folder / MARK).unlink(missing_ok=True)
        stays = {name for name in kept if self.there.get(name) == self.before[name]}
        for name in set(self.there) - stays:
            for path in self.there[name].files:
                self._remove(path)
        self.there = {name: self.there[name] for name in stays}

    def add(self, name: str, key: str, files: Mapping[str, str | bytes]) -> None:
        """Writes a part."""
        self.parts[name] = Kept(key, write_files(files, self.folder))

    def keep(self, name: str) -> None:
        """Takes a part over from the old site, as hard links where the file system has them."""
        part = self.before[name]
        if name not in self.there:
            for path in part.files:
                _link(f"{self.old}/{path}", f"{self.folder}/{path}")
        self.parts[name] = part

    @property
    def same(self) -> bool:
        """Whether it has exactly the old site's parts."""
        return self.parts == self.before and is_site(self.old)

    def mark(self) -> None:
        """Writes the list of parts, the last file of a site."""
        write_list(self.folder, self.parts)
        for path in self._left:
            with contextlib.suppress(OSError):  # most are not empty; the site's own has the list
                os.removedirs(self.folder / path)


def _link(old: str, new: str) -> None:
    try:
        os.link(old, new)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(new), exist_ok=True)  # noqa: PTH103, PTH120
        _link_or_copy(old, new)
    except OSError:
        _link_or_copy(old, new)


def _link_or_copy(old: str, new: str) -> None:
    try:
        os.link(old, new)
    except FileExistsError:
        raise StoreError(f"two parts of the site make {new!r}") from None
    except OSError:
        shutil.copy2(old, new)


@contextlib.contextmanager
def replacing(folder: Path, *, spare: bool = False) -> Iterator[Draft]:
    """A draft that becomes the site `folder` when the block ends, and is thrown away when it raises.

    A reader sees the old site or the new one, at every moment: where the system can, the two change places in one
    step. What a killed build left is cleared away by the next one. A folder that is not a built site is left alone.

    Args:
        folder: of the site.
        spare: leave the old site beside the new one, or a twin of the first, as `.NAME.before`; the next build goes on
            from it, and writes only what has changed since. Most of its files are links to the new site's.
    """
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent):
            _recover(folder)
            refuse_foreign(folder)
            kept = folder.with_name(f".{folder.name}.before")
            seen: dict[str, tuple[int, int]] = {}
            before = read_parts(folder, seen)
            numbers = dict(numbers_in(kept)) if spare and is_site(kept) else {}
            there = read_parts(kept, seen, numbers) if numbers else {}
            if not there:
                shutil.rmtree(kept, ignore_errors=True)
            fresh = kept if there else _beside(folder, "new")
            fresh.mkdir(exist_ok=True)
            draft = Draft(fresh, folder, before, there)
            draft.clear(set(numbers) - {MARK} if there else ())
            try:
                yield draft
                if not draft.same:
                    draft.mark()
                    _swap(fresh, folder)
                    if spare and fresh != kept and is_site(fresh):
                        fresh.rename(kept)
                    elif spare and not before:
                        _twin(folder, kept, draft.parts)
            finally:
                if fresh != kept or not is_site(kept):
                    shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"the site cannot be written to {folder}: {error}") from error


def _twin(folder: Path, kept: Path, parts: Mapping[str, Kept]) -> None:
    """Leaves links to the first site's files beside it, so that the second is made as quickly as all later ones.

    The site is in its place already: where there is no room for a twin, the second is made more slowly.
    """
    try:
        kept.mkdir()
        twin = Draft(kept, folder, parts)
        for name in parts:
            twin.keep(name)
        twin.mark()
    except OSError:
        shutil.rmtree(kept, ignore_errors=True)


def refuse_foreign(folder: Path) -> None:
    """Raises where `folder` has something that is no built site."""
    foreign = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if foreign and not is_site(folder):
        raise InputError(
            f"{folder} is not a site that was built here, and is left alone",
            "a new folder, an empty one, or one built before",
            "choose another folder, or empty this one",
        )


def write_site(pages: Mapping[str, str | bytes], folder: Path) -> None:
    """Writes `pages` (relative path to content) as the whole site `folder`; see `replacing`."""
    digest = hashlib.sha256()
    for name, content in sorted(pages.items()):
        data = content.encode() if isinstance(content, str) else content
        digest.update(f"{name} {len(data)} ".encode() + data)
    with replacing(folder) as draft:
        draft.add("pages", digest.hexdigest(), pages)


def _beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.{kind}")


def _recover(folder: Path) -> None:
    """Brings back a site that was moved away by a build that died, and clears what it left."""
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.\d+\.[0-9a-f]{{8}}\.(new|old)")
    left = sorted(p for p in folder.parent.iterdir() if pattern.fullmatch(p.name))
    for path in left:
        if path.suffix == ".old" and not folder.exists():
            path.rename(folder)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _swap(fresh: Path, folder: Path) -> None:
    """`fresh` becomes `folder`, and the old site `fresh`, where there was one."""
    if not folder.exists():
        fresh.rename(folder)
        return
    if exchange(fresh, folder):
        return
    old = _beside(folder, "old")
    folder.rename(old)
    try:
        fresh.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    old.rename(fresh)


def exchange(one: Path, other: Path) -> bool:
    """Lets two paths change places in one step (renameat2 of Linux); False where the system has no such step."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(other))


@contextlib.contextmanager
def _locked(parent: Path) -> Iterator[None]:
    """One build at a time among the sites of a folder."""
    handle = os.open(parent, os.O_RDONLY)
    deadline = time.monotonic() + WAIT_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(f"another build in {parent} has not ended for {WAIT_S:g} s") from None
                time.sleep(0.05)
            except OSError:
                break  # a file system without locks: there only two builds at once could meet
        yield
    finally:
        os.close(handle)
