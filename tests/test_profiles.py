import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_rank import UP, a_board, run, runs

from harness.overall import standings, time_profiles
from harness.profiles import profiles
from harness.rank import rank
from harness.specs import Board, RunRecord, Stop, Target
from harness.tables import Table
from harness.targets import target_of, time_to, times_to_target
from harness.types import Trajectory

FORGET = Target(metric="forget.p", at_most=0.2)


def curve(charged: list[float], values: list[float], name: str = "forget.p") -> Trajectory:
    return Trajectory(np.arange(len(charged)) * 4, np.array(charged), {name: np.array(values)})


# --- time to target
def test_the_first_check_counts_and_the_line_before_it_is_beside_it() -> None:
    reached = time_to(FORGET, curve([0.0, 1.0, 3.0, 5.0], [0.9, 0.4, 0.1, 0.6]))
    assert (reached.charged_s, reached.updates, reached.why) == (3.0, 8, "")
    assert reached.interpolated_s == pytest.approx(1.0 + 2.0 * (0.4 - 0.2) / (0.4 - 0.1))


def test_reached_from_the_start_exactly_and_from_below() -> None:
    start = time_to(FORGET, curve([0.0, 1.0], [0.1, 0.1]))
    assert (start.charged_s, start.interpolated_s) == (0.0, 0.0)
    assert time_to(FORGET, curve([0.0, 2.0], [0.9, 0.2])).interpolated_s == 2.0
    above = time_to(Target(metric="agg", at_least=0.5), curve([0.0, 2.0], [0.1, 0.9], "agg"))
    assert (above.charged_s, above.interpolated_s) == (2.0, pytest.approx(1.0))


def test_checks_without_a_value_are_passed_over() -> None:
    reached = time_to(FORGET, curve([0.0, 1.0, 2.0, 4.0], [1.0, math.nan, math.inf, 0.0]))
    assert (reached.charged_s, reached.interpolated_s) == (4.0, pytest.approx(3.2))


@pytest.mark.parametrize(
    ("trajectory", "why"),
    [
        (None, "no trajectory was recorded for this run"),
        (curve([0.0], [0.1], "retain.p"), "the trajectory has no forget.p"),
        (curve([0.0, 1.0], [0.9, 0.35]), "forget.p ≤ 0.2 was never reached: the closest was 0.35"),
        (curve([0.0], [math.nan]), "forget.p ≤ 0.2 was never reached: no check has a value"),
        (curve([], []), "forget.p ≤ 0.2 was never reached: no check has a value"),
    ],
)
def test_never_reached_is_null_with_its_reason(trajectory: Trajectory | None, why: str) -> None:
    reached = time_to(FORGET, trajectory)
    assert (reached.charged_s, reached.interpolated_s, reached.updates, reached.why) == (
        None,
        None,
        None,
        why,
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms())
def test_the_order_of_checks_does_not_matter_and_easier_targets_come_earlier(values, rng) -> None:
    n = len(values)
    order = list(range(n))
    rng.shuffle(order)
    trajectory = curve([float(i) for i in range(n)], values)
    mixed = Trajectory(
        trajectory.updates[order], trajectory.charged_s[order], {"forget.p": np.array(values)[order]}
    )
    assert time_to(FORGET, mixed) == time_to(FORGET, trajectory)
    hard, easy = time_to(FORGET, trajectory), time_to(Target(metric="forget.p", at_most=0.6), trajectory)
    assert hard.charged_s is None or (easy.charged_s is not None and easy.charged_s <= hard.charged_s)
    assert hard.charged_s is None or 0 <= (hard.interpolated_s or 0.0) <= hard.charged_s


def test_a_board_without_a_target_has_its_stop() -> None:
    stop = Stop(metric="forget.p", at_most=0.1)
    assert target_of(a_board(stop=stop)) == Target(metric="forget.p", at_most=0.1)
    assert target_of(a_board(stop=stop, target=FORGET)) == FORGET and target_of(a_board()) is None
    assert a_board(target=FORGET).board_version == a_board().board_version
    with pytest.raises(ValueError, match="a target has exactly one of at_most, at_least"):
        Target(metric="m")


