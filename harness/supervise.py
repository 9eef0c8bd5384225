"""Stages in processes of their own, watched from outside.

A stage process is forked from a server that has the heavy imports done, leads its own process group, and writes its
output to a log. Whatever it does (raise, exit, hang, fork, kill itself), the parent gets an `Outcome` and the group is
gone afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from harness.clock import ClockState, read_journal

GRACE = 1.25
"""A run that does not stop by itself is ended at this multiple of its budget."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    """How a stage process ended: `ok`, or `died` (by itself), `timeout` (over its budget), `hung`; and why.

    `charged_s` is what the clock showed when a stage was ended from outside.
    """

    kind: str
    why: str = ""
    charged_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the stage finished."""
        return self.kind == "ok"


@dataclass(frozen=True)
class Limits:
    """When the parent ends a stage: `seconds` of the charged lane (times `GRACE`), or no sign of life for `hang_s`."""

    seconds: float | None = None
    hang_s: float = 600.0


_PRELOAD = ("torch", "torch._dynamo", "safetensors.torch", "pyarrow.parquet", "harness.worker", "harness.scores",
            "harness.modadd", "harness.recording")  # fmt: skip
_PRELOAD_TEXT = ("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto",
                 "transformers.modeling_utils", "transformers.models.llama.modeling_llama",
                 "transformers.generation.utils", "harness.generate.hf", "rouge_score.rouge_scorer")  # fmt: skip


def prepare(*, text: bool, modules: Sequence[str] = ()) -> None:
    """Say what the server that stage processes are forked from imports first. Has an effect before the first stage.

    Threads of stage processes sleep at barriers instead of spinning (unless `OMP_WAIT_POLICY` says otherwise): on a
    machine that does anything else, two spinning threads made a training step 25 times slower, sleeping ones cost
    nothing that could be measured.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _context().set_forkserver_preload([*_PRELOAD, *(_PRELOAD_TEXT if text else ()), *modules])


def _context() -> multiprocessing.context.BaseContext:
    return multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")


def run_stage(
    function: str,
    folder: Path,
    *,
    limits: Limits | None = None,
    progress: Callable[[ClockState | None], None] = lambda _: None,
    poll_s: float = 0.05,
) -> Outcome:
    """Run `module:function` with the folder as its argument in a process of its own, and wait for it.

    The stage's clock, if it keeps one, is `folder/clock.bin`; `progress` sees it at every poll.
    """
    name = function.rpartition(":")[2]
    failure, finished = folder / f"{name}.failure", folder / f"{name}.finished"
    failure.unlink(missing_ok=True)
    finished.unlink(missing_ok=True)
    process = _context().Process(target=_child, args=(function, str(folder)), name=f"uharness-{name}")
    process.start()
    began, limits = time.monotonic(), limits or Limits(hang_s=float("inf"))
    try:
        while process.exitcode is None:
            process.join(poll_s)
            state = read_journal(folder / "clock.bin")
            progress(state)
            if process.exitcode is None and (verdict := _too_long(state, limits, began)) is not None:
                return verdict
    finally:
        _end(process)
    if process.exitcode == 0 and finished.exists():
        return Outcome("ok")
    if failure.exists():
        return Outcome("died", failure.read_text(encoding="utf-8"))
    return Outcome("died", _exit_text(process.exitcode))


def _too_long(state: ClockState | None, limits: Limits, began: float) -> Outcome | None:
    now = time.monotonic()
    charged = state.charged_at(now) if state is not None else None
    if charged is not None and limits.seconds is not None and charged > GRACE * limits.seconds:
        why = f"still running at {GRACE} x its budget of {limits.seconds:.3g} s; ended from outside"
        return Outcome("timeout", why, charged)
    training = state is not None and state.running_since is not None
    if training and limits.seconds is not None:
        return None
    alive = max(state.alive_at if state is not None else 0.0, began)
    if now - alive > limits.hang_s:
        return Outcome("hung", f"no update and no sign of life for {limits.hang_s:.3g} s; ended from outside")
    return None


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (often the system's answer to running out of memory)" if name == "SIGKILL" else ""
        return f"the process was ended by {name}{hint}"
    return f"the process exited with code {code} before it was done"


def _end(process: BaseProcess) -> None:
    """End the stage's whole process group, so that nothing it forked stays behind."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.exitcode is None:
            process.kill()
    process.join()


def _thread_lock_for_bars() -> None:
    """Give tqdm a lock of threads: its own one is a system's semaphore, which stays when a stage process ends."""
    with contextlib.suppress(ImportError):
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())


def _child(function: str, folder: str) -> None:
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _thread_lock_for_bars()
    module, _, name = function.rpartition(":")
    log = os.open(Path(folder) / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    try:
        getattr(importlib.import_module(module), name)(Path(folder))
        sys.stdout.flush()
        (Path(folder) / f"{name}.finished").touch()
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        (Path(folder) / f"{name}.failure").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        os._exit(1)
    os._exit(0)
