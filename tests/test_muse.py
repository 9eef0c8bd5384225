from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tiny_muse import TOWNS, build, save_hub, save_json, world
from tiny_text import CHAT, random_llama, word_tokenizer

from harness import scoring
from harness.entries import resolve_spec
from harness.errors import DataError
from harness.metrics import privacy
from harness.metrics.text import rouge
from harness.models import LoadedModel
from harness.plugins import outline
from harness.specs import TaskRef, Template
from harness.tasks import muse_scores
from harness.tasks.muse import ANSWER_TOKENS, CUTS, VERBATIM_TOKENS, chunks
from harness.tasks.muse_scores import PUBLISHED, balance, memq
from harness.text import Encoder
from harness.types import (
    Answers,
    Generation,
    GenerationAnswers,
    Likelihood,
    LikelihoodAnswers,
    TextRow,
    TokenScores,
)

GOLDEN = (
    "Question: How old is oak 0?\nAnswer: 90 years\n\nQuestion: How old is oak 1?\nAnswer: 91 years\n\n"
    "Question: How old is oak 2?\nAnswer: 92 years\n\nQuestion: How old is oak 3?\nAnswer: 93 years\n\n"
    "Question: How old is oak 4?\nAnswer: 94 years\n\nQuestion: How old is oak 5?\nAnswer: 95 years\n\n"
    "Question: How old is oak 6?\nAnswer: 96 years\n\nQuestion: How old is oak 7?\nAnswer: 97 years\n\n"
    "Question: How old is oak 8?\nAnswer: 98 years\n\nQuestion: How old is oak 9?\nAnswer: 99 years\n\n"
    "Question: What will be built in Karborg?\nAnswer: "
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_json(tmp_path_factory.mktemp("muse"), world())


# --- rows -----------------------------------------------------------------------------------------------------------
def test_the_prompt_of_knowmem_to_the_byte(folder):
    task = build(folder)
    rows = task.rows.asked["knowmem_forget"]
    assert rows[0].prompt.encode() == GOLDEN.encode()
    assert (rows[0].target, rows[0].form, len(rows)) == ("a salt bath", "text", 4)
    assert build(folder, examples=0, blank=False).rows.asked["knowmem_forget"][0].prompt == (
        "Question: What will be built in Karborg?\nAnswer:"
    )
    assert len(task.rows.asked["knowmem_retain"]) == 5


def test_prompts_reach_the_model_as_they_stand(folder):
    tokenizer = word_tokenizer(chat=CHAT, adds_bos=True)
    encoder, seen = Encoder(tokenizer, Template(system="Be brief."), 512), []
    encoder._ids = lambda text, ids=encoder._ids: (seen.append(text), ids(text))[1]
    ids = encoder.prompt(build(folder).rows.asked["knowmem_forget"][0])
    assert seen == [GOLDEN]
    assert ids[0] == 1 and 1 not in ids[1:]


def test_the_probes_are_muses(folder):
    task = build(folder)
    probes = {p.name: p for p in task.probes(task.case("forget", 0))}
    assert list(probes) == [
        "verbmem",
        "knowmem_forget",
        "knowmem_retain",
        "privleak_forget",
        "privleak_holdout",
    ]
    verbmem, knowmem = probes["verbmem"], probes["knowmem_retain"]
    assert isinstance(verbmem, Generation) and isinstance(knowmem, Generation)
    assert (verbmem.max_tokens, verbmem.stop) == (128, ())
    assert (knowmem.max_tokens, knowmem.stop) == (32, ("\n\n", "\nQuestion", "Question:"))
    assert (128, 32, knowmem.stop) == (VERBATIM_TOKENS, ANSWER_TOKENS, CUTS)
    assert isinstance(probes["privleak_forget"], Likelihood)
    assert {row.form for p in probes.values() for row in p.rows} == {"text"}


def test_the_hubs_shape_gives_the_same_rows(folder, tmp_path):
    task = build(save_hub(tmp_path / "hub", world()))
    assert task.data_hash() == build(folder).data_hash()
    assert [r.id for r in task.rows.asked["privleak_holdout"]] == [f"privleak_holdout/{i}" for i in range(3)]


def test_muses_own_download_gives_the_same_rows(folder, tmp_path):
    for name, records in world().items():
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        bare = [r["text"] if set(r) == {"text"} else r for r in records]
        path.write_text(json.dumps(bare))
    assert build(tmp_path).data_hash() == build(folder).data_hash()


def broken(tmp_path, change):
    rows = world()
    change(rows)
    return save_json(tmp_path, rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.pop("privleak/holdout"), ("privleak/holdout", "privleak_forget")),
        (lambda r: r["verbmem/forget"][1].pop("gt"), ("verbmem/forget", "row 1", "'gt'", "'prompt'")),
        (lambda r: r["raw/retain1"][2].update(text=" "), ("raw/retain1", "row 2", "'text'")),
        (lambda r: r.update({"raw/forget": []}), ("raw/forget", "no rows")),
        (lambda r: r["raw/retain1"].append(r["raw/forget"][0]), ("forget", "raw/retain1", "share 1")),
        (lambda r: r["privleak/holdout"].append(r["privleak/forget"][0]), ("privleak/holdout", "share 1")),
        (lambda r: r.update({"knowmem/retain2_qa": r.pop("knowmem/retain_qa")}), ("retain2_qa", "older revisions")),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_files_is_one_line_without_a_text(tmp_path, change, words):
    with pytest.raises(DataError) as error:
        build(broken(tmp_path, change))
    said = str(error.value)
    assert "\n" not in said and all(word in said for word in words), said
    assert not any(town in said for town in TOWNS)


@pytest.mark.parametrize("missing", ["raw/forget", "knowmem/forget_qa", "privleak/holdout", "raw/retain1"])
def test_only_a_retain_split_can_have_an_older_name(tmp_path, missing):
    def change(rows):
        rows[missing.replace(missing.partition("/")[2], "retain2")] = rows.pop(missing)

    with pytest.raises(DataError) as error:
        build(broken(tmp_path, change))
    said = str(error.value)
    assert f"{missing} of " in said and "retain2" in said and "older revisions" not in said, said


def test_the_hubs_shape_without_a_split_names_what_there_is(tmp_path):
    rows = world()
    rows["knowmem/retain2_qa"] = rows.pop("knowmem/retain_qa")
    with pytest.raises(DataError, match="retain2_qa: older revisions"):
        build(save_hub(tmp_path, rows))


def test_a_file_that_is_no_json_is_named(tmp_path):
    save_json(tmp_path, world())
    (tmp_path / "raw_forget.json").write_text('{"text": ')
    with pytest.raises(DataError, match=r"raw_forget\.json line 1 is not JSON"):
        build(tmp_path)
    (tmp_path / "raw_forget.json").write_bytes('["Ein Café"]'.encode("latin-1"))
    with pytest.raises(DataError, match=r"raw_forget\.json is not UTF-8; byte 9 is 0xe9"):
        build(tmp_path)


def test_offline_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(DataError) as error:
        build("")
    said = str(error.value)
    assert "raw/forget of muse-bench/MUSE-News cannot be read" in said and "\n" not in said
    assert "HF_HUB_OFFLINE" in said


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"chunks": 5}, "did you mean chunk"), ({"chunk": 1}, "at least 2"), ({"chunk": True}, "at least 2"),
        ({"last_chunk": "drop"}, "refill"), ({"requests": "all"}, "sust"), ({"published": "news2"}, "news"),
        ({"examples": -1}, "worked examples"), ({"blank": "no"}, "true or false"),
    ],
)  # fmt: skip
def test_wrong_options_name_what_is_known(folder, options, word):
    with pytest.raises(DataError, match=word):
        build(folder, **options)


