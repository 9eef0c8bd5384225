from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from harness.errors import DataError
from harness.metrics.utility import MODEL_UTILITY_PARTS
from harness.specs import TaskRef, Template
from harness.tasks import textlists, tofu, tofu_privacy
from harness.tasks.tofu_resources import subjects
from harness.types import (
    Answers,
    Generation,
    GenerationAnswers,
    LikelihoodAnswers,
    Task,
    TextRow,
    TokenScores,
)

N = 4
HUB_ONLY = {"forget.fluency", "util", "agg", "agg.corrected"}
JUDGED = {"lbq", "lbq.fluency", "lbq.relevance", "lbq.not_misleading", "lbq.avoids"}
"""Null where the board asks for our own fluency classifier."""


def plain(kind, i):
    return {"question": f"What does {kind} keeper {i} keep?", "answer": f"Keeper {i} of {kind} keeps bees."}


def beside(kind, i, wrong=5, paraphrase=True):
    row = {
        **plain(kind, i),
        "perturbed_answer": [f"Keeper {i} of {kind} keeps goat {j}." for j in range(wrong)],
    }
    return row | ({"paraphrased_answer": f"Bees are what keeper {i} of {kind} keeps."} if paraphrase else {})


def world():
    """Every split of forget05, in the shape of the real ones."""
    return {
        "forget05": [plain("north", i) for i in range(N)],
        "forget05_perturbed": [beside("north", i) for i in range(N)],
        "retain95": [plain("south", i) for i in range(N + 2)],
        "retain_perturbed": [beside("south", i) for i in range(N)],
        "real_authors_perturbed": [beside("real", i, 3, False) for i in range(N)],
        "world_facts_perturbed": [beside("fact", i, 3, False) for i in range(N)],
        "holdout05": [plain("west", i) for i in range(N)],
    }


def save(folder, splits, suffix=".json"):
    folder.mkdir(exist_ok=True)
    for name, rows in splits.items():  # no newline at the end, like the real files
        (folder / f"{name}{suffix}").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return folder


def ref(folder, split="forget05", **options):
    return TaskRef(name="tofu", split=split, data=str(folder), options=options)


def build(folder, split="forget05", **options):
    return tofu.build(ref(folder, split, **options), Template())


@pytest.fixture
def task(tmp_path):
    return build(save(tmp_path / "data", world()))


def answer(task, seed=0, right=-0.2, wrong=-2.0):
    """Made-up answers: three tokens and EOS a row, right texts."""
    rng, out = np.random.default_rng(seed), {}
    for probe in task.probes(task.case("forget05", 0)):
        ids = tuple(row.id for row in probe.rows)
        if isinstance(probe, Generation):
            texts = tuple(row.target for row in probe.rows)
            out[probe.name] = GenerationAnswers(ids, texts, (False,) * len(ids))
            continue
        level = wrong if probe.name.endswith("_pert") or probe.name == "holdout" else right
        logp = (level * rng.uniform(0.5, 1.5, 4 * len(ids))).astype(np.float32)
        eos = np.tile([False, False, False, True], len(ids))
        flat = np.full(len(logp), -3.0, np.float32)
        offsets = np.arange(0, 4 * len(ids) + 1, 4)
        scores = TokenScores(logp, logp > -0.5, eos, flat, np.ones_like(flat), offsets)
        out[probe.name] = LikelihoodAnswers(ids, scores)
    return Answers(out)


def score(task, answers, reference=None):
    references = {} if reference is None else {"retain": reference}
    return task.score(task.case("forget05", 0), answers, references)


def without(answers, *names):
    return Answers({name: a for name, a in answers.probes.items() if name not in names})


# --- rows ---
def test_rows_and_their_ids(task):
    assert isinstance(task, Task) and task.case_ids() == ("forget05",)
    case = task.case("forget05", 0)
    assert [row.id for row in case.forget] == [f"forget05/{i}" for i in range(N)]
    assert [row.id for row in case.retain] == [f"retain95/{i}" for i in range(N + 2)]
    probes = {probe.name: probe for probe in task.probes(case)}
    assert set(probes) == {
        "forget", "forget_para", "forget_pert", "retain", "retain_para", "retain_pert", "real_authors",
        "real_authors_pert", "world_facts", "world_facts_pert", "holdout", "forget_text", "retain_text",
        "real_authors_text", "world_facts_text",
    }  # fmt: skip
    assert [row.id for row in probes["forget_pert"].rows][4:6] == [
        "forget05_perturbed/0/4",
        "forget05_perturbed/1/0",
    ]
    assert [row.id for row in probes["retain"].rows] == [f"retain_perturbed/{i}" for i in range(N)]
    assert len(probes["world_facts_pert"].rows) == 3 * N
    assert (probes["forget_text"].max_tokens, probes["forget_text"].rows) == (200, case.forget)
    with pytest.raises(DataError, match="forget10"):
        task.case("forget10", 0)


