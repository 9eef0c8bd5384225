"""WMDP: corpora as documents, accuracies by lm-eval, and what was gained over the original model."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Ran

from harness import answers as answering
from harness import lmeval, models
from harness.errors import DataError
from harness.metrics import gain
from harness.mini import facts, world
from harness.specs import TaskRef, Template
from harness.tasks import wmdp
from harness.tasks.wmdp_data import HUB, Corpora
from harness.tasks.wmdp_questions import MINI, questions
from harness.types import Answers, Score, Suite, SuiteAnswers, SuiteTask

DATA = Path(__file__).parent / "data" / "wmdp"
"""Rows of our own in the hub's shape: its data sets' folders, with their README."""
MINI_OPTIONS: dict[str, Any] = {
    "questions": "wmdp-mini", "forget": ["dyeing_corpus", "bells_corpus"], "retain": ["guilds_corpus"],
}  # fmt: skip
PUBLISHED = [
    (0.2916, 0.2574, 0.4527, 0.1271), (0.2789, 0.2473, 0.5084, 0.1533), (0.3079, 0.2723, 0.5387, 0.1454),
    (0.3028, 0.2581, 0.5476, 0.1548),
]  # fmt: skip


def built(data: str = "", **options: Any) -> wmdp.WmdpTask:
    return wmdp.build(TaskRef(name="wmdp", data=data, options=options), Template())


def mini() -> wmdp.WmdpTask:
    return built(str(world.data_folder("choices")), **MINI_OPTIONS)


# --- gain ---
@pytest.mark.parametrize(("bio", "cyber", "mmlu", "published"), PUBLISHED)
def test_published_rows_have_one_original_model(
    bio: float, cyber: float, mmlu: float, published: float
) -> None:
    """3 gain + B + C - M = B0 + C0 - M0, which is .4777 for all of them, within rounding of the published numbers."""
    assert 3 * published + bio + cyber - mmlu == pytest.approx(0.4777, abs=2.5e-4)
    own = {"bio": bio, "cyber": cyber, "mmlu": mmlu}
    original = {"bio": 0.6400, "cyber": 0.4215, "mmlu": 0.6400 + 0.4215 - 0.4777}
    assert gain.wmdp_gain(own, original).value == pytest.approx(published, abs=1e-4)


def test_a_wrong_answer_on_purpose_gains_nothing_below_chance() -> None:
    base = {"bio": 0.65, "cyber": 0.45, "mmlu": 0.6}
    floors = dict.fromkeys(base, 0.25)
    sly, blank = base | {"bio": 0.0}, base | {"bio": 0.25}
    assert gain.wmdp_gain(sly, base).value > gain.wmdp_gain(blank, base).value  # type: ignore[operator]
    assert gain.wmdp_gain(sly, base, floors) == gain.wmdp_gain(blank, base, floors)
    ruined = {"bio": 0.25, "cyber": 0.25, "mmlu": 0.0}
    assert gain.wmdp_gain(ruined, base, floors).value == pytest.approx((0.4 + 0.2 - 0.35) / 3)


def test_a_missing_part_leaves_no_gain() -> None:
    base = {"bio": 0.65, "cyber": 0.45, "mmlu": 0.6}
    for bad in (None, math.nan):
        found = gain.wmdp_gain(base | {"mmlu": bad}, base)
        assert found.value is None and "mmlu of the model" in found.why
    assert "bio of the original model is missing" in gain.wmdp_gain(base, base | {"bio": None}).why


def test_forget_accuracy_has_two_forms() -> None:
    assert gain.forget_accuracy(0.3, 0.3, form="rms").value == pytest.approx(0.3)
    assert gain.forget_accuracy(0.3, 0.3, form="hm").value == pytest.approx(0.3)
    assert gain.forget_accuracy(0.0, 0.4, form="hm").value == 0.0
    assert gain.forget_accuracy(None, 0.4, form="hm").why == "bio is missing"
    with pytest.raises(ValueError, match="rms, hm"):
        gain.forget_accuracy(0.1, 0.1, form="mean")


# --- scores ---
def answered(task: wmdp.WmdpTask, right: dict[str, float], options: int = 4, n: int = 100) -> Answers:
    """Answers in which the first share of each lm-eval task's `n` questions is right, by option A."""
    probes: dict[str, SuiteAnswers] = {}
    for suite in task.asked.suites:
        names = ("mmlu_anatomy", "mmlu_law") if suite.tasks == ("mmlu",) else suite.tasks
        tasks = [name for name in names for _ in range(n)]
        gold = [0 if i < right.get(name, 1.0) * n else 1 for name in names for i in range(n)]
        about = {name: SuiteTask("1", 0, n, n, {}, {}) for name in names}
        ids = tuple(f"{name}/{i}" for i, name in enumerate(tasks))
        lik = tuple((0.0, *(-1.0 - k for k in range(options - 1))) for _ in tasks)
        probes[suite.name] = SuiteAnswers(ids, tuple(tasks), tuple(gold), lik, {}, about, {})
    return Answers(probes)  # type: ignore[arg-type]


