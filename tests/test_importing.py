from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path

import pytest
from tiny_logs import open_unlearning, save, tofu_log

from harness.errors import DataError, InputError, ReferenceError_
from harness.importing import import_log, report
from harness.metrics.utility import MODEL_UTILITY_PARTS
from harness.tasks.tofu_columns import METRICS

SHARED = Path(__file__).resolve().parents[2] / "shared"
shared = pytest.mark.shared
absent = not SHARED.is_dir() and os.environ.get("CI") != "true"
needs_shared = pytest.mark.skipif(absent, reason="the reference data is not beside this checkout")
LOGS = SHARED / "data" / "tofu_logs"


@pytest.fixture
def logs(tmp_path):
    return save(tmp_path / "model.json", tofu_log(seed=0)), save(tmp_path / "retain.json", tofu_log(seed=1))


def eval_log():
    return open_unlearning(json.loads((SHARED / "reference" / "tofu_tiny" / "expected.json").read_text()))


def other_model(log):
    """The same questions, other numbers; the forget rows look like the hold-out rows."""
    log = copy.deepcopy(log)
    for name, held in log.items():
        if name.startswith("mia_"):
            held["forget"] = copy.deepcopy(held["holdout"])
            held = held["forget"]
        for i, row in held.get("value_by_index", {}).items():
            for key in row:
                if key in ("avg_loss", "prob", "score") and isinstance(row[key], float):
                    row[key] *= 1.0 + 0.01 * (int(i) % 7)
    return log


# --- the first TOFU code's logs ---
@shared
@needs_shared
def test_the_real_logs_give_the_known_numbers():
    made = import_log(LOGS / "phi_full.json", LOGS / "phi_retain90.json")
    parts = (.926088, .929253, .482683, .377360, .415667, .456009, .408998, .777350, .492337)  # fmt: skip
    assert [made.scores[name].value for name in MODEL_UTILITY_PARTS] == pytest.approx(parts, abs=1e-6)
    assert made.scores["model_utility"].value == pytest.approx(0.522074, abs=5e-7)
    assert made.scores["forget_quality.p"].value == pytest.approx(2.194274e-16, rel=5e-7)
    assert made.scores["forget_quality.d"].value == pytest.approx(0.346667, abs=5e-7)
    assert made.notes == () and made.scores["forget_quality.p"].n == 300
    assert made.scores["forget.own_fluency"].value > 0.8
    retain = import_log(LOGS / "phi_retain90.json")
    assert retain.scores["model_utility"].value == pytest.approx(0.531991, abs=5e-7)
    assert retain.scores["forget_quality.p"].value is None
    assert "--reference" in retain.scores["forget_quality.p"].why


def test_every_metric_has_a_value_or_a_reason(logs):
    made = import_log(*logs)
    assert set(made.scores) == {info.id for info in METRICS}
    assert made.scores["util.own_fluency"].value is not None
    assert "extraction strength is missing" in made.scores["mem"].why
    for name in ("forget.es", "mia.loss.auc", "priv"):
        assert made.scores[name].value is None and "the log has no such values" in made.scores[name].why
    assert "forget.fluency is missing" in made.scores["util"].why


def test_numbers_by_hand(logs):
    data, made = tofu_log(seed=0), import_log(*logs)
    held = data["eval_log_forget.json"]
    ratios = [
        math.exp(held["avg_paraphrased_loss"][k] - sum(held["average_perturb_loss"][k]) / 5)
        for k in held["avg_gt_loss"]
    ]
    assert list(made.scores["forget.truth_ratio"].per_row.values()) == pytest.approx(ratios)
    assert made.scores["forget.truth_ratio"].value == pytest.approx(sum(min(r, 1 / r) for r in ratios) / 6)
    assert "only 6 rows a side" in made.scores["forget_quality.p"].why


def test_the_report_has_rows_in_the_order_of_the_log(logs):
    made = import_log(*logs)
    value = json.loads(json.dumps(report(made, "forget05"), allow_nan=False))
    assert (value["status"], value["split"], value["format"]) == ("imported", "forget05", 1)
    assert [row["id"] for row in value["rows"]["forget"]] == [f"forget05/{i}" for i in range(6)]
    row = value["rows"]["forget"][2]
    assert (
        row["prompt"].startswith("Question: What does north keeper 2")
        and row["answer"] == "Answer: He keeps bees."
    )
    assert row["forget.prob"] == pytest.approx(
        math.exp(-tofu_log()["eval_log_forget.json"]["avg_gt_loss"]["2"])
    )
    assert value["rows"]["forget_pert"][5]["id"] == "forget05_perturbed/1/0"
    assert value["env"]["imported"]["reference"]["rows"]["forget"] == 6


