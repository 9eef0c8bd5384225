"""Processes that make parts of a site beside the main one: each reads the database itself, and writes into the draft.

The main process writes one line of JSON to a worker's input for each task, and reads one line back. A worker ends
with its input, and when the process that started it has died.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import StoreError
from harness.pages.content import Part
from harness.site import Draft, write_files
from harness.siteparts import Kept
from harness.store import Store
from harness.workspace import Workspace

BOARDS = 3
"""Boards from which on ranking is shared."""
LEAST = 50
"""Parts that a process takes at once, at least."""


@dataclass
class Crew(contextlib.AbstractContextManager["Crew"]):
    """Some workers on a workspace; they are started when there is something to do, and ended on leaving."""

    workspace: Workspace
    store: Store
    workers: int
    _running: list[subprocess.Popen[str]] = field(default_factory=list)
    _busy: dict[subprocess.Popen[str], Sequence[Part]] = field(default_factory=dict)

    def rank(self, boards: Sequence[str]) -> Callable[[], None]:
        """Starts to rank these boards into the cache of tables, where there are many; returns what waits for it.

        Having waited, the workers go on to find out which parts the site has, as the caller does meanwhile.
        """
        many = self.workers > 1 and len(boards) >= BOARDS
        n = min(self.workers, len(boards)) if many else 0
        ranking = self._started(n)
        for i, worker in enumerate(ranking):
            self._tell(worker, {"boards": boards[i * len(boards) // n : (i + 1) * len(boards) // n]})

        def wait() -> None:
            for worker in ranking:
                self._answer(worker)
            for worker in ranking[: self.workers - 1]:
                self._tell(worker, {"keys": {}, "folder": ""})
                self._busy[worker] = ()

        return wait

    def make(self, parts: Sequence[Part], draft: Draft) -> Mapping[str, Kept]:
        """Makes parts, here and in the other processes: each takes a share of those that are left when it is free.

        Shares are stretches, as neighbours are read together, and get smaller, so that all end at the same time. Parts
        whose key a worker finds different, as a record has come in, are left to the caller.
        """
        if self.workers < 2:
            return {}
        left, done = deque(parts), dict[str, Kept]()

        def share() -> list[Part]:
            n = max(LEAST, len(left) // (2 * self.workers))
            return [left.popleft() for _ in range(min(n, len(left)))]

        def collect(workers: Sequence[subprocess.Popen[str]]) -> None:
            for worker in workers:
                files = self._answer(worker)["files"] if worker in self._busy else {}
                for part in self._busy.pop(worker, ()):
                    if part.name in files:
                        done[part.name] = Kept(part.key, files[part.name])
                if left:
                    self._busy[worker] = share()
                    keys = {part.name: part.key for part in self._busy[worker]}
                    self._tell(worker, {"keys": keys, "folder": str(draft.folder)})

        collect([w for w in self._started(self.workers - 1) if w not in self._busy])
        while left:
            for part in share():
                done[part.name] = Kept(part.key, write_files(part.make(), draft.folder))
                collect(self._answered())
        while self._busy:
            collect(list(self._busy))
        return done

    def _started(self, n: int) -> list[subprocess.Popen[str]]:
        """So many workers."""
        while len(self._running) < n:
            self._running.append(self._start())
        return self._running[:n]

    def _answered(self) -> list[subprocess.Popen[str]]:
        """Busy workers whose answer can be read. There is never more than one line to read."""
        ready, _, _ = select.select([w.stdout for w in self._busy if w.stdout is not None], [], [], 0)
        return [worker for worker in self._busy if worker.stdout in ready]

    def _tell(self, worker: subprocess.Popen[str], task: Mapping[str, Any]) -> None:
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(json.dumps(task) + "\n")
            worker.stdin.flush()

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
            if error[0] is not None or worker in self._busy:
                worker.kill()
            worker.wait()


def look_seldom_for_garbage() -> None:
    """A build makes millions of objects and hardly any garbage; looking for it took a sixth of the time."""
    gc.set_threshold(2_000_000, 50, 100)


def main() -> None:
    """A worker: `[workspace, database, parent]` as its argument, tasks on its input."""
    look_seldom_for_garbage()
    root, database, parent = json.loads(sys.argv[1])
    workspace = Workspace(Path(root))
    store = Store(workspace.leaderboards, Path(database))
    answers, found = os.fdopen(os.dup(1), "w"), dict[str, Part]()
    os.dup2(2, 1)  # what a submission prints while it is loaded is no answer
    for line in sys.stdin:
        try:
            answer = _do(workspace, store, json.loads(line), parent, found)
        except StoreError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def _do(
    workspace: Workspace, store: Store, task: Mapping[str, Any], parent: int, found: dict[str, Part]
) -> dict[str, Any]:
    """Ranks boards, or makes parts; the site's parts are put into `found` once, and looked up there."""
    from harness.publish import parts_of
    from harness.sitecontent import collect

    if "boards" in task:
        collect(workspace, store, task["boards"])
        return {}
    if not found:
        found |= {part.name: part for part in parts_of(workspace, collect(workspace, store))}
    files = {}
    for name, key in task["keys"].items():
        if os.getppid() != parent:
            raise SystemExit(1)
        if name in found and found[name].key == key:
            files[name] = write_files(found[name].make(), Path(task["folder"]))
    return {"files": files}
