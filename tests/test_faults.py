"""Faults that users of public unlearning harnesses met, one test a kind, with the right value.

The numbers are those of the list that the faults were gathered in; other tests go deeper into each part.
"""

from __future__ import annotations

import copy
import datetime
import json
import math
import shutil

import numpy as np
import pytest
import torch
from test_tofu import answer, plain, world
from test_tofu import build as build_task
from test_tofu import save as save_world
from test_tofu import score as score_task
from tiny_logs import save as save_log
from tiny_logs import tofu_log
from tiny_text import CHAT, NO_SYSTEM, random_llama, word_tokenizer

from harness import scoring
from harness.asking import refuse_same
from harness.batches import deal
from harness.clock import Allowance, Clock
from harness.errors import DataError, ReferenceError_
from harness.generate.hf import HFGenerator
from harness.importing import import_log
from harness.job import Job, Plan
from harness.metrics import memorization, privacy, text
from harness.metrics.choice import choice_accuracy, document_mean, macro_mean
from harness.metrics.composites import floored_harmonic_mean
from harness.metrics.utility import MODEL_UTILITY_PARTS, harmonic_mean, model_utility
from harness.models import LoadedModel, weights_hash
from harness.rank import gain
from harness.scores import invalid
from harness.specs import Batching, OptimizerSpec, Template
from harness.tasks.tofu_columns import METRICS
from harness.text import Encoder
from harness.types import Answers, ClassAnswers, LikelihoodAnswers, TextRow, TokenScores

INFO = {info.id: info for info in METRICS}
ROW = TextRow("r/0", "Who kept the light at Marl Point?", "Ada Finch kept the light.")


def tokens(hit, eos=False, logp=None):
    """One row of token scores; `eos`: its last token ends the answer."""
    hit = np.array(hit, dtype=bool)
    values = np.full(len(hit), -1.0) if logp is None else np.array(logp)
    ends = np.array([False] * (len(hit) - 1) + [eos] if len(hit) else [], dtype=bool)
    values = values.astype(np.float32)
    return TokenScores(values, hit, ends, values, values * 0 + 1, np.array([0, len(hit)]))


def encoder(chat=CHAT, template=None, **more):
    return Encoder(word_tokenizer(chat=chat, **more), template or Template(), 64)


# --- references and the pairing of splits ---
def test_fault_01_reference_is_the_model_itself(tmp_path):
    log = save_log(tmp_path / "a.json", tofu_log())
    with pytest.raises(ReferenceError_, match="forget quality would come out as 1"):
        import_log(log, save_log(tmp_path / "b.json", tofu_log()))
    with pytest.raises(ReferenceError_, match="same weights as the target"):
        refuse_same("board", "retain", {"model.retain": "abc", "model.target": "abc"})
    ratios = [0.4, 0.7, 0.2]
    assert (
        privacy.forget_quality(ratios, ratios).p == 1.0
    )  # true of the retained model, whose row is a reference row


def test_fault_02_forget_quality_is_missing_without_a_reason(tmp_path):
    task = build_task(save_world(tmp_path / "data", world()))
    scores = score_task(task, answer(task))
    for name in ("forget_quality.p", "forget_quality.log10p", "privleak", "priv"):
        assert scores[name].value is None and "`uharness reference BOARD`" in scores[name].why
    assert INFO["forget_quality.p"].unit == "probability" and INFO["forget_quality.log10p"].unit == "log10"


def test_fault_03_privleak_falls_back_to_a_reference_of_one_half():
    assert privacy.privleak(0.00002, None).value is None
    assert privacy.privleak(0.00002, 0.5).value == pytest.approx(99.996)
    assert privacy.privleak(0.981, None).value is None  # -96.2 was the silent 0.5
    with pytest.raises(ReferenceError_):  # 5215.5 was the full model's own log as the reference
        refuse_same("board", "retain", {"model.retain": "full", "model.target": "full"})


