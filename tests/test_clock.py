"""Budgets with injected time: no test sleeps."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from harness.clock import Allowance, Clock, StepGate, read_journal
from harness.specs import Budget, OptimizerSpec


class Now:
    """A clock's hands, moved by the test."""

    def __init__(self) -> None:
        self.t = 100.0

    def __call__(self) -> float:
        return self.t


def test_only_the_train_lane_is_charged_and_inner_lanes_pause_it() -> None:
    now = Now()
    clock = Clock(Allowance(seconds=10), now=now)
    with clock.lane("load"):
        now.t += 50
    with clock.lane("train"):
        now.t += 2
        with clock.lane("check"):
            now.t += 30
        now.t += 1
        assert clock.charged_s == 3
        assert clock.remaining_s == 7
        assert clock.fraction == pytest.approx(0.3)
    assert clock.lanes_s == {"load": 50.0, "train": 3.0, "check": 30.0}
    assert clock.overshoot_s == 0


def test_the_device_is_synchronised_before_every_reading() -> None:
    now, calls = Now(), []
    clock = Clock(Allowance(seconds=1), now=now, sync=lambda: calls.append(now.t))
    with clock.lane("train"):
        _ = clock.charged_s
    assert len(calls) == 3


def test_overshoot_is_what_is_beyond_the_budget() -> None:
    now = Now()
    clock = Clock(Allowance(seconds=1), now=now)
    with clock.lane("train"):
        now.t += 1.5
    assert clock.overshoot_s == pytest.approx(0.5)
    assert clock.remaining_s == 0
    assert clock.fraction == 1


def test_an_updates_budget_counts_updates_and_has_no_overshoot() -> None:
    now = Now()
    clock = Clock(Allowance(updates=4), now=now)
    with clock.lane("train"):
        for k in range(4):
            assert clock.remaining_s == float("inf")
            assert clock.fraction == k / 4
            now.t += 1000
            clock.tick()
    assert clock.remaining_s == 0
    assert clock.overshoot_s == 0


def test_a_resumed_clock_has_what_is_left() -> None:
    now = Now()
    clock = Clock(Allowance(seconds=100), now=now, spent_s=60.0)
    with clock.lane("train"):
        assert clock.remaining_s == 40


def test_the_journal_tells_what_a_killed_run_had_spent(tmp_path: Path) -> None:
    now, path = Now(), tmp_path / "clock.bin"
    clock = Clock(Allowance(seconds=100), now=now, journal=path)
    with clock.lane("train"):
        now.t += 60
        clock.tick()
        state = read_journal(path)  # the process dies here
        assert state is not None
        assert state.spent_s == 60
        assert state.updates == 1
        assert state.charged_at(now.t + 5) == 65
    after = read_journal(path)
    assert after is not None
    assert after.running_since is None
    assert after.charged_at(now.t + 1e6) == 60


def test_half_a_written_state_is_never_read(tmp_path: Path) -> None:
    now, path = Now(), tmp_path / "clock.bin"
    clock = Clock(Allowance(seconds=100), now=now, journal=path)
    with clock.lane("train"):
        now.t += 7
        clock.tick()
        content = bytearray(path.read_bytes())
        slot = len(content) // 2
        count = [struct.unpack_from("<q", content, at)[0] for at in (0, slot)]
        newest = 0 if count[0] > count[1] else slot
        content[newest + 12] ^= 0xFF  # the newest slot was being written when the process died
        path.write_bytes(content)
        state = read_journal(path)
    assert state is not None
    assert state.charged_s == 0
    assert state.running_since == 100.0


def test_no_journal_is_none(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none") is None
    (tmp_path / "empty").write_bytes(b"")
    assert read_journal(tmp_path / "empty") is None


def test_no_step_is_started_that_would_end_after_the_deadline() -> None:
    now = Now()
    clock = Clock(Allowance(seconds=10), now=now)
    gate = StepGate(clock)
    steps = 0
    with clock.lane("train"):
        while gate.open():
            took = 3.0 if steps == 1 else 1.0  # a refresh every so often is longer than the median step
            now.t += took
            gate.passed(took)
            steps += 1
    assert clock.overshoot_s == 0
    assert clock.charged_s == 8  # 1 + 3 + 1 + 1 + 1 + 1; another step might take 3
    assert gate.longest_s == 3.0


def test_the_longest_step_is_forgotten_after_twenty() -> None:
    now = Now()
    clock = Clock(Allowance(seconds=100), now=now)
    gate = StepGate(clock)
    gate.passed(50.0)
    for _ in range(20):
        gate.passed(1.0)
    assert gate.longest_s == 1.0


@pytest.mark.parametrize(
    ("fraction", "factor"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.55, 0.5), (1.0, 0.0), (2.0, 0.0)]
)
def test_the_default_schedule_is_linear_up_and_down(fraction: float, factor: float) -> None:
    assert OptimizerSpec().factor(fraction) == pytest.approx(factor)


def test_a_schedule_without_warm_up_starts_at_once() -> None:
    assert OptimizerSpec(warmup=0).factor(0.0) == 1.0
    assert OptimizerSpec(warmup=0, decay="constant").factor(1.0) == 1.0
    assert OptimizerSpec(warmup=1).factor(0.5) == 0.5


@pytest.mark.parametrize("given", [{}, {"seconds": 1, "updates": 2}, {"seconds": 0}, {"updates": -1}])
def test_a_budget_is_exactly_one_positive_thing(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"exactly one|greater than 0"):
        Budget(**given)


def test_an_allowance_is_one_thing() -> None:
    with pytest.raises(ValueError, match="either"):
        Allowance()
