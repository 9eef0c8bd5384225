"""Two real evaluation logs of the first TOFU code (Phi-1.5), through our metric functions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.metrics import mean_score, memorization, privacy, utility

LOGS = Path(__file__).resolve().parents[2] / "shared" / "data" / "tofu_logs"

pytestmark = pytest.mark.shared
if not LOGS.is_dir() and os.environ.get("CI") != "true":
    pytest.skip("the logs are not beside this checkout", allow_module_level=True)

FILES = {
    "retain": "eval_log.json",
    "real_authors": "eval_real_author_wo_options.json",
    "world_facts": "eval_real_world_wo_options.json",
}
PARTS = (.926088, .929253, .482683, .377360, .415667, .456009, .408998, .777350, .492337)  # fmt: skip


def read(name):
    return json.loads((LOGS / f"{name}.json").read_text())


def ratios(log):
    keys = list(log["avg_paraphrased_loss"])
    right = [log["avg_paraphrased_loss"][k] for k in keys]
    wrong = [log["average_perturb_loss"][k] for k in keys]
    return memorization.truth_ratio(right, wrong)


def mean(values):
    return mean_score(dict(enumerate(values))).value


def parts_of(name):
    """The nine parts from per-row losses and ROUGE; options are the wrong answers in the log."""
    logs, out = read(name), {}
    for probe, file in FILES.items():
        log = logs[file]
        keys = list(log["avg_gt_loss"])
        probability = [2.718281828459045 ** -log["avg_gt_loss"][k] for k in keys]
        if probe != "retain":
            wrong = [[2.718281828459045**-x for x in log["average_perturb_loss"][k]] for k in keys]
            probability = memorization.option_probability(probability, wrong)
        out[f"{probe}.prob"] = mean(probability)
        out[f"{probe}.rougeL_recall"] = mean(log["rougeL_recall"].values())
        out[f"{probe}.truth_ratio"] = mean(memorization.retain_truth_ratio(ratios(log)))
    return out


def test_model_utility_of_the_full_model_and_its_parts():
    parts = parts_of("phi_full")
    assert sorted(parts.values()) == pytest.approx(sorted(PARTS), abs=2e-6)
    assert [parts[name] for name in utility.MODEL_UTILITY_PARTS] == pytest.approx(list(PARTS), abs=2e-6)
    assert utility.model_utility(parts).value == pytest.approx(0.522074, abs=1e-6)


def test_model_utility_of_the_retrained_model():
    assert utility.model_utility(parts_of("phi_retain90")).value == pytest.approx(0.531991, abs=1e-6)


def test_forget_quality_between_them():
    full, retain = (ratios(read(name)["eval_log_forget.json"]) for name in ("phi_full", "phi_retain90"))
    result = privacy.forget_quality(full, retain)
    assert isinstance(result, privacy.KSResult)
    assert result.p == pytest.approx(2.194274e-16, rel=1e-6)
    assert result.d == pytest.approx(0.346667, abs=1e-6)
    assert (result.n, result.m) == (300, 300)
    inverse = privacy.forget_quality([1 / r for r in full], [1 / r for r in retain])
    assert isinstance(inverse, privacy.KSResult) and inverse.p == pytest.approx(result.p)
