"""A job on the first rows of the built-in TOFU, made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import ROOT

from harness.clock import Allowance, Clock
from harness.entries import resolve
from harness.generate.hf import HFGenerator
from harness.job import Job, Plan
from harness.mini import world
from harness.models import MINI, LoadedModel, load, with_adapters
from harness.plugins import load_submission, load_task
from harness.specs import Batching, LoraSpec, OptimizerSpec, TaskRef, Template


def text_job(
    *, updates: int | None = 3, seconds: float | None = None, now: Callable[[], float] | None = None,
    optimizer: OptimizerSpec | None = None, folder: Path | None = None, loaded: LoadedModel | None = None,
    lora: LoraSpec | None = None, dtype: str = "float32", passes: str = "float32", rows: int = 8, effective: int = 4,
    micro: int | None = None, seed: int = 0,
) -> Job:  # fmt: skip
    """`rows` forget rows, twice as many retain rows, and every resource of the task."""
    task = load_task(TaskRef(name="tofu", split="forget10", data=str(world.data_folder("tofu"))), Template())
    case = task.case("forget10", seed)
    loaded = loaded or load(str(MINI / "tofu-full"), dtype=dtype)
    loaded = with_adapters(loaded, lora or LoraSpec(), seed)
    resources = {name: (lambda n=name: task.resource(n, case, seed)) for name in task.resources()}
    optimizer = optimizer or OptimizerSpec(lr=1e-3, warmup=0)
    plan = Plan(seed, Batching(effective=effective, micro=micro), optimizer, None, (), folder, passes)
    allowance = Allowance(seconds, None if seconds is not None else updates)
    clock = Clock(allowance, **({"now": now} if now else {}))
    generator = HFGenerator(loaded.model, loaded.encoder) if loaded.encoder is not None else None
    return Job(
        loaded, case.forget[:rows], case.retain[: 2 * rows], clock, plan, resources=resources, generator=generator
    )  # fmt: skip


def method(name: str, **settings: Any) -> Any:
    """A shipped method with its settings."""
    return resolve(load_submission(name, [ROOT / "submissions"]), {}, settings).method


def run(name: str, job: Job, **settings: Any) -> Job:
    """Let a shipped method work on a job, on the clock."""
    with job.clock.lane("train"):
        method(name, **settings).unlearn(job)
    return job


def weights(job: Job) -> dict[str, Any]:
    """Copies of all parameters."""
    return {name: p.detach().clone() for name, p in job.model.named_parameters()}


def moved(job: Job, before: dict[str, Any]) -> set[str]:
    """Names of parameters that are not what they were."""
    return {name for name, p in job.model.named_parameters() if not p.equal(before[name])}
