"""Weight edits as pure functions: closed forms, orthonormal bases, ends, and other people's solvers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.edits import bases, unmerge
from harness.edits.line_search import line_search
from harness.edits.negmerge import SignMerge, merged
from harness.edits.projection import importance, projected
from harness.edits.task_vectors import check_start, size, subtracted, task_vector
from harness.edits.unmerge import Correction, Terms
from harness.errors import ModelError


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_bases(k: int = 4, r: int = 5, d: int = 12) -> tuple[Tensor, Tensor]:
    """Two subspaces that share some directions and not others."""
    shared = normal(d, 2, seed=1)
    q_f = bases.orthonormal(torch.cat([shared, normal(d, k - 2, seed=2)], 1))
    q_r = bases.orthonormal(torch.cat([shared, normal(d, r - 2, seed=3)], 1))
    return q_f, q_r


# --- task vectors ---------------------------------------------------------------------------------------------------
def test_adding_back_what_was_subtracted_gives_the_start() -> None:
    start = {"w": normal(3, 2), "b": normal(3), "steps": torch.tensor(7)}
    fine = {"w": normal(3, 2, seed=1), "b": normal(3, seed=2), "steps": torch.tensor(9)}
    vector = task_vector(fine, start)
    assert set(vector) == {"w", "b"}
    for alpha, wanted in ((0.0, start), (-1.0, fine)):
        for name in ("w", "b"):
            torch.testing.assert_close(subtracted(start, vector, alpha)[name], wanted[name])
    by_hand = 2 * start["w"] - fine["w"]
    torch.testing.assert_close(subtracted(start, vector, 1.0)["w"], by_hand)
    assert subtracted(start, vector, 3.0)["steps"] == 7


def test_a_model_that_was_not_fine_tuned_has_the_task_vector_zero_and_no_edit_moves_it() -> None:
    start = {"w": normal(3, 2)}
    vector = task_vector(start, start)
    assert not vector["w"].any()
    assert subtracted(start, vector, 5.0)["w"].equal(start["w"])
    q_f, q_r = some_bases()
    zero = torch.zeros(6, 12, dtype=torch.float64)
    for factor in (unmerge.closed_form(zero, q_f, q_r, Terms()), unmerge.descent(zero, q_f, q_r, Terms())):
        assert not factor.any()


def test_a_start_is_told_from_another_model() -> None:
    start = {f"{k}.weight": normal(30, 20, seed=k) for k in range(3)}
    fine = {n: w + 0.3 * normal(30, 20, seed=9 + i) for i, (n, w) in enumerate(start.items())}
    sizes = check_start(fine, start)
    assert all(0.2 < s.relative < 0.4 and s.cosine > 0.9 for s in sizes.values())
    other = {n: normal(30, 20, seed=77 + i) for i, n in enumerate(start)}
    with pytest.raises(ModelError, match="was not fine-tuned from this starting model"):
        check_start(fine, other)
    with pytest.raises(ModelError, match="the task vector is 0"):
        check_start(fine, fine)
    with pytest.raises(ModelError, match=r"0.weight is \(30, 20\) and \(30, 19\)"):
        check_start(fine, {**start, "0.weight": start["0.weight"][:, 1:]})
    with pytest.raises(ModelError, match=r"extra\.weight is in one of them alone"):
        check_start(fine, {**start, "extra.weight": start["0.weight"]})


def test_the_size_of_a_task_vector_at_its_ends() -> None:
    w, zero = normal(4, 4), torch.zeros(4, 4)
    assert (size(w, w).norm, size(w, w).cosine) == (0.0, pytest.approx(1.0))
    assert (size(w, zero).relative, size(w, zero).cosine) == (pytest.approx(1.0), 0.0)
    assert size(zero, zero).relative == 0.0


# --- NegMerge -------------------------------------------------------------------------------------------------------
def test_negmerge_keeps_the_mean_where_all_signs_agree() -> None:
    vectors = [
        {"w": torch.tensor(v)}
        for v in ([1.0, -1.0, 2.0, 0.0, 3.0], [2.0, -3.0, -2.0, 0.0, 0.0], [6.0, -2.0, 2.0, 0.0, 1.0])
    ]
    assert merged(vectors)["w"].tolist() == [3.0, -2.0, 0.0, 0.0, 0.0]
    merge = SignMerge()
    for vector in vectors:
        merge.add(vector)
    assert merge.agreement == pytest.approx(2 / 5)


def test_negmerge_of_one_model_is_its_task_vector_and_of_opposites_is_nothing() -> None:
    one = {"w": normal(5, 3)}
    assert merged([one])["w"].equal(one["w"])
    assert not merged([one, {"w": -one["w"]}])["w"].any()
    with pytest.raises(ValueError, match="no task vector"):
        merged([])
    with pytest.raises(ValueError, match="different models"):
        merged([one, {"v": one["w"]}])


# --- Kodge et al. ---------------------------------------------------------------------------------------------------
def test_projection_by_singular_vectors_of_the_inputs() -> None:
    x_f, x_r, w = normal(40, 6), normal(50, 6, seed=1) * torch.arange(1, 7), normal(3, 6, seed=2)

    def published(x: Tensor, alpha: float) -> Tensor:
        u, s, _ = torch.linalg.svd(x.T, full_matrices=False)
        energy = s**2 / (s**2).sum()
        return u @ torch.diag(alpha * energy / ((alpha - 1) * energy + 1)) @ u.T

    m_f, m_r = published(x_f, 30.0), published(x_r, 100.0)
    wanted = w @ (torch.eye(6) - (m_f - m_f @ m_r)).T
    torch.testing.assert_close(projected(w, x_f.T @ x_f, x_r.T @ x_r, 30.0, 100.0), wanted)


def test_projection_leaves_what_retain_inputs_need_and_removes_the_rest() -> None:
    w = normal(3, 4)
    first, second = torch.eye(4, dtype=torch.float64)[:1], torch.eye(4, dtype=torch.float64)[1:2]
    new = projected(w, first.T @ first, second.T @ second, 1e12, 1e12)
    torch.testing.assert_close(new[:, 0], torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)
    assert new[:, 1:].equal(w[:, 1:])
    shared = projected(w, first.T @ first, first.T @ first, 1e12, 1e12)
    torch.testing.assert_close(shared, w)
    nothing = torch.zeros(4, 4, dtype=torch.float64)
    assert projected(w, nothing, first.T @ first, 3.0, 3.0).equal(w)
    assert not importance(nothing, 3.0).any()


# --- bases ----------------------------------------------------------------------------------------------------------
def orthonormal(q: Tensor) -> bool:
    return torch.allclose(q.T @ q, torch.eye(q.shape[1], dtype=q.dtype), atol=1e-9)


def test_every_basis_is_orthonormal() -> None:
    x_f, x_r = normal(60, 10) + 2, normal(80, 10, seed=1)
    m_f, m_r = x_f.T @ x_f / 60, x_r.T @ x_r / 80
    means = torch.stack([x_f[:20].mean(0), x_f[20:40].mean(0), x_f[40:].mean(0)])
    for q, k in (
        (bases.pca(m_f, 4), 4),
        (bases.retain_shrunk(m_f, m_r, 4, 10.0), 4),
        (bases.cav(means, x_r.mean(0), x_f.mean(0), m_f, m_r, 1e-2), 3),
    ):
        assert q.shape == (10, k) and orthonormal(q)


def test_pca_is_that_of_the_singular_vectors_and_stops_at_the_rank() -> None:
    x = normal(30, 3) @ normal(3, 8, seed=1)
    q = bases.pca(x.T @ x, 6)
    assert q.shape == (8, 3)
    torch.testing.assert_close(x @ q @ q.T, x)
    u = torch.linalg.svd(x.T, full_matrices=False).U[:, :2]
    assert torch.allclose((bases.pca(x.T @ x, 2).T @ u).abs(), torch.eye(2, dtype=torch.float64), atol=1e-9)
    assert bases.pca(torch.zeros(4, 4), 2).shape == (4, 0)


def test_shrinking_turns_the_basis_away_from_retain_directions() -> None:
    m_f = torch.diag(torch.tensor([10.0, 5.0, 1.0]))
    m_r = torch.diag(torch.tensor([10.0, 0.1, 0.1]))
    assert bases.retain_shrunk(m_f, m_r, 1, 0.0)[:, 0].abs().argmax() == 0
    assert bases.retain_shrunk(m_f, m_r, 1, 100.0)[:, 0].abs().argmax() == 1


def test_a_cav_is_a_balanced_ridge_probe() -> None:
    """Weighted least squares with an intercept that is not penalised, as one stacked system: SciPy's solver agrees."""
    from scipy.linalg import lstsq

    x_f, x_r = normal(30, 5) + 1, normal(90, 5, seed=1)
    x, y = torch.cat([x_f, x_r]).numpy(), np.r_[np.ones(30), -np.ones(90)]
    root = np.sqrt(np.r_[np.full(30, 0.5 / 30), np.full(90, 0.5 / 90)])[:, None]
    m_f, m_r = x_f.T @ x_f / 30, x_r.T @ x_r / 90
    centre = (x_f.mean(0) + x_r.mean(0)) / 2
    scale = float(((m_f + m_r) / 2 - torch.outer(centre, centre)).diagonal().mean())
    penalty = math.sqrt(0.1 * scale) * np.eye(5, 6)
    a = np.vstack([root * np.c_[x, np.ones(120)], penalty])
    probe = lstsq(a, np.r_[root[:, 0] * y, np.zeros(5)])[0][:5]
    q = bases.cav(x_f.mean(0)[None], x_r.mean(0), x_f.mean(0), m_f, m_r, 0.1)
    np.testing.assert_allclose(np.abs(q[:, 0].numpy()), np.abs(probe) / np.linalg.norm(probe), rtol=1e-8)


