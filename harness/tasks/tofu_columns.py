"""What each number of TOFU means: direction, range, unit, source."""

from __future__ import annotations

from collections.abc import Iterable

from harness.fluency import clean_probability, own_fluency
from harness.metrics import OPEN_UNLEARNING, composites, forgetting, privacy, text, utility
from harness.metrics import memorization as mem
from harness.metrics import metric_info as info
from harness.tasks.tofu_composites import FLUENCIES, RULES
from harness.tasks.tofu_extras import Extras
from harness.tasks.tofu_read import ATTACKS, TRIMMED
from harness.tasks.tofu_scores import AGGREGATE, MEMORISED, OPTIONS
from harness.types import MetricInfo

TITLE = {
    "forget": "the forget rows",
    "retain": "retain rows",
    "real_authors": "questions on real authors",
    "world_facts": "questions on world facts",
}
RETAIN = ("retain",)
ROUGE = {"rougeL_recall": "ROUGE-L recall", "rougeL_f1": "ROUGE-L F1", "rouge1_recall": "ROUGE-1 recall"}
KS = "TOFU sec. 2.2: two-sample KS test on R"


def _likelihoods(f: str) -> Iterable[MetricInfo]:
    on, good, loss = TITLE[f], "higher", "lower"
    if f == "forget":
        good, loss = "lower", "none"
    yield info(mem.loss, f"{f}.loss", loss, f"Mean token loss of the answer on {on}.")
    yield info(mem.loss, f"{f}_pert.loss", "none", f"Mean token loss of each wrong answer on {on}.")
    yield info(mem.probability, f"{f}.pert_prob", "none", f"Mean probability of wrong answers on {on}.")
    if f in OPTIONS:
        yield info(mem.option_probability, f"{f}.prob", good, f"The right answer among four on {on}.")
        yield info(mem.probability, f"{f}.prob.raw", good, f"Probability of the answer on {on}.")
        return
    yield info(mem.probability, f"{f}.prob", good, f"Probability of the answer on {on}.")
    yield info(mem.loss, f"{f}_para.loss", loss, f"Mean token loss of the paraphrased answer on {on}.")
    yield info(mem.probability, f"{f}.para_prob", good, f"Probability of the paraphrased answer on {on}.")
    for name, metric in MEMORISED.items():
        yield info(metric, f"{f}.{name}", good)


def _truth_ratios(f: str) -> Iterable[MetricInfo]:
    ratio = AGGREGATE.get(f, mem.retain_truth_ratio)
    if f != "forget":
        yield info(ratio, f"{f}.truth_ratio", "higher", f"Mean max(0, 1 - R) on {TITLE[f]}; rows keep R.")
        return
    what = "Mean min(R, 1/R), R = P(wrong)/P(right); the retrained model's value is the target; rows keep R."
    yield info(ratio, "forget.truth_ratio", "target", what)
    what = "The same with the arithmetic mean over wrong answers, as the TOFU paper writes it."
    yield info(ratio, "forget.truth_ratio.arithmetic", "target", what)
    yield info(mem.truth_share, "forget.truth_ratio.share", "lower")


def _texts(f: str) -> Iterable[MetricInfo]:
    on, good = TITLE[f], "lower" if f == "forget" else "higher"
    for name, what in ROUGE.items():
        yield info(text.rouge, f"{f}.{name}", good, f"{what}, stemmed, of greedy answers on {on}.")
    yield info(text.match, f"{f}.match", good, f"Share of greedy answers with the right one in them on {on}.")
    yield info(text.empty, f"{f}.empty", "none", f"Share of greedy answers without a word on {on}.")
    what = f"Share of greedy answers cut at the token limit on {on}."
    yield info(text.empty, f"{f}.hit_limit", "none", what, source="")


def _fluency() -> Iterable[MetricInfo]:
    what = "Fluency of greedy answers to the forget questions, by"
    yield info(own_fluency, "forget.own_fluency", "higher", f"{what} our own small classifier.")
    yield info(clean_probability, "forget.fluency", "higher", f"{what} the papers' classifier from the hub.")