def test_fault_04_forget10_is_scored_against_retain95(tmp_path):
    folder = save_world(tmp_path / "data", world())
    with pytest.raises(DataError, match="forget05 goes with retain95"):
        build_task(folder, retain="retain90")
    log = save_log(tmp_path / "a.json", tofu_log())
    with pytest.raises(
        ReferenceError_, match="6 of 6 forget questions differ"
    ):  # the index keys are the same
        import_log(log, save_log(tmp_path / "b.json", tofu_log(seed=1, forget="west")))


def test_fault_05_the_reference_is_truncated(tmp_path):
    log = save_log(tmp_path / "a.json", tofu_log(400))
    with pytest.raises(ReferenceError_, match=r"has 300 forget rows, and a\.json has 400"):
        import_log(log, save_log(tmp_path / "b.json", tofu_log(300, seed=1)))


def test_fault_06_a_p_value_has_a_floor_that_depends_on_n(tmp_path):
    floors = {
        2: 0.3333,
        3: 0.1,
        4: 0.0286,
        5: 0.0079,
        10: 1.08e-5,
        20: 1.45e-11,
        40: 1.86e-23,
        200: 1.943e-119,
    }
    for n, p in floors.items():
        result = privacy.forget_quality(list(range(n)), list(range(n, 2 * n)))
        assert (result.n, result.m, result.d) == (n, n, 1.0) and result.p == pytest.approx(p, rel=5e-3)
        assert result.log10p == pytest.approx(math.log10(result.p), abs=1e-6)
    task = build_task(save_world(tmp_path / "data", world()))
    few = score_task(task, answer(task), answer(task, 1, right=-1.5))["forget_quality.p"]
    assert few.n == 4 and "no smaller p than 0.0286" in few.why


def test_fault_07_the_wrong_config_is_evaluated(tmp_path):
    splits = world() | {"forget05_perturbed": [plain("north", i) for i in range(4)]}
    with pytest.raises(DataError, match=r"forget05_perturbed.*'perturbed_answer'.*forget10_perturbed"):
        build_task(save_world(tmp_path / "data", splits))


# --- arithmetic of metrics ---
def test_fault_08_truth_ratio_means_different_things():
    geometric, arithmetic = (
        memorization.truth_ratio([1.0], [[2.0, 4.0]], m)[0] for m in ("geometric", "arithmetic")
    )
    assert (geometric, arithmetic) == (pytest.approx(0.1353, abs=5e-5), pytest.approx(0.2088, abs=5e-5))
    assert memorization.truth_share([geometric])[0] == pytest.approx(0.881, abs=5e-4)
    ratios = [0.5, 2.0, 0.25]
    assert np.mean(memorization.forget_truth_ratio(ratios)) == pytest.approx(0.4167, abs=5e-5)
    assert np.mean(memorization.retain_truth_ratio(ratios)) == pytest.approx(0.4167, abs=5e-5)
    assert {"forget.truth_ratio", "forget.truth_ratio.arithmetic", "forget.truth_ratio.share"} <= set(INFO)


def test_fault_09_arrows_point_the_wrong_way():
    assert (INFO["privleak"].direction, INFO["privleak"].target) == ("target", 0.0)
    assert INFO["forget.truth_ratio"].direction == "target" and INFO["forget.truth_ratio"].target is None
    values = [-100.0, 0.0, 109.6]
    assert sorted(values, key=lambda v: -gain(INFO["privleak"], v)) == [0.0, -100.0, 109.6]


def test_fault_10_privleak_surprises_with_its_range_and_orientation():
    for reference, most, half in ((0.4772, 109.56, 4.78), (0.5393, 85.43, -7.29)):  # as published: 1 - AUC
        assert privacy.privleak(0.0, 1 - reference).value == pytest.approx(most, abs=0.01)
        assert privacy.privleak(1.0, 1 - reference).value == pytest.approx(-100.0)
        assert privacy.privleak(0.5, 1 - reference).value == pytest.approx(half, abs=0.01)
    assert privacy.auc([1.0, 2.0], [1.0, 2.0]).value == 0.5
    assert privacy.auc([0.1, 0.2], [0.8, 0.9]).value == 1.0  # members have the lower loss
    nothing = privacy.privleak(0.3, 1.0)
    assert nothing.value is None and "too small to divide by" in nothing.why