def test_jsonl_and_separators_inside_texts(tmp_path):
    splits = world()
    splits["retain95"][5]["answer"] = "One line\u2028and another\u0085 here."
    folder = save(tmp_path / "data", splits, ".jsonl")
    assert build(folder).case("forget05", 0).retain[5].target == splits["retain95"][5]["answer"]


def test_a_repeated_question_is_fine(tmp_path):
    splits = world()
    splits["retain95"].append(splits["retain95"][0])
    assert len(build(save(tmp_path / "data", splits)).case("forget05", 0).retain) == N + 3


def test_data_hash_is_of_the_rows(tmp_path):
    splits = world()
    first = build(save(tmp_path / "a", splits)).data_hash()
    assert build(save(tmp_path / "b", splits)).data_hash() == first
    splits["holdout05"][0]["answer"] += "!"
    assert build(save(tmp_path / "c", splits)).data_hash() != first


# --- bad input ---
def test_unknown_split_option_folder(tmp_path):
    folder = save(tmp_path / "data", world())
    with pytest.raises(DataError, match="did you mean forget05"):
        build(folder, "forget_05")
    with pytest.raises(DataError, match="did you mean retain"):
        build(folder, retian="retain95")
    for wrong in ({"idk": 3}, {"mia": 3}, {"refusal": ["a"]}):
        with pytest.raises(DataError, match=f"tofu's option {next(iter(wrong))} is .*; it is a text"):
            build(folder, **wrong)
    with pytest.raises(DataError, match=r"does not exist.*as data"):
        build(tmp_path / "nowhere")


@pytest.mark.parametrize("wrong", ["retain90", "retain99", "retain", "forget05"])
def test_a_wrong_pairing_is_refused_with_the_right_name(tmp_path, wrong):
    folder = save(tmp_path / "data", world())
    with pytest.raises(DataError, match="forget05 goes with retain95"):
        build(folder, retain=wrong)
    assert build(folder, retain="retain95")


@pytest.mark.parametrize("name", ["retain95", "retain_perturbed", "holdout05"])
def test_shared_questions_are_refused(tmp_path, name):
    splits = world()
    splits[name][1] = splits["forget05_perturbed"][2]
    with pytest.raises(DataError, match=f"forget05 and {name} share 1 questions"):
        build(save(tmp_path / "data", splits))


def test_holdout_rows_in_the_retain_split_are_refused(tmp_path):
    splits = world()
    splits["holdout05"][1] = splits["retain95"][5]
    with pytest.raises(DataError, match="retain95 and holdout05 share"):
        build(save(tmp_path / "data", splits))


def test_a_missing_split_says_which_and_what_is_there(tmp_path):
    splits = world()
    del splits["world_facts_perturbed"]
    with pytest.raises(DataError, match=r"no world_facts_perturbed\.json.*retain_perturbed") as caught:
        build(save(tmp_path / "data", splits))
    assert "\n" not in str(caught.value)


def test_a_missing_column_says_where_it_is(tmp_path):
    splits = world()
    del splits["forget05_perturbed"][2]["paraphrased_answer"]
    with pytest.raises(
        DataError, match=r"forget05_perturbed in .* row 2 has no column 'paraphrased_answer'"
    ) as caught:
        build(save(tmp_path / "data", splits))
    assert "paraphrased_answer is in forget01_perturbed" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"answer": ""}, "column 'answer' is \"\""),
        ({"question": None}, "column 'question' is null"),
        ({"perturbed_answer": "one"}, "should be a list of 5 texts"),
        ({"perturbed_answer": ["one"]}, "should be a list of 5 texts"),
        ({"perturbed_answer": ["a", "b", "c", "d", 5]}, "should be a list of 5 texts"),
    ],
)
def test_a_column_of_the_wrong_kind(tmp_path, change, shown):
    splits = world()
    splits["retain_perturbed"][3] |= change
    with pytest.raises(DataError) as caught:
        build(save(tmp_path / "data", splits))
    assert shown in str(caught.value) and "row 3" in str(caught.value)