def _further(attack: str) -> Iterable[MetricInfo]:
    roles: tuple[str, ...] = ()
    what = "Mean 2-norm of the loss's gradient over parameter tensors"
    source, unit, low = f"{OPEN_UNLEARNING}, mia/gradnorm", "nats", 0.0
    if attack == "reference":
        what, roles, low = "Token loss minus the retrained model's", RETAIN, None
        source = f"{OPEN_UNLEARNING}, mia/reference"
    text_ = f"{what}: mean over forget rows; rows are forget and hold-out ones."
    yield MetricInfo(f"mia.{attack}", "none", low, None, unit, text_, None, roles, source)
    what = f"Chance that a forget row looks more like a member than a hold-out row, by {attack}."
    yield info(privacy.auc, f"mia.{attack}.auc", "target", what, target=0.5, roles=roles)


def _membership() -> Iterable[MetricInfo]:
    yield info(mem.loss, "holdout.loss", "none", "Mean token loss on rows nobody was trained on.")
    for attack in ATTACKS:
        what = f"Membership score {attack}: mean over forget rows; rows are forget and hold-out ones."
        yield info(getattr(privacy, attack), f"mia.{attack}", "none", what)
        what = f"Chance that a forget row looks more like a member than a hold-out row, by {attack}."
        for variant in ("", ".published") if attack in TRIMMED else ("",):
            yield info(privacy.auc, f"mia.{attack}.auc{variant}", "target", what, target=0.5)
    yield info(privacy.privleak, "privleak", "target", target=0.0, roles=RETAIN)


def _composites() -> Iterable[MetricInfo]:
    yield info(utility.model_utility, "model_utility", "higher")
    for kind in FLUENCIES:
        yield info(composites.util, f"util{kind}", "higher")
        for variant in RULES:
            yield info(composites.agg, f"agg{kind}{variant}", "higher", roles=RETAIN)
    for variant in RULES:
        yield info(composites.mem, f"mem{variant}", "higher")
        yield info(composites.priv, f"priv{variant}", "higher", roles=RETAIN)
        yield info(composites.ds_es, f"ds_es{variant}", "lower")
        for name in ("eq", "rq", "sbq"):
            yield info(getattr(composites, name), f"{name}{variant}", "higher")
        yield info(composites.forget_floor, f"eq.floor{variant}", "higher")
    what = "(1 - |dF|)(1 - |dR|)(1 - |dT|), d = share of matching greedy answers minus the retrained model's (ToW)."
    yield info(forgetting.tow, "tow", "higher", what, roles=RETAIN)
    p = "KS p-value of the truth ratios against the retrained model's; comparable at equal n only."
    yield MetricInfo("forget_quality.p", "higher", 0.0, 1.0, "probability", p, None, RETAIN, KS)
    p = "log10 of the KS p-value, never below that of two separated samples of this size."
    yield MetricInfo("forget_quality.log10p", "higher", None, 0.0, "log10", p, None, RETAIN, KS)
    p = "KS distance of the truth ratios from the retrained model's."
    yield MetricInfo("forget_quality.d", "lower", 0.0, 1.0, "probability", p, None, RETAIN, KS)


def _judged() -> Iterable[MetricInfo]:
    yield info(composites.lbq, "lbq", "higher")
    for grade, what in composites.GRADES.items():
        what = f"Mean grade of a language model for the answers to the forget questions: {what}."
        yield info(composites.lbq, f"lbq.{grade}", "higher", what)


METRICS: tuple[MetricInfo, ...] = (
    *(column for f in TITLE for part in (_likelihoods, _truth_ratios, _texts) for column in part(f)),
    *_fluency(),
    *_membership(),
    *_composites(),
    *_judged(),
)
"""The columns that every TOFU board has."""


def columns(extras: Extras) -> tuple[MetricInfo, ...]:
    """All columns of a board: `METRICS`, and those of the further attacks that it asks for."""
    return (*METRICS, *(column for attack in extras.mia for column in _further(attack)))