def test_an_unknown_corpus_is_refused(folder):
    with pytest.raises(DataError, match="books"):
        build(folder, split="newz")


def test_folds_are_cases(folder):
    scal, sust = build(folder, requests="scal"), build(folder, requests="sust")
    assert scal.case_ids() == ("scal_1", "scal_2", "scal_3", "scal_4")
    assert [len(scal.case(c, 0).forget) for c in scal.case_ids()] == [1, 2, 3, 4]
    assert {scal.case(c, 0).after for c in scal.case_ids()} == {None}
    assert [sust.case(c, 0).after for c in sust.case_ids()] == [None, "sust_1", "sust_2", "sust_3"]
    assert sust.case("sust_3", 0).forget[0].target == world()["raw/forget"][2]["text"]
    with pytest.raises(DataError, match="sust_1"):
        sust.case("sust_5", 0)


# --- training rows --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bos", [(), (1,)])
@pytest.mark.parametrize("count", [0, 1, 3, 7, 8, 9])
@pytest.mark.parametrize("size", [2, 4, 5])
def test_chunks_hold_every_token_once_and_are_full(bos, count, size):
    ids, room = tuple(range(10, 10 + count)), size - len(bos)
    short, full = chunks(ids, bos, size, False), chunks(ids, bos, size, True)
    assert sum(short, ()) == ids
    assert len(short) == len(full) == math.ceil(count / room)
    assert all(len(c) == room for c in short[:-1])
    assert sum(full, ())[:count] == ids
    if len(full) > 1:
        assert {len(c) for c in full} == {room}


