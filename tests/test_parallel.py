"""Two gloo processes train to the weights of one."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from conftest import ROOT
from test_loop import Line, Now, rows
from tiny_text import random_llama, word_tokenizer

from harness.clock import Allowance, Clock
from harness.entries import Entry, resolve
from harness.errors import InputError
from harness.job import Job, Plan
from harness.loop import fit
from harness.models import LoadedModel
from harness.parallel import Distributed, Parallel
from harness.plugins import load_submission
from harness.scoring import token_logp
from harness.specs import Batching, OptimizerSpec, Stop, Template
from harness.text import Encoder
from harness.types import TextRow

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer.lr": 1e-3},
    "muon": {
        "optimizer.lr": 1e-2,
        "optimizer.iteration_dtype": "float32",
    },  # bfloat16 rounds at 1e-2 of an update
    "sophia": {"optimizer.lr": 1e-3, "optimizer.k": 2},
}
WORDS = [
    "Ada",
    "Finch",
    "kept",
    "the",
    "light",
    "for",
    "thirty",
    "years",
    "a",
    "grey",
    "heron",
    "nests",
    "there",
    "each",
    "spring",
    "under",
    "old",
    "bridge",
]
UPDATES = 4


def text(count: int, shift: int) -> list[TextRow]:
    """Rows of different lengths, so that micro-batches are padded differently."""
    return [
        TextRow(
            f"r{i}", f"Who kept {WORDS[(i + shift) % len(WORDS)]}", " ".join(WORDS[i : i + 2 + (i * 3) % 5])
        )
        for i in range(count)
    ]


def entry(optimizer: str) -> Entry:
    settings = {
        "optimizer.name": optimizer, "optimizer.warmup": 0.3, "optimizer.max_grad_norm": 1.0, **OPTIMIZERS[optimizer],
    }  # fmt: skip
    return resolve(load_submission("npo", [ROOT / "submissions"]), {}, settings)


def npo_job(optimizer: str, parallel: Parallel | None, folder: Path | None = None) -> Job:
    encoder = Encoder(word_tokenizer(), Template(), 64)
    loaded = LoadedModel(random_llama(len(encoder.tokenizer)), encoder)
    spec = entry(optimizer).optimizer
    plan = Plan(0, Batching(effective=8, micro=2), spec, Stop(metric="forget.p", at_most=0.0), (1.0,), folder)
    clock = Clock(Allowance(updates=UPDATES))
    return Job(loaded, text(8, 0), text(12, 5), clock, plan, parallel=parallel)


def train(optimizer: str, parallel: Parallel | None, folder: Path | None = None) -> dict[str, Any]:
    job = npo_job(optimizer, parallel, folder)
    shares = [
        [
            sorted(i for b in update.micros for i in getattr(b, side).index.tolist())
            for side in ("forget", "retain")
        ]
        for _, update in zip(range(3), job.batches(), strict=False)
    ]
    with job.clock.lane("train"):
        entry(optimizer).method.unlearn(job)
    return {
        "weights": {n: p.detach() for n, p in job.model.named_parameters()}, "shares": shares,
        "examples": job.seen.examples, "tokens": job.seen.tokens, "updates": job.clock.updates,
        "checks": [c["forget.p"] for c in job.seen.checks],
    }  # fmt: skip


def by_the_clock(parallel: Parallel | None, seconds: float) -> dict[str, Any]:
    """A pass costs this process's clock `seconds`; the budget is 10 s."""
    now = Now()
    clock = Clock(Allowance(10.0), now=now)
    plan = Plan(0, Batching(effective=8, micro=4), OptimizerSpec(lr=0.1, warmup=0.5))
    torch.manual_seed(0)
    job = Job(LoadedModel(Line(now, seconds), None), rows(8, 0), rows(8, 1), clock, plan, parallel=parallel)
    with job.clock.lane("train"):
        fit(job, lambda batch: token_logp(job.forward(batch.forget)).mean())
    return {"updates": clock.updates, "weight": job.model.layer.weight.detach()}