def test_fault_11_privleak_cannot_be_computed_as_published():
    published = {"news": 0.4772, "books": 0.5393}
    values = {corpus: privacy.privleak(0.5, 1 - reference) for corpus, reference in published.items()}
    assert all(score.value is not None for score in values.values())


def test_fault_12_one_name_for_two_rouges():
    right, said = ["He runs daily"], ["He run daily"]
    assert text.rouge(said, right, stem=False) == pytest.approx([2 / 3])
    assert text.rouge(said, right) == [1.0]
    many = ["Paris Rome Oslo Bonn"]
    assert (text.rouge(many, ["Paris"]), text.rouge(many, ["Paris"], part="f1")) == ([1.0], [0.4])
    assert {"forget.rougeL_recall", "forget.rougeL_f1", "forget.rouge1_recall"} <= set(INFO)


def test_fault_13_a_wordless_answer_crashes_rouge():
    said = ["", " ", ".", "...", "\n"]
    for kind in ("rougeL", "rouge1"):
        assert text.rouge(said, ["Stephen King"] * 5, kind=kind) == [0.0] * 5
    assert sum(text.empty(said)) == 5


def test_fault_15_extraction_strength_never_reaches_zero():
    es, published = memorization.extraction_strength, memorization.extraction_strength_published
    assert es(tokens([False] * 4)) == [0.0] and es(tokens([False, False, True, True])) == [0.5]
    assert es(tokens([True] * 4)) == [1.0] and es(tokens([])) == [None]
    assert published(tokens([False] * 5, eos=True)) == [0.25]
    assert es(tokens([False, False, True, True, False], eos=True)) == [0.5]  # EOS is left out
    assert es(tokens([False, False, True, True, True])) == [0.6]  # a last real token is not


def test_fault_16_a_harmonic_mean_hides_or_breaks():
    for mean in (harmonic_mean, floored_harmonic_mean):
        assert mean({"a": 0.6, "b": 0.0, "c": 0.5}).value == pytest.approx(0.0, abs=1e-11)
        for bad in (-0.1, float("nan"), None):
            score = mean({"a": 0.6, "b": bad, "c": 0.5})
            assert score.value is None and score.why.startswith("b is ")
    eight = dict.fromkeys(MODEL_UTILITY_PARTS[:-1], 0.5)
    assert "world_facts.truth_ratio is missing" in model_utility(eight).why


def test_fault_18_a_broken_model_scores_chance():
    gold = [0, 1, 2, 3] * 25
    broken = choice_accuracy(np.full((100, 4), np.nan), gold)
    assert broken.score.value is None and broken.invalid == 100 and broken.letters == (0, 0, 0, 0)
    assert choice_accuracy(np.zeros((100, 4)), gold).score.value is None  # every likelihood the same
    always_a = choice_accuracy(np.tile([0.0, -1, -1, -1], (100, 1)), gold)
    assert always_a.score.value == 0.25 and always_a.letters == (100, 0, 0, 0)
    one = np.tile([0.0, -1, -1, -1], (100, 1))
    one[7] = np.nan
    few = choice_accuracy(one, gold)
    assert few.score.n == 99 and few.hits[7] is None and few.invalid == 1
    ids = tuple(map(str, range(100)))
    for logits, shown in ((np.full((100, 4), np.nan), "NaN"), (np.zeros((100, 4)), "tie")):
        assert shown in invalid(Answers({"q": ClassAnswers(ids, logits.astype(np.float32))}))
    logp = LikelihoodAnswers(("a",), tokens([True, False], logp=[-1.0, float("nan")]))
    assert "50.0% of the values" in invalid(Answers({"forget": logp}))


