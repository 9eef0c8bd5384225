"""Metrics of modular sums at their ends (perfect, uniform, empty) and against slow direct forms."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from harness.metrics import circuits

RNG = np.random.default_rng(0)


def test_right_prob_is_softmax():
    logits, labels = RNG.normal(size=(9, 5)) * 30, RNG.integers(0, 5, 9)
    expected = softmax(logits, axis=1)[np.arange(9), labels]
    np.testing.assert_allclose(circuits.right_prob(logits.astype(np.float32), labels), expected, rtol=1e-4)
    np.testing.assert_allclose(circuits.right_prob(logits, labels), expected, rtol=1e-12)
    assert circuits.right_prob(np.array([[1e4, 0.0]]), np.array([0])).tolist() == [1.0]
    assert circuits.right_prob(np.zeros((1, 4)), np.array([2])).tolist() == [0.25]
    assert circuits.right_prob(np.array([[0.0, -np.inf]]), np.array([0])).tolist() == [1.0]


@pytest.mark.parametrize("m", [1, 2, 4, 8])
def test_bucket_accuracies_against_loops(m):
    logits, labels = RNG.normal(size=(50, 8)), RNG.integers(0, 8, 50)
    bucket = np.mean([np.argmax(z) // m == y // m for z, y in zip(logits, labels, strict=True)])
    within = np.mean(
        [np.argmax(z[y - y % m : y - y % m + m]) == y % m for z, y in zip(logits, labels, strict=True)]
    )
    assert circuits.bucket_accuracy(logits, labels, m) == bucket
    assert circuits.within_bucket_accuracy(logits, labels, m) == within
    accuracy = circuits.hits(logits, labels).mean()
    if m == 1:
        assert (bucket, within) == (accuracy, 1.0)
    if m == 8:
        assert (bucket, within) == (1.0, accuracy)


def test_a_bucket_must_divide_the_classes():
    for call in (circuits.bucket_accuracy, circuits.within_bucket_accuracy):
        with pytest.raises(ValueError, match="do not divide"):
            call(np.zeros((1, 8)), np.zeros(1, int), 3)


def test_crossings():
    falling, other = [0.9, 0.5, 0.3, 0.05, 0.2], [1.0, 0.98, 0.9, 0.7, 0.1]
    assert circuits.first_crossing(falling, 0.1) == 3
    assert circuits.interpolated_crossing(falling, other, 0.1) == pytest.approx(0.9 - 0.2 * 0.8)
    assert circuits.interpolated_crossing(falling, other, 0.3) == pytest.approx(0.9)
    assert circuits.first_crossing(falling, 0.01) is None
    assert circuits.interpolated_crossing(falling, other, 0.01) is None
    assert circuits.interpolated_crossing([0.05, 0.01], [0.8, 0.2], 0.1) == 0.8
    assert circuits.interpolated_crossing([0.5, np.nan, 0.0], [1, 1, 0.5], 0.1) is None
    assert circuits.interpolated_crossing([0.0], [np.nan], 0.1) is None
    assert circuits.first_crossing([], 0.1) is None


# --- the Fourier circuit ---
def wave(n, k):
    a, b, c = np.indices((n, n, n))
    return np.cos(2 * np.pi * k * (a + b - c) / n)


def direct_shares(logits):
    n = len(logits)
    z = logits - logits.mean(2, keepdims=True)
    z = z - z.mean((0, 1))
    found = []
    for k in range(1, n // 2 + 1):
        u = wave(n, k)
        found.append((z * u).sum() ** 2 / (u * u).sum() / (z * z).sum())
    return np.array(found)


@pytest.mark.parametrize("n", [7, 8])
def test_shares_against_the_direct_form(n):
    logits = RNG.normal(size=(n, n, n)) + 2 * wave(n, 2) + wave(n, n // 2)
    np.testing.assert_allclose(
        circuits.frequency_shares(logits), direct_shares(logits), rtol=1e-9, atol=1e-12
    )


def test_a_pure_circuit_is_found_whole():
    n = 13
    logits = 3 * wave(n, 2) + 2 * wave(n, 5) + 7 + RNG.normal(size=n)  # class biases explain nothing
    keys = circuits.key_frequencies(logits)
    assert keys == (2, 5)
    assert circuits.fve(logits, keys) == pytest.approx(1.0)
    assert circuits.fve(logits, (2,)) == pytest.approx(9 / 13)
    assert circuits.fve(logits, ()) == 0.0
    everything = np.arange(n * n)
    strong = 40 * wave(n, 2) + 40 * wave(n, 5)
    assert circuits.restricted_loss(strong, (2, 5), everything) < 1e-6
    assert circuits.restricted_loss(strong, (), everything) == pytest.approx(np.log(n))


def test_noise_has_no_circuit_and_constant_logits_have_no_share():
    n = 11
    logits = RNG.normal(size=(n, n, n))
    assert circuits.fve(logits, circuits.key_frequencies(logits)) < 0.1
    assert np.isnan(circuits.frequency_shares(np.ones((n, n, n)))).all()
    assert np.isnan(circuits.fve(np.ones((n, n, n)), (1, 2)))
    with pytest.raises(ValueError, match=r"\[n, n, n\]"):
        circuits.frequency_shares(np.zeros((n, n, n + 1)))


@pytest.mark.parametrize(("n", "keys"), [(7, (1, 3)), (8, (2, 4))])
def test_restricted_logits_are_a_projection(n, keys):
    logits = RNG.normal(size=(n, n, n)) + wave(n, keys[0])
    z = logits - logits.mean(2, keepdims=True)
    mean = z.mean((0, 1))
    a, b = np.indices((n, n))
    columns = []
    for k in keys:
        columns += [np.cos(2 * np.pi * k * (a + b) / n).ravel(), np.sin(2 * np.pi * k * (a + b) / n).ravel()]
    basis = np.stack(columns, 1)
    fitted = basis @ np.linalg.lstsq(basis, (z - mean).reshape(n * n, n), rcond=1e-9)[0]
    expected = mean + fitted.reshape(n, n, n)
    got = circuits.restricted_logits(logits, keys)
    np.testing.assert_allclose(got, expected, atol=1e-9)
    np.testing.assert_allclose(circuits.restricted_logits(got, keys), got, atol=1e-9)
    index = np.array([0, 5, n * n - 1])
    labels = (index // n + index % n) % n
    loss = -log_softmax(expected.reshape(n * n, n)[index], axis=1)[np.arange(3), labels].mean()
    assert circuits.restricted_loss(logits, keys, index) == pytest.approx(loss)
