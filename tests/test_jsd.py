"""Jensen-Shannon divergence against closed forms and a float64 reference, and over the rows of two models."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiny_text import random_llama, word_tokenizer
from torch import nn

from harness.jsd import jensen_shannon, mean_jsd, rows_jsd
from harness.models import LoadedModel
from harness.specs import Template
from harness.text import Encoder
from harness.types import ArrayRow, TextRow

LN2 = math.log(2.0)
ROWS = [
    TextRow("a", "Who kept the light ?", "Ada Finch kept the light for thirty years ."),
    TextRow("b", "Which bird nests there ?", "A grey heron nests there each spring ."),
    TextRow("c", "Which bird ?", "A heron ."),
]


def reference(p_logits: np.ndarray, q_logits: np.ndarray) -> np.ndarray:
    """By the definition, in float64, with 0 log 0 = 0."""

    def softmax(z: np.ndarray) -> np.ndarray:
        e = np.exp(z - z.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    p, q = softmax(p_logits.astype(np.float64)), softmax(q_logits.astype(np.float64))
    m = (p + q) / 2

    def kl(a: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(a > 0, a * np.log(a / m), 0.0).sum(-1)

    return (kl(p) + kl(q)) / 2


def test_identical_is_zero_and_a_shift_of_logits_changes_nothing() -> None:
    z = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    assert jensen_shannon(z, z).tolist() == pytest.approx([0.0] * 5, abs=1e-15)
    assert jensen_shannon(z, z + 100.0).tolist() == pytest.approx([0.0] * 5, abs=1e-9)


def test_disjoint_is_ln_2() -> None:
    p = torch.tensor([[0.0, 1.0, -math.inf, -math.inf], [0.0, 0.0, -1e30, -1e30]])
    q = torch.tensor([[-math.inf, -math.inf, 3.0, 1.0], [-1e30, -1e30, 5.0, 0.0]])
    assert jensen_shannon(p, q).tolist() == pytest.approx([LN2, LN2], abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.25), (0.9, 0.1), (1e-8, 0.5), (0.3, 0.3)])
def test_two_symbols_have_a_closed_form(a: float, b: float) -> None:
    """JSD = H((a + b) / 2) - (H(a) + H(b)) / 2 with the binary entropy H."""

    def entropy(x: float) -> float:
        return -x * math.log(x) - (1 - x) * math.log1p(-x)

    p, q = (torch.tensor([[math.log(x), math.log1p(-x)]], dtype=torch.float64) for x in (a, b))
    expected = entropy((a + b) / 2) - (entropy(a) + entropy(b)) / 2
    assert jensen_shannon(p, q).item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_float64_reference_and_symmetric(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    p, q = (6 * torch.randn(40, 33, generator=draw, dtype=torch.float32).to(dtype) for _ in range(2))
    expected = reference(p.double().numpy(), q.double().numpy())
    np.testing.assert_allclose(jensen_shannon(p, q).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(jensen_shannon(q, p).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("elements", [1, 33, 100, 1 << 30])
def test_chunks_do_not_matter(elements: int) -> None:
    draw = torch.Generator().manual_seed(2)
    p, q = (torch.randn(10, 33, generator=draw) for _ in range(2))
    np.testing.assert_allclose(jensen_shannon(p, q, elements), jensen_shannon(p, q), rtol=1e-12)


def test_the_ends() -> None:
    assert jensen_shannon(torch.zeros(0, 4), torch.zeros(0, 4)).shape == (0,)
    assert jensen_shannon(torch.zeros(1, 1), torch.ones(1, 1)).tolist() == [0.0]  # one symbol: no choice
    with pytest.raises(ValueError, match="one shape"):
        jensen_shannon(torch.zeros(2, 3), torch.zeros(2, 4))


def text_model(seed: int) -> LoadedModel:
    tokenizer = word_tokenizer()
    return LoadedModel(random_llama(len(tokenizer), seed), Encoder(tokenizer, Template(), 64))


def test_rows_are_means_over_their_own_answers_tokens_whatever_the_batch() -> None:
    one, two = text_model(0), text_model(1)
    assert one.encoder is not None
    found = rows_jsd(one, two, ROWS)
    for row, value in zip(ROWS, found, strict=True):
        encoded = one.encoder.encode(row)
        ids = torch.tensor([encoded.ids])
        with torch.no_grad():
            p, q = (m.model(ids).logits[0, encoded.start - 1 : -1].double().numpy() for m in (one, two))
        assert value == pytest.approx(reference(p, q).mean(), abs=1e-6)
        assert 0.01 < value < LN2
    assert rows_jsd(one, two, ROWS, batch_elements=1) == pytest.approx(found, abs=1e-6)
    assert rows_jsd(one, one, ROWS) == pytest.approx([0.0] * 3, abs=1e-15)


class Fixed(nn.Module):
    """The same logits whatever comes in."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def test_a_class_label_is_one_token() -> None:
    rows = [ArrayRow(f"r{i}", np.zeros(2, dtype=np.float32), 0) for i in range(3)]
    one, two = (LoadedModel(Fixed(z), None) for z in ([0.0, 0.0], [0.0, -1e9]))
    # p = (1/2, 1/2), q = (1, 0), m = (3/4, 1/4): H(m) - H(p)/2
    expected = -0.75 * math.log(0.75) - 0.25 * math.log(0.25) - 0.5 * LN2
    assert rows_jsd(one, two, rows) == pytest.approx([expected] * 3, abs=1e-7)
    assert rows_jsd(one, two, []) == []


def test_a_missing_mean_says_why() -> None:
    assert mean_jsd([0.1, None, 0.3]) == (pytest.approx(0.2), 2, "")
    assert mean_jsd([None]) == (None, 0, "no forget answer has a token")
    assert mean_jsd([float("nan"), 0.1])[0] is None
