"""The arithmetic of diagnostics, against closed forms and dense oracles."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from harness.diagnostics import covariance, norms, paths
from harness.diagnostics.covariance import Diagonal, Kronecker, best_kronecker, cosines
from harness.diagnostics.displacement import components
from harness.diagnostics.drift import Drift, token_drift
from harness.diagnostics.figures import shared_axes
from harness.diagnostics.gradients import gradients, groups
from harness.diagnostics.places import Place, place
from harness.diagnostics.powers import power_lines
from harness.diagnostics.weights import Saved, common, displacement_gram
from harness.errors import InputError
from harness.specs import RunRecord, ScoreRecord
from harness.types import MetricInfo


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def orthogonal(size: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(random(size, size, seed=seed))[0]


# --- norms ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (7, 7)])
def test_an_update_of_known_singular_values(shape: tuple[int, int]) -> None:
    rows, cols = shape
    values = torch.tensor([3.0, 3.0, 3.0], dtype=torch.float64)
    u, v = orthogonal(rows, 1)[:, :3], orthogonal(cols, 2)[:, :3]
    start = random(rows, cols, seed=3)
    found = norms.update_norms(start, start + (u * values) @ v.T)
    assert found["fro"][0] == pytest.approx(math.sqrt(27))
    assert found["relative"][0] == pytest.approx(math.sqrt(27) / float(start.norm()))
    assert found["spectral"][0] == pytest.approx(3.0)
    assert found["stable_rank"][0] == pytest.approx(3.0)
    assert found["effective_rank"][0] == pytest.approx(3.0, rel=1e-6)


def test_ranks_of_unequal_singular_values_agree_with_the_dense_decomposition() -> None:
    start, end = random(5, 9, seed=1), random(5, 9, seed=2)
    s = torch.linalg.svdvals(end - start)
    share = s / s.sum()
    found = norms.update_norms(start, end)
    assert found["stable_rank"][0] == pytest.approx(float(s.square().sum() / s[0] ** 2))
    assert found["effective_rank"][0] == pytest.approx(float(torch.exp(-(share * share.log()).sum())))


def test_a_matrix_that_did_not_move_has_no_rank_and_says_so() -> None:
    start = random(4, 4)
    found = norms.update_norms(start, start.clone())
    assert found["fro"] == found["spectral"] == (0.0, "")
    assert found["stable_rank"] == (None, norms.STILL)
    assert norms.update_norms(torch.zeros(3), torch.ones(3))["relative"] == (None, "the start is 0")
    assert norms.update_norms(torch.tensor(1.0), torch.tensor(4.0))["fro"][0] == 3.0


def test_chunks_do_not_change_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    start, end = random(30, 7, seed=1), random(30, 7, seed=2)
    whole = norms.update_norms(start, end)
    monkeypatch.setattr(norms, "CHUNK", 10)
    parts = norms.update_norms(start, end)
    assert {k: pytest.approx(v[0]) for k, v in whole.items()} == {k: v[0] for k, v in parts.items()}


def test_groups_add_squares_up() -> None:
    found = norms.grouped(
        {
            "a": (Place(0, "mlp"), 9.0),
            "b": (Place(0, "attention"), 16.0),
            "e": (Place(None, "embedding"), 2.0),
        }
    )
    assert found[0, "all"] == 25.0
    assert found[0, "mlp"] == found[None, "mlp"] == 9.0
    assert found[None, "all"] == 27.0
    assert found[None, "embedding"] == 2.0


@pytest.mark.parametrize(
    ("name", "block", "role"),
    [
        ("model.layers.12.self_attn.q_proj.weight", 12, "attention"),
        ("model.layers.0.post_attention_layernorm.weight", 0, "norm"),
        ("transformer.h.3.mlp.c_fc.weight", 3, "mlp"),
        ("transformer.h.3.ln_1.weight", 3, "norm"),
        ("transformer.wte.weight", None, "embedding"),
        ("model.embed_tokens.weight", None, "embedding"),
        ("lm_head.weight", None, "head"),
        ("model.norm.weight", None, "norm"),
        ("mlp_in.weight", 0, "mlp"),
        ("output.weight", 0, "attention"),
        ("position.weight", None, "embedding"),
        ("unembed.weight", None, "head"),
        ("something.weight", None, "other"),
    ],
)
def test_names_tell_block_and_role(name: str, block: int | None, role: str) -> None:
    assert place(name) == Place(block, role)


# --- drift ----------------------------------------------------------------------------------------------------------
def test_drift_is_zero_at_equality_and_follows_a_scaling_and_a_rotation() -> None:
    states = random(2, 5, 4)
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 1, 1, 1, 1]], dtype=torch.bool)
    swapped = torch.stack(
        [states[..., 1], -states[..., 0], states[..., 3], -states[..., 2]], -1
    )  # by 90 degrees
    drift = Drift()
    drift.add({0: states, 1: states, 2: states}, {0: states.clone(), 1: 3 * states, 2: swapped}, mask)
    drift.add({0: states, 1: states, 2: states}, {0: states.clone(), 1: 3 * states, 2: swapped}, mask)
    means = drift.means()
    assert means[0] == {"relative": 0.0, "cosine": pytest.approx(0.0, abs=1e-15)}
    assert means[1] == {"relative": pytest.approx(2.0), "cosine": pytest.approx(0.0, abs=1e-15)}
    assert means[2] == {"relative": pytest.approx(math.sqrt(2)), "cosine": pytest.approx(1.0)}
    assert drift.tokens == 12


def test_drift_counts_only_the_tokens_of_the_mask_and_survives_a_zero_state() -> None:
    start = torch.ones(1, 2, 3)
    end = start.clone()
    end[0, 1] = 100.0
    drift = Drift()
    drift.add({0: start}, {0: end}, torch.tensor([[True, False]]))
    assert drift.means()[0]["relative"] == 0.0
    assert Drift().means() == {}
    relative, cosine = token_drift(torch.zeros(1, 3), torch.zeros(1, 3))
    assert (float(relative), float(cosine)) == (0.0, 1.0)


# --- covariance -----------------------------------------------------------------------------------------------------
def dense(g: Tensor) -> Tensor:
    flat = g.flatten(1)
    return flat.T @ flat / len(flat)


def as_matrix(model: Kronecker | Diagonal) -> Tensor:
    if isinstance(model, Kronecker):
        return torch.kron(model.left.contiguous(), model.right.contiguous())
    rows, cols = model.values.shape
    left = torch.eye(rows, dtype=model.values.dtype) if model.left is None else model.left
    right = torch.eye(cols, dtype=model.values.dtype) if model.right is None else model.right
    basis = torch.kron(left.contiguous(), right.contiguous())
    return (basis * model.values.flatten()) @ basis.T


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()))


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_every_cosine_agrees_with_the_dense_matrices(shape: tuple[int, int]) -> None:
    g = random(20, *shape, seed=5) + 0.5 * random(1, *shape, seed=6)
    found = cosines(g)
    best, _ = best_kronecker(g)
    made = covariance.models(g)
    assert ("soap.one_sided" in made) == (shape[0] != shape[1])
    for name, model in made.items():
        assert found["cosine"][name] == pytest.approx(cosine(as_matrix(model), dense(g)), rel=1e-6), name
        assert found["kronecker"][name] == pytest.approx(
            cosine(as_matrix(model), as_matrix(best)), rel=1e-6
        ), name
        assert 0 <= found["cosine"][name] <= 1


def test_the_best_kronecker_product_is_the_first_singular_pair_of_the_rearranged_covariance() -> None:
    rows, cols = 4, 3
    g = random(15, rows, cols, seed=9) * torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    blocks = dense(g).reshape(rows, cols, rows, cols).permute(0, 2, 1, 3).reshape(rows * rows, cols * cols)
    singular = torch.linalg.svdvals(blocks)
    best, shared = best_kronecker(g)
    assert shared == pytest.approx(float(singular[0]), rel=1e-5)
    assert best.length == pytest.approx(1.0)
    found = cosines(g)["cosine"]
    assert found["best_kronecker"] == pytest.approx(float(singular[0] / dense(g).norm()), rel=1e-5)
    kronecker = [found[k] for k in ("identity", "muon", "shampoo", "shampoo_square", "kl_shampoo")]
    assert max(kronecker) <= found["best_kronecker"] + 1e-9


def exactly_kronecker(left: Tensor, right: Tensor) -> Tensor:
    """Gradients whose second moment is left (x) right = A A^T (x) B B^T: A e_i e_j^T B^T for all i, j."""
    a, b = torch.linalg.cholesky(left), torch.linalg.cholesky(right)
    scale = math.sqrt(len(left) * len(right))
    return torch.stack(
        [scale * torch.outer(a[:, i], b[:, j]) for i in range(len(left)) for j in range(len(right))]
    )


def test_a_covariance_that_is_a_kronecker_product_is_its_own_best_fit() -> None:
    a, b = random(4, 4, seed=1), random(3, 3, seed=2)
    left, right = a @ a.T + torch.eye(4), b @ b.T + torch.eye(3)
    g = exactly_kronecker(left, right)
    torch.testing.assert_close(dense(g), torch.kron(left, right))
    best, shared = best_kronecker(g)
    torch.testing.assert_close(shared * as_matrix(best), torch.kron(left, right))
    found = cosines(g)
    for name in ("best_kronecker", "shampoo_square", "soap"):
        assert found["cosine"][name] == pytest.approx(1.0), name
    assert found["cosine"]["kl_shampoo"] == pytest.approx(1.0, abs=1e-4)  # its factors are damped
    assert found["cosine"]["diagonal"] < 0.99
    assert found["kronecker"]["soap"] == pytest.approx(1.0)


def test_a_diagonal_covariance_is_the_diagonal_models_and_white_gradients_are_the_identitys() -> None:
    rows, cols = 3, 4
    scales = random(rows, cols, seed=3).abs() + 0.1
    single = torch.eye(rows * cols, dtype=torch.float64).reshape(-1, rows, cols)
    found = cosines(single * scales)["cosine"]
    assert found["diagonal"] == pytest.approx(1.0)
    assert found["identity"] < 0.99
    assert all(value == pytest.approx(1.0) for k, value in cosines(single)["cosine"].items() if k != "muon")


def test_one_gradient_of_rank_one_is_everybodys_but_the_diagonals() -> None:
    u, v = random(5, seed=1), random(3, seed=2)
    found = cosines(torch.outer(u, v)[None])["cosine"]
    for name in ("best_kronecker", "shampoo", "shampoo_square", "soap", "muon"):
        assert found[name] == pytest.approx(1.0), name
    outer = torch.outer(u, v)
    assert found["diagonal"] == pytest.approx(float(outer.square().norm() / outer.norm() ** 2))
    assert found["identity"] == pytest.approx(1 / math.sqrt(15))


def test_a_cosine_does_not_depend_on_the_gradients_scale() -> None:
    g = random(6, 3, 4)
    small, large = cosines(g * 1e-6)["cosine"], cosines(g * 1e6)["cosine"]
    assert small == pytest.approx(large, rel=1e-6)


def test_gradients_that_are_zero_have_no_cosine() -> None:
    with pytest.raises(ValueError, match="all gradients are 0"):
        cosines(torch.zeros(3, 2, 2))


def test_gradients_are_those_of_each_batch_alone() -> None:
    a, b = nn.Parameter(random(2, 3)), nn.Parameter(random(2, 2))
    weights = [random(2, 3, seed=k) for k in range(3)]
    found = gradients(lambda w: (a * w).sum(), weights, [a, b])  # type: ignore[arg-type]
    torch.testing.assert_close(found[0].double(), torch.stack(weights).float().double())
    assert not found[1].any()


def test_matrices_are_grouped_by_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.diagnostics.gradients.AT_ONCE", 4 * 2 * 10)
    matrices = {
        name: nn.Parameter(torch.zeros(1, size)) for name, size in {"a": 4, "b": 6, "c": 50, "d": 1}.items()
    }
    assert list(groups(matrices, 2)) == [["a", "b"], ["c"], ["d"]]


# --- displacements --------------------------------------------------------------------------------------------------
def test_planted_directions_are_found() -> None:
    basis = orthogonal(50)[:2]
    planted = np.array([[3.0, 0.0], [6.0, 1.0], [0.0, -2.0], [9.0, 2.0]])
    x = planted @ basis.numpy()
    found = components(x @ x.T)
    every = np.vstack([[0.0, 0.0], planted])
    assert found.explained.sum() == pytest.approx(1.0)
    powers = np.linalg.eigvalsh(np.cov(every.T))[::-1]
    np.testing.assert_allclose(found.explained, powers / powers.sum())
    distances = np.linalg.norm(planted[:, None] - planted[None], axis=-1)
    mine = np.linalg.norm(found.coordinates[:, None] - found.coordinates[None], axis=-1)
    np.testing.assert_allclose(mine, distances, atol=1e-9)
    np.testing.assert_allclose(
        np.linalg.norm(found.coordinates, axis=1), np.linalg.norm(planted, axis=1), atol=1e-9
    )


def test_a_single_direction_explains_everything_and_a_model_beside_it_is_projected() -> None:
    x = np.array([[1.0, 0.0], [2.0, 0.0], [5.0, 7.0]])
    found = components(x @ x.T, np.array([True, True, False]))
    np.testing.assert_allclose(found.explained, [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.coordinates, [[1, 0], [2, 0], [5, 0]], atol=1e-9)


def test_nothing_moved_is_an_error() -> None:
    with pytest.raises(ValueError, match="no displacement"):
        components(np.zeros((3, 3)))


def test_the_gram_matrix_is_streamed_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.diagnostics.weights.AT_ONCE", 20)
    folders = []
    for k in range(3):
        folder = tmp_path / str(k)
        folder.mkdir()
        save_file(
            {"a": random(7, 3, seed=k).float(), "b": random(5, seed=10 + k).float()},
            folder / "model.safetensors",
        )
        folders.append(Saved(folder))
    names = common(folders)
    flat = torch.stack([torch.cat([m.read(n).flatten() for n in names]) for m in folders]).double()
    moved = flat[1:] - flat[0]
    np.testing.assert_allclose(
        displacement_gram(folders[0], folders[1:], names), (moved @ moved.T).numpy(), rtol=1e-12
    )


def test_models_that_differ_in_kind_are_refused(tmp_path: Path) -> None:
    for name, tensors in {
        "x": {"a": torch.zeros(2)},
        "y": {"b": torch.zeros(2)},
        "z": {"a": torch.zeros(3)},
    }.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    with pytest.raises(InputError, match="different parameters"):
        common([Saved(tmp_path / "x"), Saved(tmp_path / "y")])
    with pytest.raises(InputError, match="another shape"):
        common([Saved(tmp_path / "x"), Saved(tmp_path / "z")])
    with pytest.raises(InputError, match="has no safetensors"):
        common([Saved(tmp_path)])


# --- paths and the power sweep --------------------------------------------------------------------------------------
def test_axes_are_the_first_that_are_known() -> None:
    values = {"util": np.array([np.nan, np.nan]), "util.likelihood": np.array([0.5, np.nan])}
    assert paths.pick("", ("util", "util.likelihood"), values) == "util.likelihood"
    assert paths.pick("util", ("util.likelihood",), values) == ""
    assert paths.likelihood_util(values) is None


def record(submission: str, power: float, lr: float, seed: int, value: float | None) -> RunRecord:
    return RunRecord(
        run_id=f"{submission}-{power}-{lr}-{seed}", board="b", board_version="1", entry=f"{submission}-{power}-{lr}",
        submission=submission, optimizer="spectral_power", config={"optimizer.power": power, "optimizer.lr": lr},
        case="c", seed=seed, status="ok",
        scores={"m": ScoreRecord(value=value, n=1, why="" if value is not None else "lost")},
    )  # fmt: skip


def test_the_power_sweep_takes_the_best_entry_at_every_exponent() -> None:
    records = [
        record("npo", p, lr, s, p + 10 * lr + s) for p in (0.0, 1.0) for lr in (0.1, 0.2) for s in (0, 1)
    ]
    records.append(record("retain_finetune", 0.5, 0.1, 0, 0.25))
    records.append(record("retain_finetune", 0.5, 0.1, 1, None))
    lines = power_lines(records, MetricInfo("m", "higher", 0, None, "", ""))
    assert [(n["submission"], n["power"], n["value"], n["runs"], n["entries"]) for n in lines] == [
        ("npo", 0.0, 2.5, 2, 2), ("npo", 1.0, 3.5, 2, 2), ("retain_finetune", 0.5, 0.25, 1, 1),
    ]  # fmt: skip
    assert lines[0]["sd"] == pytest.approx(math.sqrt(0.5))
    assert lines[2]["sd"] is None
    lower = power_lines(records, MetricInfo("m", "lower", 0, None, "", ""))
    assert lower[0]["value"] == 1.5
    target = power_lines(records, MetricInfo("m", "target", 0, None, "", "", target=1.6))
    assert target[0]["value"] == 1.5
    with pytest.raises(InputError, match="no direction"):
        power_lines(records, MetricInfo("m", "none", 0, None, "", ""))
    with pytest.raises(InputError, match="no run has a value of mm; did you mean m"):
        power_lines(records, MetricInfo("mm", "higher", 0, None, "", ""))
    with pytest.raises(InputError, match="uharness sweep npo retain_finetune"):
        power_lines([], MetricInfo("m", "higher", 0, None, "", ""))


def test_a_safetensors_header_is_read_without_its_tensors(tmp_path: Path) -> None:
    from harness.diagnostics.asked import header

    save_file({"w": torch.zeros(2, 3)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert header(tmp_path) == {"w": [2, 3]}
    assert json.dumps(header(tmp_path / "nowhere")) == "{}"


def test_factors_without_an_inverse_are_damped_also_in_float32() -> None:
    g = torch.outer(torch.arange(300.0), torch.ones(200))[None] + 1e-3 * random(2, 300, 200).float()
    found = cosines(g)["cosine"]
    assert found["best_kronecker"] == pytest.approx(1.0, abs=1e-3)
    assert all(math.isfinite(value) for value in found.values())


def test_runs_are_drawn_on_axes_that_all_of_them_have() -> None:
    have = {"a": ("mem", "util", "util.likelihood"), "b": ("mem", "util.likelihood")}
    lines = [
        {"kind": "path", "name": "run", "run_id": r, "measure": m} for r, names in have.items() for m in names
    ]
    axes = [("mem", "util"), ("mem", "util.likelihood")]
    assert shared_axes(lines, axes) == ("mem", "util.likelihood")
    assert shared_axes(lines[:3], axes) == ("mem", "util")
    assert shared_axes([], axes) == ("", "")
