"""Losses: hand-computed cases, public implementations, invariances, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harness import losses
from harness.exact import exact_nll
from harness.scoring import Outputs, token_logp

HAND = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]], dtype=torch.float64).log()
"""Three tokens of three classes; the labels are 0, 1, 2, so their probabilities are 1/2, 1/4, 1/2."""
LABELS = torch.tensor([[0, 1, 2]])
ALL = torch.ones(1, 3, dtype=torch.bool)
LN2 = math.log(2)


def hand() -> tuple[Tensor, Tensor]:
    """Logits [1, 3, 3] and log p of the labels [1, 3]."""
    return HAND[None], HAND[None].gather(-1, LABELS[..., None])[..., 0]


def public_batch() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(logits, reference logits, log p, labels, mask): two rows of three and two answer tokens of six classes.

    The constants that tests compare with are what the public functions return for these logits, with a prompt of two
    tokens before and padding after the answers.
    """
    z = [
        [
            [((7 * b + 3 * t + 5 * v) % 11) / 4 - 1 + (v * t * b % 3) / 5 for v in range(6)]
            for t in range(1, 4)
        ]
        for b in range(2)
    ]
    r = [[[((5 * b + 2 * t + 3 * v) % 7) / 3 - 1 for v in range(6)] for t in range(1, 4)] for b in range(2)]
    logits, reference = torch.tensor(z, dtype=torch.float64), torch.tensor(r, dtype=torch.float64)
    labels = torch.tensor([[1, 4, 2], [3, 5, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    return logits, reference, token_logp(Outputs(logits, labels, mask)), labels, mask


def value(x: Tensor) -> float:
    assert x.dtype == torch.float64
    return x.item()


def test_three_tokens_by_hand() -> None:
    logits, logp = hand()
    assert value(losses.nll(logp, ALL)) == pytest.approx(4 / 3 * LN2)
    assert value(losses.grad_ascent(logp, ALL)) == pytest.approx(-4 / 3 * LN2)
    assert losses.sequence_sum(logp, ALL).tolist() == pytest.approx([-4 * LN2])
    assert losses.sequence_mean(logp, ALL).tolist() == pytest.approx([-4 / 3 * LN2])
    # weights 1/2, 1/4, 1/2 on -1, -2, -1 ln 2
    assert value(losses.wga(logp, ALL, 1.0)) == pytest.approx(-0.5 * LN2)
    # weights 1/2 x 1/2, 1/4 x 3/4, 1/2 x 1/2
    assert value(losses.satimp(logp, ALL, 1.0, 1.0)) == pytest.approx(-(0.25 + 0.375 + 0.25) / 3 * LN2)
    # without the label: (1/2, 1/2), (2/3, 1/3), (1/2, 1/2) against what the model gives those classes
    assert value(losses.ce_u(logits, LABELS, ALL)) == pytest.approx((2 + 4 / 3 + 2) / 3 * LN2)
    # the margin is ln 2 less its mean over three classes: ln 2 x (1 - 1/3)
    assert value(losses.logit_margin(logits, ALL)) == pytest.approx((2 / 3 * LN2) ** 2)
    assert value(losses.negative_entropy(logits, ALL)) == pytest.approx(-1.5 * LN2)
    assert value(losses.kl_from_uniform(logits, ALL)) == pytest.approx(5 / 3 * LN2 - math.log(3))


def test_three_tokens_by_hand_with_a_reference() -> None:
    logits, logp = hand()
    total = logp.sum(-1)
    # p / p_ref = 1/4 for the answer; beta 1/2 makes it 1/2
    assert value(losses.npo(total, total + 2 * LN2, 0.5)) == pytest.approx(4 * math.log(1.5))
    assert value(losses.dpo(total, total, total, total + 2 * LN2, 0.5)) == pytest.approx(4 * math.log(1.5))
    # A = 4/3 ln 2, delta = 1/3 ln 2, beta 1
    away = losses.simnpo(losses.sequence_mean(logp, ALL), 1.0, LN2 / 3)
    assert value(away) == pytest.approx(2 * math.log(1.5))
    # the model's own probability of 2/4, 1/4, 1/4 to a uniform reference, and back to itself
    flat = torch.zeros_like(logits)
    assert value(losses.kl_to_reference(logits, flat, ALL)) == pytest.approx(5 / 3 * LN2 - math.log(3))
    # the teacher's label falls by ln 2: (1/3, 1/3, 1/3), (4/7, 1/7, 2/7), (1/3, 1/3, 1/3)
    taught = losses.undial(logits, logits, LABELS, ALL, LN2)
    assert value(taught) == pytest.approx((5 / 3 + (4 + 2 + 4) / 7 + 5 / 3) / 3 * LN2)
    # belief of the first two choices (2/3, 1/3), label and belief by halves
    belief = (2 / 3) * 1 + (1 / 3) * 2
    expected = -(0.5 * belief + 0.5 * 4 / 3) * LN2
    assert value(losses.bs_t(logits, logp, ALL, 0.5, 2)) == pytest.approx(expected)


def test_public_implementations_give_the_same_numbers() -> None:
    """open-unlearning d3d7cf9 (src/trainer); for BS-T kemoulee/open-unlearning 00e1b2c. Run on `public_batch`."""
    logits, reference, logp, labels, mask = public_batch()
    total, mean = losses.sequence_sum(logp, mask), losses.sequence_mean(logp, mask)
    noted = token_logp(Outputs(reference, labels, mask)).sum(-1)
    wins, win_mask = torch.tensor([[0, 2, 0], [4, 1, 3]]), torch.tensor([[True, True, False], [True] * 3])
    win, win_noted = (token_logp(Outputs(z, wins, win_mask)).sum(-1) for z in (logits, reference))
    found = {
        "nll": losses.nll(logp, mask),
        "npo": losses.npo(total, noted, 0.1),
        "dpo": losses.dpo(win, win_noted, total, noted, 0.1),
        "simnpo": losses.simnpo(mean, 4.5, 0.5),
        "wga 1": losses.wga(logp, mask, 1.0),
        "wga 5": losses.wga(logp, mask, 5.0),
        "satimp 5 1": losses.satimp(logp, mask, 5.0, 1.0),
        "satimp 5 .1": losses.satimp(logp, mask, 5.0, 0.1),
        "ce_u": losses.ce_u(logits, labels, mask),
        "ce_u, first token skipped": losses.ce_u(logits, labels, losses.after_first(mask, 1)),
        "undial, on answer tokens": losses.undial(logits, reference, labels, mask, 10.0),
        "kl, on answer tokens": losses.kl_to_reference(logits, reference, mask),
        "margin, mask moved to the predicting positions": losses.logit_margin(logits, mask),
        "bs_t": losses.bs_t(logits, logp, mask, 0.2, 3),
    }
    expected = {
        "nll": 1.9218745159518733,
        "npo": 13.568981376507129,
        "dpo": 13.951444468955081,
        "simnpo": 0.0013134650246038495,
        "wga 1": -0.27753619541211355,
        "wga 5": -0.0012729747167551223,
        "satimp 5 1": -0.0008915236993846288,
        "satimp 5 .1": -0.0012282592766485194,
        "ce_u": 1.5950402573056157,
        "ce_u, first token skipped": 1.5497879522353637,
        "undial, on answer tokens": 1.6845900072630933,
        "kl, on answer tokens": 0.049178342408054423,
        "margin, mask moved to the predicting positions": 0.9994722222222221,
        "bs_t": -1.8495548377232711,
    }
    assert {name: value(x) for name, x in found.items()} == pytest.approx(expected, rel=1e-12)


Case = Callable[[Tensor], Tensor]


def cases() -> dict[str, Case]:
    """Every loss as a function of the logits [2, 3, 6] alone."""
    _, reference, _, labels, mask = public_batch()
    noted = token_logp(Outputs(reference, labels, mask)).sum(-1)

    def logp(z: Tensor) -> Tensor:
        return token_logp(Outputs(z, labels, mask))

    return {
        "nll": lambda z: losses.nll(logp(z), mask),
        "grad_ascent": lambda z: losses.grad_ascent(logp(z), mask),
        "npo": lambda z: losses.npo(logp(z).sum(-1), noted, 0.1),
        "dpo": lambda z: losses.dpo(logp(z).sum(-1), noted, 2 * logp(z).sum(-1), noted, 0.1),
        "simnpo": lambda z: losses.simnpo(losses.sequence_mean(logp(z), mask), 4.5, 0.5),
        "wga": lambda z: losses.wga(logp(z), mask, 2.0),
        "satimp": lambda z: losses.satimp(logp(z), mask, 5.0, 1.0),
        "ce_u": lambda z: losses.ce_u(z, labels, mask),
        "undial": lambda z: losses.undial(z, reference, labels, mask, 10.0),
        "bs_t": lambda z: losses.bs_t(z, logp(z), mask, 0.5, 3),
        "logit_margin": lambda z: losses.logit_margin(z, mask),
        "negative_entropy": lambda z: losses.negative_entropy(z, mask),
        "kl_from_uniform": lambda z: losses.kl_from_uniform(z, mask),
        "kl_to_reference": lambda z: losses.kl_to_reference(z, reference, mask),
    }


WEIGHED = ("wga", "satimp", "ce_u", "bs_t")
"""Losses with a part that is held constant: their gradient is not that of their value."""


@pytest.mark.parametrize("name", [n for n in cases() if n not in WEIGHED])
def test_gradients_are_those_of_the_values(name: str) -> None:
    logits = public_batch()[0].requires_grad_()
    assert torch.autograd.gradcheck(cases()[name], (logits,))


def frozen_forms() -> dict[str, Case]:
    """The losses of `WEIGHED` with their constant part worked out at the batch's logits beforehand."""
    logits, _, logp, labels, mask = public_batch()
    p, one = logp.exp(), torch.nn.functional.one_hot(labels, 6).double()
    kept = logits.softmax(-1) * (1 - one)
    target = kept / kept.sum(-1, keepdim=True)
    kth = logits.sort(-1, descending=True).values[..., 2:3]
    believed = logits.softmax(-1) * (logits >= kth)
    mixed = 0.5 * believed / believed.sum(-1, keepdim=True) + 0.5 * one

    def now(z: Tensor) -> Tensor:
        return -exact_nll(z, labels)

    return {
        "wga": lambda z: losses.token_mean(p**2 * now(z), mask),
        "satimp": lambda z: losses.token_mean(p**5 * (1 - p) * now(z), mask),
        "ce_u": lambda z: losses.token_mean(-(target * z.log_softmax(-1)).sum(-1), mask),
        "bs_t": lambda z: losses.sequence_mean((mixed * z.log_softmax(-1)).sum(-1), mask).mean(),
    }


@pytest.mark.parametrize("name", WEIGHED)
def test_parts_that_are_held_constant_have_no_gradient(name: str) -> None:
    logits = public_batch()[0].requires_grad_()
    frozen = frozen_forms()[name]
    assert torch.autograd.gradcheck(frozen, (logits,))
    (expected,) = torch.autograd.grad(frozen(logits), logits)
    (found,) = torch.autograd.grad(cases()[name](logits), logits)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(cases()[name](logits), frozen(logits))


@pytest.mark.parametrize("name", cases())
def test_masked_positions_count_for_nothing(name: str) -> None:
    logits = public_batch()[0]
    moved = logits.clone()
    moved[1, 2] = torch.tensor([50.0, -50, 3, 0, 0, 1])
    moved.requires_grad_()
    loss = cases()[name](moved)
    torch.testing.assert_close(loss, cases()[name](logits))
    (gradient,) = torch.autograd.grad(loss, moved)
    assert not gradient[1, 2].any()
    assert gradient[:, :2].any()


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("scale", [1e-30, 60.0, 1e4])
def test_float32_stays_finite_where_p_is_0_or_1(name: str, scale: float) -> None:
    logits = (public_batch()[0] * scale).float().requires_grad_()
    labels = public_batch()[3]
    sure = logits + scale * torch.nn.functional.one_hot(labels, 6)
    for z in (logits, sure):
        loss = cases()[name](z)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()


def test_half_precision_logits_are_read_as_float32() -> None:
    for name, case in cases().items():
        rough = public_batch()[0].to(torch.bfloat16)
        assert case(rough).item() == pytest.approx(case(rough.float()).item(), rel=1e-6), name


def test_npo_at_the_reference_is_two_over_beta_times_ln_2_and_pulls_like_ascent() -> None:
    total = torch.tensor([-3.0, -40.0], dtype=torch.float64, requires_grad=True)
    loss = losses.npo(total, total.detach(), 0.1)
    assert loss.item() == pytest.approx(13.863, abs=1e-3)
    (gradient,) = torch.autograd.grad(loss, total)
    assert gradient.tolist() == pytest.approx([0.5, 0.5])  # of the mean of two sums: ascent


def test_npo_with_little_beta_is_ascent_and_fades_where_the_answer_is_gone() -> None:
    total = torch.tensor([-80.0], dtype=torch.float64, requires_grad=True)
    for beta, expected in ((1e-9, 1.0), (0.1, 2 * math.exp(-8) / (1 + math.exp(-8)))):
        (gradient,) = torch.autograd.grad(losses.npo(total, torch.zeros(1), beta), total)
        assert gradient.item() == pytest.approx(expected, rel=1e-6)


def test_simnpo_at_its_margin_is_two_over_beta_times_ln_2_whatever_the_length() -> None:
    mean = torch.tensor([-0.7, -0.7])
    assert losses.simnpo(mean, 2.5, 0.7).item() == pytest.approx(0.8 * LN2)
    assert losses.simnpo(mean, 2.5, 0.0).item() < 0.8 * LN2 < losses.simnpo(mean, 2.5, 1.0).item()


def test_weights_of_power_0_are_gradient_ascent() -> None:
    _, _, logp, _, mask = public_batch()
    plain = losses.grad_ascent(logp, mask)
    torch.testing.assert_close(losses.wga(logp, mask, 0.0), plain)
    torch.testing.assert_close(losses.satimp(logp, mask, 0.0, 0.0), plain)
    torch.testing.assert_close(losses.satimp(logp, mask, 2.0, 0.0), losses.wga(logp, mask, 2.0))


def test_the_importance_of_a_token_that_is_almost_sure_is_not_lost() -> None:
    logp = torch.tensor([[-1e-8]], requires_grad=True)
    (gradient,) = torch.autograd.grad(losses.satimp(logp, torch.tensor([[True]]), 5.0, 1.0), logp)
    assert gradient.item() == pytest.approx(1e-8)


def test_bs_t_without_belief_is_ascent_on_sequence_means() -> None:
    logits, _, logp, _, mask = public_batch()
    found = losses.bs_t(logits, logp, mask, 0.0, 3)
    torch.testing.assert_close(found, losses.sequence_mean(logp, mask).mean())
    assert found.item() != pytest.approx(losses.grad_ascent(logp, mask).item())  # rows of 3 and 2 tokens


def test_the_belief_of_bs_t_pulls_only_where_it_leaves_something_out() -> None:
    logits, _, logp, _, mask = public_batch()
    for top_k, moves in ((6, False), (100, False), (3, True)):
        z = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(losses.bs_t(z, logp, mask, 1.0, top_k), z)
        assert bool(gradient.abs().max() > 1e-9) == moves
    first = logits[0, 0].topk(3).indices
    assert (gradient[0, 0, first] > 0).all()  # descent lowers the first choices


def test_undial_without_penalty_starts_at_the_teachers_entropy_with_no_gradient() -> None:
    logits, _, _, labels, mask = public_batch()
    z = logits.clone().requires_grad_()
    loss = losses.undial(z, logits, labels, mask, 0.0)
    torch.testing.assert_close(loss, -losses.negative_entropy(logits, mask))
    (gradient,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(gradient, torch.zeros_like(z), atol=1e-12, rtol=0)


def test_ce_u_has_the_gradient_of_its_closed_form() -> None:
    logits, _, _, labels, mask = public_batch()
    z = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(losses.ce_u(z, labels, mask), z)
    p = logits.softmax(-1)
    right = p.gather(-1, labels[..., None])
    expected = (-p * right / (1 - right)).scatter(-1, labels[..., None], right)
    torch.testing.assert_close(gradient, expected * mask[..., None] / 5)


@pytest.mark.parametrize("gap", [30.0, 300.0, -300.0])
def test_ce_u_is_right_where_the_label_is_certain_or_impossible(gap: float) -> None:
    """At p_y = 1 the target is still the renormalised rest; at p_y = 0 nothing is left to learn."""
    z = torch.tensor([[[gap, 0.0, math.log(3.0)]]], requires_grad=True)
    loss = losses.ce_u(z, torch.tensor([[0]]), torch.tensor([[True]]))
    (gradient,) = torch.autograd.grad(loss, z)
    sure = 1.0 if gap > 0 else 0.0
    assert gradient[0, 0].tolist() == pytest.approx([sure, -sure / 4, -sure * 3 / 4], abs=1e-6)
    rest = 2 * LN2 - 0.75 * math.log(3)
    assert loss.item() == pytest.approx(rest + max(0.0, gap - math.log(4)), rel=1e-6)


def test_kl_is_zero_at_equality_with_no_gradient() -> None:
    logits, _, _, _, mask = public_batch()
    z = logits.clone().requires_grad_()
    loss = losses.kl_to_reference(z, logits + 3.0, mask)  # a shift of all logits is no difference
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(gradient, torch.zeros_like(z), atol=1e-12, rtol=0)


def test_uniform_predictions_are_the_floor_of_the_flattening_losses() -> None:
    flat, mask = torch.full((1, 2, 5), 7.0), torch.tensor([[True, True]])
    assert losses.logit_margin(flat, mask).item() == 0.0
    assert losses.kl_from_uniform(flat, mask).item() == pytest.approx(0.0, abs=1e-6)
    assert losses.negative_entropy(flat, mask).item() == pytest.approx(-math.log(5))


def test_a_token_mean_is_split_by_tokens_and_a_mean_of_rows_by_rows() -> None:
    logits, _, logp, labels, mask = public_batch()
    parts = [losses.ce_u(logits[i : i + 1], labels[i : i + 1], mask[i : i + 1]).item() for i in range(2)]
    assert losses.ce_u(logits, labels, mask).item() == pytest.approx((3 * parts[0] + 2 * parts[1]) / 5)
    halves = [
        losses.bs_t(logits[i : i + 1], logp[i : i + 1], mask[i : i + 1], 0.5, 3).item() for i in range(2)
    ]
    assert losses.bs_t(logits, logp, mask, 0.5, 3).item() == pytest.approx(sum(halves) / 2)


def test_padding_does_not_change_a_rows_value() -> None:
    _, _, logp, _, mask = public_batch()
    wide = torch.nn.functional.pad(logp, (0, 4), value=-9.0)
    wide_mask = torch.nn.functional.pad(mask, (0, 4))
    for reduce in (losses.sequence_sum, losses.sequence_mean, losses.token_mean):
        torch.testing.assert_close(reduce(wide, wide_mask), reduce(logp, mask))


def test_a_batch_without_answer_tokens_is_0_with_no_gradient() -> None:
    z = torch.randn(1, 2, 4, requires_grad=True)
    none, labels = torch.zeros(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.long)
    for loss in (
        losses.nll(token_logp(Outputs(z, labels, none)), none),
        losses.ce_u(z, labels, none),
        losses.bs_t(z, token_logp(Outputs(z, labels, none)), none, 0.5, 2),
        losses.logit_margin(z, none),
    ):
        assert loss.item() == 0.0
        (gradient,) = torch.autograd.grad(loss, z, allow_unused=True)
        assert gradient is None or not gradient.any()


def test_the_first_tokens_are_skipped_per_row_but_never_a_whole_row() -> None:
    mask = torch.tensor([[False, True, True, True], [False, False, True, False], [False] * 4])
    assert losses.after_first(mask, 0).equal(mask)
    assert losses.after_first(mask, 2).tolist() == [
        [False, False, False, True],
        [False, False, True, False],
        [False] * 4,
    ]


def test_the_multiplier_grows_while_the_constraint_is_violated_and_ends_at_0() -> None:
    path = [1.0]
    for violation in (0.5, 0.25, -1.0, -1.0):
        path.append(losses.dual_step(path[-1], violation, 2.0))
    assert path == [1.0, 2.0, 2.5, 0.5, 0.0]