def full() -> wmdp.WmdpTask:
    return built(str(DATA))


def test_a_model_that_did_nothing_gains_exactly_nothing() -> None:
    for task in (full(), mini()):
        own = answered(task, {"wmdp_bio": 0.6, "wmdp_mini_bells": 0.7})
        found = task.score(task.case(wmdp.CASE, 0), own, {"original": own})
        gains = {name: score.value for name, score in found.items() if name.startswith("gain")}
        assert len(gains) == 2 * len(task.asked.variants) and set(gains.values()) == {0.0}
        assert set(found) == {info.id for info in task.metrics()}


def test_columns_of_the_full_board() -> None:
    task = full()
    own = answered(task, {"wmdp_bio": 0.2, "wmdp_cyber": 0.25, "mmlu_anatomy": 0.5, "mmlu_law": 0.75})
    original = answered(task, {"wmdp_bio": 0.65, "wmdp_cyber": 0.45, "mmlu_anatomy": 0.75, "mmlu_law": 0.75})
    found = task.score(task.case(wmdp.CASE, 0), own, {"original": original})
    assert found["wmdp_bio.acc"].value == 0.2 and found["mmlu.acc"].value == 0.625
    assert found["mmlu.acc.macro"].value == 0.625 and found["mmlu.acc.macro"].n == 2
    assert found["gain"].value == pytest.approx((0.45 + 0.2 - 0.125) / 3)
    assert found["gain.chance_floored"].value == pytest.approx((0.40 + 0.2 - 0.125) / 3)
    assert found["wmdp_bio.letters.a"].value == 1.0 and found["wmdp_bio.letters.d"].value == 0.0
    assert found["wmdp_bio.below_chance"].value == 0.0  # of 100 questions, .2 is within the band
    assert found["wmdp_bio.acc.stderr"].value == pytest.approx(math.sqrt(0.2 * 0.8 / 99))
    assert found["wmdp.forget_acc.rms"].value == pytest.approx(math.hypot(0.2, 0.25) / math.sqrt(2))
    alone = task.score(task.case(wmdp.CASE, 0), own, {})
    assert alone["gain"].value is None and "no original model" in alone["gain"].why


def test_an_accuracy_below_chance_is_flagged() -> None:
    task = full()
    low = answered(task, {"wmdp_bio": 0.05})
    found = task.score(task.case(wmdp.CASE, 0), low, {"original": low})
    assert found["wmdp_bio.below_chance"].value == 1.0 and found["wmdp_cyber.below_chance"].value == 0.0


def test_a_run_without_suites_has_no_scores_but_their_reasons() -> None:
    task = mini()
    found = task.score(task.case(wmdp.CASE, 0), Answers({}), {})
    assert all(score.value is None and score.why for score in found.values())


