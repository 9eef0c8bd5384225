"""What can be known before any training: the board, its data, its models, what the submission needs.

Everything here raises an `InputError` with one line, or returns what the stages need.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness import fits, lmeval, models
from harness.entries import Entry, board_settings, resolve
from harness.errors import BoardError, InputError, SubmissionError, near
from harness.plugins import load_task, outline, wants_curvature
from harness.robustness import columns as robustness
from harness.specs import Board, TaskRef, content_hash
from harness.types import ArrayRow, MetricInfo, Probe, Suite, Task, TextRow
from harness.workspace import Workspace

NEEDED_DISK_GIB = 0.5
COST_COLUMNS = {
    "cost.charged_s": MetricInfo("cost.charged_s", "lower", 0, None, "s", "Charged seconds of training."),
    "cost.updates": MetricInfo("cost.updates", "none", 0, None, "updates", "Optimizer steps made."),
    "cost.peak_gib": MetricInfo(
        "cost.peak_gib", "lower", 0, None, "GiB", "Peak memory of the training process."
    ),
    "cost.total_s": MetricInfo(
        "cost.total_s",
        "lower",
        0,
        None,
        "s",
        "Charged seconds of all trainings behind the row, tuning and a selector's judging of mixes included.",
    ),
    "cost.trainings": MetricInfo(
        "cost.trainings", "lower", 0, None, "trainings",
        "Trainings behind the row: its own, or all children of a selector.",
    ),
    "cost.proxy_evaluations": MetricInfo(
        "cost.proxy_evaluations", "lower", 0, None, "evaluations",
        "How often a selector judged a mix by a proxy, on rows that the method may see.",
    ),
    "cost.full_evaluations": MetricInfo(
        "cost.full_evaluations", "lower", 0, None, "evaluations",
        "Evaluations by the board's own metrics: the final one, or all by which a selector picked.",
    ),
}  # fmt: skip
JSD = "forget.jsd_retain"
MEASURED_COLUMNS = {
    JSD: MetricInfo(
        JSD, "lower", 0, math.log(2), "nats",
        "Jensen-Shannon divergence of next-token distributions from the retain model's, at the tokens of the forget "
        "answers, mean over a row's tokens, then over rows. Measured by `uharness compare`.",
        source="Lin 1991, IEEE Trans. Inf. Theory 37, eq. 4.1; the curves of Spectral Unlearning, Fig. 9",
    ),
}  # fmt: skip
"""Metrics that no task computes: they need the run's weights beside another model's."""


@dataclass(frozen=True)
class Ready:
    """A board whose data and models are there; `data` is the folder or hub id of its rows on this machine."""

    board: Board
    task: Task
    metrics: Mapping[str, MetricInfo]
    data: str = ""

    def cases(self) -> Sequence[str]:
        """The cases that the board takes, in order."""
        return self.board.cases or tuple(self.task.case_ids())

    def check_cases(self, cases: Sequence[str]) -> None:
        """Refuse cases that the task does not have."""
        known = self.task.case_ids()
        for case in cases:
            if case not in known:
                raise InputError(f"board {self.board.name} has no case {case!r}", near(case, known))

    @property
    def text(self) -> bool:
        """Whether the board's rows are texts (and its models Hugging Face's)."""
        case = self.task.case(self.cases()[0], self.board.seeds[0])
        return bool(case.forget) and isinstance(case.forget[0], TextRow)

    def supplied(self) -> set[str]:
        """What a method may need: the task's resources, the board's models by role, `texts` or `images` as rows."""
        case = self.task.case(self.cases()[0], self.board.seeds[0])
        pictures = bool(case.forget) and isinstance(row := case.forget[0], ArrayRow) and row.inputs.ndim == 3
        rows = {"texts"} if self.text else {"images"} if pictures else set[str]()
        return {*self.task.resources(), *(f"model.{role}" for role in self.board.models), *rows}

    def models(
        self, case: str, seed: int, roots: tuple[Path, ...], needs: Collection[str] | None = None
    ) -> dict[str, str]:
        """Role -> folder, with case and seed filled in, each one checked; hub models are fetched.

        With `needs`, what a submission asks for, a hub model in role `init` is left out unless it is among them: few
        methods want it, and its owner may ask for a licence.
        """
        named = {role: filled(self.board, ref, case, seed) for role, ref in self.board.models.items()}
        if needs is not None and "model.init" not in needs and models.is_hub_id(named.get("init", "")):
            del named["init"]
        return {role: path_of(name, roots) for role, name in named.items()}

    @property
    def reference_roles(self) -> list[str]:
        """Model roles whose answers the metrics need and the board has."""
        needed = {role for metric in self.metrics.values() for role in metric.roles}
        return sorted(needed & set(self.board.models))


def filled(board: Board, reference: str, case: str, seed: int) -> str:
    """A model reference of a board with case and seed filled in."""
    try:
        return reference.format(case=case, seed=seed)
    except (KeyError, IndexError, ValueError):
        raise BoardError(
            f"board {board.name}: model reference {reference!r} has an unknown placeholder",
            "known: {case}, {seed}", "edit the board",
        ) from None  # fmt: skip


def path_of(reference: str, roots: tuple[Path, ...], fetch: bool = True) -> str:
    """One model reference as a checked folder."""
    path = models.resolve(reference, roots, fetch=fetch)
    models.check(path, needs_tokenizer=models.reads_text(path))
    return path


def board_ready(board: Board, workspace: Workspace, *, data_dir: str = "") -> Ready:
    """Load the board's task (which checks its data) and check columns, cases and disk."""
    ref = task_ref(board, workspace, data_dir)
    task = load_task(ref, board.template)
    metrics = _columns(board, task.metrics(), task.case_ids())
    free = shutil.disk_usage(workspace.root).free / 2**30
    if free < NEEDED_DISK_GIB:
        raise InputError(
            f"{free:.2f} GiB free in {workspace.root}", f"a run needs {NEEDED_DISK_GIB} GiB", "free some disk"
        )
    return Ready(board, task, metrics, ref.data)


