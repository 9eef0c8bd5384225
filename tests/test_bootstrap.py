import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scalar_ranks import holm, paired_p

from harness.bootstrap import PerRow, by_rows, difference_variance, mean_variance, row_parts, together
from harness.intervals import estimate
from harness.paired import count_better, pair_tests, significant

NUMBERS = st.integers(-50, 50).map(lambda i: i / 8)


def columns(rows: int, entries: int = 1):
    return st.lists(st.lists(NUMBERS, min_size=rows, max_size=rows), min_size=entries, max_size=entries)


def all_draws(values: np.ndarray) -> np.ndarray:
    """The mean of every one of the n^n bootstrap samples of `values` [..., n] -> [..., n^n]."""
    n = values.shape[-1]
    draws = np.array(list(itertools.product(range(n), repeat=n)))
    return values[..., draws].mean(axis=-1)


# --- the closed form is the bootstrap
@given(st.integers(2, 5).flatmap(lambda n: columns(n)))
def test_the_closed_form_is_the_variance_over_all_draws(values: list[list[float]]) -> None:
    row = np.array(values[0])
    n = len(row)
    assert mean_variance(row) == pytest.approx(all_draws(row).var() * n / (n - 1), abs=1e-12)


@given(st.integers(2, 4).flatmap(lambda n: columns(n, entries=3)))
def test_a_difference_is_paired_over_all_draws(values: list[list[float]]) -> None:
    matrix = np.array(values)
    n = matrix.shape[1]
    draws = all_draws(matrix)  # the same draws for all entries
    found = difference_variance(matrix)
    for i, j in itertools.product(range(3), repeat=2):
        expected = (draws[i] - draws[j]).var() * n / (n - 1)
        assert found[i, j] == pytest.approx(expected, abs=1e-10) and found[i, j] == found[j, i] >= 0
    assert (np.diagonal(found) == 0).all()


def test_many_drawn_samples_come_to_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    row = rng.normal(size=30)
    drawn = row[rng.integers(0, 30, (20000, 30))].mean(axis=1)
    assert mean_variance(row) == pytest.approx(drawn.var() * 30 / 29, rel=0.05)


def test_an_entry_and_its_shifted_copy_do_not_vary_against_each_other() -> None:
    rng = np.random.default_rng(1)
    row = rng.normal(size=400)
    assert difference_variance(np.array([row, row + 0.3]))[0, 1] == 0.0
    assert mean_variance(row) > 0.002


# --- which rows go together
def rows_of(values: list[float], ids: str = "abcdefgh") -> PerRow:
    return PerRow(tuple(ids[: len(values)]), np.array(values))


def test_runs_are_averaged_row_by_row_only_over_the_same_rows() -> None:
    both = together([rows_of([0.0, 1.0]), rows_of([1.0, 3.0])])
    assert both is not None and both.values.tolist() == [0.5, 2.0]
    assert together([rows_of([0.0, 1.0]), rows_of([1.0, 3.0], "xy")]) is None
    assert together([rows_of([0.0, 1.0]), None]) is None and together([]) is None


def test_a_row_that_two_cases_ask_is_drawn_once_for_both() -> None:
    same = by_rows([rows_of([0.0, 4.0]), rows_of([0.0, 4.0])])
    apart = by_rows([rows_of([0.0, 4.0]), rows_of([0.0, 4.0], "xy")])
    assert [v for v, _ in row_parts(same)] == [4.0]  # as one case
    assert sum(v for v, _ in row_parts(apart)) == 2.0  # two halves, each a quarter of 4
    assert row_parts(by_rows([None, None])) == []


