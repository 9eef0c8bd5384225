"""A job on the built-in digits, and images in the hub's shape, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from conftest import ROOT

from harness.clock import Allowance, Clock
from harness.entries import resolve as settle
from harness.job import Job, Plan
from harness.mini.world import data_folder
from harness.models import LoadedModel, load, resolve
from harness.plugins import load_submission, load_task
from harness.specs import Batching, OptimizerSpec, TaskRef, Template
from harness.tasks.images import ImagesTask

REQUESTS = {
    "class": {"classes": ["3"]},
    "half": {"classes": ["3"], "part": "half"},
    "random": {"classes": ["3"], "part": "random"},
}


def digits(**options: Any) -> ImagesTask:
    """The task of the board digits-mini."""
    given = {"requests": REQUESTS} | options
    return load_task(TaskRef(name="images", data=str(data_folder("digits")), options=given), Template())  # type: ignore[return-value]


def model(name: str = "target-0") -> LoadedModel:
    """A built-in model."""
    return load(resolve(f"mini:digits/{name}"))


def image_job(
    case: str = "class", *, updates: int = 3, lr: float = 1e-3, loaded: LoadedModel | None = None, effective: Any = 16,
    weight_decay: float = 0.0, folder: Path | None = None,
) -> Job:  # fmt: skip
    """A job on one request, with every resource of the task."""
    task = digits()
    rows = task.case(case, 0)
    resources = {name: (lambda n=name: task.resource(n, rows, 0)) for name in task.resources()}
    optimizer = OptimizerSpec(lr=lr, warmup=0, weight_decay=weight_decay)
    plan = Plan(0, Batching(effective=effective), optimizer, None, (), folder)
    clock = Clock(Allowance(None, updates))
    return Job(loaded or model(), rows.forget, rows.retain, clock, plan, resources=resources)


def method(name: str, **settings: Any) -> Any:
    """A shipped method with its settings."""
    return settle(load_submission(name, [ROOT / "submissions"]), {}, settings).method


def run(name: str, job: Job, **settings: Any) -> Job:
    """Let a shipped method work on a job, on the clock."""
    with job.clock.lane("train"):
        method(name, **settings).unlearn(job)
    return job


def hub_folder(folder: Path, *, size: int = 6, per_class: int = 4) -> Path:
    """Two Parquet files as the hub serves them: PNG images `img` in RGB, classes `fine_label` with names."""
    import datasets
    from PIL import Image

    names = ["oak", "pine", "seal"]
    features = datasets.Features(
        {"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=names), "coarse": datasets.Value("int64")}
    )  # fmt: skip
    draw = np.random.default_rng(0)
    (folder / "data").mkdir(parents=True)
    for split in ("train", "test"):
        labels = [k for k in range(3) for _ in range(per_class)]
        pixels = draw.integers(0, 256, (len(labels), size, size, 3), dtype=np.uint8)
        pixels[:, 0, 0, 0] = labels
        rows = {
            "img": [Image.fromarray(p) for p in pixels],
            "fine_label": labels,
            "coarse": [0] * len(labels),
        }
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
    return folder
