"""`fit`, the schedule on the clock, batches, stops and resuming, on a model of two weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.batches import Batch, deal
from harness.clock import Allowance, Clock
from harness.errors import InvalidRun, SubmissionError
from harness.job import Job, Plan
from harness.loop import fit, warm_up
from harness.models import MINI, LoadedModel, load
from harness.plugins import load_task
from harness.scoring import token_logp
from harness.specs import Batching, OptimizerSpec, Stop, TaskRef, Template
from harness.types import ArrayRow


class Now:
    """A clock's hands."""

    def __init__(self) -> None:
        self.t = 0.0

    def __call__(self) -> float:
        return self.t


class Line(nn.Module):
    """Two classes from one number; every pass takes `seconds`."""

    def __init__(self, now: Now, seconds: float) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self._now, self.seconds = now, seconds

    def forward(self, x: Tensor) -> Tensor:
        self._now.t += self.seconds
        return self.layer(x)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), folder / "weights.pt")


def rows(count: int, label: int) -> list[ArrayRow]:
    return [ArrayRow(f"r{i}", np.array([1.0 + i], dtype=np.float32), label) for i in range(count)]


def make_job(
    seconds: float = 1.0, budget: float | None = 10.0, updates: int | None = None, *,
    optimizer: OptimizerSpec | None = None,
    batching: Batching | None = None, stop: Stop | None = None, folder: Path | None = None, spent: float = 0.0,
) -> tuple[Job, Now]:  # fmt: skip
    now = Now()
    clock = Clock(Allowance(None if updates else budget, updates), now=now, spent_s=spent)
    plan = Plan(
        0,
        batching or Batching(effective="full"),
        optimizer or OptimizerSpec(lr=0.1, warmup=0),
        stop,
        (),
        folder,
    )
    return Job(LoadedModel(Line(now, seconds), None), rows(8, 0), rows(12, 1), clock, plan), now


def forget_loss(job: Job) -> object:
    def loss(batch: Batch) -> Tensor:
        return token_logp(job.forward(batch.forget)).mean()

    return loss


def run(job: Job) -> None:
    with job.clock.lane("train"):
        fit(job, forget_loss(job))


def test_fit_ends_before_the_deadline() -> None:
    job, _ = make_job(seconds=3.0, budget=10.0)
    run(job)
    assert job.clock.updates == 3
    assert job.clock.charged_s == 9.0
    assert job.clock.overshoot_s == 0


def test_a_step_that_costs_twice_as_much_gets_half_the_updates_and_a_whole_schedule() -> None:
    spec = OptimizerSpec(lr=0.1, warmup=0.1)
    seen = {}
    for seconds in (0.1, 0.2):
        job, _ = make_job(seconds=seconds, budget=20.0, optimizer=spec)
        rates: list[float] = []
        optimizer = job.optimizer()
        step = optimizer.inner.step
        optimizer.inner.step = lambda r=rates, s=step, o=optimizer: (
            r.append(o.inner.param_groups[0]["lr"]),
            s(),
        )[1]  # type: ignore[method-assign]
        with job.clock.lane("train"):
            fit(job, forget_loss(job), optimizer)
        seen[seconds] = (job.clock.updates, rates)
    assert seen[0.1][0] == pytest.approx(2 * seen[0.2][0], abs=1)
    for updates, rates in seen.values():
        assert max(rates) == pytest.approx(0.1, rel=0.05)
        assert rates[-1] < 0.1 * 2 / updates + 1e-9  # annealed, whatever a step costs
    quick, slow = seen[0.1][1], seen[0.2][1]
    assert np.interp(np.linspace(0, 1, 9), np.linspace(0, 1, len(quick)), quick) == pytest.approx(
        np.interp(np.linspace(0, 1, 9), np.linspace(0, 1, len(slow)), slow), abs=0.006
    )


def test_an_updates_budget_is_exact() -> None:
    job, _ = make_job(updates=7)
    run(job)
    assert job.clock.updates == 7
    assert job.seen.examples == 7 * 20


def test_checks_are_off_the_clock_and_stop_training_at_the_threshold() -> None:
    job, _ = make_job(seconds=0.5, budget=1000.0, stop=Stop(metric="forget.p", at_most=0.1, check_every=2))
    run(job)
    assert job.seen.stopped.startswith("forget.p")
    assert job.seen.checks[-1]["forget.p"] <= 0.1 < job.seen.checks[-2]["forget.p"]
    assert job.clock.updates % 2 == 0
    assert job.clock.charged_s == pytest.approx(0.5 * job.clock.updates)
    assert job.clock.lanes_s["check"] > 0


def test_a_loss_that_is_not_finite_is_an_invalid_run() -> None:
    job, _ = make_job()
    with pytest.raises(InvalidRun, match="inf at update 1"), job.clock.lane("train"):
        fit(job, lambda _: job.model.layer.bias.sum() + float("inf"))


def test_micro_batches_give_the_same_update_as_the_whole_batch() -> None:
    whole, _ = make_job(updates=5, batching=Batching(effective=8))
    parts, _ = make_job(updates=5, batching=Batching(effective=8, micro=2))
    for job in (whole, parts):
        run(job)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert whole.seen.examples == parts.seen.examples == 5 * 16