def test_values_that_are_no_mean_of_their_rows_are_told_apart() -> None:
    rows = rows_of([0.1, 0.2, 0.6])
    assert rows.averages_to(0.3) and not rows.averages_to(0.31)
    assert not rows_of([0.5]).averages_to(0.5) and not rows_of([1e200, 1e200]).averages_to(1e200)
    with pytest.raises(ValueError, match="one finite number per row"):
        rows_of([0.1, math.nan])
    with pytest.raises(ValueError, match="one finite number per row"):
        PerRow(("a",), np.zeros(2))


# --- intervals with rows
def test_an_interval_with_rows_by_hand() -> None:
    seeds, rows = [0.48, 0.5, 0.52], np.array([0.0, 1.0, 0.2, 0.8])
    part = row_parts({tuple("abcd"): rows})
    var_s, var_r = 0.0004 / 3, rows.var(ddof=1) / 4
    df = (var_s + var_r) ** 2 / (var_s**2 / 2 + var_r**2 / 3)
    half = scipy.stats.t.ppf(0.975, df) * math.sqrt(var_s + var_r)
    e = estimate([seeds], part)
    assert e.mean == pytest.approx(0.5) and e.high == pytest.approx(0.5 + half) and e.df == pytest.approx(df)
    assert e.sd == pytest.approx(0.02)  # between seeds


def test_seeds_that_agree_leave_students_t_over_rows() -> None:
    rows = np.array([0.1, 0.4, 0.3, 0.9, 0.2])
    e = estimate([[float(rows.mean())] * 3], row_parts({tuple("abcde"): rows}))
    low, high = scipy.stats.t.interval(0.95, 4, loc=rows.mean(), scale=scipy.stats.sem(rows))
    assert (e.low, e.high) == (pytest.approx(low), pytest.approx(high))


@given(st.lists(NUMBERS, min_size=2, max_size=5), st.integers(2, 6).flatmap(lambda n: columns(n)))
def test_rows_never_make_anything_surer(seeds: list[float], values: list[list[float]]) -> None:
    part = row_parts({tuple(map(str, range(len(values[0])))): np.array(values[0])})
    alone, both = estimate([seeds]), estimate([seeds], part)
    assert both.low is not None and alone.low is not None and both.low <= alone.low
    p, q = paired_p([seeds]), paired_p([seeds], part)
    assert p is not None and q is not None and q >= p


def test_constant_rows_change_nothing() -> None:
    part = row_parts({("a", "b"): np.array([0.5, 0.5])})
    assert estimate([[0.4, 0.6, 0.5]], part) == estimate([[0.4, 0.6, 0.5]])
    assert estimate([[0.4]], part).why == "one seed: no interval"


# --- all pairs at once
@settings(deadline=None)
@given(
    st.lists(st.integers(2, 3), min_size=1, max_size=3).flatmap(
        lambda seeds: st.tuples(st.just(seeds), columns(sum(seeds), 4), columns(3, 4), st.booleans())
    )
)
def test_all_pairs_are_the_single_tests(drawn) -> None:
    seeds, units, row_values, with_rows = drawn
    gains, rows = np.array(units), np.array(row_values)
    ps, signs = pair_tests(gains, seeds, [rows] if with_rows else [])
    for (i, j), p, sign in zip(itertools.combinations(range(4), 2), ps, signs, strict=True):
        strata = [s.tolist() for s in np.split(gains[i] - gains[j], np.cumsum(seeds)[:-1])]
        part = row_parts({tuple("abc"): rows[i] - rows[j]}) if with_rows else []
        assert p == pytest.approx(paired_p(strata, part), rel=1e-9, abs=1e-12)
        mean = estimate(strata).mean
        assert sign == (0 if mean == 0 else math.copysign(1, mean)) or abs(mean) < 1e-12


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=6, max_size=6))
def test_no_finite_number_is_too_large_or_too_small(values: list[float]) -> None:
    ps, _ = pair_tests(np.array(values).reshape(2, 3), [3])
    assert 0.0 <= ps[0] <= 1.0


