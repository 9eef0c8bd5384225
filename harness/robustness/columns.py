"""What each number of the robustness axes means: direction, range, unit, source."""

from __future__ import annotations

from collections.abc import Iterable

from harness.metrics import memorization, metric_info, text
from harness.specs import Quantise, Robustness, Spec
from harness.types import MetricInfo

KINDS = ("paraphrase", "translated")
"""Ways in which `Task.paraphrases` may ask again."""
AXES = tuple(Robustness.model_fields)
FIG_6 = "Spectral Unlearning, Fig. 6"
ROUND = "Quantisation attack (arXiv 2410.16454); rounded to nearest"
ES = {"": memorization.extraction_strength, ".published": memorization.extraction_strength_published}


def _relearn() -> Iterable[MetricInfo]:
    after = "after relearning a part of the forget rows"
    for variant, metric in ES.items():
        name = f"Extraction strength{' as published' if variant else ''}"
        told = f"{name} on all forget rows {after}."
        yield metric_info(metric, f"relearn.forget.es{variant}", "lower", told, source=FIG_6)
        told = f"{name} on the forget rows that were not relearnt, {after}."
        yield metric_info(metric, f"relearn.forget.es.unseen{variant}", "lower", told, source=FIG_6)
    told = f"Extraction strength on the answers to the task's forget questions, {after}."
    yield metric_info(ES[""], "relearn.questions.es", "lower", told, source=FIG_6)
    share = {"low": 0.0, "high": 1.0, "unit": "share of the answer", "source": FIG_6}
    told = "Mean over the relearning steps (trapezoids) of the extraction strength on"
    yield MetricInfo("relearn.auc", "lower", text=f"{told} all forget rows.", **share)
    yield MetricInfo(
        "relearn.auc.unseen", "lower", text=f"{told} the forget rows that were not relearnt.", **share
    )
    told = "The retain model's extraction strength after learning the same rows in the same way, on"
    yield MetricInfo("relearn.reference.es", "none", text=f"{told} all forget rows.", **share)
    yield MetricInfo("relearn.reference.es.unseen", "none", text=f"{told} the other forget rows.", **share)
    yield MetricInfo("relearn.reference.questions.es", "none", text=f"{told} the task's questions.", **share)
    told = (
        "relearn.forget.es.unseen minus relearn.reference.es.unseen: what came back that was not learnt anew."
    )
    yield MetricInfo("relearn.excess", "target", -1.0, 1.0, share["unit"], told, 0.0, source=FIG_6)


def _quantise(bits: Iterable[int] = (8, 4)) -> Iterable[MetricInfo]:
    weights = {"full": "with its own weights"} | {f"int{b}": f"with {b}-bit weights" for b in bits}
    for tag, how in weights.items():
        for side in ("forget", "retain"):
            good = "lower" if side == "forget" else "higher"
            at = f"quantise.{tag}.{side}"
            for variant, metric in ES.items():
                name = f"Extraction strength{' as published' if variant else ''}"
                yield metric_info(
                    metric, f"{at}.es{variant}", good, f"{name} on {side} rows {how}.", source=ROUND
                )
            told = f"ROUGE-L recall, stemmed, of greedy answers to {side} questions {how}."
            yield metric_info(text.rouge, f"{at}.rougeL_recall", good, told, source=ROUND)
        if tag != "full":
            told = f"Share of the rounded weights that unlearning moved to another {tag} value."
            yield MetricInfo(
                f"quantise.{tag}.changed", "none", 0.0, 1.0, "share of weights", told, source=ROUND
            )


def _paraphrase() -> Iterable[MetricInfo]:
    for kind in KINDS:
        asked = "in other words" if kind == "paraphrase" else "in another language"
        told = f"Probability of the answer to forget questions asked {asked}."
        yield metric_info(memorization.probability, f"{kind}.forget.prob", "lower", told)
        for variant, metric in ES.items():
            name = f"Extraction strength{' as published' if variant else ''}"
            told = f"{name} on forget questions asked {asked}."
            yield metric_info(metric, f"{kind}.forget.es{variant}", "lower", told)
        told = f"ROUGE-L recall, stemmed, of greedy answers to forget questions asked {asked}."
        yield metric_info(text.rouge, f"{kind}.forget.rougeL_recall", "lower", told)


METRICS: dict[str, tuple[MetricInfo, ...]] = {
    "relearn": tuple(_relearn()),
    "quantise": tuple(_quantise()),
    "paraphrase": tuple(_paraphrase()),
}
"""By axis."""
COLUMNS = {info.id: info for infos in METRICS.values() for info in infos}
"""All of them by id. None names a role: a board's reference answers are not what they need."""


def ids(axis: str, settings: Spec) -> tuple[str, ...]:
    """Metrics that an axis gives with these settings."""
    infos = _quantise(settings.bits) if isinstance(settings, Quantise) else METRICS[axis]
    return tuple(info.id for info in infos)


def axis_of(metric: str) -> str | None:
    """The axis that a metric belongs to; None for a metric of the task's own."""
    return next((axis for axis, infos in METRICS.items() if any(metric == i.id for i in infos)), None)