def test_orthonormal_drops_what_adds_no_direction() -> None:
    v = normal(5, 1)
    assert bases.orthonormal(torch.cat([v, 2 * v, torch.zeros_like(v)], 1)).shape == (5, 1)
    assert bases.orthonormal(torch.zeros(5, 2)).shape == (5, 0)


def test_k_means_finds_three_heaps_and_says_when_there_are_fewer_points() -> None:
    heaps = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], dtype=torch.float64)
    points = heaps.repeat_interleave(20, 0) + 0.1 * normal(60, 2)
    found = bases.cluster_means(points, 3, seed=4)
    assert torch.cdist(heaps, found).min(1).values.max() < 0.2
    assert found.equal(bases.cluster_means(points, 3, seed=4))
    assert len(bases.cluster_means(heaps.repeat(3, 1), 16, seed=0)) == 3


def test_overlap_of_equal_and_of_orthogonal_subspaces() -> None:
    eye = torch.eye(6, dtype=torch.float64)
    assert bases.overlap(eye[:, :2], eye[:, :2]).tolist() == [1.0, 1.0]
    assert bases.overlap(eye[:, :2], eye[:, 2:]).tolist() == [0.0, 0.0]
    half = bases.overlap((eye[:, :1] + eye[:, 1:2]) / math.sqrt(2), eye[:, :1])
    assert half.tolist() == pytest.approx([0.5])