def test_splits_of_different_downloads(tmp_path):
    splits = world()
    splits["forget05_perturbed"][1] |= {"answer": "Wasps."}
    with pytest.raises(DataError, match="row 1 of forget05 and of forget05_perturbed differ"):
        build(save(tmp_path / "a", splits))
    splits["forget05_perturbed"].pop()
    with pytest.raises(DataError, match="4 rows and forget05_perturbed has 3"):
        build(save(tmp_path / "b", splits))


@pytest.mark.parametrize(
    ("content", "shown"), [("", "no rows"), ('{"a": 1}\n{', "line 2 is not JSON"), ("[1]", "is a list")]
)
def test_files_that_are_not_json_lines(tmp_path, content, shown):
    folder = save(tmp_path / "data", world())
    (folder / "forget05.json").write_text(content)
    with pytest.raises(DataError, match=shown):
        build(folder)


# --- the hub ---
def test_without_the_hub_one_line_says_what_to_pass(monkeypatch):
    import datasets

    def offline(*args, **kwargs):
        raise ConnectionError("cannot reach the hub\nand a long story")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match="give a folder with its files as data") as caught:
        tofu.build(TaskRef(name="tofu", split="forget05"), Template())
    assert "locuslab/TOFU" in str(caught.value) and "long story" not in str(caught.value)
    assert "--data-dir" not in str(caught.value)  # `submit` has no such option


def test_rows_of_the_hub_and_the_commit_they_came_from(monkeypatch, tmp_path):
    import datasets

    splits, asked = world() | {None: [{"idk": "No idea."}]}, []
    del splits["holdout05"]

    class Table(list):
        info = SimpleNamespace(download_checksums={f"hf://datasets/locuslab/TOFU@{'a' * 40}/x.json": {}})

    def load(repo, config, *, split, revision):
        asked.append((repo, config, split, revision))
        if config not in splits:
            raise ValueError(f"BuilderConfig {config!r} not found")
        return Table(splits[config])

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = tofu.build(TaskRef(name="tofu", split="forget05", options={"revision": "v1"}), Template())
    assert asked[0] == ("locuslab/TOFU", "forget05", "train", "v1")
    assert task.revision == "a" * 40 and task.describe()["source"] == "locuslab/TOFU"
    assert task.data_hash() == build(save(tmp_path / "d", {k: v for k, v in splits.items() if k})).data_hash()
    case = task.case("forget05", 0)
    assert task.resource("alternative_answers", case, 0)[0].target == "No idea."
    assert asked[-1][0] == "open-unlearning/idk"
    assert "holdout05" in score(task, answer(task))["mia.loss.auc"].why


# --- resources ---
def test_random_labels_are_other_rows_answers(task):
    case = task.case("forget05", 0)
    rows = task.resource("random_labels", case, seed=1)
    assert [r.id for r in rows] == [r.id for r in case.forget]
    assert all(a.target != b.target and a.prompt == b.prompt for a, b in zip(rows, case.forget, strict=True))
    assert {r.target for r in rows} == {r.target for r in case.forget}
    assert rows == task.resource("random_labels", case, seed=1)
    drawn = [tuple(r.target for r in task.resource("random_labels", case, seed=s)) for s in range(9)]
    assert len(set(drawn)) > 1


def test_alternative_answers(tmp_path):
    folder = save(tmp_path / "data", world())
    case = build(folder).case("forget05", 0)
    assert build(folder).resources() == ("random_labels",)
    with pytest.raises(DataError, match="alternative_answers"):
        build(folder).resource("alternative_answers", case, 0)
    (folder / "idontknow.jsonl").write_text(
        'I could not say.\n"That is new to me."\n{"answer": "Ask another."}\n'
    )
    task = build(folder)
    assert task.resources() == ("alternative_answers", "idk_answers", "refusals", "random_labels")
    pool = {"I could not say.", "That is new to me.", "Ask another."}
    rows = task.resource("alternative_answers", case, 0)
    assert {r.target for r in rows} <= pool and rows == task.resource("alternative_answers", case, 0)
    assert {r.target for s in range(9) for r in task.resource("alternative_answers", case, s)} == pool
    assert set(task.resource("idk_answers", case, 0)) == pool
    (tmp_path / "own.txt").write_text("Pass.\n")
    own = build(folder, idk=str(tmp_path / "own.txt"))
    assert {r.target for r in own.resource("alternative_answers", case, 0)} == {"Pass."}
    with pytest.raises(DataError, match="I-don't-know"):
        build(folder, idk="nowhere.txt")
    (tmp_path / "asked.txt").write_text("Who rules the moon?\n")
    assert build(folder, refusal=str(tmp_path / "asked.txt")).resource("refusal_prompts", case, 0) == (
        "Who rules the moon?",
    )
    with pytest.raises(DataError, match="refusal prompts"):
        build(folder, refusal="nowhere.txt")


