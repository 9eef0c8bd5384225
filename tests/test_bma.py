"""Bucketed modular addition: its rows, its scores at their ends, its shipped models."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.errors import DataError, ModelError
from harness.mini import bma as mini
from harness.mini.bma_worlds import FULL, MINI, World
from harness.modadd import ModularConfig
from harness.modadd_train import Recipe
from harness.specs import TaskRef, Template
from harness.tasks.bma import build
from harness.tasks.bma_data import BmaData
from harness.types import Answers, ClassAnswers, Task, Trajectory

WEIGHTS = Path(mini.__file__).parent / "weights" / "bma"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def task(**options):
    return build(TaskRef(name="bma", options=options), Template())


def small(**options):
    return task(**({"classes": 8, "buckets": [1, 2, 8], "forget_fraction": 0.2} | options))


def answer(bma, case, logits_of):
    """Answers whose logits are `logits_of(labels)` for every probe."""
    return Answers(
        {
            probe.name: ClassAnswers(
                tuple(row.id for row in probe.rows),
                logits_of(np.array([row.label for row in probe.rows])).astype(np.float32),
            )
            for probe in bma.probes(case)
        }
    )


def values(scores):
    return {name: score.value for name, score in scores.items()}


# --- rows ---
def test_the_default_task_is_that_of_the_board():
    bma = task()
    assert isinstance(bma, Task)
    assert bma.case_ids() == ("M1", "M4", "M16", "M64")
    case = bma.case("M4", 17)
    forget, retain, test = (probe.rows for probe in bma.probes(case))
    assert (len(forget), len(retain), len(test)) == (123, 2335, 1638)
    ids = [row.id for probe in bma.probes(case) for row in probe.rows]
    assert len(set(ids)) == 64 * 64
    for row in (*forget, *retain, *test):
        a, b = row.inputs.tolist()
        assert row.id == f"bma-M4-{64 * a + b}"
        assert row.label // 4 == (a + b) % 16
        assert row.inputs.dtype == np.int64


def test_the_rows_never_change():
    """Shipped weights were trained on these: after a change, train them again and raise the version."""
    bma = task()
    assert bma.data.train[:6].tolist() == [1, 4, 5, 7, 10, 11]
    assert [row.label for row in bma.case("M4", 17).forget[:6]] == [37, 54, 60, 6, 15, 11]
    assert bma.data_hash()[:16] == "5163ecf7fe7d90f9"


def test_members_are_uniform_and_the_same_for_every_split():
    data = BmaData()
    every = np.arange(64 * 64)
    members = data.labels(16, every) % 16
    counts = np.bincount(members, minlength=16)
    assert counts.min() > 256 - 5 * 16 and counts.max() < 256 + 5 * 16
    assert np.array_equal(replace(data, train_fraction=0.3).labels(16, every), data.labels(16, every))
    assert np.array_equal(data.labels(1, every), data.pairs(every).sum(1) % 64)
    assert len(set(data.labels(64, every).tolist())) == 64


def test_forget_sets_depend_on_the_seed_and_not_on_the_bucket():
    bma = small()
    first, again, other = (
        [r.id.split("-")[2] for r in bma.case(c, s).forget] for c, s in (("M1", 1), ("M8", 1), ("M1", 2))
    )
    assert first == again != other
    case = bma.case("M2", 1)
    forget, retain = ({row.id for row in rows} for rows in (case.forget, case.retain))
    assert not forget & retain
    assert len(forget | retain) == len(bma.data.train) == round(0.6 * 64)
    assert case.after is None


def test_the_hash_sees_every_option():
    hashes = {
        small(**change).data_hash()
        for change in (
            {}, {"data_seed": 1}, {"train_fraction": 0.5}, {"forget_fraction": 0.1}, {"wrong_labels":
            "bucket"}, {"buckets": [1, 2]}, {"n": 9},
        )
    }  # fmt: skip
    assert len(hashes) == 7
    assert small().data_hash() == small().data_hash()


# --- wrong labels ---
@pytest.mark.parametrize("name", ["alternative_answers", "random_labels"])
@pytest.mark.parametrize("wrong", ["all", "bucket"])
def test_wrong_labels_are_wrong_and_fixed(name, wrong):
    bma = task(wrong_labels=wrong)
    case = bma.case("M4", 17)
    rows = bma.resource(name, case, 17)
    assert [row.id for row in rows] == [row.id for row in case.forget]
    assert all(np.array_equal(a.inputs, b.inputs) for a, b in zip(rows, case.forget, strict=True))
    assert all(a.label != b.label and 0 <= a.label < 64 for a, b in zip(rows, case.forget, strict=True))
    assert [row.label for row in rows] == [row.label for row in bma.resource(name, case, 17)]
    assert [row.label for row in rows] != [row.label for row in bma.resource(name, case, 26)]
    same = np.mean([a.label // 4 == b.label // 4 for a, b in zip(rows, case.forget, strict=True)])
    assert same == 1 if wrong == "bucket" else same < 0.2


def test_wrong_labels_are_uniform_over_the_others():
    data = BmaData(8, 200)
    every = np.arange(200 * 200)
    right = data.labels(4, every)
    for in_bucket, others in ((False, 7), (True, 3)):
        shift = (data.wrong_labels(4, every, 1, in_bucket=in_bucket) - right) % (4 if in_bucket else 8)
        counts = np.bincount(shift)
        assert counts[0] == 0 and len(counts) == others + 1
        assert np.abs(counts[1:] / len(every) - 1 / others).max() < 0.01


def test_one_member_has_no_wrong_label_in_its_bucket():
    bma = small(wrong_labels="bucket")
    with pytest.raises(DataError, match="no in-bucket wrong label"):
        bma.resource("random_labels", bma.case("M1", 1), 1)
    with pytest.raises(DataError, match="did you mean random_labels"):
        bma.resource("random_label", bma.case("M2", 1), 1)


# --- options ---
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"bucket": [1]}, "did you mean buckets"),
        ({"buckets": [3]}, "M=3 does not divide 64 classes; M can be 1, 2, 4, 8, 16, 32, 64"),
        ({"buckets": []}, "wanted a list of bucket sizes"),
        ({"buckets": 4}, "wanted a list of bucket sizes"),
        ({"buckets": [0]}, "wanted a list of bucket sizes"),
        ({"buckets": [4, 4]}, "repeat"),
        ({"classes": 1}, "at least 2"),
        ({"classes": "64"}, "at least 2"),
        ({"n": 0}, "n is 0"),
        ({"data_seed": -1}, "data_seed is -1"),
        ({"train_fraction": 1.0}, "train_fraction is 1.0"),
        ({"forget_fraction": 0}, "forget_fraction is 0"),
        ({"forget_fraction": 1e-6}, "0 forgotten"),
        ({"wrong_labels": "some"}, "known: all, bucket"),
    ],
)
def test_bad_options_are_one_line(options, expected):
    with pytest.raises(DataError, match=expected) as caught:
        task(**options)
    assert "\n" not in str(caught.value)


def test_bma_takes_no_data_and_knows_its_cases():
    for change in ({"data": "x"}, {"split": "x"}):
        with pytest.raises(DataError, match="makes its own rows"):
            build(TaskRef(name="bma", **change), Template())
    with pytest.raises(DataError, match="no case 'M3'"):
        task().case("M3", 1)


# --- scores ---
def test_a_perfect_model():
    bma = small()
    case = bma.case("M2", 1)
    scores = bma.score(case, answer(bma, case, lambda y: 40 * np.eye(8)[y]), {})
    assert set(scores) == {info.id for info in bma.metrics()}
    found = values(scores)
    assert found.pop("floor.bits") == 1.0
    assert found.pop("retain.damage") is None and found.pop("retain.damage.interpolated") is None
    assert all(value == pytest.approx(1.0) for value in found.values())
    assert set(scores["forget.p"].per_row) == {row.id for row in case.forget}
    assert scores["retain.acc"].n == len(case.retain)


def test_a_model_that_knows_only_the_rule():
    bma = task()
    case = bma.case("M4", 17)

    def rule(labels):
        logits = np.zeros((len(labels), 64))
        for row, label in enumerate(labels):
            logits[row, label - label % 4 : label - label % 4 + 4] = 50.0
        return logits + np.random.default_rng(0).normal(size=logits.shape)

    found = values(bma.score(case, answer(bma, case, rule), {}))
    assert found["bucket.acc"] == found["forget.bucket_acc"] == found["retain.bucket_acc"] == 1.0
    assert found["within_bucket.acc"] == pytest.approx(0.25, abs=0.04) == found["test.acc"]
    assert found["forget.p"] == pytest.approx(0.25, abs=0.04)


def test_ends_of_the_bucket_sizes():
    bma = small()
    noise = np.random.default_rng(1)
    for case_id, trivial in (("M1", "within_bucket.acc"), ("M8", "bucket.acc")):
        case = bma.case(case_id, 1)
        found = values(bma.score(case, answer(bma, case, lambda y: noise.normal(size=(len(y), 8))), {}))
        assert found[trivial] == 1.0
        assert found["test.acc"] == found["bucket.acc" if case_id == "M1" else "within_bucket.acc"] < 1


def test_unmirrored_pairs_only():
    bma = small()
    trained = {tuple(bma.data.pairs(np.array([i]))[0]) for i in bma.data.train}
    alone = [(b, a) not in trained for a, b in bma.data.pairs(bma.data.test)]
    case = bma.case("M1", 1)
    tests = bma.probes(case)[2].rows

    def only_alone(labels):
        right = np.eye(8)[labels]
        if len(labels) == len(tests):
            right[~np.array(alone)] = np.roll(right[~np.array(alone)], 1, axis=1)
        return right

    scores = bma.score(case, answer(bma, case, only_alone), {})
    assert 0 < sum(alone) < len(alone)
    assert scores["test.acc_unmirrored"].value == 1.0
    assert scores["test.acc_unmirrored"].n == sum(alone)
    assert scores["test.acc"].value == np.mean(alone)


def test_unusable_logits_are_null_with_a_reason():
    bma = small()
    case = bma.case("M2", 1)
    scores = bma.score(case, answer(bma, case, lambda y: np.full((len(y), 8), np.nan)), {})
    assert scores["forget.p"].value is None and "NaN" in scores["forget.p"].why
    assert scores["bucket.acc"].value is None
    scores = bma.score(case, answer(bma, case, lambda y: np.zeros((len(y), 8))), {})
    assert scores["forget.p"].value == pytest.approx(1 / 8)
    for name in ("forget.acc", "bucket.acc", "within_bucket.acc", "test.acc"):
        assert scores[name].value is None and "tie" in scores[name].why


def test_answers_to_other_rows_are_refused():
    bma = small()
    case, other = bma.case("M2", 1), bma.case("M2", 2)
    with pytest.raises(DataError, match="probe 'forget'"):
        bma.score(case, answer(bma, other, lambda y: np.eye(8)[y]), {})
    with pytest.raises(DataError, match="are none"):
        bma.score(case, Answers({}), {})


@pytest.mark.parametrize(
    ("forget", "retain", "first", "between"),
    [
        ([1.0, 0.5, 0.05], [1.0, 0.9, 0.5], 0.5, 1 - (0.9 - 0.4 * 0.4 / 0.45)),
        ([0.02], [0.97], 0.03, 0.03),  # a model that never had the forget set
        ([1.0, 0.1], [1.0, 0.8], 0.2, 0.2),
        ([1.0, 0.5], [1.0, 0.9], None, None),
        ([1.0, float("nan"), 0.05], [1.0, 0.9, 0.5], 0.5, None),
        ([1.0, 0.05], [1.0, float("nan")], None, None),
    ],
)
def test_damage_where_forgetting_is_equal(forget, retain, first, between):
    bma = small()
    case = bma.case("M2", 1)
    checks = np.arange(len(forget))
    path = Trajectory(checks, checks * 0.1, {"forget.p": np.array(forget), "retain.p": np.array(retain)})
    answers = Answers(answer(bma, case, lambda y: np.eye(8)[y]).probes, path)
    scores = bma.score(case, answers, {})
    for name, expected in (("retain.damage", first), ("retain.damage.interpolated", between)):
        if expected is None:
            assert scores[name].value is None and scores[name].why
        else:
            assert scores[name].value == pytest.approx(expected)
            assert not scores[name].why


def test_damage_says_why_it_is_missing():
    bma = small()
    case = bma.case("M2", 1)
    probes = answer(bma, case, lambda y: np.eye(8)[y]).probes
    assert "no trajectory" in bma.score(case, Answers(probes), {})["retain.damage"].why
    empty = Trajectory(np.arange(1), np.zeros(1), {"forget.p": np.array([0.4])})
    assert "no retain.p" in bma.score(case, Answers(probes, empty), {})["retain.damage"].why
    high = Trajectory(np.arange(2), np.zeros(2), {"forget.p": np.array([0.9, 0.4]), "retain.p": np.ones(2)})
    assert "the lowest of 2 checks is 0.4" in bma.score(case, Answers(probes, high), {})["retain.damage"].why


# --- models ---
TINY = World(
    "tiny", BmaData(8, 8, 0.6, 0), (1, 2, 8), (0.2,), (1,), ModularConfig(8, 8, 64, 4, 128),
    Recipe(epochs=300, weight_decay=0.1, seed=1),
)  # fmt: skip


def test_names_of_the_models():
    assert list(MINI.plans())[:6] == ["M1", "M4", "M16", "M64", "M1-retain-17", "M1-retain-26"]
    assert len(MINI.plans()) == 16
    assert "M256-retain-5pct-42" in FULL.plans()
    assert len(FULL.plans()) == 5 + 5 * 3 * 3


def test_build_trains_once(tmp_path):
    told = []
    names = ("M1", "M2-retain-1")
    assert mini.build(tmp_path, progress=told.append, which=names, world=TINY, processes=1) == names
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert list(manifest["models"]) == list(names)
    assert manifest["models"]["M1"]["rows"] == 38
    assert manifest["models"]["M2-retain-1"]["rows"] == 30
    assert manifest["models"]["M1"]["scores"]["train.acc"] == 1.0
    before = (tmp_path / "manifest.json").read_bytes()
    assert mini.build(tmp_path, progress=told.append, which=names, world=TINY, processes=1) == ()
    assert (tmp_path / "manifest.json").read_bytes() == before
    (tmp_path / "M1" / "model.safetensors").write_bytes(b"")
    assert mini.build(tmp_path, progress=told.append, which=names, world=TINY, processes=1) == ("M1",)
    assert (tmp_path / "manifest.json").read_bytes() == before
    other = replace(TINY, recipe=replace(TINY.recipe, seed=2))
    assert mini.build(tmp_path, progress=told.append, which=["M1"], world=other, processes=1) == ("M1",)
    assert any(line.startswith("M1: ") for line in told)
    with pytest.raises(ModelError, match="did you mean M1"):
        mini.build(tmp_path, progress=told.append, which=["M11"], world=TINY)


def test_a_model_that_only_memorises_fails(tmp_path):
    """All training rows are right with high probability, yet it is no target: it has not learned the rule."""
    world = replace(TINY, recipe=replace(TINY.recipe, weight_decay=0.0))
    mini.build(tmp_path, progress=lambda line: None, which=["M1", "M2"], world=world, processes=1)
    found = [c for c in mini.check(tmp_path, world=world) if c.name in ("M1", "M2")]
    failed = {(c.name, c.criterion) for c in found if not c.ok}
    assert ("M1", "test.bucket_acc >= 0.99") in failed
    assert ("M2", "test.bucket_acc >= 0.75") in failed
    assert not any("train" in criterion for _, criterion in failed)


def test_a_missing_model_is_a_failed_check(tmp_path):
    found = mini.check(tmp_path, world=TINY)
    assert len(found) == 6 and not any(c.ok for c in found)
    (tmp_path / "manifest.json").write_text('{"format": 2}')
    with pytest.raises(ModelError, match="reads format 1"):
        mini.check(tmp_path, world=TINY)


def test_the_shipped_models_are_what_they_claim():
    found = mini.check(WEIGHTS)
    assert len({c.name for c in found}) == 16
    assert [c for c in found if not c.ok] == []
    assert sum(f.stat().st_size for f in WEIGHTS.rglob("*") if f.is_file()) < 8 * 2**20
    manifest = json.loads((WEIGHTS / "manifest.json").read_text())
    for name, plan in MINI.plans().items():
        claimed = manifest["models"][name]["scores"]
        if name in ("M4", "M16-retain-42"):
            measured = mini.measure(mini.ModularTransformer.load(WEIGHTS / name), MINI.data, plan)
            assert measured == pytest.approx(claimed, abs=2e-3)


def test_the_board_and_the_models_mean_the_same_rows():
    assert task().data == MINI.data
    assert task().buckets == MINI.buckets
    assert (task().forget_fraction,) == MINI.fractions


@pytest.mark.slow
def test_building_in_processes(tmp_path):
    built = mini.build(tmp_path, progress=lambda line: None, world=TINY, processes=2, which=["M1", "M8"])
    assert set(built) == {"M1", "M8"}
    assert list(json.loads((tmp_path / "manifest.json").read_text())["models"]) == ["M1", "M8"]
