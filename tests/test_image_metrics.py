"""Distances of features, tug-of-war, membership and the linear probe: closed forms and ends."""

from __future__ import annotations

import numpy as np
import pytest

from harness.metrics import distances, forgetting

DISTANCES = ("mmd2", "mmd2_multi", "bures_w2", "sliced_w2")


def distance(name, x, y):
    more = (1.0,) if name.startswith("mmd2") else ()
    return getattr(distances, name)(x, y, *more)


def draw(seed, n, d, mean=0.0, scale=1.0):
    return mean + scale * np.random.default_rng(seed).standard_normal((n, d))


# --- distances ---
@pytest.mark.parametrize("name", DISTANCES)
def test_equal_samples_are_at_distance_0(name):
    x = draw(0, 40, 6)
    assert distance(name, x, x) == pytest.approx(0.0, abs=1e-12)
    assert distance(name, x, np.random.default_rng(1).permutation(x)) == pytest.approx(0.0, abs=1e-12)
    assert distance(name, x, np.concatenate([x, x])) == pytest.approx(0.0, abs=1e-10)


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_are_symmetric_and_grow_with_the_shift(name):
    x, y = draw(0, 50, 4), draw(1, 30, 4)
    assert distance(name, x, y) == pytest.approx(distance(name, y, x), rel=1e-9)
    near, far = (distance(name, x, x + step) for step in (0.1, 1.0))
    assert 0 < near < far


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_do_not_depend_on_the_basis(name):
    x, y = draw(0, 60, 5), draw(1, 60, 5, 0.5)
    turn = np.linalg.qr(draw(2, 5, 5))[0]
    allowed = 0.1 if name == "sliced_w2" else 1e-9  # its directions are drawn in one basis
    assert distance(name, x @ turn, y @ turn) == pytest.approx(distance(name, x, y), rel=allowed)


def test_mmd_of_two_points_is_that_of_the_formula():
    x, y = np.array([[0.0]]), np.array([[2.0]])
    assert distances.mmd2(x, y, 1.0) == pytest.approx(2 - 2 * np.exp(-2))
    assert distances.mmd2(x, y, 0.01) == pytest.approx(2.0)
    scales = (0.5, 1.0, 3.0)
    alone = [distances.mmd2(x, y, s) for s in scales]
    assert distances.mmd2_multi(x, y, 1.0, scales) == pytest.approx(np.mean(alone))
    assert np.isnan(distances.mmd2(x, y, 0.0))


def test_mmd_of_normal_samples_comes_to_that_of_normal_distributions():
    """E k(a, b) of unit normals at distance m, kernel width s: (s^2 / (s^2 + 2))^(1/2) exp(-m^2 / (2 (s^2 + 2)))."""
    x, y = draw(0, 3000, 1), draw(1, 3000, 1, 1.0)
    expected = 2 * np.sqrt(1 / 3) * (1 - np.exp(-1 / 6))
    assert distances.mmd2(x, y, 1.0) == pytest.approx(expected, abs=0.02)


def test_bures_of_diagonal_covariances_is_that_of_the_standard_deviations():
    """Centred samples whose axes are independent of each other: sum of (s - t)^2, plus the distance of the means."""
    base = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    x, y = base * [1.0, 2.0], base * [3.0, 2.5] + [1.0, -1.0]
    assert distances.bures_w2(x, y) == pytest.approx(2.0 + (3 - 1) ** 2 + (2.5 - 2) ** 2)