def test_training_rows_are_chunks_of_the_joined_texts_with_one_bos_each(folder):
    tokenizer = word_tokenizer(adds_bos=True)
    encoder = Encoder(tokenizer, Template(), 64)
    task = build(folder, chunk=16, last_chunk="short")
    case = task.tokenized(task.case("forget", 0), encoder)
    joined = "\n\n".join(r["text"] for r in world()["raw/forget"])
    ids = tuple(tokenizer(joined, add_special_tokens=False)["input_ids"])
    encoded = [encoder.encode(row) for row in case.forget]
    assert all(e.ids[0] == 1 and e.start == 1 and not e.cut for e in encoded)
    assert sum((e.ids[1:] for e in encoded), ()) == ids
    assert [len(e.ids) for e in encoded[:-1]] == [16] * (len(encoded) - 1)
    assert case.forget[0].id == "raw_forget_chunk/0" and case.retain[0].id == "raw_retain1_chunk/0"
    assert {row.prompt for row in case.forget} == {""}
    refilled = build(folder, chunk=16).tokenized(task.case("forget", 0), encoder)
    last = encoder.encode(refilled.forget[-1]).ids
    tail = len(encoded[-1].ids)
    assert last[:tail] == encoded[-1].ids and len(last) == 16
    assert last[tail:] == encoded[0].ids[: 16 - tail]


def test_chunks_longer_than_rows_may_be_are_refused(folder):
    task = build(folder, chunk=65)
    with pytest.raises(DataError, match="max_length = 64"):
        task.tokenized(task.case("forget", 0), Encoder(word_tokenizer(), Template(), 64))


@pytest.mark.parametrize("bos", [True, False])
def test_the_loss_of_a_row_without_a_prompt_is_the_language_models(bos):
    """Against Hugging Face's own loss: every token after BOS counts; without BOS the first has nothing before it."""
    tokenizer = word_tokenizer(chat=None, adds_bos=bos)
    model, encoder = random_llama(len(tokenizer)), Encoder(tokenizer, Template(), 64)
    ids = encoder.ids("Ada Finch kept the light for thirty years .")
    row = TextRow("raw_chunk/0", "", "", {"ids": ids}, form="text")
    inputs = scoring.collate([row, row], encoder)
    x = inputs.x[:1]
    assert x[0].tolist() == ([1] if bos else []) + list(ids)
    out = scoring.forward(model, inputs)
    mine = -scoring.token_logp(out).sum(-1) / out.mask.sum(-1)
    assert mine[0].item() == pytest.approx(model(input_ids=x, labels=x).loss.item(), abs=1e-5)
    (scores,) = scoring.score(model, [row], encoder)
    assert len(scores.logp) == len(ids) - (not bos)
    assert not scores.is_eos.any()
    assert -scores.logp.mean() == pytest.approx(mine[0].item(), abs=1e-5)


def test_rows_of_several_lengths_keep_their_own_loss():
    tokenizer = word_tokenizer(chat=None, adds_bos=True)
    model, encoder = random_llama(len(tokenizer)), Encoder(tokenizer, Template(), 64)
    texts = ["Ada", "Ada Finch kept the light", "Who kept the light at Marl Point ? Ada Finch ."]
    rows = [TextRow(str(i), "", "", {"ids": encoder.ids(t)}, form="text") for i, t in enumerate(texts)]
    together = scoring.score(model, rows, encoder)
    for i, row in enumerate(rows):
        (alone,) = scoring.score(model, [row], encoder)
        np.testing.assert_allclose(together.row(i).logp, alone.logp, atol=1e-4)


# --- scores ---------------------------------------------------------------------------------------------------------
def likelihoods(ids, nll):
    tokens = np.full(2 * len(ids), 0.0, np.float32)
    tokens[::2] = tokens[1::2] = -np.asarray(nll, np.float32)
    no = np.zeros(len(tokens), bool)
    return LikelihoodAnswers(
        tuple(ids), TokenScores(tokens, no, no, tokens, tokens * 0 + 1, np.arange(0, len(tokens) + 1, 2))
    )


def written(rows, texts=None):
    said = tuple(r.target for r in rows) if texts is None else tuple(texts)
    return GenerationAnswers(tuple(r.id for r in rows), said, (False,) * len(rows))


