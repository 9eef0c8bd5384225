"""What the harness itself costs: `fit` against a bare PyTorch loop of the same steps, and `uharness --help`.

Both loops do the same updates on the same model and rows, in turns, in one process; the ratio of medians is the
figure, since single timings on a shared machine move by a factor of two.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from harness.batches import Batch
from harness.clock import Allowance, Clock
from harness.errors import UharnessError
from harness.job import Job, Plan
from harness.loop import fit, warm_up
from harness.models import load, resolve
from harness.plugins import load_task
from harness.scoring import token_logp
from harness.specs import Batching, OptimizerSpec, TaskRef, Template

STEPS, ROUNDS = 40, 9


def make_job(batching: Batching) -> Job:
    task = load_task(TaskRef(name="bma"), Template())
    case = task.case("M4", 17)
    plan = Plan(17, batching, OptimizerSpec(lr=1e-9, warmup=0, decay="constant"))
    return Job(load(resolve("mini:bma/M4")), case.forget, case.retain, Clock(Allowance(updates=STEPS)), plan)


def loss(job: Job, batch: Batch) -> torch.Tensor:
    return token_logp(job.forward(batch.forget)).mean() - token_logp(job.forward(batch.retain)).mean()


def with_fit(batching: Batching) -> float:
    job = make_job(batching)
    warm_up(job)
    with job.clock.lane("train"):
        fit(job, lambda batch: loss(job, batch))
    return job.clock.charged_s / STEPS


def bare(batching: Batching) -> float:
    job = make_job(batching)
    warm_up(job)
    optimizer = torch.optim.AdamW(job.model.parameters(), lr=1e-9, weight_decay=0.01, foreach=True)
    updates = job.batches()
    start = time.perf_counter()
    for _ in range(STEPS):
        job.clock.updates += 1
        optimizer.zero_grad(set_to_none=True)
        for micro in next(updates).micros:
            (loss(job, micro) * micro.weight).backward()
        optimizer.step()
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; medians of {ROUNDS} rounds of {STEPS} updates"
    )
    for name, batching in (
        ("full batch", Batching(effective="full")),
        ("batches of 32", Batching(effective=32)),
    ):
        pairs = [(with_fit(batching), bare(batching)) for _ in range(ROUNDS)]
        mine, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(
            f"{name:14} fit {mine * 1e3:7.2f} ms   bare loop {plain * 1e3:7.2f} ms   ratio {ratio:.3f}  (goal: 1.03)"
        )
    spent = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; sys.argv = ['uharness', '--help']; from harness.cli import main; main()",
            ],
            capture_output=True,
            check=False,
        )
        own = time.perf_counter() - start
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import typer"], capture_output=True, check=True)
        spent.append((own, time.perf_counter() - start))
    own, base = (statistics.median(column) for column in zip(*spent, strict=True))
    print(f"uharness --help {own:.3f} s   python -c 'import typer' {base:.3f} s   (goal: below 0.5 s)")


if __name__ == "__main__":
    try:
        main()
    except UharnessError as error:
        sys.exit(str(error))