# --- references that are none ---
def test_the_log_itself_is_no_reference(logs, tmp_path):
    same = tmp_path / "other_name.json"
    same.write_text(json.dumps(tofu_log(seed=0), indent=3))
    for path in (logs[0], same):
        with pytest.raises(ReferenceError_, match="the log itself"):
            import_log(logs[0], path)


def test_another_log_of_the_same_model_is_no_reference(logs, tmp_path):
    data = tofu_log(seed=0)
    data["eval_log.json"]["rougeL_recall"]["0"] = 0.5
    with pytest.raises(ReferenceError_, match="one model"):
        import_log(logs[0], save(tmp_path / "b.json", data))


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"n": 5}, "has 5 forget rows, and model.json has 6"),
        ({"forget": "west"}, "6 of 6 forget questions differ"),
    ],
)
def test_a_reference_on_other_rows_is_refused(logs, tmp_path, change, shown):
    with pytest.raises(ReferenceError_, match=shown):
        import_log(logs[0], save(tmp_path / "b.json", tofu_log(seed=1, **change)))


def test_without_questions_the_token_counts_are_compared(tmp_path):
    log = save(tmp_path / "a.json", tofu_log(seed=0, texts=False))
    made = import_log(log, save(tmp_path / "b.json", tofu_log(seed=1, texts=False)))
    assert "only the token counts" in made.notes[0] and made.scores["forget_quality.p"].value is not None
    with pytest.raises(ReferenceError_, match="token counts differ"):
        import_log(log, save(tmp_path / "c.json", tofu_log(seed=1, forget="elsewhere", texts=False)))


@shared
@needs_shared
def test_logs_of_two_evaluators_do_not_mix(logs, tmp_path):
    with pytest.raises(ReferenceError_, match="two evaluators"):
        import_log(logs[0], save(tmp_path / "TOFU_EVAL.json", eval_log()))


# --- open-unlearning's logs ---
@shared
@needs_shared
def test_an_open_unlearning_log_gives_its_own_aggregates(tmp_path):
    log = eval_log()
    made = import_log(
        save(tmp_path / "TOFU_EVAL.json", log), save(tmp_path / "retain.json", other_model(log))
    )
    expected = {
        "forget.prob": log["forget_Q_A_Prob"], "forget.es.published": log["extraction_strength"],
        "forget.em.published": log["exact_memorization"], "forget.truth_ratio": log["forget_truth_ratio"],
        "retain.truth_ratio": log["retain_Truth_Ratio"], "real_authors.prob": log["ra_Q_A_Prob_normalised"],
        "world_facts.rougeL_recall": log["wf_Q_A_ROUGE"], "model_utility": log["model_utility"],
        "mia.loss.auc": log["mia_loss"], "mia.min_k_pp.auc.published": log["mia_min_k_plus_plus"],
    }  # fmt: skip
    got = {name: made.scores[name].value for name in expected}
    assert got == pytest.approx({name: held["agg_value"] for name, held in expected.items()}, abs=1e-6)
    for name in ("mem", "priv", "privleak", "util.own_fluency", "agg.own_fluency", "forget_quality.p"):
        assert made.scores[name].value is not None, (name, made.scores[name].why)
    assert made.scores["forget.es"].value is None and made.notes == ()


@shared
@needs_shared
def test_a_claim_against_an_unnamed_reference_is_not_believed(tmp_path):
    log = eval_log() | {"forget_quality": {"agg_value": 0.7}, "privleak": {"agg_value": -96.2}}
    made = import_log(save(tmp_path / "e.json", log))
    for name in ("forget_quality.p", "privleak"):
        assert made.scores[name].value is None and "forget_quality 0.7" in made.scores[name].why


@shared
@needs_shared
def test_a_truth_ratio_by_another_definition_is_worked_out_anew(tmp_path):
    log = eval_log()
    wanted = import_log(save(tmp_path / "a.json", log)).scores["forget.truth_ratio"].value
    for row in log["forget_truth_ratio"]["value_by_index"].values():
        row["score"] = 1.0 / (1.0 + row["score"])
    made = import_log(save(tmp_path / "b.json", log))
    assert made.scores["forget.truth_ratio"].value == wanted
    assert len(made.notes) == 1 and "forget_truth_ratio" in made.notes[0]