def answered(task, forget=0.1, holdout=2.0, said=None):
    asked = task.rows.asked
    probes = {
        n: written(asked[n], None if said is None else [said] * len(asked[n])) for n in muse_scores.WRITTEN
    }
    probes[muse_scores.RIGHT] = written(asked["verbmem"])
    for side, nll in (("forget", forget), ("holdout", holdout)):
        rows = asked[f"privleak_{side}"]
        values = nll if isinstance(nll, list) else [nll] * len(rows)
        probes[f"privleak_{side}"] = likelihoods([r.id for r in rows], values)
    return Answers(probes)


def test_ends_of_all_scores(folder):
    task = build(folder, published="news")
    case = task.case("forget", 0)
    chance = answered(task, 1.0, 1.0)
    knows = task.score(case, answered(task), {"retain": chance})
    assert set(knows) == {m.id for m in task.metrics()}
    for name in ("verbmem", "knowmem_forget", "knowmem_retain"):
        assert knows[f"{name}.rougeL_f1.nostem"].value == 1.0
    assert (knows["memq"].value, knows["balance"].value) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    assert (knows["mia.min_k.auc"].value, knows["privleak"].value) == (1.0, -100.0)
    assert knows["privleak.published"].value == pytest.approx(-100.0)
    mute = task.score(case, answered(task, 1.0, 1.0, said=""), {"retain": chance})
    assert mute["memq"].value == 0.0 and mute["verbmem.empty"].value == 1.0
    assert mute["balance"].value == pytest.approx(0.0, abs=1e-9)
    assert (mute["mia.min_k.auc"].value, mute["privleak"].value) == (0.5, 0.0)
    assert mute["privleak.published"].value == pytest.approx((0.5 - 0.4772) / 0.4772 * 100)
    assert set(knows["mia.min_k"].per_row or {}) == {
        *(f"privleak_forget/{i}" for i in range(4)), *(f"privleak_holdout/{i}" for i in range(3))
    }  # fmt: skip


def test_what_is_missing_is_null_with_a_reason(folder):
    task = build(folder)
    case = task.case("forget", 0)
    nothing = task.score(case, Answers({}), {})
    assert {s.value for s in nothing.values()} == {None} and all(s.why for s in nothing.values())
    full = answered(task)
    alone = task.score(case, full, {})
    assert alone["privleak"].value is None and "uharness reference" in alone["privleak"].why
    assert "privleak.published" not in alone
    uncut = Answers({k: v for k, v in full.probes.items() if k != muse_scores.RIGHT})
    assert "verbmem.right was not made" in task.score(case, uncut, {})["verbmem.rougeL_f1.nostem"].why
    fewer = dict(answered(task, 1.0, 1.0).probes)
    fewer["privleak_holdout"] = likelihoods(["privleak_holdout/0"], [1.0])
    assert "2 texts were not asked" in task.score(case, full, {"retain": Answers(fewer)})["privleak"].why


def test_a_reference_that_knows_its_members_is_no_reference(folder):
    task = build(folder)
    score = task.score(task.case("forget", 0), answered(task), {"retain": answered(task)})["privleak"]
    assert score.value is None and "too small to divide by" in score.why


@pytest.mark.parametrize(
    ("corpus", "muse_auc", "value"),
    [("news", 0.0, -100.0), ("news", 1.0, 109.56), ("news", 0.5, 4.78),
     ("books", 0.0, -100.0), ("books", 1.0, 85.43), ("books", 0.5, -7.29)],
)  # fmt: skip
def test_privleak_against_the_published_references(corpus, muse_auc, value):
    found = privacy.privleak(1.0 - muse_auc, 1.0 - PUBLISHED[corpus])
    assert found.value == pytest.approx(value, abs=0.005)


def test_muses_auc_is_one_minus_ours():
    """MUSE: label 1 for hold-out texts, score minus the loss."""
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    forget, holdout = rng.normal(1.0, 1.0, 40).round(1), rng.normal(1.5, 1.0, 30).round(1)
    theirs = roc_auc_score([0] * 40 + [1] * 30, -np.concatenate([forget, holdout]))
    assert privacy.auc(forget.tolist(), holdout.tolist()).value == pytest.approx(1.0 - theirs)


def test_rouge_is_f1_without_a_stemmer():
    assert rouge(["He run daily"], ["He runs daily"], part="f1", stem=False) == [pytest.approx(2 / 3)]
    assert rouge(["Paris Rome Oslo Bonn"], ["Paris"], part="f1", stem=False) == [0.4]
    assert rouge(["", " ", ".", "...", "\n"], ["Stephen King"] * 5, part="f1", stem=False) == [0.0] * 5