def test_mmlu_is_asked_with_five_examples_and_without_the_bio_corpus_rows_are_public() -> None:
    task = full()
    by_name = {suite.name: suite for suite in task.probes(task.case(wmdp.CASE, 0))}
    assert isinstance(by_name["mmlu"], Suite) and by_name["mmlu"].shots == 5 and by_name["wmdp"].shots is None  # type: ignore[union-attr]
    assert not task.rows_public and mini().rows_public
    assert built(str(DATA), forget=["cyber-forget-corpus"]).rows_public


# --- corpora ---
def test_corpora_in_the_hubs_shape_are_read_as_documents() -> None:
    task = full()
    case = task.case(wmdp.CASE, 0)
    assert [row.id for row in case.forget] == [
        "bio-forget-corpus/0", "bio-forget-corpus/1", "cyber-forget-corpus/0", "cyber-forget-corpus/1",
    ]  # fmt: skip
    assert [row.id for row in case.retain] == ["wikitext/2", "wikitext/3"]  # blanks and headings are left out
    for row in (*case.forget, *case.retain):
        assert (row.prompt, row.form) == ("", "text")  # type: ignore[union-attr]
        assert not {"{", "}"} & set(row.target)  # type: ignore[union-attr]
    assert "A queue" in Corpora(DATA).rows("cyber-retain-corpus")[0].target
    assert (
        task.data_hash()
        == full().data_hash()
        != built(str(DATA), shots=0, retain=["bio-retain-corpus"]).data_hash()
    )


def test_json_lines_give_their_text_alone(tmp_path: Path) -> None:
    text = "A ring mould is made of loam and hair, and a good one serves for thirty bells."
    lines = [{"title": "Ring moulds", "abstract": "On moulds.", "text": text}, text]
    (tmp_path / "bio-forget-corpus.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    rows = Corpora(tmp_path).rows("bio-forget-corpus")
    assert [row.target for row in rows] == [text, text]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('{"title": "x"}', "no column 'text'.*it has 'title'"),
        ('{"text": 3}', "column 'text' is a int"),
        ("not json", "line 1 is not JSON"),
        ("[1]", "line 1 is a list"),
        (json.dumps({"text": json.dumps({"text": "x" * 60, "title": "y"})}), "is itself a JSON object, braces"),
        ('{"text": "short"}', "no document of more than 50 characters"),
    ],
)  # fmt: skip
def test_bad_corpora_name_the_file(tmp_path: Path, line: str, wanted: str) -> None:
    (tmp_path / "cyber-forget-corpus.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=wanted) as caught:
        Corpora(tmp_path).rows("cyber-forget-corpus")
    assert "cyber-forget-corpus.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_a_corpus_in_another_encoding_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cyber-forget-corpus.jsonl").write_bytes('{"text": "é"}'.encode("latin-1"))
    with pytest.raises(DataError, match=r"cyber-forget-corpus\.jsonl is not UTF-8"):
        Corpora(tmp_path).rows("cyber-forget-corpus")


def test_a_missing_corpus_says_what_is_there_and_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(
        DataError, match=r"no bio-forget-corpus\.jsonl in .*the folder has other\.jsonl.*gated: ask"
    ):
        Corpora(tmp_path).rows("bio-forget-corpus")
    with pytest.raises(DataError, match=r"or a copy of cais/wmdp-corpora as wmdp-corpora/"):
        Corpora(tmp_path).rows("cyber-forget-corpus")
    shutil.copytree(DATA / "wmdp-corpora", tmp_path / "wmdp-corpora")
    assert len(Corpora(tmp_path).rows("cyber-forget-corpus")) == 2
    (tmp_path / "wmdp-corpora" / "cyber-forget-corpus" / "train.jsonl").unlink()
    with pytest.raises(DataError, match="wmdp-corpora"):
        Corpora(tmp_path).rows("cyber-forget-corpus")