# --- files that are no logs ---
@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("[1]", "it is a list"),
        ("{}", "it is empty"),
        ("{", "is no JSON"),
        ('{"a": 1.0, "b": null}', "SUMMARY"),
        ('{"avg_gt_loss": {}}', "one set"),
        ('{"a": "x", "b": {}}', "it has the keys 'a', 'b'"),
        ('{"forget_knowmem_ROUGE": {"agg_value": 1.0}}', "not of TOFU"),
        ('{"eval_log.json": {"avg_gt_loss": [1.0]}}', "no number a row under 'avg_gt_loss'"),
        ('{"eval_log.json": {"average_perturb_loss": {"0": 1.0}}}', "no list a row"),
    ],
)
def test_an_unknown_file_says_what_it_is(tmp_path, content, shown):
    path = tmp_path / "log.json"
    path.write_text(content)
    with pytest.raises(InputError, match=shown) as caught:
        import_log(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        import_log(tmp_path / "none.json")


def test_a_value_that_is_no_number_makes_its_mean_null(tmp_path):
    data = tofu_log()
    data["eval_log_forget.json"]["avg_gt_loss"]["3"] = float("nan")
    made = import_log(save(tmp_path / "a.json", data))
    assert (
        made.scores["forget.prob"].value is None
        and "1 of 6 rows are not finite" in made.scores["forget.prob"].why
    )
    json.dumps(report(made), allow_nan=False)


# --- the command ---
BOARD = """
rank_by = "model_utility"
columns = ["model_utility", "forget_quality.p", "cost.charged_s"]
seeds = [4]
[task]
name = "{task}"
split = "forget05"
data = "{data}"
[models]
target = "own/model"
[budget]
updates = 1
"""


@pytest.fixture
def board(workspace):
    from test_tofu import save as save_world
    from test_tofu import world

    splits = world()
    for name in ("forget05", "forget05_perturbed"):
        splits[name] = splits[name][:4]
    save_world(workspace / "data", splits)
    (workspace / "leaderboards" / "small.toml").write_text(BOARD.format(task="tofu", data="data"))
    return workspace


def test_a_log_becomes_a_row_that_is_never_ranked(uharness, board, tmp_path):
    log, other = save(board / "My log.json", tofu_log(4)), save(board / "retain.json", tofu_log(4, seed=1))
    for _ in range(2):
        ran = uharness(
            "import", str(log), "--reference", str(other), "--board", "small", "--json", "out.json"
        )
        assert ran.code == 0 and "status imported" in ran.err, ran.err
    value = json.loads((board / "out.json").read_text())
    shown = f"{'model_utility':34} {value['scores']['model_utility']['value']:.7g}  (n = 9)"
    assert shown in ran.out.splitlines()
    table = json.loads(uharness("board", "show", "small", "--format", "json").out)
    row = table["rows"][0]
    assert row["entry"] == "imported:My_log" and row["rank"] is None and "imported" in json.dumps(row)
    runs = json.loads(uharness("run", "list", "--board", "small", "--json").out)
    assert [r["status"] for r in runs] == ["imported"] and runs[0]["seed"] == 4
    stored = runs[0]["scores"]["forget_quality.p"]["value"]
    assert stored == value["scores"]["forget_quality.p"]["value"]


def test_a_log_of_another_split_does_not_get_onto_a_board(uharness, board):
    ran = uharness("import", str(save(board / "a.json", tofu_log(4, forget="west"))), "--board", "small")
    assert ran.code == 2 and "was not made on forget05" in ran.err
    ran = uharness("import", str(save(board / "b.json", tofu_log(9))), "--board", "small")
    assert ran.code == 2 and "the board nothing" in ran.err
    ran = uharness("import", str(save(board / "c.json", tofu_log(3))), "--board", "small")
    assert ran.code == 0
    assert (
        "3 of the split's 4 forget rows"
        in json.loads(uharness("run", "list", "--board", "small", "--json").out)[0]["error"]
    )
    ran = uharness("import", str(board / "c.json"), "--board", "tiny")
    assert ran.code == 2 and "is about bma" in ran.err


def test_rows_on_the_hub_are_not_compared_and_that_is_told(board, monkeypatch, tmp_path):
    from harness.importing import compare_rows
    from harness.tasks import tofu
    from harness.tasks.tofu_data import SplitMissing
    from harness.workspace import Workspace

    def absent(*_):
        raise SplitMissing("the hub is not there")

    monkeypatch.setattr(tofu, "build", absent)
    made = import_log(save(tmp_path / "a.json", tofu_log(4)))
    chosen = Workspace(board).board("small")
    assert "the hub is not there" in compare_rows(made, chosen, "")[0]
    assert issubclass(SplitMissing, DataError)
    silent = import_log(save(tmp_path / "b.json", tofu_log(4, texts=False)))
    assert "on trust" in compare_rows(silent, chosen, "")[0]
