"""The loss must be right where the usual one is not: on examples that the model is almost certain of."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from harness.exact import exact_nll


def grads(loss_of, logits):
    logits = logits.clone().requires_grad_()
    loss_of(logits).backward()
    return logits.grad


def certain(rows=64, classes=53, seed=0):
    """Logits and labels with a loss near 1e-8 per row, as after grokking."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    logits[torch.arange(rows), labels] += 19.0 + math.log(classes)
    return logits, labels


def test_agrees_with_torch_in_float64():
    generator = torch.Generator().manual_seed(1)
    logits = 5 * torch.randn(4, 7, 31, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 31, (4, 7), generator=generator)
    expected = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(4, 7)
    torch.testing.assert_close(exact_nll(logits, labels), expected, rtol=1e-12, atol=1e-13)
    weight = torch.rand(4, 7, generator=generator, dtype=torch.float64)
    ours = grads(lambda z: (weight * exact_nll(z, labels)).sum(), logits)
    theirs = grads(
        lambda z: (
            weight * cross_entropy(z.flatten(0, 1), labels.flatten(), reduction="none").view(4, 7)
        ).sum(),
        logits,
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-14)


def test_gradient_is_that_of_finite_differences():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 4, 2])
    assert torch.autograd.gradcheck(lambda z: exact_nll(z, labels), (logits,))


def test_a_certain_model_keeps_its_gradient():
    logits, labels = certain()
    nll = exact_nll(logits, labels)
    truth = exact_nll(logits.double(), labels)
    assert 1e-9 < truth.mean() < 1e-7
    torch.testing.assert_close(nll.double(), truth, rtol=1e-5, atol=0)
    right = grads(lambda z: exact_nll(z, labels).mean(), logits.double())
    ours = grads(lambda z: exact_nll(z, labels).mean(), logits).double()
    plain = grads(lambda z: cross_entropy(z, labels), logits).double()
    assert (ours - right).norm() / right.norm() < 1e-5
    assert (plain - right).norm() / right.norm() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_float32(dtype):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 40, generator=generator).mul_(4).to(dtype)
    labels = torch.randint(0, 40, (6,), generator=generator)
    nll = exact_nll(logits, labels)
    assert nll.dtype == torch.float32
    torch.testing.assert_close(nll, exact_nll(logits.float(), labels), rtol=0, atol=0)
    ours = grads(lambda z: exact_nll(z, labels).sum(), logits)
    assert ours.dtype == dtype
    torch.testing.assert_close(
        ours, grads(lambda z: exact_nll(z, labels).sum(), logits.float()).to(dtype), rtol=0, atol=0
    )


def test_a_large_vocabulary():
    generator = torch.Generator().manual_seed(4)
    logits = 3 * torch.randn(2, 3, 32_000, generator=generator)
    labels = torch.randint(0, 32_000, (2, 3), generator=generator)
    torch.testing.assert_close(
        exact_nll(logits, labels).double(), exact_nll(logits.double(), labels), rtol=2e-6, atol=0
    )
    got = grads(lambda z: exact_nll(z, labels).mean(), logits)
    assert got.sum(-1).abs().max() < 1e-6  # a step moves no mass in or out


def test_nothing_infinite_comes_from_finite_logits():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 0.0, 0.0], [88.0, 89.0, -300.0]])
    labels = torch.tensor([0, 0, 1, 2])
    nll = exact_nll(logits, labels)
    assert nll.isfinite().all() and (nll >= 0).all()
    assert nll.tolist() == pytest.approx([0.0, 2e4, math.log(3), 389 + math.log1p(math.exp(-1))])
    assert grads(lambda z: exact_nll(z, labels).sum(), logits).isfinite().all()


def test_a_masked_class_gets_no_gradient():
    logits = torch.tensor([[1.0, float("-inf"), 0.5]])
    labels = torch.tensor([0])
    got = grads(lambda z: exact_nll(z, labels).sum(), logits)
    assert got[0, 1] == 0 and got.isfinite().all()
    assert exact_nll(logits, torch.tensor([1])).item() == math.inf


def test_ignored_positions_get_no_gradient_and_views_work():
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(2, 5, 9, generator=generator, requires_grad=True)
    labels = torch.randint(0, 9, (2, 4), generator=generator)
    mask = torch.tensor([[1.0, 0, 1, 0], [0, 0, 0, 1]])
    (mask * exact_nll(logits[:, :-1], labels)).sum().backward()
    touched = logits.grad.abs().sum(-1) > 0
    assert touched.tolist() == [[True, False, True, False, False], [False, False, False, True, False]]


def test_backward_twice_and_no_gradient_wanted():
    logits, labels = certain(rows=3)
    logits.requires_grad_()
    loss = exact_nll(logits, labels).sum()
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (second,) = torch.autograd.grad(loss, logits)
    assert torch.equal(first, second)
    assert not exact_nll(logits.detach(), labels).requires_grad


def test_only_the_logits_are_kept_between_the_passes():
    kept: list[int] = []

    def pack(tensor):
        kept.append(tensor.untyped_storage().data_ptr() if tensor.numel() > 1000 else 0)
        return tensor

    logits = torch.randn(8, 4000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        exact_nll(logits, torch.zeros(8, dtype=torch.long)).sum()
    assert {pointer for pointer in kept if pointer} == {logits.untyped_storage().data_ptr()}