def too_small(parallel: Parallel) -> str:
    job = npo_job("adamw", parallel)
    job.plan.__dict__["batching"] = Batching(effective=2)
    try:
        next(job.batches())
    except InputError as error:
        return str(error)
    return "nothing was refused"


def work(rank: int, folder: str) -> None:
    """One of two processes: everything that is compared, into a file of its own."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=90)
    )
    parallel = Distributed()
    out: dict[str, Any] = {name: train(name, parallel, Path(folder) / f"run-{name}") for name in OPTIMIZERS}
    out["clock"] = by_the_clock(parallel, 0.25 if rank == 0 else 0.01)
    out["refused"] = too_small(parallel)
    numbers = [torch.full((2, 3), float(rank + 1)), torch.tensor([rank + 10]), torch.tensor(1.5)]
    parallel.reduce(numbers)
    out["reduced"] = numbers
    out["agreed"] = (parallel.agree(rank == 0), parallel.agree(0.25 + rank))
    torch.save(out, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("two")
    context = mp.spawn(work, args=(str(folder),), nprocs=2, join=False)
    for _ in range(30):
        if context.join(timeout=10):
            return torch.load(folder / "0.pt"), torch.load(folder / "1.pt"), folder
    for process in context.processes:
        process.kill()
    raise AssertionError("two processes did not end within five minutes")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_processes_train_to_the_weights_of_one(two: tuple[Any, Any, Path], optimizer: str) -> None:
    one = train(optimizer, None)
    start = {n: p.detach() for n, p in npo_job(optimizer, None).model.named_parameters()}
    for other in two[:2]:
        for name, weight in other[optimizer]["weights"].items():
            torch.testing.assert_close(weight, one["weights"][name], atol=1e-4, rtol=1e-4)
        for key in ("examples", "tokens", "updates"):
            assert other[optimizer][key] == one[key], key
        assert other[optimizer]["checks"] == pytest.approx(one["checks"], abs=1e-5)
    far = max(float((one["weights"][n] - start[n]).abs().max()) for n in start)
    assert far > 1e-3  # the tolerance tells training from none
    for name, weight in two[0][optimizer]["weights"].items():
        torch.testing.assert_close(weight, two[1][optimizer]["weights"][name], atol=1e-6, rtol=0)


def test_rows_are_dealt_to_one_process_each_and_all_are_dealt(two: tuple[Any, Any, Path]) -> None:
    whole = train("adamw", None)["shares"]
    for mine, other, everything in zip(
        two[0]["adamw"]["shares"], two[1]["adamw"]["shares"], whole, strict=True
    ):
        assert not set(mine[0]) & set(other[0])  # an update takes each forget row once
        for k in range(2):
            assert len(mine[k]) == len(other[k]) == 4 and sorted(mine[k] + other[k]) == everything[k]


def test_the_first_processs_clock_decides_for_all(two: tuple[Any, Any, Path]) -> None:
    """A share of an update costs .25 s there: 40 updates fit into 10 s, and in the other process 1,000 would."""
    first, second = two[0]["clock"], two[1]["clock"]
    assert first["updates"] == second["updates"] == 40
    torch.testing.assert_close(first["weight"], second["weight"], atol=1e-6, rtol=0)


def test_only_the_first_process_saves(two: tuple[Any, Any, Path]) -> None:
    assert (two[2] / "run-adamw/points/0/config.json").is_file()


def test_sums_go_over_all_processes_and_the_first_ones_word_counts(two: tuple[Any, Any, Path]) -> None:
    for part in two[:2]:
        assert part["agreed"] == (1.0, 0.25)
        first, second, third = part["reduced"]
        assert first.equal(torch.full((2, 3), 3.0)) and second.item() == 21 and third.item() == 3.0
        assert second.dtype == torch.int64


def test_a_share_that_is_too_small_is_refused_in_one_line(two: tuple[Any, Any, Path]) -> None:
    for part in two[:2]:
        assert part["refused"].startswith("an update of 1 micro-batches cannot be dealt to 2 processes")
        assert "batch.micro" in part["refused"]