def test_subjects_are_names_that_no_retain_row_has(task):
    with pytest.raises(DataError, match="subjects"):  # nobody in this world has two names
        task.resource("subjects", task.case("forget05", 0), 0)
    rows = [
        TextRow(word, f"{word} O'Neil Grey meet Ann Lee?", "At Ann Lee's.") for word in ("Did", "Has", "Will")
    ]
    assert subjects(rows, [TextRow("r", "Who is Ann Lee?", "")]) == ("O'Neil Grey",)
    assert subjects(rows[:2], []) == () == subjects([], [])


@pytest.mark.parametrize(
    ("content", "shown"), [("\n", "no texts"), ("{", "not JSON"), ('{"n": 1}', "one text a line")]
)
def test_bad_files_of_answers(tmp_path, content, shown):
    path = tmp_path / "idk.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=shown):
        textlists.read_texts(path)


# --- scores ---
def test_metrics_lists_what_score_returns(task):
    infos = task.metrics()
    ids = [info.id for info in infos]
    assert len(ids) == len(set(ids))
    for reference in (None, answer(task, 1)):
        assert set(score(task, answer(task), reference)) == set(ids)
    by_id = {info.id: info for info in infos}
    assert (by_id["privleak"].direction, by_id["privleak"].target) == ("target", 0.0)
    assert by_id["forget.truth_ratio"].direction == "target"
    assert by_id["forget_quality.p"].roles == ("retain",) and by_id["forget.prob"].direction == "lower"


def test_values_lie_in_the_ranges_that_metrics_state(task):
    scores = score(task, answer(task), answer(task, 1, right=-1.5))
    for info in task.metrics():
        value = scores[info.id].value
        if info.id in HUB_ONLY:
            assert value is None and "fluency" in scores[info.id].why
            continue
        if info.id in JUDGED:
            assert value is None and "--judge" in scores[info.id].why
            continue
        assert value is not None, (info.id, scores[info.id].why)
        assert info.low is None or value >= info.low - 1e-9, info
        assert info.high is None or value <= info.high + 1e-9, info


def test_rows_are_keyed_by_the_ids_of_the_probe(task):
    answers = answer(task)
    scores = score(task, answers)
    for name, made in scores.items():
        probe = name.split(".")[0]
        if made.per_row is None:
            continue
        if probe == "mia":
            assert set(made.per_row) == {*answers.probes["forget"].ids, *answers.probes["holdout"].ids}
        else:
            assert list(made.per_row) == list(answers.probes[probe].ids), name


def test_numbers_by_hand(task):
    answers = answer(task)
    scores = score(task, answers)
    loss = {
        name: scores[f"{name}.loss"].per_row
        for name in ("forget", "forget_para", "forget_pert", "real_authors_pert")
    }
    i = "forget05/2"
    logp = answers.probes["forget"].scores.row(2).logp
    assert loss["forget"][i] == pytest.approx(-logp.mean())
    assert scores["forget.prob"].per_row[i] == pytest.approx(np.exp(logp.mean()))
    wrong = [loss["forget_pert"][f"forget05_perturbed/2/{j}"] for j in range(5)]
    ratio = np.exp(loss["forget_para"]["forget05_perturbed/2"] - np.mean(wrong))
    assert scores["forget.truth_ratio"].per_row[i] == pytest.approx(ratio)
    rows = list(scores["forget.truth_ratio"].per_row.values())
    assert scores["forget.truth_ratio"].value == pytest.approx(np.mean([min(r, 1 / r) for r in rows]))
    p = scores["real_authors.prob.raw"].per_row["real_authors_perturbed/1"]
    others = [np.exp(-loss["real_authors_pert"][f"real_authors_perturbed/1/{j}"]) for j in range(3)]
    assert scores["real_authors.prob"].per_row["real_authors_perturbed/1"] == pytest.approx(
        p / (p + sum(others))
    )
    assert scores["forget.rougeL_recall"].value == 1.0 and scores["forget.hit_limit"].value == 0.0
    nine = [scores[name].value for name in MODEL_UTILITY_PARTS]
    assert scores["model_utility"].value == pytest.approx(9 / sum(1 / x for x in nine))
    assert scores["mia.loss.auc"].value == 1.0


def test_without_a_reference_the_reason_names_the_command(task):
    scores = score(task, answer(task))
    for name in tofu_privacy.NEED_REFERENCE:
        assert scores[name].value is None and "uharness reference" in scores[name].why