def test_fault_20_averages_over_subjects_are_not_over_documents():
    hits = {"A": [1.0], "B": [0.0] * 9}
    assert document_mean(hits).value == pytest.approx(0.1) and document_mean(hits).n == 10
    assert macro_mean(hits).value == pytest.approx(0.5) and macro_mean(hits).n == 2
    assert (
        document_mean({"A": [None]}).value is None and "question of B" in macro_mean(hits | {"B": [None]}).why
    )


# --- tokens, templates, labels ---
def test_fault_22_the_first_answer_token_is_masked():
    inputs = scoring.pad([[1, 10, 11, 12, 2]], [3], 0, torch.arange(1), "cpu")
    labels = torch.where(inputs.mask, inputs.labels, -100)[0].tolist()
    assert labels == [12, 2] and inputs.answer[0].tolist() == [False, False, False, True, True]
    coder = encoder(adds_bos=True)
    encoded = coder.encode(ROW)
    answer_ids = list(encoded.ids[encoded.start :])
    assert coder.tokenizer.convert_ids_to_tokens(answer_ids) == [
        "Ada",
        "Finch",
        "kept",
        "the",
        "light",
        ".",
        "</s>",
    ]


def test_fault_23_pad_is_eos_and_hides_it():
    inputs = scoring.pad([[7, 8, 2], [7, 8, 9, 2]], [1, 1], 2, torch.arange(2), "cpu")
    assert torch.where(inputs.mask, inputs.labels, -100).tolist() == [[8, 2, -100], [8, 9, 2]]
    assert inputs.attention.tolist() == [[True, True, True, False], [True] * 4]
    coder = encoder(pad=None)
    assert coder.pad_id == coder.tokenizer.eos_token_id
    assert bool(scoring.collate([ROW], coder).mask[0, -1])


def test_fault_25_the_prompt_changes_with_the_calendar(monkeypatch):
    import transformers.utils.chat_template_utils as utils

    chat = "{{ bos_token }}Today is {{ strftime_now('%d %b %Y') }} " + CHAT.replace("{{ bos_token }}", "")
    seen = []
    for day in (datetime.datetime(2025, 4, 10), datetime.datetime(2026, 1, 1)):
        clock = type("Clock", (datetime.datetime,), {"now": classmethod(lambda cls, tz=None, day=day: day)})
        monkeypatch.setattr(utils, "datetime", clock)
        coder = encoder(chat)
        seen.append((coder.prompt(ROW), coder.encode(ROW), coder.describe()))
    assert seen[0] == seen[1]
    assert coder.tokenizer.convert_ids_to_tokens(list(seen[0][0]))[3:6] == ["10", "Apr", "2025"]
    other = encoder(chat, Template(date="11 Apr 2025")).describe()
    assert seen[0][2]["date"] == "10 Apr 2025" and seen[0][2]["rendered"] != other["rendered"]


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("chat", [CHAT, CHAT.replace("{{ bos_token }}", ""), "{{ bos_token }}" + CHAT, None])
def test_fault_26_bos_comes_twice_or_not_at_all(adds_bos, chat):
    coder = encoder(chat, adds_bos=adds_bos)
    wanted = int(adds_bos or "bos_token" in (chat or ""))
    for ids in (coder.prompt(ROW), coder.encode(ROW).ids):
        assert ids.count(1) == wanted and ids[:1] == ((1,) if wanted else ids[:1])
    encoded = coder.encode(ROW)
    assert coder.prompt(ROW) == encoded.ids[: encoded.start]  # generation and likelihoods see the same ids


def test_fault_27_the_template_has_no_system_role():
    system = Template(system="Be brief, please.")
    folded = encoder(NO_SYSTEM + CHAT, system)
    assert folded.describe()["system"] == "folded" and encoder(CHAT, system).describe()["system"] == "role"
    shown = folded.tokenizer.convert_ids_to_tokens(list(folded.prompt(ROW)))
    assert shown[1:6] == ["<|user|>", "Be", "brief", ",", "please"]


