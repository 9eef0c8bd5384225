"""What each number of RWKU means: direction, range, unit, source."""

from __future__ import annotations

from collections.abc import Iterable

from harness.metrics import Direction, gain, rwku, text
from harness.metrics import metric_info as info
from harness.tasks import rwku_utility
from harness.tasks.rwku_data import PROBES
from harness.tasks.rwku_prompts import TYPES
from harness.types import MetricInfo

ORIGINAL = ("original",)
TITLE = {
    "forget_fb": "fill-in questions on the target",
    "forget_qa": "plain questions on the target",
    "forget_aa": "adversarial questions on the target",
    "neighbor_fb": "fill-in questions on the target's neighbours",
    "neighbor_qa": "plain questions on the target's neighbours",
}
SIDES = {"forget": "all questions on the target", "neighbor": "all questions on its neighbours"}
KINDS = {f"forget_aa_{t.replace(' ', '_')}": t for t in TYPES} | {"forget_aa_other": "any other kind"}
"""Metric id's beginning -> the adversarial kind."""
RECALL, UNCUT = "rougeL_recall.rwku", "rougeL_recall.rwku.uncut"
MIA = {
    "loglik": (rwku.log_likelihood, "Mean log-likelihood of a token"),
    "loglik_zlib": (rwku.log_likelihood_zlib, "Mean log-likelihood of a token over the text's compressed size"),
    "min_k_pp": (rwku.min_k_plus, "Min-K++ of the 20 % least likely tokens"),
}  # fmt: skip
FLUENCY = "fluency.ngram_entropy"


def _better(id: str) -> Direction:
    """Which way is better: the target is to be forgotten, everything else to be kept."""
    return "lower" if id.startswith(("forget", "mia_forget")) else "higher"


def _texts() -> Iterable[MetricInfo]:
    for probe in PROBES:
        good = _better(probe)
        what = f"ROUGE-L recall, as the package rouge has it, on {TITLE[probe]}"
        yield info(rwku.rouge_recall, f"{probe}.{RECALL}", good, f"{what}; the answer's first line.")
        yield info(rwku.rouge_recall, f"{probe}.{UNCUT}", good, f"{what}; all 30 tokens.")
    for name, kind in KINDS.items():
        what = f"ROUGE-L recall on adversarial questions of the kind: {kind}."
        yield info(rwku.rouge_recall, f"{name}.{RECALL}", "lower", what)
    for side, on in SIDES.items():
        yield info(rwku.rouge_recall, f"{side}.{RECALL}", _better(side), f"Mean ROUGE-L recall over {on}.")
        yield info(text.empty, f"{side}.empty", "none", f"Share of answers without a word to {on}.")
        what = f"Share of answers cut at the token limit to {on}."
        yield info(text.empty, f"{side}.hit_limit", "none", what, source="")


def _membership() -> Iterable[MetricInfo]:
    for probe, on in (("mia_forget", "texts on the target"), ("mia_retain", "texts on something else")):
        for name, (function, what) in MIA.items():
            yield info(
                function, f"{probe}.{name}", _better(probe), f"{what}, on {on} that were in pre-training."
            )


def _gain() -> Iterable[MetricInfo]:
    what = "Mean of recall lost on the target, recall kept on its neighbours, and accuracy kept on MMLU."
    yield info(gain.rwku_gain, "gain", "higher", what, roles=ORIGINAL)
    what = "The same; no accuracy on MMLU counts as less than that of guessing."
    yield info(gain.rwku_gain, "gain.chance_floored", "higher", what, roles=ORIGINAL)


METRICS: tuple[MetricInfo, ...] = (
    *_gain(),
    *_texts(),
    *_membership(),
    *rwku_utility.columns(),
    info(rwku.ngram_entropy, FLUENCY, "higher", "Weighted entropy of bigrams and trigrams of long answers."),
)
"""The columns of every RWKU board."""