def test_blocks_of_pairs_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = np.random.default_rng(0).normal(size=(7, 3))
    whole = pair_tests(gains, [3])
    monkeypatch.setattr("harness.paired._AT_ONCE", 40)
    parts = pair_tests(gains, [3])
    assert (whole[0] == parts[0]).all() and (whole[1] == parts[1]).all() and len(whole[0]) == 21


def test_units_that_do_not_fit_are_refused_and_one_entry_is_no_pair() -> None:
    assert len(pair_tests(np.zeros((1, 2)), [2])[0]) == 0 and len(pair_tests(np.zeros((0, 2)), [2])[0]) == 0
    with pytest.raises(ValueError, match=r"\[2\] seeds do not part 3 units"):
        pair_tests(np.zeros((2, 3)), [2])
    with pytest.raises(ValueError, match="two or more"):
        pair_tests(np.zeros((2, 1)), [1])


@given(st.lists(st.sampled_from([0.0, 1e-6, 0.004, 0.005, 0.01, 0.02, 0.049, 0.05, 0.3, 1.0]), max_size=12))
def test_the_step_down_is_holms(ps: list[float]) -> None:
    expected = [p < 0.05 for p in holm(ps)]
    # at a boundary the product may round either way
    close = any(abs(p * k - 0.05) < 1e-12 for p in ps for k in range(1, 13))
    assert close or significant(np.array(ps), 0.05).tolist() == expected


# --- counting who is better
def test_clear_orders_ties_and_copies() -> None:
    noise = np.array([[0.0, 0.01, -0.01], [0.005, -0.01, 0.0], [0.0, 0.0, 0.01]])
    clear = np.array([[0.9], [0.5], [0.1]]) + noise
    assert count_better(clear, [3], alpha=0.05).tolist() == [0, 1, 2]
    assert count_better(noise, [3], alpha=0.05).tolist() == [0, 0, 0]
    assert count_better(np.tile(noise[0], (5, 1)), [3], alpha=0.05).tolist() == [0] * 5


def test_rows_can_make_a_tie_of_what_seeds_call_apart() -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(0, 1, (2, 20))
    rows -= rows.mean(axis=1, keepdims=True)
    gains = np.array([[0.30, 0.31, 0.29], [0.2, 0.21, 0.19]])
    assert count_better(gains, [3], alpha=0.05).tolist() == [0, 1]
    assert count_better(gains, [3], [rows], alpha=0.05).tolist() == [0, 0]
    assert count_better(gains, [3], [np.tile(rows[0], (2, 1))], alpha=0.05).tolist() == [0, 1]  # paired


@given(columns(3, entries=2), st.integers(1, 20))
def test_of_two_entries_the_one_that_improves_never_falls(units: list[list[float]], more: int) -> None:
    gains = np.array(units)
    before = count_better(gains, [3], alpha=0.05)
    after = count_better(gains + np.array([[more / 4], [0.0]]), [3], alpha=0.05)
    assert after[0] <= before[0] and after[1] >= before[1]


@given(st.integers(2, 6).flatmap(lambda n: st.tuples(columns(3, n), st.permutations(range(n)))))
def test_the_order_of_entries_does_not_matter(drawn) -> None:
    units, order = drawn
    gains = np.array(units)
    counts = count_better(gains, [3], alpha=0.05)
    assert (count_better(gains[list(order)], [3], alpha=0.05) == counts[list(order)]).all()


def test_equal_entries_are_called_apart_no_more_often_than_agreed() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(600):
        rows = rng.normal(0, 0.2, (1, 40))
        runs = rows + rng.normal(0, 0.02, (3, 1)) + rng.normal(0, 0.1, (3, 40))
        gains = np.stack([runs.mean(axis=1), np.zeros(3)])
        shared = [np.stack([runs.mean(axis=0), np.zeros(40)])]
        wrong += int(pair_tests(gains, [3], shared)[0][0] < 0.05)
    assert wrong / 600 < 0.075  # three deviations above .05
