"""RWKU: its rows and what is refused, its numbers against the package `rouge` and closed forms, gain."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from harness.errors import DataError
from harness.metrics import gain, privacy
from harness.metrics import rwku as metrics
from harness.preflight import board_ready, described
from harness.specs import TaskRef, Template
from harness.tasks import rwku, rwku_read
from harness.tasks.rwku_columns import KINDS, METRICS
from harness.tasks.rwku_data import PROBES, TEXTS
from harness.tasks.rwku_prompts import TYPES, case_id, kind_of, prompt_of
from harness.types import (
    Answers,
    GenerationAnswers,
    LikelihoodAnswers,
    SuiteAnswers,
    TokenScores,
)
from harness.workspace import Workspace, load_board

DATA = Path(__file__).parent / "data" / "rwku"
A, B = "1_Mirela_Vonk_Lady_of_Tarn", "2_Zoe_Angstrom"
RECALL = "rougeL_recall.rwku"


def build(data: Path | str = DATA, **options: object) -> rwku.RwkuTask:
    return rwku.build(TaskRef(name="rwku", data=str(data), options=options), Template())


def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "rwku"))


def edit(path: Path, change: dict[str, object], row: int = 0) -> None:
    """Set columns of one row of a JSON array; None deletes a column."""
    rows = json.loads(path.read_text())
    for column, value in change.items():
        rows[row].pop(column, None)
        if value is not None:
            rows[row][column] = value
    path.write_text(json.dumps(rows))


# --- rows -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("number", "name", "case"),
    [
        (10, "Prince Harry, Duke of Sussex", "10_Prince_Harry_Duke_of_Sussex"),
        (24, "Beyoncé", "24_Beyonce"),
        (34, "Daniel Day-Lewis", "34_Daniel_Day_Lewis"),
        (18, "John D. Rockefeller", "18_John_D_Rockefeller"),
        (21, "50 Cent", "21_50_Cent"),
        (3, "../..", "3"),
    ],
)
def test_names_make_safe_cases(number: int, name: str, case: str) -> None:
    assert case_id(number, name) == case and Path(case).name == case and case.isascii()


def test_cases_and_rows_of_the_hubs_shape() -> None:
    task = build(targets=2)
    assert task.case_ids() == (A, B)
    case = task.case(B, 0)
    assert {row.form for row in case.forget} == {"text"} and all(not row.prompt for row in case.forget)
    assert [row.target for row in case.forget] == [
        "Zoë Ångström, born in Lillevik, works as a ice skater (0).",
        "Zoë Ångström, born in Lillevik, works as a ice skater (1).",
    ]
    assert {p.name for p in task.probes(case)} == {*PROBES, *TEXTS, "fluency"}
    ids = [row.id for probe in task.probes(case) for row in probe.rows]
    assert len(set(ids)) == len(ids)
    assert build(targets=["Zoë Ångström"]).case_ids() == (B,)


def test_nobody_whom_a_neighbour_question_names_is_retained() -> None:
    task = build()
    about = {name: " ".join(row.target for row in task.case(name, 0).retain) for name in task.case_ids()}
    assert "Odo Pell" in about[A] and "Zoë" in about[A] and "Mirela" not in about[A]
    assert "Odo Pell" not in about[B] and "Mirela" in about[B]


def test_prompts_are_the_public_codes_to_the_byte() -> None:
    lead = "Please briefly answer the following question.\nQuestion: q"
    assert prompt_of({"query": "q"}, "2") == (lead + "\n", "Answer:")
    assert prompt_of({"query": "q", "type": "affirmative suffix"}, "3") == (lead, "")
    icl = "Please briefly answer the following question.\nq\n"
    assert prompt_of({"query": "q", "type": "incontext learning"}, "3") == (icl, "Answer:")
    assert prompt_of({"query": "q", "type": "role playing"}, "3") == (lead + "\n", "Answer:")
    plain = build(prompts="plain").rows.probes["forget_fb"]["Zoë Ångström"][0]
    assert (plain.prompt, plain.lead) == ("Zoë Ångström was born in ___.", "")


def test_the_nine_kinds_have_a_column_each() -> None:
    assert len({kind_of(t) for t in TYPES}) == 9 and "other" not in {kind_of(t) for t in TYPES}
    assert set(KINDS) == {f"forget_aa_{kind_of(t)}" for t in TYPES} | {"forget_aa_other"}


def test_resources_belong_to_the_target() -> None:
    task, pairs = build(), build(forget="pair")
    case = task.case(A, 0)
    assert set(task.resources()) == {"subjects", "alternative_answers", "refusals"}
    assert set(pairs.resources()) == set(task.resources()) | {"idk_answers"}
    assert task.resource("subjects", case, 0) == ("Mirela Vonk, Lady of Tarn",)
    made_up = task.resource("alternative_answers", case, 0)
    assert [row.id for row in made_up] == [row.id for row in case.forget]
    assert all("Ulm" in row.target and row.form == "text" for row in made_up)
    refusals = task.resource("refusals", case, 0)
    assert all("Mirela Vonk" in row.prompt and row.form == "question" for row in refusals)
    case = pairs.case(A, 0)
    assert case.forget[0].prompt.endswith("Please write a short biography of Mirela Vonk, Lady of Tarn.")
    assert {row.prompt for row in pairs.resource("alternative_answers", case, 0)} == {
        row.prompt for row in case.forget
    }
    assert pairs.resource("idk_answers", case, 0) == ("I have no idea.", "That is new to me.")
    with pytest.raises(DataError, match="supplies no 'random_labels'"):
        task.resource("random_labels", case, 0)


def test_the_robustness_axes_find_their_questions() -> None:
    task = build()
    case = task.case(A, 0)
    asked = task.questions(case)
    assert [len(asked[side].rows) for side in ("forget", "retain")] == [1, 1]
    found = {kind: [row.meta["type"] for row in rows] for kind, rows in task.paraphrases(case).items()}
    assert found == {"paraphrase": ["synonym manipulation"], "translated": ["cross lingual"]}


def test_the_hash_follows_what_is_asked(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    first = build(folder, targets=1).data_hash()
    edit(folder / "All/forget_level1.json", {"answer": "elsewhere"}, row=1)
    assert build(folder, targets=1).data_hash() == first != build(folder, targets=2).data_hash()
    edit(folder / "All/forget_level1.json", {"answer": "elsewhere"})
    assert build(folder, targets=1).data_hash() != first
    assert build(targets=1).data_hash() == first != build(targets=1, prompts="plain").data_hash()


# --- what is refused ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": 2}, "no option 'target'; did you mean targets"),
        ({"targets": 4}, "there are 3 targets"),
        ({"targets": True}, "it is a whole number of at least 1 or a list of names"),
        ({"targets": ["Odo Pelt"]}, "did you mean Odo Pell"),
        ({"prompts": "short"}, "prompts is 'short'"),
        ({"forget": "negative"}, "forget is 'negative'"),
        ({"mmlu": True}, "it is a table"),
        ({"mmlu": {"shot": 5}}, "no option 'shot'; did you mean shots"),
        ({"mmlu": {"tasks": "mmlu"}}, "rwku's mmlu's option tasks is 'mmlu'; it is a list of lm-eval tasks"),
        ({"utility": {"limit": 0}}, "limit is 0; it is a whole number of at least 1"),
        ({"refusal": 3}, "refusal is 3; it is a text"),
        ({"refusal": "nowhere.txt"}, "do not exist"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, object], says: str) -> None:
    with pytest.raises(DataError) as error:
        build(**options)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("forget_level3", {"type": None}, "no column 'type'"),
        ("forget_level1", {"answer": None}, "no column 'answer'"),
        ("forget_level1", {"level": "2"}, "is of level '2'"),
        ("neighbor_level1", {"query": ""}, "column 'query' is \"\""),
        ("positive", {"text": 3}, "column 'text' is 3"),
        ("fluency", {"instruction": None}, "no column 'instruction'"),
    ],
)
def test_a_wrong_column_names_its_file(
    tmp_path: Path, file: str, change: dict[str, object], says: str
) -> None:
    folder = copy(tmp_path)
    edit(folder / f"All/{file}.json", change)
    with pytest.raises(DataError) as error:
        build(folder).data_hash()
    assert says in str(error.value) and f"All/{file}.json" in str(error.value)


def test_another_encoding_is_one_line_and_a_byte_order_mark_is_none(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    path, wanted = folder / "All/forget_level1.json", build(folder).data_hash()
    good = path.read_text(encoding="utf-8")
    path.write_bytes(b"\xef\xbb\xbf" + good.encode())
    assert build(folder).data_hash() == wanted
    path.write_bytes(b"\xe9" + good.encode())
    with pytest.raises(DataError, match=r"forget_level1\.json is not UTF-8; byte 0 is 0xe9"):
        build(folder)


def test_blank_questions_of_the_refusal_corpus_are_left_out(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    edit(folder / "All/reject.json", {"instruction": " "})
    edit(folder / "All/reject.json", {"input": "Briefly."}, row=1)
    task = build(folder)
    (row,) = task.resource("refusals", task.case(A, 0), 0)
    assert row.prompt.endswith("in 3 words?\nBriefly.") and row.id == "train_refusal_llama3/1"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    (folder / "All/neighbor_level2.json").unlink()
    with pytest.raises(DataError, match="neighbor_level2 is missing") as error:
        build(folder)
    assert "All/neighbor_level2.json" in str(error.value) and str(folder) in str(error.value)
    shutil.copy(DATA / "All/forget_level2.json", folder / "All/neighbor_level2.json")
    (folder / "All/forget_mia.json").unlink()
    assert "mia_forget" not in {p.name for p in build(folder).probes(build(folder).case(A, 0))}


def test_a_target_without_questions_is_refused(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    rows = json.loads((folder / "All/forget_level1.json").read_text())
    (folder / "All/forget_level1.json").write_text(json.dumps([r for r in rows if "Odo" not in r["subject"]]))
    with pytest.raises(DataError, match="no question for the target 'Odo Pell'"):
        build(folder)
    assert build(folder, targets=2).case_ids() == (A, B)


# --- the hub --------------------------------------------------------------------------------------------------------
def test_the_hub_is_read_file_by_file_and_its_commit_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card of the data set names `utility_general` twice; nobody reads the card."""
    commit = "3f" * 20
    at = tmp_path / "snapshots" / commit
    shutil.copytree(DATA, at)
    asked: list[tuple[str, str]] = []

    def download(repo: str, file: str, *, repo_type: str, revision: str) -> str:
        asked.append((file, revision))
        assert (repo, repo_type) == ("jinzhuoran/RWKU", "dataset")
        return str(at / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    hub, local = build("", targets=2, revision="main"), build(targets=2)
    assert hub.case_ids() == local.case_ids() and hub.data_hash() == local.data_hash()
    assert hub.revision == commit and hub.describe()["source"] == "jinzhuoran/RWKU"
    assert asked[0] == ("All/intro.json", "main") and {r for _, r in asked[1:]} == {commit}
    assert rwku_read.Hub("jinzhuoran/RWKU").rows("utility_general")[0]["answer"] == 2


def test_offline_is_one_line() -> None:
    with pytest.raises(DataError) as error:
        build("nobody/has-this")
    text = str(error.value)
    assert "forget_target, file All/intro.json" in text and "HF_HUB_OFFLINE" in text and "\n" not in text
    assert "give a folder with its files as data" in text and "--data-dir" not in text


def test_a_hub_board_shows_its_table_without_data() -> None:
    for path in sorted((ROOT / "leaderboards").glob("rwku-*.toml")):
        found = described(load_board(path), Workspace(ROOT))
        assert set(load_board(path).columns) <= set(found.metrics), path.name
        assert bool(found.hub) is (path.stem != "rwku-mini")


# --- ROUGE-L --------------------------------------------------------------------------------------------------------
def test_recall_is_the_packages() -> None:
    rows = json.loads((DATA / "rouge.json").read_text())["rows"]
    found = metrics.rouge_recall([r[0] for r in rows], [r[1] for r in rows])
    assert found == pytest.approx([r[2] for r in rows], abs=1e-12) and len(rows) > 50


def test_odd_texts_never_raise() -> None:
    said = ["", " ", ".", "...", "\n", ". .", "!?"]
    assert metrics.rouge_recall(said, ["Ada Finch"] * len(said)) == [0.0] * len(said)
    assert metrics.rouge_recall(["x", "x"], [".", ""]) == [None, None]
    assert metrics.rouge_recall(["Zoë"], ["Zoë"]) == [1.0] and metrics.rouge_recall(["Zoe"], ["Zoë"]) == [0.0]
    assert metrics.first_line("\n\n Tarn\nQuestion") == "Tarn" and metrics.first_line("") == ""


# --- likelihoods, entropy -------------------------------------------------------------------------------------------
def tokens(*rows: list[float], eos: bool = True) -> TokenScores:
    ends = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    logp = np.array([x for row in rows for x in row], dtype=np.float32)
    is_eos = np.zeros(len(logp), dtype=bool)
    is_eos[ends[1:] - 1] = eos
    same = np.full(len(logp), -1.0, np.float32)
    return TokenScores(
        logp, np.zeros(len(logp), bool), is_eos, same, np.full(len(logp), 4.0, np.float32), ends
    )


def test_a_closing_eos_is_no_part_of_a_text() -> None:
    scores = tokens([-1.0, -3.0, -50.0], [-2.0, -50.0], [-50.0])
    assert metrics.log_likelihood(scores) == [-2.0, -2.0, None]
    size = len(__import__("zlib").compress(b"abc"))
    assert metrics.log_likelihood_zlib(scores, ["abc"] * 3) == [-2.0 / size, -2.0 / size, None]
    assert metrics.log_likelihood(tokens([-1.0, -3.0], eos=False)) == [-2.0]


def test_min_k_plus_is_the_mean_of_the_lowest_fifth() -> None:
    row = [-float(k) for k in range(10)]
    assert metrics.min_k_plus(tokens(row, eos=False)) == [pytest.approx(((-9 + 1) / 2 + (-8 + 1) / 2) / 2)]
    assert metrics.min_k_plus(tokens([-5.0], eos=False)) == [-2.0]
    assert [-(x or 0) for x in metrics.min_k_plus(tokens(row))] == privacy.min_k_pp(tokens(row), 0.2)


def test_entropy_of_grams() -> None:
    distinct, repeated = "a b c d e f g h i", "x x x x x x x x"
    (high, low) = metrics.ngram_entropy([distinct, repeated])
    assert high == pytest.approx((2 / 3 * 3 + 4 / 3 * math.log2(7)) / 2) and low == 0.0
    assert metrics.ngram_entropy(["", "one", "."]) == [0.0, 0.0, 0.0]
    assert metrics.words("She came. He didn't!") == ["She", "came", ".", "He", "did", "n't", "!"]


# --- gain -----------------------------------------------------------------------------------------------------------
PUBLISHED = [
    (0.1127, 0.5657, 0.6392, 0.1117),
    (0.1460, 0.6539, 0.6376, 0.1295),
    (0.3250, 0.7520, 0.6292, 0.0997),
    (0.2034, 0.7334, 0.6281, 0.1336),
]


def test_published_rows_agree_on_one_original_model() -> None:
    """Four rows, any one of which gives F0 - N0 - M0; the others' gains then follow."""
    bases = [3 * g + f - n - m for f, n, m, g in PUBLISHED]
    assert bases == pytest.approx([-0.757] * 4, abs=3.5e-4)
    original = {"forget": 0.6, "neighbor": 0.7, "mmlu": 0.657}
    for f, n, m, g in PUBLISHED:
        found = gain.rwku_gain({"forget": f, "neighbor": n, "mmlu": m}, original).value
        assert found == pytest.approx(g, abs=1.5e-4)


def test_gain_ends_and_what_is_missing() -> None:
    base = {"forget": 0.7, "neighbor": 0.7, "mmlu": 0.6}
    assert gain.rwku_gain(base, base).value == 0.0
    assert gain.rwku_gain({"forget": 0.0, "neighbor": 0.7, "mmlu": 0.6}, base).value == pytest.approx(0.7 / 3)
    broken = {"forget": 0.0, "neighbor": 0.0, "mmlu": 0.05}
    floored = gain.rwku_gain(broken, base, {"mmlu": 0.25}).value
    assert floored == pytest.approx((0.7 - 0.7 + 0.25 - 0.6) / 3)
    lacking = gain.rwku_gain({**base, "mmlu": None}, base)
    assert lacking.value is None and lacking.why == "mmlu of the model is missing"


def suite(hits: int) -> SuiteAnswers:
    options = [(0.0, -1.0, -1.0, -1.0)] * hits + [(-1.0, 0.0, -1.0, -1.0)] * (8 - hits)
    ids = tuple(f"mmlu/{i}" for i in range(8))
    return SuiteAnswers(ids, ("mmlu",) * 8, (0,) * 8, tuple(options), {}, {}, {})


def answers(task: rwku.RwkuTask, case: str, said: dict[str, str], hits: int = 8) -> Answers:
    """Canned: one text for all questions of a probe; without one, the right answers."""
    found: dict[str, object] = {"mmlu": suite(hits)}
    for probe in task.probes(task.case(case, 0)):
        ids = tuple(row.id for row in probe.rows)
        if probe.name in TEXTS:
            found[probe.name] = LikelihoodAnswers(ids, tokens(*([-1.0, -2.0, -9.0] for _ in ids)))
        else:
            texts = tuple(said.get(probe.name, row.target) for row in probe.rows)
            found[probe.name] = GenerationAnswers(ids, texts, (False,) * len(ids))
    return Answers(found)  # type: ignore[arg-type]


def test_scores_of_canned_answers() -> None:
    task = build()
    case = task.case(A, 0)
    original = answers(task, A, {})
    mine = answers(task, A, {"forget_qa": ".", "forget_fb": "Ulm\nTarnholm", "neighbor_qa": ""}, hits=6)
    scores = task.score(case, mine, {"original": original})
    assert set(scores) == {m.id for m in METRICS}
    value = {name: score.value for name, score in scores.items()}
    assert value[f"forget_qa.{RECALL}"] == 0.0 and value[f"forget_aa.{RECALL}"] == 1.0
    assert value[f"forget_fb.{RECALL}"] == 0.0 and value[f"forget_fb.{RECALL}.uncut"] == 0.5
    assert value[f"forget.{RECALL}"] == pytest.approx(9 / 12) and value[f"neighbor.{RECALL}"] == 0.5
    assert value["forget.empty"] == pytest.approx(1 / 12) and value["neighbor.empty"] == 0.5
    assert value["mmlu.acc"] == 0.75 and value["mia_forget.loglik"] == -1.5
    assert value["gain"] == pytest.approx((0.25 - 0.5 - 0.25) / 3) == value["gain.chance_floored"]
    for kind in KINDS:
        score = scores[f"{kind}.{RECALL}"]
        assert (score.value, score.n) == ((None, 0) if kind.endswith("other") else (1.0, 1))
    assert scores[f"forget_aa_other.{RECALL}"].why and scores["bbh.exact_match"].why


def test_the_original_gains_nothing_and_is_needed() -> None:
    task = build()
    case, original = task.case(B, 0), answers(build(), B, {"forget_aa": "Ulm"}, hits=5)
    scores = task.score(case, original, {"original": original})
    assert scores["gain"].value == 0.0 == scores["gain.chance_floored"].value
    alone = task.score(case, original, {})
    assert alone["gain"].value is None and "reference" in alone["gain"].why
    floored = task.score(case, answers(task, B, {}, hits=0), {"original": original})
    assert floored["gain"].value != floored["gain.chance_floored"].value
    nothing = task.score(case, Answers({}), {"original": original})
    assert nothing["gain"].value is None and all(s.why for s in nothing.values() if s.value is None)


def test_rwku_mini_is_ready_and_known_by_the_base_model() -> None:
    board = load_board(ROOT / "leaderboards" / "rwku-mini.toml")
    ready = board_ready(board, Workspace(ROOT))
    assert ready.task.case_ids() == ("1_Ulda_Farnlin", "2_Varek_Keldgard", "4_Stellan_Caldgard")
    assert ready.text
    assert ready.reference_roles == ["original"]
    assert {"alternative_answers", "idk_answers", "refusals", "subjects"} <= set(ready.task.resources())