def test_fault_28_a_trailing_space_changes_the_first_answer_token():
    coder, seen = encoder(template=Template(plain=True)), []
    coder._ids = lambda text, ids=coder._ids: (seen.append(text), ids(text))[1]
    coder.encode(ROW)
    golden = b"Question: Who kept the light at Marl Point?\nAnswer:"
    assert [t.encode() for t in seen] == [golden, golden + b" Ada Finch kept the light."]


@pytest.fixture(scope="module")
def llama():
    coder = encoder(pad=None)
    return random_llama(len(coder.tokenizer), seed=3), coder


def test_fault_29_padding_changes_the_result(llama):
    model, coder = llama
    rows = [
        TextRow("a", "Hi", "Ada."),
        TextRow("b", "A much longer prompt about birds and light", "A grey heron."),
    ]
    together = scoring.score(model, rows, coder)
    for i, row in enumerate(rows):
        one = scoring.score(model, [row], coder)
        assert together.row(i).logp == pytest.approx(one.logp, abs=1e-4)
        assert (together.row(i).hit == one.hit).all()
    prompts = [coder.prompt(row) for row in rows]
    single = tuple(HFGenerator(model, coder).generate([p], max_tokens=8)[0] for p in prompts)
    assert HFGenerator(model, coder).generate(prompts, max_tokens=8) == single


def test_fault_30_an_end_that_is_not_the_tokenizers_eos(llama):
    model, coder = llama
    turn = encoder(CHAT.replace("{{ eos_token }}", "<|end|>"))
    assert turn.eos_ids == {2, 7}  # the tokenizer's, and the template's end of turn
    assert not turn.eos_ids & set(turn.prompt(ROW)[-1:])  # a prompt that ends in EOS gives empty answers
    prompt = coder.prompt(ROW)
    with torch.no_grad():
        first = int(model(input_ids=torch.tensor([prompt])).logits[0, -1].argmax())
    ended = copy.deepcopy(model)
    ended.generation_config.eos_token_id = [2, first]
    assert HFGenerator(ended, coder).generate([prompt], max_tokens=4) == (("", False),)
    assert HFGenerator(model, coder).generate([prompt], max_tokens=4)[0][1]  # cut at the limit, and said so
    assert {"forget.hit_limit", "forget.empty"} <= set(INFO)


# --- training ---
def make_job(model, coder, *, batching=None, updates=3, rows=12):
    forget = [
        TextRow(f"f/{i}", "Who kept the light?", f"Ada Finch kept {'the ' * (1 + i % 3)}light.")
        for i in range(rows)
    ]
    retain = [
        TextRow(f"r/{i}", "Which bird nests there?", "A grey heron nests there.") for i in range(rows + 4)
    ]
    plan = Plan(0, batching or Batching(effective=8, micro=4), OptimizerSpec(lr=1e-3, warmup=0))
    clock = Clock(Allowance(None, updates))
    return Job(LoadedModel(model, coder), forget, retain, clock, plan)


def test_fault_32_policy_and_reference_differ_at_step_0():
    coder = encoder()
    model = random_llama(len(coder.tokenizer), seed=1, attention_dropout=0.5).train()
    job = make_job(model, coder)
    reference = job.sequence_logp(job.forget)
    for micro in next(job.batches()).micros:
        now = scoring.token_logp(job.forward(micro.forget)).sum(-1)
        assert now.detach().numpy() == pytest.approx(reference[micro.forget.index].numpy(), abs=1e-5)


def test_fault_33_a_second_model_for_npo(monkeypatch):
    from harness.plugins import load_submission
    from harness.workspace import bundled

    coder = encoder()
    job = make_job(random_llama(len(coder.tokenizer), seed=1), coder)
    asked, plain_logp = [], job.sequence_logp
    monkeypatch.setattr(job, "sequence_logp", lambda rows: (asked.append(len(rows)), plain_logp(rows))[1])

    def refuse(*_, **__):
        raise AssertionError("the model was copied")

    monkeypatch.setattr(job, "frozen_reference", refuse)
    monkeypatch.setattr(type(job.model), "__deepcopy__", refuse, raising=False)
    method = load_submission("npo", (bundled() / "submissions",)).submission.method
    with job.clock.lane("train"):
        method.unlearn(job)
    assert asked == [12] and job.clock.updates == 3


