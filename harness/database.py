"""Opening the DuckDB file between processes that all want it.

DuckDB lets one process write, and meanwhile no other can even read. So: open late, close soon, queue on a
lock file beside the database, and try again with growing, jittered pauses when somebody else has it open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import StoreError

if TYPE_CHECKING:
    import duckdb

_READER = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_BROKEN = ("not a valid DuckDB", "orrupt", "checksum", "does not exist", "WAL", "version number")
_HOLDER = re.compile(r"\(PID (\d+)\)")


class UnusableDatabase(StoreError):
    """The file is missing, broken, or no DuckDB database: it is derived, so build it again."""


@dataclass(frozen=True)
class Database:
    """A DuckDB file that several processes share.

    Attributes:
        path: the file; its lock files are `<path>.lock` and `<path>.turn`.
        wait_s: how long to wait in all for others, before a StoreError that names the holder.
        sleep, now: the clock that waiting is measured with.
    """

    path: Path
    wait_s: float = 60.0
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[float]:
        """Holds the lock file alone; yields the deadline for `connect`."""
        with self._locked(fcntl.LOCK_EX) as deadline:
            yield deadline

    @contextlib.contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection that can neither write nor reach any file or network; closed on leaving."""
        with self._locked(fcntl.LOCK_SH) as deadline:
            connection = self.connect(deadline, read_only=True)
            try:
                yield connection
            finally:
                connection.close()

    def connect(self, deadline: float, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
        """Opens the file, and waits until `deadline` for a process that has it open."""
        import duckdb

        if read_only and not self.path.exists():
            raise UnusableDatabase(f"there is no database at {self.path}")
        for last in self._tries(deadline):
            try:
                if read_only:
                    return duckdb.connect(self.path, read_only=True, config=dict(_READER))
                return duckdb.connect(self.path)
            except duckdb.Error as error:
                if not _is_lock(error):
                    raise _explained(self.path, error) from error
                if last:
                    raise self._waited_for(_HOLDER.search(str(error)), str(error)) from error
        raise AssertionError("the last try returns or raises")

    def replace_with(self, build: Callable[[Path], None], deadline: float) -> None:
        """Lets `build` make a new file, and swaps it in whole. Hold `exclusive` meanwhile."""
        scratch = self.path.with_name(f".{self.path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            for left in self.path.parent.glob(f".{self.path.name}.*.tmp*"):
                left.unlink(missing_ok=True)  # of a builder that was killed: the lock says nobody builds now
            build(scratch)
            if self.path.exists():
                with contextlib.suppress(UnusableDatabase):  # a broken old file is just replaced
                    self.connect(deadline).close()  # nobody has the old one open, and its log is folded in
            for log in self.path.parent.glob(f"{self.path.name}.wal*"):
                log.unlink()  # a log of the old file must not be replayed into the new one
            scratch.replace(self.path)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be replaced: {error.strerror or error}") from error
        finally:
            for left in self.path.parent.glob(f"{scratch.name}*"):
                left.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[float]:
        """Holds the lock, after a turnstile through which one process at a time comes.

        Whoever is in the turnstile is next: one that opens and closes in a tight loop cannot starve others.
        """
        deadline = self.now() + self.wait_s
        with self._lock_file("turn") as turn, self._lock_file("lock") as lock:
            self._flock(turn, fcntl.LOCK_EX, deadline, lock)
            self._flock(lock, kind, deadline, lock)
            fcntl.flock(turn, fcntl.LOCK_UN)
            if kind == fcntl.LOCK_EX:
                os.ftruncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
            yield deadline

    @contextlib.contextmanager
    def _lock_file(self, suffix: str) -> Iterator[int]:
        path = self.path.with_name(f"{self.path.name}.{suffix}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror or error}") from error
        try:
            yield handle
        finally:
            os.close(handle)

    def _flock(self, handle: int, kind: int, deadline: float, holder: int) -> None:
        for last in self._tries(deadline, longest=0.05):
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if last:
                    text = os.pread(holder, 32, 0).decode(errors="replace")
                    raise self._waited_for(re.fullmatch(r"(\d+)", text), "") from error

    def _tries(self, deadline: float, longest: float = 0.5) -> Iterator[bool]:
        """One item per try, True for the last; sleeps between: 10 ms, doubling up to `longest`, jittered."""
        pause = 0.01
        while (left := deadline - self.now()) > 0:
            yield False
            self.sleep(min(left, pause * random.uniform(0.5, 1.5)))
            pause = min(2 * pause, longest)
        yield True

    def _waited_for(self, holder: re.Match[str] | None, text: str) -> StoreError:
        who = f"the process with PID {holder[1]}" if holder else "another process"
        detail = f" ({text.splitlines()[0]})" if text else ""
        return StoreError(
            f"waited {self.wait_s:g} s for {self.path}, which {who} has open{detail}; "
            "close it there, or wait and try again"
        )


def _is_lock(error: Exception) -> bool:
    text = str(error)
    return "Could not set lock" in text or "Conflicting lock" in text or "different configuration" in text


def _explained(path: Path, error: Exception) -> StoreError:
    import duckdb

    first = str(error).splitlines()[0]
    said = first.replace(str(path), "")
    broken = isinstance(
        error, duckdb.SerializationException | duckdb.InternalException | duckdb.FatalException
    )
    if broken or any(sign in said for sign in _BROKEN):
        return UnusableDatabase(f"{path} is not a database that can be used: {first}")
    return StoreError(f"{path} cannot be opened: {first}")
