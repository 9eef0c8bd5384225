"""Processes that make parts of a site beside the main one: each reads the database itself, and writes into the draft.

The main process writes one line of JSON to a worker's input for each task, and reads one line back. A worker ends
with its input, and when the process that started it has died.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import StoreError
from harness.pages.content import Part
from harness.site import Draft, Kept, write_files
from harness.store import Store
from harness.workspace import Workspace

BOARDS = 3
"""Boards from which on ranking is shared."""


@dataclass
class Crew(contextlib.AbstractContextManager["Crew"]):
    """Some workers on a workspace; they are started when there is something to do, and ended on leaving."""

    workspace: Workspace
    store: Store
    workers: int
    _running: list[subprocess.Popen[str]] = field(default_factory=list)

    def rank(self, boards: Sequence[str]) -> Callable[[], None]:
        """Starts to rank these boards into the cache of tables, where there are many; returns what waits for it."""
        many = self.workers > 1 and len(boards) >= BOARDS
        running = self._ask([{"boards": part} for part in self._split(boards)]) if many else []

        def wait() -> None:
            for worker in running:
                self._answer(worker)

        return wait

    def make(self, parts: Sequence[Part], draft: Draft) -> Mapping[str, Kept]:
        """Makes parts; those whose key a worker finds different, as a record has come in, are left to the caller."""
        if self.workers < 2:
            return {}
        keys = {part.name: part.key for part in parts}
        shares = [{name: keys[name] for name in names} for names in self._split(list(keys))]
        tasks = [{"keys": share, "folder": str(draft.folder)} for share in shares]
        done: dict[str, Kept] = {}
        for worker in self._ask(tasks):
            files = self._answer(worker)["files"]
            done |= {name: Kept(keys[name], sizes) for name, sizes in files.items()}
        return done

    def _split(self, items: Sequence[str]) -> list[list[str]]:
        """As many stretches as there are workers; neighbours stay together, as they are read together."""
        n = min(self.workers, len(items))
        return [list(items[i * len(items) // n : (i + 1) * len(items) // n]) for i in range(n)]

    def _ask(self, tasks: Sequence[Mapping[str, Any]]) -> list[subprocess.Popen[str]]:
        """Gives each of as many workers a task; returns them, in order."""
        while len(self._running) < len(tasks):
            self._running.append(self._start())
        for worker, task in zip(self._running, tasks, strict=False):
            assert worker.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.write(json.dumps(task) + "\n")
                worker.stdin.flush()
        return self._running[: len(tasks)]

    def _start(self) -> subprocess.Popen[str]:
        given = json.dumps([str(self.workspace.root), str(self.store.database), os.getpid()])
        command = [sys.executable, "-c", "from harness.siteworker import main; main()", given]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)

    def _answer(self, worker: subprocess.Popen[str]) -> dict[str, Any]:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise StoreError(f"a process that made pages ended with {worker.wait()}; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise StoreError(answer["error"])
        return answer

    def __exit__(self, *error: object) -> None:
        for worker in self._running:
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            if error[0] is not None:
                worker.kill()
            worker.wait()


def look_seldom_for_garbage() -> None:
    """A build makes millions of objects and hardly any garbage; looking for it took a sixth of the time."""
    gc.set_threshold(200_000, 50, 100)


def main() -> None:
    """A worker: `[workspace, database, parent]` as its argument, tasks on its input."""
    look_seldom_for_garbage()
    root, database, parent = json.loads(sys.argv[1])
    workspace = Workspace(Path(root))
    store = Store(workspace.leaderboards, Path(database))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a submission prints while it is loaded is no answer
    for line in sys.stdin:
        try:
            answer = _do(workspace, store, json.loads(line), parent)
        except StoreError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def _do(workspace: Workspace, store: Store, task: Mapping[str, Any], parent: int) -> dict[str, Any]:
    from harness.publish import parts_of
    from harness.sitecontent import collect

    if "boards" in task:
        collect(workspace, store, task["boards"])
        return {}
    files = {}
    for part in parts_of(workspace, collect(workspace, store)):
        if os.getppid() != parent:
            raise SystemExit(1)
        if task["keys"].get(part.name) == part.key:
            files[part.name] = write_files(part.make(), Path(task["folder"]))
    return {"files": files}
