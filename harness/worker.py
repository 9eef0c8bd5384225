"""What happens inside the stage processes: `unlearn`, `calibrate`, `select`, `write`, `answer`, `score`, and others.

Each is a function of its folder.
The method's process (`unlearn`) never holds a probe; the answer process never holds a method.
"""

from __future__ import annotations

import contextlib
import math
import resource
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import answers as answering
from harness import losses, models
from harness.batches import Batch
from harness.clock import Allowance, Clock, read_journal
from harness.entries import board_settings, resolve
from harness.errors import InvalidRun, RunError
from harness.job import Job, Plan
from harness.loop import warm_up
from harness.plugins import load_source, load_task
from harness.runs import RunSpec, cut_case, cut_probes, read_json, write_json
from harness.scoring import token_logp
from harness.specs import LoraSpec, OptimizerSpec, Stop
from harness.types import Answers, Case, Generation, Suite, Task


def _sync() -> Callable[[], None]:
    return torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)


def _asked(spec: RunSpec) -> tuple[Task, Case]:
    """The task and its case as they stand: all that asking and scoring need."""
    task = load_task(spec.task_ref, spec.board.template)
    return task, cut_case(task.case(spec.case, spec.seed), spec.limit)


def _case(spec: RunSpec) -> tuple[Task, Case]:
    """The task, and the rows that a method gets: cut by the target's tokenizer where the task wants that."""
    task = load_task(spec.task_ref, spec.board.template)
    case, board = task.case(spec.case, spec.seed), spec.board
    if hasattr(task, "tokenized"):
        path = spec.models["target"]
        case = task.tokenized(
            case, models.load_encoder(path, template=board.template, max_length=board.max_length)
        )
    return task, cut_case(case, spec.limit)


def _load(spec: RunSpec, path: str, dtype: str = "") -> models.LoadedModel:
    board = spec.board
    return models.load(path, dtype=dtype or board.dtype, template=board.template, max_length=board.max_length)


def _begin(spec: RunSpec) -> None:
    torch.set_num_threads(spec.threads)
    torch.manual_seed(spec.train_seed)
    np.random.seed(spec.train_seed % 2**32)


def _job(
    spec: RunSpec, clock: Clock, optimizer: OptimizerSpec, folder: Path | None = None, stop: Stop | None = None,
    needs: Sequence[str] = (), lora: LoraSpec | None = None,
) -> Job:  # fmt: skip
    task, case = _case(spec)
    loaded = _load(spec, spec.start, "float32" if optimizer.master_weights else "")
    loaded = models.with_adapters(loaded, lora or LoraSpec(), spec.train_seed)
    resources: dict[str, Callable[[], Any]] = {
        name: (lambda n=name: task.resource(n, case, spec.seed)) for name in task.resources()
    }
    resources |= {
        f"model.{role}": (lambda p=path: _load(spec, p).model) for role, path in spec.models.items()
    }
    resources = {name: supply for name, supply in resources.items() if name in needs}
    plan = Plan(spec.train_seed, spec.board.batch, optimizer, stop, spec.points, folder, spec.board.dtype)
    generator = _generator(loaded)
    return Job(loaded, case.forget, case.retain, clock, plan, resources=resources, generator=generator)


def _generator(loaded: models.LoadedModel) -> Any:
    if loaded.encoder is None:
        return None
    from harness.generate.hf import HFGenerator

    return HFGenerator(loaded.model, loaded.encoder)


# --- unlearn --------------------------------------------------------------------------------------------------------
def unlearn(folder: Path) -> None:
    """Train: run the method under the clock, and leave `model/` and `unlearn.json`."""
    spec = RunSpec.read(folder)
    _begin(spec)
    before = read_journal(folder / "clock.bin")
    clock = Clock(
        Allowance(spec.seconds, spec.updates), sync=_sync(),
        spent_s=before.spent_s if before is not None else 0.0, journal=folder / "clock.bin",
    )  # fmt: skip
    sources = [load_source(s.name, s.source) for s in spec.sources]
    for source, loaded in zip(spec.sources, sources, strict=True):
        if loaded.code != source.code:
            raise RunError(f"{source.name} has changed since the run was started; submit it again")
    settings = board_settings(sources[-1], spec.board.settings, spec.overrides)
    entry = resolve(sources[-1], settings, spec.overrides)
    with clock.lane("load"):
        needs = entry.needs
        job = _job(spec, clock, entry.optimizer, folder, spec.board.stop, needs, entry.lora)
    with clock.lane("warmup"):
        warm_up(job)
    _reset_peak()
    status, error = "ok", ""
    if spec.board.stop is not None:
        job.check()
        job.seen.stopped = ""
    try:
        with clock.lane("train"):
            entry.method.unlearn(job)
        _check_weights(job)
    except InvalidRun as problem:
        status, error = "invalid", str(problem)
    except (Exception, SystemExit) as problem:
        traceback.print_exc()
        status, error = "failed", _blame(problem, entry.loaded.path)
    peak = _peak_gib()
    if status == "ok":
        _conclude(spec, job)
        with clock.lane("save"):
            models.save(job.loaded, folder / "model")
    write_json(folder / "unlearn.json", _report(spec, job, status, error, peak))