@dataclass(frozen=True)
class Described:
    """What a board's table needs; `hub` names data sets that a run would read from the hub."""

    board: Board
    metrics: Mapping[str, MetricInfo]
    cases: tuple[str, ...]
    hub: tuple[str, ...] = ()


def described(board: Board, workspace: Workspace) -> Described:
    """Check a board's columns and cases, without its data where the task can tell them so."""
    known = outline(task_ref(board, workspace))
    if known is None:
        ready = board_ready(board, workspace)
        return Described(board, ready.metrics, tuple(ready.cases()))
    return Described(
        board, _columns(board, known.metrics, known.cases), board.cases or known.cases, known.hub
    )


def task_ref(board: Board, workspace: Workspace, data_dir: str = "") -> TaskRef:
    """The board's task with its data where they are on this machine."""
    data = data_dir or board.task.data
    return board.task.model_copy(update={"data": data_path(data, workspace) if data else ""})


def _columns(board: Board, metrics: Sequence[MetricInfo], cases: Sequence[str]) -> dict[str, MetricInfo]:
    """All metrics by id, costs among them; refuses columns and cases of the board that do not exist."""
    known = {**{m.id: m for m in metrics}, **MEASURED_COLUMNS, **robustness.COLUMNS, **COST_COLUMNS}
    for column in board.columns:
        name, _, case = column.partition("@")
        if name not in known:
            raise BoardError(
                f"board {board.name}: no metric {name!r}", near(name, known), "see `uharness list metrics`"
            )
        if case and case not in cases:
            raise BoardError(f"board {board.name}: column {column!r} names no case", near(case, cases), "")
    for case in board.cases:
        if case not in cases:
            raise BoardError(f"board {board.name}: no case {case!r}", near(case, cases), "edit the board")
    return known


def data_path(data: str, workspace: Workspace) -> str:
    """A data folder as an absolute path where there is one; `mini:NAME` as the shipped one; a hub id unchanged."""
    if data.startswith("mini:"):
        from harness.mini.world import data_folder

        return str(data_folder(data.removeprefix("mini:")))
    given = Path(data).expanduser()
    for candidate in (given,) if given.is_absolute() else (workspace.root / given, Path.cwd() / given):
        if candidate.is_dir():
            return str(candidate.resolve())
    if data.count("/") == 1 and not data.startswith((".", "/", "~")):
        return data
    raise BoardError(
        f"data folder {data!r} does not exist", f"looked in {workspace.root}", "give an existing folder"
    )


def entry_ready(entry: Entry, ready: Ready) -> None:
    """Check that the board supplies what the submission (and a selector's base) needs, and that its settings fit."""
    case = ready.task.case(ready.cases()[0], ready.board.seeds[0])
    if any(isinstance(probe, Suite) for probe in ready.task.probes(case)):
        lmeval.version()
    supplied = ready.supplied()
    _one_ready(entry, ready, supplied)
    if entry.base is not None:
        for child in _children(entry, entry.base, ready):
            _one_ready(child, ready, supplied)


def needed(entry: Entry, ready: Ready) -> set[str]:
    """What a submission asks for; for a selector also what its trainings do."""
    parts = [entry, *(_children(entry, entry.base, ready) if entry.base is not None else ())]
    return {need for part in parts for need in part.needs}