def test_repeats_have_their_median_and_never_counts_as_slowest() -> None:
    records = [run("a", 1.0, run_id=f"r{i}") for i in range(3)]
    fast, slow, never = curve([0.0, 1.0], [1.0, 0.1]), curve([0.0, 5.0], [1.0, 0.1]), curve([0.0], [1.0])
    found = times_to_target(FORGET, records, {"r0": never, "r1": slow, "r2": fast})
    assert found[("a", "c", 0)].charged_s == 5.0
    assert times_to_target(FORGET, records[:2], {"r0": never, "r1": slow})[("a", "c", 0)].charged_s == 5.0
    assert times_to_target(FORGET, records[:1], {})[("a", "c", 0)].charged_s is None


# --- profiles
def test_the_integral_by_hand() -> None:
    times = {
        "fast": {"u": 1.0, "v": 2.0, "w": 10.0},
        "slow": {"u": 2.0, "v": 2.0, "w": 41.0},
        "lost": {"u": 3.0, "v": None},
    }
    found = profiles(times, ["u", "v", "w", "x"])
    assert found["fast"].ratios == (1.0, 1.0, 1.0) and found["fast"].score == pytest.approx(3 / 4)
    assert found["slow"].ratios == (1.0, 2.0, 4.1)
    assert found["slow"].score == pytest.approx((1 + (4 - 2) / 3) / 4) and found["slow"].reached == 3
    assert found["lost"].score == pytest.approx((4 - 3) / 3 / 4) and found["lost"].reached == 1
    assert [found["slow"].share(tau) for tau in (0.9, 1.0, 1.99, 2.0, 4.0, 4.1)] == [
        0,
        0.25,
        0.25,
        0.5,
        0.5,
        0.75,
    ]
    assert found["slow"].steps() == [(1.0, 0.25), (2.0, 0.5), (4.0, 0.5)]


def test_at_four_times_the_best_nothing_is_left() -> None:
    found = profiles({"a": {"w": 1.0}, "b": {"w": 4.0}, "c": {"w": 4.0000001}}, ["w"])
    assert (found["a"].score, found["b"].score, found["c"].score) == (1.0, 0.0, 0.0)


def test_no_time_at_all_is_infinitely_faster() -> None:
    found = profiles({"a": {"w": 0.0}, "b": {"w": 0.0}, "c": {"w": 1.0}}, ["w"])
    assert (found["a"].score, found["b"].score, found["c"].score) == (1.0, 1.0, 0.0)
    assert found["c"].ratios == (math.inf,)


def test_nothing_to_solve_and_nobody() -> None:
    assert profiles({}, ["w"]) == {} and profiles({"a": {}}, [])["a"].score is None
    assert profiles({"a": {"w": None}}, ["w"])["a"].score == 0.0
    assert profiles({"a": {}}, [])["a"].share(4.0) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_times_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite, at least 0"):
        profiles({"a": {"w": bad}}, ["w"])


def test_unknown_and_repeated_workloads_are_refused() -> None:
    with pytest.raises(ValueError, match="of a known workload"):
        profiles({"a": {"z": 1.0}}, ["w"])
    with pytest.raises(ValueError, match="workloads repeat"):
        profiles({}, ["w", "w"])
    with pytest.raises(ValueError, match="r_max is above 1"):
        profiles({}, [], r_max=1.0)


TIMES = st.dictionaries(
    st.sampled_from("abcd"),
    st.dictionaries(st.sampled_from("uvw"), st.none() | st.floats(0.1, 50)),
    min_size=1,
)


@given(TIMES)
def test_scores_are_the_area_under_the_staircase(times) -> None:
    taus = np.linspace(1, 4, 30001)
    for profile in profiles(times, list("uvw")).values():
        shares = [profile.share(tau) for tau in taus[::1000]]
        assert shares == sorted(shares)
        ratios = np.array(profile.ratios)
        rho = (ratios[None, :] <= taus[:, None]).sum(axis=1) / 3
        assert profile.score == pytest.approx(np.trapezoid(rho, taus) / 3, abs=2e-4)