# --- UNMERGE --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("terms", [Terms(1.0, 0.0), Terms(10.0, 0.5), Terms(0.0, 0.0), Terms(0.0, 2.0)])
def test_the_closed_form_is_where_a_long_descent_ends(terms: Terms) -> None:
    (q_f, q_r), tau = some_bases(), normal(7, 12, seed=5)
    exact = unmerge.closed_form(tau, q_f, q_r, terms)
    b = torch.zeros_like(exact, requires_grad=True)
    for _ in range(400):
        (gradient,) = torch.autograd.grad(unmerge.objective(b, tau, q_f, q_r, terms), b)
        b = (b - 0.4 / (1 + terms.lam + terms.gam) * gradient).detach().requires_grad_(True)
    torch.testing.assert_close(exact, b.detach(), atol=1e-5, rtol=0)


def test_the_closed_form_is_a_least_squares_solution() -> None:
    """Rows of B solve [1; sqrt(lam) C^T; sqrt(gam)] b = [Q_F^T tau; 0; 0]: SciPy's solver agrees."""
    from scipy.linalg import lstsq

    (q_f, q_r), tau, terms = some_bases(), normal(7, 12, seed=5), Terms(3.0, 0.7)
    c = (q_f.T @ q_r).numpy()
    a = np.vstack([np.eye(4), math.sqrt(3.0) * c.T, math.sqrt(0.7) * np.eye(4)])
    right = np.vstack([(tau @ q_f).T.numpy(), np.zeros((c.shape[1] + 4, 7))])
    np.testing.assert_allclose(
        unmerge.closed_form(tau, q_f, q_r, terms).T.numpy(), lstsq(a, right)[0], atol=1e-10
    )


