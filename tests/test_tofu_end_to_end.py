"""Real TOFU rows and a real checkpoint, through the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Ran

from harness.markup import slug
from harness.store import Store

pytestmark = pytest.mark.shared
Command = Callable[..., Ran]
TINY = ROOT.parent / "shared" / "reference" / "tofu_tiny"


@pytest.fixture(autouse=True)
def _reference_data() -> None:
    if not TINY.is_dir() and os.environ.get("CI") != "true":
        pytest.skip("needs the reference data beside a maintainer's checkout")


BOARD = f"""
rank_by = "forget.prob"
columns = ["forget.prob", "retain.prob", "model_utility", "forget.es.published", "cost.charged_s"]
seeds = [0]
[task]
name = "tofu"
split = "forget10"
data = "{TINY / "data"}"
[models]
target = "{TINY}"
[batch]
effective = 16
[budget]
updates = 12
[settings.grad_diff]
"optimizer.lr" = 1e-3
[settings.npo]
"optimizer.lr" = 1e-3
"""


def test_two_methods_on_real_rows(uharness: Command, workspace: Path) -> None:
    (workspace / "leaderboards" / "b.toml").write_text(BOARD)
    ran = uharness("submit", "no_op", "grad_diff", "npo", "--board", "b")
    assert ran.code == 0, ran.err
    records = [json.loads(p.read_text()) for p in (workspace / "leaderboards/b/results").glob("*.json")]
    prob = {r["submission"]: r["scores"]["forget.prob"]["value"] for r in records}
    assert prob["no_op"] == pytest.approx(0.8044500201940536, abs=1e-5)
    assert prob["grad_diff"] < 0.1
    assert prob["npo"] < 0.4
    store = Store((workspace / "leaderboards",), workspace / "build/uharness.duckdb")
    _, rows = store.query(
        "SELECT submission, value FROM scores JOIN runs USING (run_id) WHERE board = 'b' AND metric = 'forget.prob'"
    )
    assert dict(rows) == prob
    assert uharness("site", "build").code == 0
    for record in records:
        page = (workspace / f"build/site/runs/{slug(record['run_id'])}.html").read_text()
        assert repr(prob[record["submission"]]) in page
        assert repr(prob[record["submission"]]) in (workspace / "build/site/boards/b.html").read_text()
    questions = store.load_rows(next(r["run_id"] for r in records if r["submission"] == "no_op"))
    first = next(r for r in questions if r["metric"] == "forget.prob")
    assert first["row_id"] == "forget10/0"
    assert "Hsiao Yun-Hwa" in first["answer"]


def test_evaluate_prints_what_the_public_evaluator_computed(uharness: Command, workspace: Path) -> None:
    ran = uharness(
        "evaluate",
        str(TINY),
        "--task",
        "tofu",
        "--split",
        "forget10",
        "--data-dir",
        str(TINY / "data"),
        "--json",
        "o.json",
    )
    assert ran.code == 0, ran.err
    report = json.loads((workspace / "o.json").read_text())
    expected = json.loads((TINY / "expected.json").read_text())
    ids = {
        "forget_prob": "forget.prob", "forget_es": "forget.es.published", "forget_em": "forget.em.published",
        "forget_tr": "forget.truth_ratio", "forget_rouge": "forget.rougeL_recall", "mia_loss": "mia.loss.auc",
        "mia_zlib": "mia.zlib.auc", "mia_min_k": "mia.min_k.auc", "mia_min_k_plus_plus": "mia.min_k_pp.auc",
        "retain_prob": "retain.prob", "retain_rouge": "retain.rougeL_recall", "retain_tr": "retain.truth_ratio",
        "ra_prob_norm": "real_authors.prob", "ra_rouge": "real_authors.rougeL_recall",
        "ra_tr": "real_authors.truth_ratio", "wf_prob_norm": "world_facts.prob",
        "wf_rouge": "world_facts.rougeL_recall",
        "wf_tr": "world_facts.truth_ratio", "model_utility": "model_utility",
    }  # fmt: skip
    for theirs, ours in ids.items():
        assert report["scores"][ours]["value"] == pytest.approx(expected["aggregate"][theirs], abs=1e-4), ours
    rows = report["rows"]["forget"]
    assert [r["id"] for r in rows] == [f"forget10/{i}" for i in range(40)]
    same = 0
    for i, row in enumerate(rows):
        each = {
            k: expected["per_row"][k][str(i)]
            for k in ("forget_prob", "forget_es", "forget_em", "forget_rouge")
        }
        assert row["forget.loss"] == pytest.approx(each["forget_prob"]["avg_loss"], abs=1e-4)
        assert row["forget.es.published"] == pytest.approx(each["forget_es"]["score"], abs=1e-12)
        assert row["forget.em.published"] == pytest.approx(each["forget_em"]["score"], abs=1e-6)
        assert row["mia.min_k"] == pytest.approx(mia(expected, "mia_min_k", i), abs=1e-4)
        if row["answer"] == each["forget_rouge"]["generation"]:
            same += 1
            assert row["forget.rougeL_recall"] == pytest.approx(
                each["forget_rouge"]["rougeL_recall"], abs=1e-6
            )
    assert same >= 0.95 * len(rows)


def mia(expected: dict[str, dict[str, dict[str, dict[str, float]]]], name: str, i: int) -> float:
    """The attack's score of forget row `i`, however the log nests it."""
    table = expected["per_row"][name]
    side = table.get("forget", table)
    return float(side[str(i)]["score"])