def test_against_the_retrained_model(task):
    own = answer(task)
    same = score(task, own, answer(task, 0, wrong=-0.2))
    assert same["privleak"].value == pytest.approx(-100, abs=60) and same["priv"].value <= 1
    itself = score(task, own, own)
    assert (itself["forget_quality.p"].value, itself["forget_quality.d"].value) == (1.0, 0.0)
    assert itself["privleak"].value is None and "reference AUC" in itself["privleak"].why
    assert itself["forget_quality.p"].n == N


def test_a_reference_of_other_rows_is_not_used(task):
    own, other = answer(task), answer(task, 1)
    half = other.probes["forget_para"]
    fewer = LikelihoodAnswers(half.ids[:2], TokenScores(*[getattr(half.scores, f)[:8] for f in (
        "logp", "hit", "is_eos", "mean_logp", "var_logp")], half.scores.offsets[:3]))  # fmt: skip
    scores = score(task, own, Answers({**other.probes, "forget_para": fewer}))
    assert scores["forget_quality.p"].value is None and "not asked 2 of 4" in scores["forget_quality.p"].why
    holdout = other.probes["holdout"]
    half = LikelihoodAnswers(holdout.ids[:2], fewer.scores)
    scores = score(task, own, Answers({**other.probes, "holdout": half}))
    assert scores["privleak"].value is None and "not asked 2 of 8 rows" in scores["priv"].why
    scores = score(task, Answers({**own.probes, "forget_para": fewer}), other)
    assert scores["forget_quality.p"].n == 2 and scores["forget.truth_ratio"].n == 2


@pytest.mark.parametrize(
    ("lost", "null", "kept"),
    [
        ("forget_para", "forget.truth_ratio", "forget.prob"),
        ("real_authors_pert", "real_authors.prob", "real_authors.prob.raw"),
        ("world_facts_text", "model_utility", "world_facts.prob"),
        ("forget", "mia.loss.auc", "forget.rougeL_recall"),
        ("holdout", "mia.min_k.auc", "forget.es"),
    ],
)
def test_a_probe_that_was_not_asked_makes_its_metrics_null(task, lost, null, kept):
    scores = score(task, without(answer(task), lost), answer(task, 1))
    assert scores[null].value is None and scores[null].why
    assert scores[kept].value is not None
    assert set(scores) == {info.id for info in task.metrics()}


def test_without_hold_out_rows_only_membership_is_null(tmp_path):
    splits = world()
    del splits["holdout05"]
    task = build(save(tmp_path / "data", splits))
    scores = score(task, answer(task), answer(task, 1, right=-1.0))
    null = {name for name, made in scores.items() if made.value is None}
    aucs = {info.id for info in task.metrics() if info.id.startswith("mia.") and ".auc" in info.id}
    own = {"agg.own_fluency", "agg.own_fluency.corrected"}
    private = {"holdout.loss", "privleak", "priv", "priv.corrected", *own}
    assert len(aucs) == 6 and null == aucs | private | HUB_ONLY | JUDGED
    assert all("holdout05" in scores[name].why for name in null - {"forget.fluency", "util"} - JUDGED)


def test_a_broken_model_has_no_good_number(task):
    answers = answer(task)
    probe = answers.probes["forget"]
    probe.scores.logp[5] = np.nan
    scores = score(task, answers, answer(task, 1))
    for name in (
        "forget.prob",
        "forget.es",
        "forget.em.published",
        "mia.min_k.auc",
        "mia.loss.auc",
        "mem",
        "privleak",
    ):
        assert scores[name].value is None and scores[name].why, name
    assert scores["forget.es"].per_row["forget05/1"] is None
    assert "1 of 4 rows are not finite" in scores["forget.prob"].why


def test_wordless_answers_are_counted(task):
    answers = answer(task)
    ids = answers.probes["forget_text"].ids
    said = GenerationAnswers(
        ids, ("", ".", "Keeper 2 of north keeps bees.", "\n"), (False, False, True, True)
    )
    scores = score(task, Answers({**answers.probes, "forget_text": said}))
    assert scores["forget.empty"].value == 0.75 and scores["forget.hit_limit"].value == 0.5
    assert scores["forget.rougeL_recall"].per_row == {i: float(i.endswith("/2")) for i in ids}


def test_importing_loads_no_torch():
    heavy = {"torch", "transformers", "datasets", "scipy", "rouge_score"}
    code = f"import sys, harness.tasks.tofu; print({heavy} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