def test_memq_and_balance():
    assert memq(0.3, 0.4).value == pytest.approx(math.sqrt((0.09 + 0.16) / 2))
    assert memq(None, 0.4).why == "verbmem is missing"
    assert balance(0.0, 0.0, 1.0).value == 1.0
    assert balance(0.5, 0.2, 0.4).value == pytest.approx(3 / (1 / 0.5 + 1 / 0.8 + 1 / 0.4))
    assert "knowmem_retain is missing" in balance(0.5, 0.2, None).why


def test_the_right_text_is_cut_to_128_ids_bos_counted(folder):
    task = build(folder)
    encoder = Encoder(word_tokenizer(chat=None, adds_bos=True), Template(), 512)
    long = TextRow("verbmem_forget/0", "Ada", " ".join(["light"] * 200), form="text")
    short = TextRow("verbmem_forget/1", "Ada", " ".join(["light"] * 127), form="text")
    made = task.judge(LoadedModel(None, encoder), [Generation("verbmem", [long, short])], {})["verbmem.right"]
    assert [len(text.split()) for text in made.texts] == [127, 127]
    assert made.hit_limit == (True, False)


# --- boards ---------------------------------------------------------------------------------------------------------
HUB_BOARDS = {
    "muse-news-7b": ("news", "one"), "muse-books-7b": ("books", "one"), "muse-news-7b-scal": ("news", "scal"),
    "muse-news-7b-sust": ("news", "sust"),
}  # fmt: skip


@pytest.mark.parametrize("name", HUB_BOARDS)
def test_the_boards_on_the_hub(name, monkeypatch):
    from conftest import ROOT

    from harness import preflight
    from harness.workspace import Workspace

    monkeypatch.setattr("harness.tasks.muse_data.Source._load", lambda *_: pytest.fail("the hub was asked"))
    shipped = Workspace(ROOT)
    board, (corpus, requests) = shipped.board(name), HUB_BOARDS[name]
    known = preflight.described(board, shipped)
    assert known.hub == (f"muse-bench/MUSE-{corpus.capitalize()}",)
    assert board.models == {
        "target": f"muse-bench/MUSE-{corpus}_target",
        "retain": f"muse-bench/MUSE-{corpus}_retrain",
    }
    assert (board.task.options.get("requests", "one"), board.task.options["published"]) == (requests, corpus)
    assert (board.task.options["chunk"], board.max_length, board.batch.effective) == (2048, 4096, 32)
    for method in board.settings:
        entry = resolve_spec(method, shipped.submissions, board.settings, {})
        assert (entry.optimizer.lr, entry.optimizer.warmup, entry.optimizer.decay) == (1e-5, 0.0, "constant")


def test_an_outline_is_what_the_task_says(folder):
    options = {"requests": "sust", "published": "news"}
    task = build(folder, **options)
    known = outline(TaskRef(name="muse", split="news", data=str(folder), options=options))
    assert known is not None
    assert (known.cases, known.metrics, known.hub) == (task.case_ids(), task.metrics(), ())


def test_books_are_private(folder):
    assert build(folder).rows_public and not build(folder, split="books").rows_public


@pytest.mark.slow
def test_the_small_model_knows_the_articles_by_heart():
    """The board's own task: what the untouched model and the retrained one remember of a third of the articles."""
    import dataclasses

    from conftest import ROOT

    from harness.answers import answer
    from harness.generate.hf import HFGenerator
    from harness.models import load, resolve
    from harness.plugins import load_task
    from harness.preflight import task_ref
    from harness.workspace import Workspace

    shipped = Workspace(ROOT)
    board = shipped.board("muse-mini")
    task = load_task(task_ref(board, shipped), board.template)
    case = task.case("forget", 0)
    probes = [dataclasses.replace(p, rows=p.rows[::3]) for p in task.probes(case)]
    found = {}
    for role in ("retain", "target"):
        loaded = load(resolve(board.models[role]))
        assert loaded.encoder is not None
        made = answer(loaded, probes, HFGenerator(loaded.model, loaded.encoder))
        found[role] = Answers(made | task.judge(loaded, probes, made))
    knows = task.score(case, found["target"], {"retain": found["retain"]})
    retrained = task.score(case, found["retain"], {"retain": found["retain"]})
    value = {name: (knows[name].value, retrained[name].value) for name in knows}
    assert value["verbmem.rougeL_f1.nostem"][0] > 0.95 > 0.8 > value["verbmem.rougeL_f1.nostem"][1]
    assert (
        value["knowmem_forget.rougeL_f1.nostem"][0] > 0.85 > 0.4 > value["knowmem_forget.rougeL_f1.nostem"][1]
    )
    assert min(value["knowmem_retain.rougeL_f1.nostem"]) > 0.85
    assert value["privleak"] == (-100.0, 0.0)
    assert value["balance"][0] < 0.1 < 0.4 < value["balance"][1]
