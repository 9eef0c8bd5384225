"""Progress of long work: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from harness.clock import ClockState


WIDTH = 24
"""Characters of a progress bar."""


class Show:
    """What `stages` reports to: callable with a text and a clock's state; `line` prints something that stays."""

    def __init__(self, console: Console, status: Status | None) -> None:
        self._console, self._status, self._last = console, status, ""

    def __call__(self, text: str, state: ClockState | None, budget: float | None = None) -> None:
        """Say what is going on now; with the budget (seconds, or updates as a negative number), how far it is."""
        if self._status is not None:
            self._status.update(text + self._bar(state, budget) + self._spent(state))
        elif text != self._last:
            self._console.print(text, markup=False, highlight=False)
        self._last = text

    def line(self, text: str) -> None:
        """Say something that stays on the screen."""
        self._console.print(text, markup=False, highlight=False)

    @staticmethod
    def _bar(state: ClockState | None, budget: float | None) -> str:
        if state is None or not budget:
            return ""
        done = state.charged_at(time.monotonic()) / budget if budget > 0 else -state.updates / budget
        full = round(WIDTH * min(1.0, done))
        return f"  {'█' * full}{'░' * (WIDTH - full)} {min(1.0, done):4.0%}"

    @staticmethod
    def _spent(state: ClockState | None) -> str:
        if state is None:
            return ""
        return f"  {state.charged_at(time.monotonic()):.1f} s charged, {state.updates} updates"


@contextmanager
def progress() -> Iterator[Show]:
    """A `Show` on standard error."""
    from rich.console import Console

    console = Console(file=sys.stderr, soft_wrap=True)
    if console.is_terminal:
        with console.status("") as status:
            yield Show(console, status)
    else:
        yield Show(console, None)