def _one_ready(entry: Entry, ready: Ready, supplied: set[str]) -> None:
    for need in entry.needs:
        if need.startswith("model.") and need != "model.init" and not entry.loaded.submission.reference:
            raise SubmissionError(
                f"{entry.name} needs {need!r}, which only reference rows may use", "",
                "a method starts from the target and sees rows, not another model's weights",
            )  # fmt: skip
        if need not in supplied:
            raise SubmissionError(
                f"{entry.name} needs {need!r}, which board {ready.board.name} does not supply",
                near(need, supplied), "choose another board, or give the board what it needs",
            )  # fmt: skip
    if entry.lora.rank and not ready.text:
        raise SubmissionError(
            f"{entry.name}: lora.rank={entry.lora.rank}",
            f"board {ready.board.name} has no Hugging Face model to put adapters into",
            "leave lora.rank at 0",
        )
    others = any(need.startswith("model.") for need in entry.needs)
    if entry.lora.rank and (others or fits.refuses_adapters(entry.method)):
        raise SubmissionError(
            f"{entry.name}: lora.rank={entry.lora.rank}",
            "with these settings it works on the weights themselves", "leave lora.rank at 0",
        )  # fmt: skip
    if fits.picks_its_rows(entry.method) and wants_curvature(entry.optimizer.name):
        raise SubmissionError(
            f"{entry.name}: optimizer.name={entry.optimizer.name} estimates curvature on forget and retain rows",
            "this method trains on data of its own", "set another optimizer.name",
        )  # fmt: skip


def _children(entry: Entry, base: Entry, ready: Ready) -> list[Entry]:
    """The trainings that a selector asks for; refuses a base that gives it nothing to choose from."""
    if base.loaded.submission.reference or fits.instructs(base.method):
        told = "is a reference" if base.loaded.submission.reference else "changes no weights"
        raise SubmissionError(
            f"{entry.name}: {base.name} {told}",
            "a selector chooses among the weights of several trainings", f"submit {base.name} by itself",
        )  # fmt: skip
    if getattr(entry.method, "by", "proxy") == "full_metric":
        bounds(ready.metrics[ready.board.rank_by.partition("@")[0]])
    out = []
    for child in entry.method.children(ready.board.seeds[0]):
        wanted = {**base.overrides, **child.overrides}
        out.append(resolve(base.loaded, board_settings(base.loaded, ready.board.settings, wanted), wanted))
    return out


def bounds(info: MetricInfo) -> tuple[float, float]:
    """The range of a metric that mixes can be judged by; `SubmissionError` where it has none."""
    if info.low is None or info.high is None or info.direction == "none":
        raise SubmissionError(
            f"mixes cannot be judged by {info.id}, which has no range or no direction", "",
            "leave `by` at proxy, or choose a board that ranks by a bounded metric",
        )  # fmt: skip
    return info.low, info.high


def origin(task: Task) -> dict[str, Any]:
    """Where a task's rows came from, as far as it tells: a hub data set and its commit; nothing for local rows."""
    tell = getattr(task, "describe", dict)()
    return {"data": tell} if tell.get("revision") else {}


def environment() -> dict[str, Any]:
    """What a record says about where it was made; the hardware string is what `seconds` budgets rank within."""
    packages = {}
    for name in ("torch", "transformers", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    from harness import __version__

    return {"hardware": hardware(), "threads": threads(), "python": platform.python_version(),
            "harness": __version__, **packages}  # fmt: skip


def threads() -> int:
    """Threads that torch may use: the cores this process may run on, or UHARNESS_THREADS."""
    given = os.environ.get("UHARNESS_THREADS", "")
    if given:
        if not given.isdigit() or int(given) < 1:
            raise InputError(
                f"UHARNESS_THREADS={given!r}", "it is a number of threads, 1 or more", "unset or correct it"
            )
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def hardware() -> str:
    """Processor (or GPU) and number of cores, as one string."""
    smi = shutil.which("nvidia-smi")
    if smi is not None and os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1"):
        import subprocess

        query = [smi, "--query-gpu=name", "--format=csv,noheader"]
        found = subprocess.run(query, capture_output=True, text=True, check=False)
        names = sorted(line.strip() for line in found.stdout.splitlines() if line.strip())
        if found.returncode == 0 and names:
            return f"cuda: {len(names)} x {names[0]}"
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [
            line.partition(":")[2].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        model = lines[0] if lines else model
    return f"cpu: {model} x {threads()}"


def _rows_key(probe: Probe) -> Any:
    """What a probe asks: ids of its rows, or a suite's setting (its local files are in the task's `data_hash`)."""
    if not isinstance(probe, Suite):
        return [row.id for row in probe.rows]
    asked = {f.name: getattr(probe, f.name) for f in fields(probe) if f.name not in ("folder", "data")}
    return {**asked, "lm_eval": lmeval.version()}


def reference_key(
    ready: Ready, case: str, seed: int, model_hash: str, limit: int | None, generator: str = "hf"
) -> str:
    """What reference answers depend on: weights, rows, template, length, generation and the code that answers."""
    from harness.answers import code_version

    board = ready.board
    asked = [(p.name, _rows_key(p)) for p in ready.task.probes(ready.task.case(case, seed))]
    return content_hash([
        model_hash, ready.task.name, ready.task.version, ready.task.data_hash(), case, asked,
        board.template.model_dump(mode="json"), board.max_length, board.dtype, limit, generator,
        code_version(),
    ])  # fmt: skip
