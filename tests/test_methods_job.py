"""Methods that need more of the job than a loss, and what the job gives them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from test_loop import make_job, mini_job
from tiny_job import method, moved, run, text_job, weights
from tiny_text import random_llama, word_tokenizer

from harness import blocks, losses, scoring
from harness.errors import SubmissionError
from harness.generate.hf import HFGenerator
from harness.models import INSTRUCTION, MINI, load, load_encoder, save, weights_hash
from harness.specs import Template
from harness.text import Encoder
from harness.types import TextRow


# --- blocks ---
@pytest.mark.parametrize(("count", "layer"), [(16, 7), (28, 12), (32, 14), (4, 1), (1, 0)])
def test_the_layer_of_rmu_is_seven_sixteenths_of_the_depth(count: int, layer: int) -> None:
    assert blocks.layer_at(method("rmu").depth, count) == layer


def test_the_layer_of_lunar_is_22_of_32_and_a_fraction_of_one_is_the_last_block() -> None:
    assert [blocks.layer_at(method("lunar").depth, n) for n in (32, 16, 4)] == [22, 11, 2]
    assert [blocks.layer_at(1.0, n) for n in (1, 4)] == [0, 3]
    assert blocks.layer_at(0.29, 100) == 29  # .29 x 100 is 28.999999999999996


def test_a_pass_that_ends_at_a_block_gives_what_the_whole_pass_gives_there() -> None:
    job = text_job(rows=3)
    inputs = job.collate(job.forget)
    whole = job.forward(inputs, hidden=(0, 2))
    for layer in (0, 2):
        torch.testing.assert_close(job.hidden(inputs, layer), whole.hidden[layer])
    last = job.hidden(inputs, 3)
    normed = job.model.model.norm(last)
    torch.testing.assert_close(
        job.model.lm_head(normed)[inputs.answer], job.model(inputs.x).logits[inputs.answer]
    )
    reference = job.frozen_reference()
    torch.testing.assert_close(reference.hidden(inputs, 2), whole.hidden[2])
    assert not reference.hidden(inputs, 2).requires_grad and job.hidden(inputs, 2).requires_grad


def test_a_block_that_is_not_there_is_told() -> None:
    job = text_job(rows=2)
    for layer in (-1, 4):
        with pytest.raises(SubmissionError, match="the model has 4, from 0 to 3"):
            job.hidden(job.collate(job.forget), layer)
    line, _ = make_job()
    with pytest.raises(SubmissionError, match="Line gives no hidden states"):
        line.hidden(line.collate(line.forget), 0)


def test_the_modular_transformer_has_one_block() -> None:
    model = load(str(MINI / "bma" / "M4")).model
    assert blocks.depth(model) == 1 and not blocks.blocks(model)
    inputs = scoring.pad([[1, 2, 3]], [1], 0, torch.arange(1), "cpu")
    pairs = scoring.Inputs(inputs.index, torch.tensor([[3, 4]]), None, inputs.labels, inputs.mask, None, 1)
    assert blocks.hidden_states(model, pairs, 0).shape == (1, 1, 128)
    assert blocks.down_projection(model, 0) is model.mlp_out


def test_the_matrix_that_ends_an_mlp_is_told_by_shape_not_by_name() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    llama = random_llama(40)
    assert blocks.down_projection(llama, 1) is llama.model.layers[1].mlp.down_proj
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, n_positions=16))
    assert blocks.down_projection(gpt, 0) is gpt.transformer.h[0].mlp.c_proj


# --- RMU ---
def test_activation_distance_by_hand() -> None:
    states = torch.tensor([[[1.0, 2.0], [0.0, 4.0], [9.0, 9.0]], [[3.0, 0.0], [7.0, 7.0], [8.0, 8.0]]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    target = torch.tensor([1.0, 0.0])
    # squared norms to the target: 4, 17 | 4; per row 10.5 and 4; mean over rows 7.25, and half of it per number
    assert losses.activation_distance(states, target, mask, "sum").item() == 7.25
    assert losses.activation_distance(states, target, mask).item() == 3.625
    assert losses.activation_distance(states, states, mask).item() == 0
    none = losses.activation_distance(states, target, torch.zeros_like(mask))
    assert none.item() == 0


def test_activation_distance_leaves_masked_tokens_without_gradient() -> None:
    states = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    assert torch.autograd.gradcheck(
        lambda h: losses.activation_distance(h, torch.ones(4).double(), mask), states
    )
    losses.activation_distance(states, torch.ones(4).double(), mask).backward()
    assert (states.grad[~mask] == 0).all() and (states.grad[mask] != 0).any()


def test_rmu_brings_forget_states_to_one_direction_and_leaves_retain_states() -> None:
    job = text_job(updates=60, effective=8)
    before = job.hidden(job.collate(job.retain), 1).detach()
    forget = job.collate(job.forget)
    away = job.hidden(forget, 1)[forget.answer].detach()
    run("rmu", job, c=4.0)
    u = torch.rand(128, generator=torch.Generator().manual_seed(0))
    target = 4.0 * u / u.norm()
    assert (target > 0).all() and target.norm() == pytest.approx(4.0)
    now = job.hidden(forget, 1)[forget.answer].detach()
    kept = job.collate(job.retain)
    distance = (job.hidden(kept, 1) - before)[kept.answer].norm(dim=-1).mean()
    assert (now - target).norm(dim=-1).mean() < 0.5 * (away - target).norm(dim=-1).mean()
    assert distance < 0.5 * (now - away).norm(dim=-1).mean()


def test_rmu_trains_what_lies_below_its_block_or_three_matrices() -> None:
    job = text_job()
    before = weights(job)
    run("rmu", job)
    changed = moved(job, before)
    assert {n.split(".")[2] for n in changed if "layers" in n} == {"0", "1"}
    job = text_job()
    run("rmu", job, form="wmdp", layer=2)
    assert moved(job, before) == {f"model.layers.{k}.mlp.down_proj.weight" for k in range(3)}
    for settings, says in (({"form": "wmdp"}, "layer to 2 or more"), ({"layer": 9}, "no block 9")):
        with pytest.raises(SubmissionError, match=says):
            run("rmu", text_job(), **settings)


def test_rmu_trains_the_modular_transformer_too() -> None:
    job = mini_job(None)
    before = weights(job)
    run("rmu", job, c=4.0)
    assert moved(job, before) == set(before) - {
        "unembed.weight"
    }  # what comes after its one block has no gradient
    with pytest.raises(SubmissionError, match="three blocks up to block 0"):
        run("rmu", mini_job(None), form="wmdp")


def test_rmu_draws_its_direction_by_the_seed() -> None:
    first, again, other = (run("rmu", text_job(seed=s, updates=1)) for s in (0, 0, 1))
    assert not moved(first, weights(again)) and moved(first, weights(other))


# --- LUNAR ---
def test_lunar_shifts_one_matrix_on_forget_questions() -> None:
    job = text_job(updates=400, rows=4)
    before, matrix = weights(job), job.down_projection(2)
    forget = job.collate([TextRow(r.id, r.prompt, "") for r in job.forget])
    asked = forget.attention & ~forget.answer
    last = job.hidden(forget, 2)[torch.arange(4), asked.sum(-1) - 1].double()
    refused = job.collate([TextRow("", text, "") for text in job.resource("refusal_prompts")])
    end = job.hidden(refused, 2)[torch.arange(60), (refused.attention & ~refused.answer).sum(-1) - 1].double()
    direction = (end.mean(0) - last.mean(0)).float().detach()
    kept = job.collate(job.retain)
    old = job.hidden(forget, 2).detach(), job.hidden(kept, 2).detach()
    run("lunar", job, tokens=256, c=1.0)
    assert moved(job, before) == {"model.layers.2.mlp.down_proj.weight"}
    assert job.model.model.layers[2].mlp.down_proj is matrix
    assert job.seen.log[0]["value"] == pytest.approx(float(direction.norm()), rel=1e-4)
    shift = (job.hidden(forget, 2) - old[0])[asked].mean(0)
    cosine = torch.nn.functional.cosine_similarity(shift, direction, dim=0)
    still = (job.hidden(kept, 2) - old[1])[kept.attention & ~kept.answer].mean(0)
    assert cosine > 0.9 and still.norm() < 0.6 * shift.norm()
    assert job.seen.tokens == 400 * min(256, int(asked.sum()) + int((kept.attention & ~kept.answer).sum()))


def test_lunar_ends_in_time_however_long_caching_takes() -> None:
    t = [0.0]
    job = text_job(seconds=14.0, now=lambda: t[0], micro=2)
    job.model.model.layers[0].register_forward_pre_hook(lambda *_: t.__setitem__(0, t[0] + 1.0))
    job.down_projection(2).register_forward_hook(lambda *_: t.__setitem__(0, t[0] + 0.5))
    run("lunar", job, retain_rows=16)
    assert job.clock.overshoot_s == 0 and job.clock.updates >= 5
    assert [note["name"] for note in job.seen.log].count("rows.cached") >= 1


# --- alternative answers, refusals ---
def test_altpo_prefers_answers_that_the_model_wrote_itself() -> None:
    job = text_job(rows=6)
    altpo = method("altpo", prompt="{question}", max_tokens=30, temperature=2.0, k=3)
    rounds = altpo.written(job, job.forget)
    assert len(rounds) == 3 and all([r.id for r in rows] == [r.id for r in job.forget] for rows in rounds)
    assert (
        rounds == altpo.written(text_job(rows=6), job.forget) != altpo.written(text_job(seed=1), job.forget)
    )
    same = sum(a.target == b.target for rows in rounds for a, b in zip(rows, job.forget, strict=True))
    assert same <= 1
    ran = run("altpo", job, prompt="{question}", max_tokens=30, temperature=2.0)
    assert {n["name"] for n in ran.seen.log} == {"writing.s", "alternatives.distinct"}
    assert ran.clock.updates == 3


def test_altpo_stops_writing_when_half_of_the_budget_is_spent() -> None:
    t = [0.0]
    job = text_job(seconds=10.0, now=lambda: t[0])
    says = job.generate
    job.generate = lambda *a, **k: (t.__setitem__(0, t[0] + 3.0), says(*a, **k))[1]  # type: ignore[method-assign]
    with job.clock.lane("train"):
        rounds = method("altpo", prompt="{question}", max_tokens=9, k=5, tries=1).written(job, job.forget)
    assert len(rounds) == 2


def test_preference_losses_start_at_their_constant() -> None:
    for name, settings in (("idk_dpo", {}), ("altpo", {"max_tokens": 5, "k": 1})):
        job = text_job(rows=4, updates=1)
        seen: list[float] = []
        dpo = losses.dpo
        losses.dpo = lambda *a, d=dpo, s=seen: (s.append(d(*a).item()), d(*a))[1]  # type: ignore[assignment]
        try:
            run(name, job, alpha=0.0, **settings)
        finally:
            losses.dpo = dpo
        assert seen == [pytest.approx(20 * math.log(2), rel=1e-4)]


def test_idk_answers_are_redrawn_by_seed_update_and_row() -> None:
    job, pool = text_job(), tuple(map(str, range(1000)))
    idk = method("idk_dpo")

    def answers(job: object) -> list[str]:
        inputs = job.collate(job.forget)  # type: ignore[attr-defined]
        return [pool[k] for k in job.draw(inputs, len(pool))]  # type: ignore[attr-defined]

    first = answers(job)
    assert first == answers(job) == answers(text_job()) and len(set(first)) == len(first)
    assert first[2:4] == [pool[k] for k in job.draw(job.collate(job.forget[2:4], [2, 3]), len(pool))]
    job.clock.updates = 1
    assert answers(job) != first != answers(text_job(seed=1))
    rows = idk.drawn(job, job.collate(job.forget), job.resource("idk_answers"))
    assert rows.index.tolist() == list(range(8))
    said = {job.encoder.decode(rows.x[i][rows.answer[i]].tolist()).strip() for i in range(8)}
    assert said <= set(job.resource("idk_answers"))


def test_rejection_tuning_teaches_refusals() -> None:
    job = text_job(updates=40, effective=8)
    run("rejection_tuning", job)
    said = job.generate([row.prompt for row in job.forget], max_tokens=20)
    assert sum(text in job.resource("idk_answers") for text in said) >= 4


# --- drawn texts ---
def test_drawn_tokens_have_the_models_distribution_at_every_temperature() -> None:
    encoder = Encoder(word_tokenizer(), Template(), 64)
    model = random_llama(len(encoder.tokenizer), seed=3)
    generator = HFGenerator(model, encoder, batch_size=500)
    generator.stop_ids = frozenset()
    prompt = encoder.prompt(TextRow("", "Hi", ""))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    for temperature in (0.5, 1.0, 2.0):
        p = (logits / temperature).softmax(-1).numpy()
        n = 3000
        said = generator.generate([prompt] * n, max_tokens=1, temperature=temperature, seed=5)
        by_text: dict[str, float] = {}
        for token, share in enumerate(p):
            text = encoder.decode([token]).strip()
            by_text[text] = by_text.get(text, 0.0) + share
        for text, share in by_text.items():
            count = sum(t == text for t, _ in said)
            assert abs(count / n - share) < 5 * math.sqrt(share * (1 - share) / n) + 3 / n


def test_what_is_drawn_depends_on_seed_and_place_not_on_the_batch() -> None:
    job = text_job()
    prompts = [job.encoder.prompt(TextRow("", row.prompt, "")) for row in job.forget]
    drawn = [
        HFGenerator(job.model, job.encoder, size).generate(prompts, max_tokens=12, temperature=1.5, seed=7)
        for size in (1, 3, 8)
    ]
    assert drawn[0] == drawn[1] == drawn[2]
    generator = HFGenerator(job.model, job.encoder)
    assert generator.generate(prompts, max_tokens=12, temperature=1.5, seed=8) != drawn[0]
    same = generator.generate([prompts[0]] * 4, max_tokens=12, temperature=2.0)
    assert len(set(same)) > 1
    greedy = generator.generate(prompts, max_tokens=12)
    assert generator.generate(prompts, max_tokens=12, temperature=1e-6, seed=1) == greedy
    assert tuple(text for text, _ in greedy) == job.generate([r.prompt for r in job.forget], max_tokens=12)


# --- in context ---
def test_an_instruction_changes_prompts_and_no_weight(tmp_path: Path) -> None:
    job = text_job()
    before, plain = weights(job), job.encoder.prompt(job.forget[0])
    logp, said = job.sequence_logp(job.forget), job.generate([job.forget[0].prompt], max_tokens=8)
    save(job.loaded, tmp_path / "plain")
    run("in_context", job)
    assert not moved(job, before) and job.clock.updates == 0
    text = job.encoder.decode(job.encoder.prompt(job.forget[0]))
    assert all(name in text for name in job.resource("subjects")) and job.forget[0].prompt in text
    assert not torch.equal(job.sequence_logp(job.forget), logp)
    assert job.generate([job.forget[0].prompt], max_tokens=8) != said
    assert job.encoder.encode(job.forget[0]).ids[
        : len(job.encoder.prompt(job.forget[0]))
    ] == job.encoder.prompt(job.forget[0])
    save(job.loaded, tmp_path / "told")
    assert weights_hash(str(tmp_path / "told")) != weights_hash(str(tmp_path / "plain"))
    for again in (load(str(tmp_path / "told")).encoder, load_encoder(str(tmp_path / "told"))):
        assert again.prompt(job.forget[0]) == job.encoder.prompt(job.forget[0])
        assert again.describe()["instruction"] == job.encoder.instruction
    assert load_encoder(str(tmp_path / "plain")).describe()["instruction"] is None
    job.instruct("")
    assert job.encoder.prompt(job.forget[0]) == plain
    save(job.loaded, tmp_path / "told")
    assert not (tmp_path / "told" / INSTRUCTION).exists()


@pytest.mark.parametrize("chat", [None, "system", "folded"])
def test_an_instruction_stands_in_the_questions_own_turn(chat: str | None) -> None:
    from tiny_text import CHAT, NO_SYSTEM

    template = Template(system=None if chat is None else "Be brief, please.", plain=chat is None)
    tokenizer = word_tokenizer(chat=(NO_SYSTEM if chat == "folded" else "") + CHAT)
    encoder = Encoder(tokenizer, template, 64, "Today is light.")
    row = TextRow("r", "Who kept the light?", "Ada Finch.")
    text = tokenizer.decode(encoder.prompt(row))
    assert text.index("Today is light") < text.index("Who kept")
    assert chat is None or text.index("Be brief") < text.index("Today")
    assert "<|user|>" not in text[text.index("Today") :]


def test_arrays_take_no_instruction_and_write_nothing() -> None:
    job, _ = make_job()
    for ask in (lambda: job.instruct("Hush."), lambda: job.generate(["Hi"])):
        with pytest.raises(SubmissionError, match="reads arrays, not text"):
            ask()