def _conclude(spec: RunSpec, job: Job) -> None:
    """Look once more at the end, when the board has a stop, unless the last look was at this very state."""
    checks = job.seen.checks
    if spec.board.stop is not None and (not job.seen.stopped or checks[-1]["updates"] != job.clock.updates):
        job.check()


def _report(spec: RunSpec, job: Job, status: str, error: str, peak: float | None) -> dict[str, Any]:
    clock, seen = job.clock, job.seen
    charged = clock.lanes_s.get("train", 0.0)
    allowed = max(0.01 * spec.seconds, seen.longest_step_s) if spec.seconds is not None else math.inf
    if status == "ok" and clock.overshoot_s > allowed:
        status, error = "over_budget", f"used {charged:.3f} s of {spec.seconds:.3f} s"
    limit = spec.board.budget.max_peak_gib
    if status == "ok" and limit is not None and peak is not None and peak > limit:
        status, error = "over_budget", f"peak memory {peak:.2f} GiB, the board allows {limit:.2f} GiB"
    return {
        "status": status, "error": error, "lanes_s": clock.lanes_s, "charged_s": charged,
        "overshoot_s": clock.overshoot_s, "updates": clock.updates, "examples": seen.examples, "tokens": seen.tokens,
        "peak_gib": peak, "peak_kind": "cuda" if torch.cuda.is_available() else "rss", "stopped": seen.stopped,
        "longest_step_s": seen.longest_step_s, "checks": _finite(seen.checks), "points": seen.points,
        "log": _finite(seen.log), "optimizer_failures": seen.failures,
    }  # fmt: skip


def _finite(notes: list[Any]) -> list[Any]:
    """Numbers that are NaN or infinite as null, so that the file is JSON."""
    return [
        {k: (v if not isinstance(v, float) or math.isfinite(v) else None) for k, v in note.items()}
        for note in notes
    ]


def _blame(problem: BaseException, path: Path) -> str:
    """One line: what was raised, and the last line of the submission's own file on the way there."""
    if isinstance(problem, SystemExit):
        return f"the method called sys.exit({problem.code!r})"
    text = str(problem).strip().splitlines() or ["no message"]
    if isinstance(problem, torch.OutOfMemoryError | MemoryError) or "allocate memory" in text[0]:
        return f"out of memory: {text[0] if str(problem) else type(problem).__name__}"
    frames = traceback.extract_tb(problem.__traceback__)
    own = [f.lineno for f in frames if Path(f.filename) == path]
    where = f" ({path.name}, line {own[-1]})" if own else ""
    return f"{type(problem).__name__}: {text[0]}{where}"


def _check_weights(job: Job) -> None:
    for name, parameter in job.model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise InvalidRun(f"the weights are not finite after training (first in {name})")


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    elif sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def _peak_gib() -> float | None:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**20
    scale = 2**30 if sys.platform == "darwin" else 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


# --- calibrate ------------------------------------------------------------------------------------------------------
def calibrate(folder: Path) -> None:
    """Time the board's reference step, GradDiff with AdamW on the board's batch; the median goes to calibrate.json."""
    spec = RunSpec.read(folder)
    _begin(spec)
    clock = Clock(Allowance(updates=1 << 40), sync=_sync())
    job = _job(spec, clock, OptimizerSpec(lr=1e-12))
    optimizer, updates = job.optimizer(), job.batches()
    took: list[float] = []
    for _ in range(read_json(folder / "steps.json") + 2):
        start = clock.read()
        optimizer.zero_grad()
        for micro in next(updates).micros:
            (grad_diff_loss(job, micro) * micro.weight).backward()
        optimizer.step()
        took.append(clock.read() - start)
    write_json(folder / "calibrate.json", {"step_s": statistics.median(took[2:]), "steps_s": took})


def grad_diff_loss(job: Job, batch: Batch) -> torch.Tensor:
    """The loss of the reference step: GradDiff with both weights 1."""
    forget, retain = job.forward(batch.forget), job.forward(batch.retain)
    return losses.grad_ascent(token_logp(forget), forget.mask) + losses.nll(token_logp(retain), retain.mask)


# --- select ---------------------------------------------------------------------------------------------------------
def select(folder: Path) -> None:
    """Let a selector pick or merge among the trained children, on rows the method may see."""
    from harness.select import run_selector

    run_selector(folder, _case, _load, _begin)


# --- proxy, jsd -----------------------------------------------------------------------------------------------------
def proxy(folder: Path) -> None:
    """Judge a finished run by what its method might have seen: proxy.json."""
    from harness.select import run_proxy

    run_proxy(folder, _case, _load, _begin)


def jsd(folder: Path) -> None:
    """How far a finished run's answers on the forget rows are from the retain model's: jsd.json."""
    from harness.jsd import run_jsd

    run_jsd(folder, _case, _load, _begin)


