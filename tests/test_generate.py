from __future__ import annotations

import copy
import logging

import pytest
import torch
from tiny_text import random_llama, word_tokenizer

from harness.generate.canned import CannedGenerator
from harness.generate.hf import HFGenerator
from harness.specs import Template
from harness.text import Encoder
from harness.types import Generator, TextRow


@pytest.fixture(scope="module")
def encoder():
    return Encoder(word_tokenizer(), Template(), 64)


@pytest.fixture(scope="module")
def model(encoder):
    return random_llama(len(encoder.tokenizer), seed=3)


@pytest.fixture(scope="module")
def prompts(encoder):
    questions = [
        "Hi",
        "A much longer prompt about birds and light",
        "Who kept the light at Marl Point?",
        "Which bird nests under the old bridge of Tarn?",
        "Hi",
        "Be brief, please.",
        "light light",
    ]
    return [encoder.prompt(TextRow(str(i), q, "")) for i, q in enumerate(questions)]


def alone(model, prompt, steps, stop_ids):
    """Greedy ids by the plainest means: one row, no padding, no cache."""
    ids = list(prompt)
    while len(ids) < len(prompt) + steps:
        with torch.no_grad():
            token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if token in stop_ids:
            return ids[len(prompt) :], False
        ids.append(token)
    return ids[len(prompt) :], True


def test_batches_write_what_single_rows_write(model, encoder, prompts):
    want = []
    for prompt in prompts:
        ids, cut = alone(model, prompt, 12, encoder.eos_ids)
        want.append((encoder.decode(ids).strip(), cut))
    assert len(set(want)) > 2
    for size in (1, 3, 32):
        assert HFGenerator(model, encoder, size).generate(prompts, max_tokens=12) == tuple(want)


def test_no_prompts(model, encoder):
    assert HFGenerator(model, encoder).generate([], max_tokens=5) == ()


def first_token_of(model, prompt):
    return alone(model, prompt, 1, ())[0][0]


@pytest.mark.parametrize("where", ["generation_config", "config", "tokenizer"])
@pytest.mark.parametrize("listed", [False, True])
def test_every_declared_end_of_text_stops(model, encoder, prompts, where, listed):
    token = first_token_of(model, prompts[0])
    changed, coder = copy.deepcopy(model), encoder
    if where == "tokenizer":
        coder = copy.copy(encoder)
        coder.eos_ids = frozenset({token})
    else:
        getattr(changed, where).eos_token_id = [2, token] if listed else token
    assert HFGenerator(changed, coder).generate(prompts[:1], max_tokens=6) == (("", False),)


def test_limit_is_told_apart_from_an_end_at_the_limit(model, encoder, prompts):
    ids, _ = alone(model, prompts[2], 6, ())
    at = next(i for i in range(1, 6) if ids[i] not in ids[:i])
    coder = copy.copy(encoder)
    coder.eos_ids = frozenset({ids[at]})
    changed = copy.deepcopy(model)
    changed.config.eos_token_id = changed.generation_config.eos_token_id = None
    generator = HFGenerator(changed, coder)
    assert generator.generate([prompts[2]], max_tokens=at)[0][1] is True
    assert generator.generate([prompts[2]], max_tokens=at + 1)[0][1] is False


def test_strings_stop_each_row_by_itself(model, encoder, prompts):
    generator = HFGenerator(model, encoder, 8)
    free = generator.generate(prompts, max_tokens=10)
    text = max((t for t, _ in free), key=lambda t: len(set(t.split())))
    word = text.split()[2]
    stopped = generator.generate(prompts, max_tokens=10, stop=[word, "never"])
    for (whole, cut), (part, part_cut) in zip(free, stopped, strict=True):
        assert part == whole.split(word)[0].strip() and word not in part
        assert part_cut == (cut and word not in whole)


def test_sampling_settings_of_a_checkpoint_change_nothing(model, encoder, prompts, recwarn, caplog):
    want = HFGenerator(model, encoder).generate(prompts, max_tokens=8)
    changed = copy.deepcopy(model)
    sampling = {"do_sample": True, "temperature": 0.1, "top_p": 0.5, "top_k": 3, "num_beams": 4}
    for name, value in {
        **sampling,
        "repetition_penalty": 5.0,
        "suppress_tokens": [9],
        "max_length": 3,
    }.items():
        setattr(changed.generation_config, name, value)
    changed.train()
    before = changed.generation_config.to_dict()
    with caplog.at_level(logging.WARNING):
        assert HFGenerator(changed, encoder).generate(prompts, max_tokens=8) == want
    assert changed.generation_config.to_dict() == before and changed.training
    assert not caplog.records and not recwarn.list
    assert all(p.grad is None and p.requires_grad for p in changed.parameters())


def test_a_pad_token_that_is_eos_hides_no_eos_in_the_prompt(model):
    encoder = Encoder(word_tokenizer(pad=None), Template(), 64)
    assert encoder.pad_id in encoder.eos_ids
    prompts = [(1, 4, 9, 2, 4, 10, 5), (1, 4, 11, 5), (1, 4, 12, 13, 2, 4, 14, 15, 16, 5)]
    single = tuple(HFGenerator(model, encoder, 1).generate([p], max_tokens=9)[0] for p in prompts)
    assert HFGenerator(model, encoder, 3).generate(prompts, max_tokens=9) == single
    ids, cut = alone(model, prompts[0], 9, encoder.eos_ids)
    assert single[0] == (encoder.decode(ids).strip(), cut)


def test_a_row_ends_where_the_model_has_no_position_left(model, encoder):
    prompt = [1, 4, *[9] * 57, 5]
    changed = copy.deepcopy(model)
    changed.config.eos_token_id = changed.generation_config.eos_token_id = None
    coder = copy.copy(encoder)
    coder.eos_ids = frozenset()
    got = HFGenerator(changed, coder).generate([prompt, [1, 4, 9, 5]], max_tokens=10)
    ids, _ = alone(changed, prompt, 64 - len(prompt), ())
    assert got[0] == (encoder.decode(ids).strip(), True)
    assert len(alone(changed, [1, 4, 9, 5], 10, ())[0]) == 10


def test_canned_twin():
    generator = CannedGenerator({(1, 2): "a grey heron"}, default=None)
    assert isinstance(generator, CannedGenerator) and callable(Generator.generate)
    assert generator.generate([(1, 2), [1, 2]], max_tokens=9) == (("a grey heron", False),) * 2
    assert generator.generate([(1, 2)], max_tokens=2) == (("a grey", True),)
    assert generator.generate([(1, 2)], max_tokens=9, stop=["heron"]) == (("a grey ", False),)
    with pytest.raises(KeyError, match="no canned answer"):
        generator.generate([(3,)], max_tokens=1)
    assert CannedGenerator({}).generate([(3,)], max_tokens=1) == (("", False),)