@pytest.mark.parametrize(("n", "m", "d"), [(40, 30, 5), (4, 6, 9), (30, 4, 9)])
def test_bures_equals_the_formula_with_matrix_roots(n, m, d):
    from scipy.linalg import sqrtm

    x, y = draw(0, n, d), draw(1, m, d, 0.3, 2.0)
    s, t = np.cov(x.T, bias=True), np.cov(y.T, bias=True)
    root = np.real(sqrtm(s + 1e-12 * np.eye(d)))
    cross = np.real(sqrtm(root @ (t + 1e-12 * np.eye(d)) @ root))
    expected = ((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(s + t - 2 * cross)
    assert distances.bures_w2(x, y) == pytest.approx(expected, rel=1e-4)


def test_sliced_in_one_dimension_is_the_wasserstein_distance():
    x, y = draw(0, 25, 1), draw(1, 25, 1, 2.0)
    assert distances.sliced_w2(x, y) == pytest.approx(((np.sort(x, 0) - np.sort(y, 0)) ** 2).mean())
    uneven = distances.sliced_w2(np.array([[0.0]]), np.array([[1.0], [2.0], [3.0]]))
    assert uneven == pytest.approx((1 + 4 + 9) / 3)
    halves = distances.sliced_w2(np.array([[0.0], [1.0]]), np.array([[0.0], [0.0], [3.0]]))
    assert halves == pytest.approx(
        1 / 6 * 1 + 1 / 3 * 4
    )  # 0-0, then 0 of the second half's first sixth, then 1-3


def test_a_shift_along_all_axes_is_divided_among_directions():
    x = draw(0, 20, 8)
    step = np.full(8, 2.0)
    assert distances.sliced_w2(x, x + step, 4096) == pytest.approx((step**2).sum() / 8, rel=0.1)


def test_the_median_distance():
    assert distances.median_distance(np.array([[0.0], [1.0]]), np.array([[3.0]])) == pytest.approx(2.0)
    assert distances.median_distance(np.zeros((3, 2)), np.zeros((2, 2))) == 0.0


# --- tug of war ---
def test_tow_at_its_ends():
    best = {"forget": 0.0, "retain": 1.0, "test": 0.9}
    assert forgetting.tow(best, best) == 1.0
    assert forgetting.tow({**best, "forget": 1.0}, best) == 0.0
    assert forgetting.tow({"forget": 0.05, "retain": 0.99, "test": 0.88}, best) == pytest.approx(0.921690)


# --- membership ---
def test_membership_scores_of_one_row():
    p = np.array([0.7, 0.2, 0.1])
    scores = forgetting.membership(np.log(p)[None], np.array([1]))
    assert scores["correctness"].tolist() == [0.0]
    assert scores["confidence"][0] == pytest.approx(np.log(0.2))
    assert scores["entropy"][0] == pytest.approx((p * np.log(p)).sum())
    mentr = -0.8 * np.log(0.2) - 0.7 * np.log(0.3) - 0.1 * np.log(0.9)
    assert scores["modified_entropy"][0] == pytest.approx(-mentr)


def test_membership_is_finite_when_a_model_is_certain():
    scores = forgetting.membership(np.array([[200.0, -200.0], [-200.0, 200.0]]), np.array([0, 0]))
    assert all(np.isfinite(s).all() for s in scores.values())
    assert all(s[0] > s[1] for name, s in scores.items() if name != "entropy")


def test_what_is_called_a_member():
    sure, unsure = np.tile([5.0, 0.0], (10, 1)), np.tile([0.5, 0.0], (10, 1))
    zeros, ones = np.zeros(10, dtype=int), np.ones(10, dtype=int)
    members, others = (sure, zeros), (unsure, ones)
    assert set(forgetting.called_members(members, members, others).values()) == {1.0}
    assert set(forgetting.called_members(others, members, others).values()) == {0.0}


def test_a_threshold_between_samples_that_cannot_be_told_apart_calls_everybody_a_member():
    assert forgetting.best_threshold(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 1.0


# --- divergence and probe ---
def test_divergence_is_that_of_the_formula_and_0_for_equal_logits():
    p, q = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    kl = forgetting.divergence(np.log(q)[None], np.log(p)[None] + 3.0)
    assert kl[0] == pytest.approx((p * np.log(p / q)).sum())
    z = draw(0, 5, 4, scale=30.0)
    assert forgetting.divergence(z, z + 1.0) == pytest.approx(np.zeros(5), abs=1e-9)


def test_the_probe_finds_what_is_there_and_nothing_else():
    x, y = draw(0, 200, 6, 3.0), draw(1, 200, 6)
    assert forgetting.probe_accuracy(x, y, draw(2, 50, 6, 3.0), draw(3, 80, 6)) == 1.0
    same = forgetting.probe_accuracy(draw(4, 400, 3), draw(5, 400, 3), draw(6, 400, 3), draw(7, 400, 3))
    assert same == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(800))
    flat = np.ones((20, 3))
    assert forgetting.probe_accuracy(flat, flat, flat, flat) == 0.5


def test_the_probe_weighs_both_sides_alike():
    few, many = draw(0, 10, 2, 2.0), draw(1, 1000, 2, -2.0)
    assert forgetting.probe_accuracy(few, many, draw(2, 30, 2, 2.0), draw(3, 30, 2, -2.0)) > 0.95