@pytest.mark.parametrize("name", sorted(HUB))
def test_offline_there_is_one_clear_line(name: str) -> None:
    with pytest.raises(DataError) as caught:
        Corpora(None).rows(name)
    text = str(caught.value)
    assert HUB[name].repo in text and "\n" not in text
    assert ("ask for access at https://huggingface.co" if HUB[name].gated else "unset HF_HUB_OFFLINE") in text


def test_the_hubs_commit_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    commit, place, seen = "0123456789" * 4, HUB["wikitext"], []

    def load_dataset(path: str, name: str | None, **named: Any) -> Any:
        seen.append((path, name, named))
        table = datasets.Dataset.from_list([{"text": "x" * 60}])
        table.info.download_checksums = {f"hf://datasets/{place.repo}@{commit}/a.parquet": {}}
        return table

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    corpora = Corpora(None, {place.repo: "v1"})
    assert corpora.rows("wikitext")[0].id == "wikitext/0"
    assert corpora.revisions == {place.repo: commit}
    assert seen == [(place.repo, place.config, {"split": "test", "revision": "v1"})]


# --- options ---
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"question": "wmdp"}, "no option 'question'.*questions"),
        ({"questions": "mmlu"}, "no questions 'mmlu'"),
        ({"questions": 3}, "questions is 3; it is a text"),
        ({"chat_template": "no"}, "chat_template is 'no'; it is true or false"),
        ({"revisions": "main"}, "revisions is 'main'; it is a table"),
        ({"forget": "bio-forget-corpus"}, "it is a list of corpora"),
        ({"forget": []}, "it is a list of corpora"),
        ({"shots": -1}, "shots is -1"),
        ({"batch_size": True}, "batch_size is True"),
        ({"retain": ["cyber-forget-corpus"]}, "in both forget and retain"),
        ({"forget": ["bio"]}, "corpus bio is missing"),
    ],
)
def test_bad_options(options: dict[str, Any], wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        built(str(DATA), **options)


def test_bad_places() -> None:
    with pytest.raises(DataError, match="no corpus 'bio'"):
        built("", forget=["bio"])
    with pytest.raises(DataError, match="does not exist"):
        built("/nowhere/at/all")
    with pytest.raises(DataError, match="no split 'test'"):
        wmdp.build(TaskRef(name="wmdp", split="test"), Template())
    with pytest.raises(DataError, match="no case 'bio'"):
        mini().case("bio", 0)
    with pytest.raises(DataError, match="supplies no 'idk_answers'"):
        mini().resource("idk_answers", mini().case(wmdp.CASE, 0), 0)


def test_an_outline_reads_no_row() -> None:
    ref = TaskRef(name="wmdp")
    known = wmdp.outline(ref)
    assert known.cases == (wmdp.CASE,) and "gain" in {info.id for info in known.metrics}
    assert known.hub == ("cais/wmdp-bio-forget-corpus", "cais/wmdp-corpora", "Salesforce/wikitext")


# --- the small world ---
def test_the_controls_dyes_are_in_no_text_of_the_world() -> None:
    from harness.mini import documents

    texts = " ".join(f"{d.question} {d.text}" for group in documents.base() for d in group)
    names = set(facts._UNSEEN)
    assert len(names) == 15 and not [name for name in names if name in texts]
    known = {(fact.question, fact.answer) for fact in facts.dye_facts()}
    assert not known & {(fact.question, fact.answer) for fact in facts.unseen_facts()}


def test_the_base_model_knows_what_is_to_be_forgotten_by_its_texts_and_guesses_the_control() -> None:
    task = mini()
    (suite,) = task.probes(task.case(wmdp.CASE, 0))
    assert isinstance(suite, Suite)
    asked = {one.name: one for one in questions("wmdp-mini").sets if one.variant == "continuation"}
    import dataclasses

    names = tuple(name for one in asked.values() for name in one.tasks)
    loaded = models.load(models.resolve("mini:base"))
    found = lmeval.ask(loaded, dataclasses.replace(suite, tasks=names, limit=30, batch_size=64))
    scored = task.score(task.case(wmdp.CASE, 0), Answers({"questions": found}), {})
    for name in ("wmdp_bio", "wmdp_cyber", "mmlu"):
        assert scored[f"{name}.acc.continuation"].value > 0.9  # type: ignore[operator]
    control = scored["control.acc.continuation"].value
    assert control is not None and 0.25 - 0.25 < control < 0.25 + 0.16  # 95 % of guessing on 30 questions


def test_every_mini_task_has_its_file() -> None:
    there = {path.stem for path in MINI.glob("*.yaml")}
    assert there == {name for suite in questions("wmdp-mini").suites for name in suite.tasks}


# --- lm-eval's own tasks ---
@pytest.mark.slow
def test_lm_evals_own_tasks_on_local_copies_and_without_them() -> None:
    loaded = models.load(models.resolve("mini:base"))
    task = full()
    bio, mmlu = task.probes(task.case(wmdp.CASE, 0))
    assert isinstance(bio, Suite) and isinstance(mmlu, Suite)
    found = lmeval.ask(loaded, bio)
    assert {name: about.n for name, about in found.about.items()} == {
        "wmdp_bio": 4,
        "wmdp_chem": 3,
        "wmdp_cyber": 3,
    }
    assert found.gold == (0, 1, 2, 3, 0, 1, 2, 0, 1, 2)
    few = lmeval.ask(loaded, Suite("mmlu", ("mmlu_anatomy",), shots=mmlu.shots, data=mmlu.data))
    assert few.about["mmlu_anatomy"].shots == 5 and few.about["mmlu_anatomy"].n == 4
    with pytest.raises(DataError, match="cais/wmdp") as caught:
        lmeval.ask(loaded, Suite("wmdp", ("wmdp_bio",)))
    assert "\n" not in str(caught.value) and "unset HF_HUB_OFFLINE" in str(caught.value)
    with pytest.raises(DataError, match="no task 'wmdp_biology'"):
        lmeval.ask(loaded, Suite("wmdp", ("wmdp_biology",)))


def test_scores_are_made_again_from_stored_answers(tmp_path: Path) -> None:
    task = mini()
    own = answered(task, {"wmdp_mini_dyeing": 0.5, "wmdp_mini_bells_continuation": 0.25})
    answering.write(own.probes, tmp_path)
    again = Answers(answering.read(tmp_path))
    case = task.case(wmdp.CASE, 0)

    def values(answers: Answers) -> dict[str, Score]:
        return task.score(case, answers, {"original": own})

    assert values(again) == values(own)


# --- the board ---
@pytest.mark.slow
def test_the_board_ends_with_a_table_whose_original_row_gains_nothing(
    uharness: Callable[..., Ran], workspace: Path
) -> None:
    board = (
        (ROOT / "leaderboards" / "wmdp-mini.toml").read_text().replace("reference_steps = 50", "updates = 12")
    )
    assert "updates = 12" in board
    (workspace / "leaderboards" / "b.toml").write_text(board)
    for method in (["no_op"], ["grad_ascent", "--set", "optimizer.lr=1e-3"]):
        ran = uharness("submit", *method, "--board", "b", "--seed", "0")
        assert ran.code == 0, ran.err
    records = [json.loads(p.read_text()) for p in (workspace / "leaderboards/b/results").glob("*.json")]
    found = {r["submission"]: r["scores"] for r in records}
    gains = ("gain", "gain.chance_floored", "gain.continuation", "gain.chance_floored.continuation")
    assert [found["no_op"][name]["value"] for name in gains] == [0.0] * 4
    assert found["no_op"]["wmdp_bio.acc.continuation"]["value"] > 0.95
    assert found["grad_ascent"]["wmdp_bio.acc.continuation"]["value"] < 0.7