def test_fault_34_all_ranks_draw_the_same_rows():
    one = deal(0, 1, 400, 64, 32)
    shares = [one[rank::2] for rank in range(2)]
    assert not set(shares[0]) & set(shares[1]) and sorted(np.concatenate(shares)) == sorted(one)
    assert (deal(0, 1, 400, 64, 32) == one).all()  # no state, no process count: a function of its arguments
    pieces = np.concatenate([deal(0, 1, 400, start, 8) for start in range(64, 96, 8)])
    assert (pieces == one).all()
    assert sorted(deal(0, 1, 400, 400, 400)) == list(range(400))  # every epoch has every row once


def test_fault_35_nobody_knows_the_effective_batch():
    from harness.loop import fit

    coder = encoder()
    job = make_job(random_llama(len(coder.tokenizer), seed=1), coder, batching=Batching(effective=8, micro=2))
    sizes, counted = [], 0
    for update, _ in zip(job.batches(), range(3), strict=False):
        sizes.append((len(update.micros), sum(len(m.forget) for m in update.micros), update.examples))
        counted += sum(int(x.attention.sum()) for m in update.micros for x in (m.forget, m.retain))
        assert sum(m.weight for m in update.micros) == pytest.approx(1.0)
    assert sizes == [(4, 8, 16)] * 3
    with job.clock.lane("train"):
        fit(job, lambda batch: scoring.token_logp(job.forward(batch.forget)).mean())
    assert (job.clock.updates, job.seen.examples, job.seen.tokens) == (3, 48, counted)
    seen = np.concatenate([deal(0, 0, 12, k * 8, 8) for k in range(3)])
    assert (np.bincount(seen, minlength=12) == 2).all()  # 24 of 12 rows: no tail is dropped between epochs


# --- running and storing ---
def test_fault_37_stale_results_are_reused(uharness, workspace):
    from safetensors.torch import load_file, save_file

    from harness.models import MINI

    folder = workspace / "model"
    shutil.copytree(MINI / "bma" / "M4", folder)
    numbers, hashes = [], []
    for _ in range(2):
        ran = uharness("evaluate", str(folder), "--board", "tiny", "--json", "out.json")
        assert ran.code == 0, ran.err
        report = json.loads((workspace / "out.json").read_text())
        numbers.append(report["scores"]["forget.p"]["value"])
        hashes.append((weights_hash(str(folder)), report["env"]["model"]))
        path = next(folder.glob("*.safetensors"))
        path.chmod(0o644)
        save_file({name: value * 0.5 for name, value in load_file(path).items()}, path)
    assert numbers[0] != numbers[1]
    assert hashes[0][0] == hashes[0][1] != hashes[1][1] == hashes[1][0]


def test_fault_37_the_key_of_cached_answers_has_everything_in_it(tmp_path):
    from harness.preflight import Ready, reference_key
    from harness.workspace import load_board

    toml = """
rank_by = "mem"
columns = ["mem"]
seeds = [0]
task = {{ name = "tofu", split = "forget05" }}
models = {{ target = "own/model" }}
budget = {{ updates = 1 }}
max_length = {length}
template = {{ date = "{date}" }}
"""

    def key(name, *, weights="abc", length=64, date="10 Apr 2025", limit=None, change=None):
        splits = world()
        if change:
            splits["retain95"][0] = plain("elsewhere", 0)
        path = tmp_path / f"b{name}.toml"
        path.write_text(toml.format(length=length, date=date))
        board = load_board(path).model_copy(update={"name": "b"})
        task = build_task(save_world(tmp_path / name, splits))
        return reference_key(Ready(board, task, {}), "forget05", 0, weights, limit)

    first = key("a")
    assert first == key("b")
    changed = [
        key("c", weights="abd"), key("d", length=65), key("e", date="11 Apr 2025"), key("f", limit=2),
        key("g", change=True),
    ]  # fmt: skip
    assert len({first, *changed}) == 6