@given(TIMES, st.floats(0.1, 10), st.sampled_from("uvw"))
def test_the_unit_of_a_workload_does_not_matter(times, factor: float, workload: str) -> None:
    scaled = {
        e: {w: t if t is None or w != workload else t * factor for w, t in mine.items()}
        for e, mine in times.items()
    }
    before, after = profiles(times, list("uvw")), profiles(scaled, list("uvw"))
    assert all(before[e].score == pytest.approx(after[e].score, abs=1e-9) for e in times)


@given(TIMES, st.floats(0.1, 0.99))
def test_a_faster_entry_scores_no_less(times, factor: float) -> None:
    faster = {e: dict(mine) for e, mine in times.items()}
    first = min(faster)
    faster[first] = {w: None if t is None else t * factor for w, t in faster[first].items()}
    before, after = profiles(times, list("uvw")), profiles(faster, list("uvw"))
    assert (after[first].score or 0.0) >= (before[first].score or 0.0) - 1e-12


# --- all boards at once
def a_table(name: str, scores: dict[str, list[float]], **changes) -> tuple[Table, list[RunRecord]]:
    board: Board = a_board(name=name, **changes)
    records = [r for entry, values in scores.items() for r in runs(entry, values, board=board)]
    records = [r.model_copy(update={"run_id": f"{name}-{r.run_id}"}) for r in records]
    return rank(board, records, {"m": UP}), records


GOOD, BAD, WORSE = [0.90, 0.91, 0.92], [0.10, 0.11, 0.12], [0.01, 0.02, 0.03]


def test_mean_rank_counts_a_missing_board_as_behind_the_last() -> None:
    one, _ = a_table("one", {"a-1": GOOD, "b-1": BAD, "c-1": WORSE})
    two, _ = a_table("two", {"a-2": BAD, "b-2": GOOD})
    empty, _ = a_table("three", {})
    found = standings([two, one, empty])
    assert [(s.submission, s.mean_rank, s.boards) for s in found] == [
        ("a", 1.5, 2),
        ("b", 1.5, 2),
        ("c", 3.0, 1),
    ]
    assert [p.board for p in found[0].places] == ["one", "two"]
    c = found[2].places[1]
    assert (c.rank, c.ranked, c.entries, c.why) == (3, False, 0, "no entry on this board")
    assert standings([one, two]) == found and standings([]) == () == standings([empty])


def test_the_first_of_several_entries_stands_for_a_method_and_is_counted() -> None:
    table, _ = a_table("one", {"a-1": BAD, "a-2": GOOD, "b-1": [0.5, 0.51, 0.52]})
    a, b = standings([table])
    assert (a.places[0].entry, a.places[0].rank, a.places[0].entries) == ("a-2", 1, 2)
    assert b.places[0].rank == 2


def test_incomplete_rows_and_references_are_not_ranked() -> None:
    board = a_board()
    records = [*runs("a", GOOD), *runs("part", [0.5]), *runs("original", GOOD, reference=True)]
    found = standings([rank(board, records, {"m": UP})])
    assert [s.submission for s in found] == ["a"]


def test_profiles_over_boards_count_a_board_without_a_row_as_not_reached() -> None:
    one, first = a_table("one", {"a-1": GOOD, "b-1": BAD}, target=FORGET)
    two, second = a_table("two", {"a-2": GOOD}, target=FORGET)
    untimed, third = a_table("untimed", {"b-3": GOOD})
    fast, slow = curve([0.0, 1.0], [1.0, 0.1]), curve([0.0, 2.0], [1.0, 0.1])
    trajectories = {r.run_id: slow if r.submission == "a" else fast for r in [*first, *second, *third]}
    records = {"one": first, "two": second, "untimed": third}
    found = time_profiles([one, two, untimed], records, trajectories)
    a, b = found[("a", "")], found[("b", "")]
    assert (a.workloads, a.reached, a.score) == (6, 6, pytest.approx((3 * 2 / 3 + 3) / 6))
    assert (b.workloads, b.reached, b.score) == (6, 3, pytest.approx(0.5))
    assert [s.profile for s in standings([one, two], records, trajectories)] == [a, b]
    assert time_profiles([one, two, untimed], records, {}) == {}
