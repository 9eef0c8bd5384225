"""The numbers that a public evaluator computed on a tiny model, through our whole chain."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from harness.specs import TaskRef, Template
from harness.tasks.tofu import build
from harness.types import Answers, GenerationAnswers

SHARED = Path(__file__).resolve().parents[2] / "shared"
TINY = SHARED / "reference" / "tofu_tiny"
TOFU = SHARED / "data" / "tofu"

pytestmark = pytest.mark.shared
if not TINY.is_dir() and os.environ.get("CI") != "true":
    pytest.skip("the reference data is not beside this checkout", allow_module_level=True)

SHORT = {"forget": "forget", "retain": "retain", "ra": "real_authors", "wf": "world_facts"}
AGGREGATES = {
    "forget_es": "forget.es.published",
    "forget_em": "forget.em.published",
    "mia_loss": "mia.loss.auc",
    "mia_zlib": "mia.zlib.auc",
    "mia_min_k": "mia.min_k.auc",
    "mia_min_k_plus_plus": "mia.min_k_pp.auc",
    "model_utility": "model_utility",
}
for short, name in SHORT.items():
    options = short in ("ra", "wf")
    AGGREGATES |= {
        f"{short}_prob": f"{name}.prob.raw" if options else f"{name}.prob",
        f"{short}_para": f"{name}.prob.raw" if options else f"{name}.para_prob",
        f"{short}_pert": f"{name}.pert_prob",
        f"{short}_tr": f"{name}.truth_ratio",
        f"{short}_rouge": f"{name}.rougeL_recall",
    } | ({f"{short}_prob_norm": f"{name}.prob"} if options else {})


@pytest.fixture(scope="module")
def expected():
    return json.loads((TINY / "expected.json").read_text())


@pytest.fixture(scope="module")
def task():
    return build(TaskRef(name="tofu", split="forget10", data=str(TINY / "data")), Template())


@pytest.fixture(scope="module")
def answers(task):
    from harness.answers import answer
    from harness.generate.hf import HFGenerator
    from harness.models import load

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model spends its time waiting for threads
    loaded = load(str(TINY), template=Template(), max_length=512)
    case = task.case("forget10", 0)
    generator = HFGenerator(loaded.model, loaded.encoder, batch_size=64)
    yield Answers(answer(loaded, task.probes(case), generator))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def scores(task, answers):
    return task.score(task.case("forget10", 0), answers, {})


def in_order(score):
    """Per-row values in the order of the data file."""
    return list(score.per_row.values())


def column(expected, name, key):
    return [expected["per_row"][name][str(i)][key] for i in range(40)]


def test_aggregates(expected, scores):
    assert set(AGGREGATES) == set(expected["aggregate"])
    got = {name: scores[ours].value for name, ours in AGGREGATES.items()}
    assert got == pytest.approx(expected["aggregate"], abs=1e-4)
    assert scores["model_utility"].value == pytest.approx(0.85164, abs=1e-5)


@pytest.mark.parametrize("short", ["forget", "retain", "ra", "wf"])
def test_losses_and_probabilities_per_row(expected, scores, short):
    ours = SHORT[short]
    prob = "prob.raw" if f"{ours}.prob.raw" in scores else "prob"
    assert in_order(scores[f"{ours}.loss"]) == pytest.approx(
        column(expected, f"{short}_prob", "avg_loss"), abs=1e-4
    )
    assert in_order(scores[f"{ours}.{prob}"]) == pytest.approx(
        column(expected, f"{short}_prob", "prob"), abs=1e-4
    )
    if f"{ours}_para.loss" in scores:
        para = column(expected, f"{short}_para", "avg_loss")
        assert in_order(scores[f"{ours}_para.loss"]) == pytest.approx(para, abs=1e-4)
    pert = [loss for row in column(expected, f"{short}_pert", "avg_loss") for loss in row]
    assert in_order(scores[f"{ours}_pert.loss"]) == pytest.approx(pert, abs=1e-4)
    ratios = column(expected, f"{short}_tr", "score")
    assert in_order(scores[f"{ours}.truth_ratio"]) == pytest.approx(ratios, abs=1e-4)
    if f"{short}_prob_norm" in expected["per_row"]:
        assert in_order(scores[f"{ours}.prob"]) == pytest.approx(
            column(expected, f"{short}_prob_norm", "prob"), abs=1e-4
        )


def test_memorisation_per_row_is_exact(expected, scores):
    assert in_order(scores["forget.es.published"]) == column(expected, "forget_es", "score")
    assert in_order(scores["forget.em.published"]) == pytest.approx(
        column(expected, "forget_em", "score"), abs=1e-7
    )


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("loss", "loss"), ("zlib", "zlib"), ("min_k", "min_k"), ("min_k_plus_plus", "min_k_pp")],
)
def test_membership_per_row(expected, scores, theirs, ours):
    rows = scores[f"mia.{ours}"].per_row
    for side, stem in (("forget", "forget10"), ("holdout", "holdout10")):
        want = {f"{stem}/{i}": v["score"] for i, v in expected["per_row"][f"mia_{theirs}"][side].items()}
        assert {k: v for k, v in rows.items() if k.startswith(stem)} == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize("short", ["forget", "retain", "ra", "wf"])
def test_texts_and_rouge(expected, scores, answers, short):
    theirs = column(expected, f"{short}_rouge", "generation")
    ours = answers.probes[f"{SHORT[short]}_text"]
    assert isinstance(ours, GenerationAnswers)
    same = [i for i in range(40) if theirs[i] == ours.texts[i]]
    assert len(same) >= 38
    for key in ("rougeL_recall", "rougeL_f1", "rouge1_recall"):
        want, got = column(expected, f"{short}_rouge", key), in_order(scores[f"{SHORT[short]}.{key}"])
        assert [got[i] for i in same] == pytest.approx([want[i] for i in same], abs=1e-6)


@pytest.mark.parametrize(
    ("split", "forget", "retain"), [("forget01", 40, 3960), ("forget05", 200, 3800), ("forget10", 400, 3600)]
)
def test_real_splits(split, forget, retain):
    task = build(TaskRef(name="tofu", split=split, data=str(TOFU)), Template())
    case = task.case(split, 0)
    assert (len(case.forget), len(case.retain)) == (forget, retain)
    sizes = {probe.name: len(probe.rows) for probe in task.probes(case)}
    assert sizes["forget_pert"] == 5 * forget and sizes["retain"] == 400 and "holdout" not in sizes
    assert (sizes["real_authors"], sizes["world_facts_pert"]) == (100, 351)
    idk = task.resource("alternative_answers", case, 0)
    assert len(idk) == forget and all(" " in row.target for row in idk)
    swapped = task.resource("random_labels", case, 0)
    assert sorted(row.target for row in swapped) == sorted(row.target for row in case.forget)
