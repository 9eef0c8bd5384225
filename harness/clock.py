"""The clock that makes budgets fair: lanes, of which only `train` is charged.

Time and device synchronisation are passed in, so no test sleeps and this module knows no torch.
"""

from __future__ import annotations

import mmap
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHARGED = "train"
_STATE = struct.Struct(
    "<qdddq"
)  # count, charged seconds, start of the open train lane or -1, last sign of life, updates
_SUM = struct.Struct("<I")
_SLOT = _STATE.size + _SUM.size


@dataclass(frozen=True)
class Allowance:
    """A resolved budget: seconds of lane `train`, or a number of updates. Exactly one is set."""

    seconds: float | None = None
    updates: int | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.updates is None):
            raise ValueError("an allowance is either seconds or updates")


@dataclass(frozen=True)
class ClockState:
    """What another process can know of a clock: see `read_journal`."""

    charged_s: float
    running_since: float | None
    alive_at: float
    updates: int

    def charged_at(self, now: float) -> float:
        """Charged seconds at `now`, counting a lane that is still open."""
        return self.charged_s + (
            max(0.0, now - self.running_since) if self.running_since is not None else 0.0
        )

    @property
    def spent_s(self) -> float:
        """Charged seconds up to the last sign of life: what a run that died has used up."""
        return self.charged_at(self.alive_at)


class Clock:
    """Measures lanes; the innermost open lane runs, the outer ones wait.

    Args:
        allowance: what may be spent in lane `train`.
        now: seconds, monotonic.
        sync: called before every reading, so that queued device work is inside the lane that queued it.
        spent_s, spent_updates: what an earlier, interrupted attempt at the same run has already used.
        journal: file through which another process can watch this clock, and which survives a kill.

    >>> ticks = iter([0, 1, 3, 4, 6])                    # train from 0, eval from 1 to 3, train again until 4
    >>> clock = Clock(Allowance(seconds=10), now=lambda: next(ticks))
    >>> with clock.lane("train"):
    ...     with clock.lane("eval"):
    ...         pass
    >>> clock.lanes_s
    {'train': 2.0, 'eval': 2.0}
    """

    def __init__(
        self,
        allowance: Allowance,
        *,
        now: Callable[[], float] = time.monotonic,
        sync: Callable[[], None] = lambda: None,
        spent_s: float = 0.0,
        spent_updates: int = 0,
        journal: Path | None = None,
    ) -> None:
        self.allowance = allowance
        self.updates = spent_updates
        self.lanes_s: dict[str, float] = {CHARGED: spent_s} if spent_s else {}
        self._now, self._sync = now, sync
        self._stack: list[str] = []
        self._since = 0.0
        self._journal = _Journal(journal) if journal is not None else None

    def read(self) -> float:
        """The time now, after the device has finished what was queued."""
        self._sync()
        return float(self._now())

    @contextmanager
    def lane(self, name: str) -> Iterator[None]:
        """Count the time inside the block to `name` and to no other lane."""
        self._switch(push=name)
        try:
            yield
        finally:
            self._switch()

    def _switch(self, push: str | None = None) -> None:
        now = self.read()
        if self._stack:
            top = self._stack[-1]
            self.lanes_s[top] = self.lanes_s.get(top, 0.0) + (now - self._since)
        if push is None:
            self._stack.pop()
        else:
            self.lanes_s.setdefault(push, 0.0)
            self._stack.append(push)
        self._since = now
        self._write(now)

    def _running(self, lane: str) -> bool:
        return bool(self._stack) and self._stack[-1] == lane

    @property
    def charged_s(self) -> float:
        """Seconds of lane `train` so far."""
        base = self.lanes_s.get(CHARGED, 0.0)
        return base + (self.read() - self._since) if self._running(CHARGED) else base

    @property
    def remaining_s(self) -> float:
        """Seconds left; infinite when the budget is in updates and updates are left, 0 when they are not."""
        if self.allowance.seconds is not None:
            return max(0.0, self.allowance.seconds - self.charged_s)
        return float("inf") if self.updates < (self.allowance.updates or 0) else 0.0

    @property
    def fraction(self) -> float:
        """Share of the budget that is spent, 0 to 1: what schedules are functions of."""
        if self.allowance.seconds is not None:
            return min(1.0, self.charged_s / self.allowance.seconds)
        return min(1.0, self.updates / (self.allowance.updates or 1))

    @property
    def overshoot_s(self) -> float:
        """Charged seconds beyond the budget; 0 when the budget is in updates."""
        return (
            max(0.0, self.charged_s - self.allowance.seconds) if self.allowance.seconds is not None else 0.0
        )

    def tick(self) -> None:
        """Count one update, and show that the run is alive."""
        self.updates += 1
        self._write(float(self._now()))

    def _write(self, now: float) -> None:
        if self._journal is not None:
            running = self._since if self._running(CHARGED) else -1.0
            self._journal.write(self.lanes_s.get(CHARGED, 0.0), running, now, self.updates)


class _Journal:
    """Two slots that are written in turn, each with a checksum: a reader, or a kill, never finds half a state."""

    def __init__(self, path: Path) -> None:
        if not path.exists() or path.stat().st_size < 2 * _SLOT:
            path.write_bytes(bytes(2 * _SLOT))
        newest = _newest(path.read_bytes())
        self._count = newest[0] if newest is not None else 0
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 2 * _SLOT)

    def write(self, charged_s: float, running_since: float, alive_at: float, updates: int) -> None:
        self._count += 1
        state = _STATE.pack(self._count, charged_s, running_since, alive_at, updates)
        at = self._count % 2 * _SLOT
        self._map[at : at + _SLOT] = state + _SUM.pack(zlib.crc32(state))


def _newest(content: bytes) -> tuple[int, float, float, float, int] | None:
    states = []
    for at in (0, _SLOT):
        state, check = content[at : at + _STATE.size], content[at + _STATE.size : at + _SLOT]
        if len(check) == _SUM.size and any(state) and _SUM.unpack(check)[0] == zlib.crc32(state):
            states.append(_STATE.unpack(state))
    return max(states) if states else None


def read_journal(path: Path) -> ClockState | None:
    """State of a clock that another (perhaps dead) process writes; None when there is none yet."""
    newest = _newest(path.read_bytes()) if path.exists() else None
    if newest is None:
        return None
    _, charged, since, alive, updates = newest
    return ClockState(charged, since if since >= 0 else None, alive, updates)


class StepGate:
    """Says whether one more step fits before the deadline, judged by the longest of the last 20 steps.

    The longest, not the median: some optimizers have a long step every k-th time. Before any step is known, one is
    allowed as long as time is left.
    """

    def __init__(self, clock: Clock, window: int = 20) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=window)

    def open(self) -> bool:
        """Whether the next step would end in time."""
        remaining = self._clock.remaining_s
        return remaining > 0 and remaining >= max(self._recent, default=0.0)

    def passed(self, seconds: float) -> None:
        """Note how long a step took."""
        self._recent.append(seconds)

    @property
    def longest_s(self) -> float:
        """The longest step in the window, seconds; 0 before the first."""
        return max(self._recent, default=0.0)