def test_rows_are_a_function_of_seed_and_position_and_every_epoch_has_every_row() -> None:
    stream = np.concatenate([deal(3, 0, 10, at, 4) for at in range(0, 40, 4)])
    np.testing.assert_array_equal(stream, deal(3, 0, 10, 0, 40))
    for epoch in range(4):
        assert sorted(stream[epoch * 10 : (epoch + 1) * 10]) == list(range(10))
    assert stream[:10].tolist() != stream[10:20].tolist()
    assert deal(4, 0, 10, 0, 40).tolist() != stream.tolist()


def test_two_processes_deal_the_same_rows_in_disjoint_shares() -> None:
    class Half:
        world_size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def wrap(self, model: nn.Module) -> nn.Module:
            return model

        def share(self, items: list[object]) -> list[object]:
            return items[self.rank :: 2]

        def reduce(self, tensors: object) -> None:
            pass

    one, _ = make_job(batching=Batching(effective=8, micro=2))
    everything = [i for b in next(one.batches()).micros for i in b.forget.index.tolist()]
    shares = []
    for rank in range(2):
        job, _ = make_job(batching=Batching(effective=8, micro=2))
        job.parallel = Half(rank)
        shares.append([i for b in next(job.batches()).micros for i in b.forget.index.tolist()])
    assert not set(shares[0]) & set(shares[1])
    assert sorted(shares[0] + shares[1]) == sorted(everything)


def test_every_micro_batch_has_rows_of_both_sets() -> None:
    job, _ = make_job(batching=Batching(effective="full", micro=1))  # 8 forget rows, 12 retain rows
    micros = next(job.batches()).micros
    assert [len(m.forget) for m in micros] == [1] * 8
    assert sum(len(m.retain) for m in micros) == 12
    assert sum(m.weight for m in micros) == pytest.approx(1.0)


def test_warm_up_leaves_nothing_behind() -> None:
    job, _ = make_job()
    before = [p.clone() for p in job.model.parameters()]
    state = torch.get_rng_state()
    warm_up(job)
    assert torch.equal(state, torch.get_rng_state())
    for old, new in zip(before, job.model.parameters(), strict=True):
        assert torch.equal(old, new)
        assert new.grad is None


def test_the_policy_is_the_reference_at_the_start() -> None:
    job, _ = make_job()
    reference = job.sequence_logp(job.forget)
    now = token_logp(job.forward(job.collate(job.forget))).sum(-1)
    assert torch.equal(reference, now)
    frozen = job.frozen_reference()
    with torch.no_grad():
        job.model.layer.bias += 1.0
    assert torch.equal(token_logp(frozen(job.collate(job.forget))).sum(-1), reference)


def test_an_unknown_resource_names_those_that_are_there() -> None:
    now = Now()
    clock = Clock(Allowance(seconds=1), now=now)
    plan = Plan(0, Batching(effective="full"), OptimizerSpec())
    job = Job(
        LoadedModel(Line(now, 0), None), rows(1, 0), rows(1, 1), clock, plan, resources={"idk_answers": list}
    )
    with pytest.raises(SubmissionError, match="idk_answers"):
        job.resource("idk_answer")
    assert job.resource("idk_answers") == []


def test_an_unknown_optimizer_is_named() -> None:
    job, _ = make_job(optimizer=OptimizerSpec(name="adam"))
    with pytest.raises(SubmissionError, match="did you mean adamw"):
        job.optimizer()


def mini_job(folder: Path | None) -> Job:
    """Six updates on a built-in model, looked at after each; checkpoints go to `folder`."""
    case = load_task(TaskRef(name="bma"), Template()).case("M4", 17)
    stop = Stop(metric="forget.p", at_most=0.0)
    plan = Plan(17, Batching(effective=32), OptimizerSpec(lr=1e-3, warmup=0.3), stop, (0.5, 1.0), folder)
    return Job(load(str(MINI / "bma" / "M4")), case.forget, case.retain, Clock(Allowance(updates=6)), plan)


def test_an_interrupted_fit_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, optimizer state, rows, looks and saved points all go on from the last checkpoint."""
    monkeypatch.setattr("harness.job.CHECKPOINT_EVERY_S", -1.0)
    whole = mini_job(None)
    run(whole)
    broken = mini_job(tmp_path)

    def dies(batch: Batch) -> Tensor:
        if broken.clock.updates == 4:
            raise KeyboardInterrupt
        return token_logp(broken.forward(batch.forget)).mean()

    with pytest.raises(KeyboardInterrupt), broken.clock.lane("train"):
        fit(broken, dies)
    resumed = mini_job(tmp_path)
    run(resumed)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert [c["updates"] for c in resumed.seen.checks] == [c["updates"] for c in whole.seen.checks]
    assert [c["forget.p"] for c in resumed.seen.checks] == [c["forget.p"] for c in whole.seen.checks]
    assert [p["updates"] for p in resumed.seen.points] == [3, 6]
    assert resumed.seen.examples == whole.seen.examples
    assert resumed.clock.updates == 6