# --- robustness axes ------------------------------------------------------------------------------------------------
def relearn(folder: Path) -> None:
    """What a few forget rows bring back of the others: relearn.json, and curves among the diagnostics."""
    _axis("relearn", folder)


def quantise(folder: Path) -> None:
    """What is left, or back, with rounded weights: quantise.json."""
    _axis("quantise", folder)


def paraphrase(folder: Path) -> None:
    """The forget questions in other words: paraphrase.json."""
    _axis("paraphrase", folder)


def _axis(name: str, folder: Path) -> None:
    from harness.robustness.stage import run_axis

    run_axis(name, folder, _case, _load, _begin)


# --- lbq ------------------------------------------------------------------------------------------------------------
def lbq(folder: Path) -> None:
    """Let a language model grade a run's answers: lbq.json."""
    from harness.judge import run_lbq

    run_lbq(folder, _case)


# --- write ----------------------------------------------------------------------------------------------------------
def write(folder: Path) -> None:
    """Texts of the unlearned model by a generator that takes its folder: `texts/` and `generator.json`.

    A stage of its own, so that the memory is given back, and no other model is in it.
    """
    from harness.generate.choice import make

    spec = RunSpec.read(folder)
    _begin(spec)
    task, case = _asked(spec)
    asked = cut_probes(task.probes(case), spec.limit)
    probes = [p for p in asked if isinstance(p, Generation)]
    weights, board = str(_final(spec, folder)), spec.board
    encoder = models.load_encoder(weights, template=board.template, max_length=board.max_length)
    if encoder is not None and spec.generator_kind == "vllm":
        _write_suites(folder, weights, encoder, asked, board.dtype)
    if encoder is None or not probes:
        return
    most = max(p.max_tokens for p in probes)
    with contextlib.closing(
        make(spec.generator, weights, encoder, dtype=board.dtype, max_tokens=most)
    ) as generator:
        answering.write(answering.generate(encoder, probes, generator), folder / "texts")
        write_json(folder / "generator.json", generator.describe())


def _write_suites(folder: Path, weights: str, encoder: Any, probes: Sequence[Any], dtype: str) -> None:
    """lm-eval's suites by vLLM, which has the memory to itself."""
    from harness import lmeval

    found = {p.name: lmeval.ask_vllm(weights, encoder, p, dtype) for p in probes if isinstance(p, Suite)}
    answering.write(found, folder / "texts")


def _final(spec: RunSpec, folder: Path) -> Path:
    """The weights that are asked: the unlearned ones, or the model itself where nothing was trained."""
    return folder / "model" if (folder / "model").exists() else Path(spec.models["target"])


# --- answer ---------------------------------------------------------------------------------------------------------
def answer(folder: Path) -> None:
    """Ask the unlearned model (and the weights saved along the way) every probe."""
    spec = RunSpec.read(folder)
    _begin(spec)
    task, case = _asked(spec)
    probes = cut_probes(task.probes(case), spec.limit)
    written = answering.read(folder / "texts") if spec.generator != "hf" else {}
    cheap = [p for p in probes if not isinstance(p, Generation | Suite)]
    places = [(_final(spec, folder), folder / "answers", probes)]
    places += [(p, p / "answers", cheap) for p in sorted((folder / "points").glob("*"))]
    for weights, out, asked in places:
        loaded = _load(spec, str(weights))
        made = answering.answer(loaded, [p for p in asked if p.name not in written], _generator(loaded))
        if out == folder / "answers":
            made |= written
        if out == folder / "answers" and hasattr(task, "judge"):
            made |= task.judge(loaded, asked, made)
        if out == folder / "answers" and hasattr(task, "compare"):
            others = {role: path for role, path in spec.models.items() if role != "target"}
            made |= task.compare(loaded, {r: (lambda p=p: _load(spec, p)) for r, p in others.items()})
        answering.write(made, out)
        if out == folder / "answers" and loaded.encoder is not None:
            write_json(folder / "encoder.json", loaded.encoder.describe())
            if spec.generator == "hf":
                write_json(folder / "generator.json", {"name": "hf"})


# --- score ----------------------------------------------------------------------------------------------------------
def score(folder: Path) -> None:
    """Metrics from answers alone: scores.json, rows.parquet and trajectory.parquet."""
    from harness.scores import score_folder
    from harness.select import row_key

    spec = RunSpec.read(folder)
    task, case = _asked(spec)
    references = {
        role: Answers(answering.read(Path(path) / "answers")) for role, path in spec.references.items()
    }
    probes = cut_probes(task.probes(case), spec.limit)
    chosen = folder / "select.json"
    proxy_rows = read_json(chosen)["proxy_rows"] if chosen.exists() else []
    asked = {row_key(row) for probe in probes for row in probe.rows} if proxy_rows else set()
    score_folder(folder, task, case, probes, references, sum(key in asked for key in proxy_rows))