def test_adam_reaches_the_minimiser_in_the_end_and_moves_no_further_than_its_rate_allows() -> None:
    (q_f, q_r), tau, terms = some_bases(), normal(7, 12, seed=5), Terms(2.0, 0.1)
    exact, start = unmerge.closed_form(tau, q_f, q_r, terms), tau @ q_f
    long = unmerge.descent(tau, q_f, q_r, terms, steps=6000, lr=1e-3)
    torch.testing.assert_close(long, exact, atol=1e-5, rtol=0)
    short = unmerge.descent(tau, q_f, q_r, terms, steps=100, lr=1e-3)
    assert 0 < (short - start).abs().max() <= 0.1 * (1 + 1e-6)
    assert unmerge.objective(exact, tau, q_f, q_r, terms) < unmerge.objective(short, tau, q_f, q_r, terms)
    assert unmerge.descent(tau, q_f, q_r, terms, steps=0).equal(start)


def test_gains_of_private_and_shared_directions() -> None:
    eye = torch.eye(6, dtype=torch.float64)
    tau, terms = normal(3, 6), Terms(4.0, 0.5)
    b = unmerge.closed_form(tau, eye[:, :2], eye[:, 1:3], terms)  # direction 0 is private, direction 1 shared
    torch.testing.assert_close(b[:, 0], tau[:, 0] / 1.5)
    torch.testing.assert_close(b[:, 1], tau[:, 1] / 5.5)


def test_alpha_0_is_the_identity_and_a_whole_private_projection_at_1_removes_the_directions() -> None:
    (q_f, q_r), w = some_bases(), normal(7, 12)
    part = Correction(unmerge.closed_form(w, q_f, q_r, Terms(0.0, 0.0)), q_f)
    assert unmerge.edited({"w": w}, {"w": part}, 0.0)["w"].equal(w)
    gone = unmerge.edited({"w": w}, {"w": part}, 1.0)["w"]
    torch.testing.assert_close(gone @ q_f, torch.zeros(7, 4, dtype=torch.float64), atol=1e-12, rtol=0)
    away = torch.eye(12, dtype=torch.float64) - q_f @ q_f.T
    torch.testing.assert_close(gone, w @ away)


def test_the_ablations_are_the_objective_without_its_terms() -> None:
    found = Terms(2.0, 0.3).ablations()
    assert [(t.lam, t.gam) for t in found.values()] == [(2.0, 0.3), (0.0, 0.3), (2.0, 0.0), (0.0, 0.0)]
    with pytest.raises(ValueError, match="0 or more"):
        Terms(-1.0)


def test_an_empty_basis_corrects_nothing() -> None:
    tau, none = normal(3, 5), torch.zeros(5, 0, dtype=torch.float64)
    q_r = bases.orthonormal(normal(5, 2, seed=1))
    assert not Correction(unmerge.closed_form(tau, none, q_r, Terms()), none).matrix.any()
    assert not Correction(unmerge.descent(tau, none, q_r, Terms()), none).matrix.any()
    q_f = bases.orthonormal(normal(5, 2, seed=2))
    torch.testing.assert_close(unmerge.closed_form(tau, q_f, none, Terms(9.0, 0.0)), tau @ q_f)


# --- line search ----------------------------------------------------------------------------------------------------
def test_the_line_search_finds_the_smallest_strength_that_is_enough() -> None:
    found = line_search(lambda a: max(0.0, 1 - a / 4), [1, 2, 4, 8], 0.3, halvings=8)
    assert found.reached and found.alpha == pytest.approx(2.8, abs=0.02) and found.accuracy <= 0.3
    assert [a for a, _ in found.tried[:4]] == [1, 2, 4, 3.0]
    first = line_search(lambda _: 0.0, [1.0], 0.5, halvings=2)
    assert (first.alpha, len(first.tried)) == (0.25, 3)


def test_the_line_search_says_when_nothing_is_enough() -> None:
    values = {1: 0.9, 2: 0.6, 4: 0.6, 8: 0.7}
    found = line_search(values.__getitem__, list(values), 0.1)
    assert (found.alpha, found.accuracy, found.reached) == (2, 0.6, False)
    broken = line_search(lambda a: 0.9 if a < 2 else math.nan, [1, 2, 4], 0.1)
    assert (broken.alpha, broken.reached, len(broken.tried)) == (1, False, 2)
    nothing = line_search(lambda _: math.nan, [1.0], 0.1)
    assert (nothing.alpha, nothing.reached) == (0.0, False)
    for grid in ([], [0.0, 1.0], [-1.0]):
        with pytest.raises(ValueError, match="above 0"):
            line_search(lambda _: 0.0, grid, 0.1)
