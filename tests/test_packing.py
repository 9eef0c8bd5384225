"""Packing gives a model's own values, or is not used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_text import word_tokenizer
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from harness import packing, scoring
from harness.specs import Template
from harness.text import Encoder
from harness.types import TextRow

ROWS = [
    TextRow(f"r{i}/{j}", f"Who kept the light at {town} ?", answer)
    for i, town in enumerate(("Marl Point", "Tarn"))
    for j, answer in enumerate(
        ("Ada Finch kept the light", "A grey heron", "Tarn", "the old bridge of Tarn .")
    )
]


def models(vocab: int) -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    small = {"vocab_size": vocab, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return {
        "llama": LlamaForCausalLM(LlamaConfig(**small, **heads)),
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_embd=32, n_layer=2, n_head=2)),
        "capped logits": Gemma2ForCausalLM(
            Gemma2Config(**small, **heads, head_dim=16, final_logit_softcapping=0.5, sliding_window=4)
        ),
    }


@pytest.mark.parametrize("name", ["llama", "gpt2", "capped logits"])
def test_values_are_those_of_the_plain_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = word_tokenizer()
    encoder = Encoder(tokenizer, Template(), 64)
    model = models(len(tokenizer))[name].eval()
    found: list[bool] = []
    real = packing.usable
    monkeypatch.setattr(packing, "usable", lambda *a: found.append(real(*a)) or found[-1])
    mine = scoring.score(model, ROWS, encoder)
    monkeypatch.setattr(packing, "usable", lambda *_: False)
    plain = scoring.score(model, ROWS, encoder)
    np.testing.assert_allclose(mine.logp, plain.logp, atol=1e-4)
    np.testing.assert_array_equal(mine.hit, plain.hit)
    if name == "llama":
        assert found == [True]
    if name == "capped logits":
        assert found == [False]


def test_packs_hold_every_row_once_and_keep_to_the_limit() -> None:
    keys = [((1, 2, 3, *range(10, 10 + n)), 3) for n in range(1, 9)] + [((7, 8), 1)]
    for limit in (1, 8, 20, 1000):
        made = packing.packs(keys, limit)
        assert sorted(k for p in made for k in p.keys) == sorted(keys)
        assert all(len(p) <= limit or len(p.answers) == 1 for p in made)


def test_reduced_logits_are_exact_at_both_ends() -> None:
    logits = torch.tensor([[0.0, 40.0, 0.0], [1.0, 1.0, 1.0], [0.0, float("-inf"), 0.0]])
    right, hit, mean, variance = scoring.reduce_logits(logits, torch.tensor([1, 0, 0]))
    assert right[0] == pytest.approx(-2 * np.exp(-40.0), rel=1e-5)  # plain float32 log-softmax gives 0
    assert right[1:] == pytest.approx([-np.log(3), -np.log(2)], rel=1e-6)
    assert hit.tolist()[:1] == [True]
    assert mean[1:] == pytest.approx([-np.log(3), -np.log(2)], rel=1e-6)
    assert variance == pytest.approx([0, 0, 0], abs=1e-6)
    nan = scoring.reduce_logits(torch.tensor([[float("nan"), 1.0]]), torch.tensor([1]))
    assert np.isnan(nan[0]).all()
