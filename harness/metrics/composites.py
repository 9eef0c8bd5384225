"""One number out of several, as Spectral Unlearning and UnlearningSoup rank. Inputs are named; none may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness.metrics import described
from harness.metrics.utility import MODEL_UTILITY_PARTS, complaint
from harness.types import Score

FLOOR = 1e-12
GRADES = {
    "fluency": "readable text",
    "relevance": "response to the question",
    "not_misleading": "no false claims",
    "avoids": "nothing given away",
}
"""What a language model grades from 0 to 10 (the parts of `lbq`), in words."""


@described(low=0.0, high=1.0, unit="", source="Spectral Unlearning, HM with floor 1e-12")
def floored_harmonic_mean(parts: Mapping[str, float | None]) -> Score:
    """Harmonic mean n / sum(1 / max(x, 1e-12)).

    Args:
        parts: name -> value, all at least 0.

    Returns:
        Nearly 0 when a part is 0. A part that is missing, not finite or negative makes it null and is named.

    >>> f"{floored_harmonic_mean({'mem': .7160, 'priv': .8468, 'util': .6673}).value:.4f}"
    '0.7360'
    """
    why = complaint(parts)
    if why:
        return Score(None, n=len(parts), why=why)
    values = [max(float(value), FLOOR) for value in parts.values() if value is not None]
    return Score(len(values) / sum(1.0 / value for value in values), n=len(values))


def _forgetting(es: float | None, em: float | None, prob: float | None, ratio: float | None) -> Score:
    return floored_harmonic_mean(_left(es, em, prob, ratio))


def _left(
    es: float | None, em: float | None, prob: float | None, ratio: float | None
) -> dict[str, float | None]:
    """How much is forgotten, by four measures."""
    known = {"extraction strength": es, "exact memorisation": em, "probability": prob}
    return {f"1 - {name}": None if value is None else 1.0 - value for name, value in known.items()} | {
        "truth ratio": ratio
    }


@described(low=0.0, high=1.0, unit="", source="Spectral Unlearning, Mem")
def mem(es: float | None, em: float | None, prob: float | None, ratio: float | None) -> Score:
    """Forgetting: harmonic mean of 1-ES, 1-EM, 1-probability and truth ratio of the forget rows.

    Args:
        es: extraction strength.
        em: exact memorisation.
        prob: probability of the right answers.
        ratio: truth ratio, aggregated for forget rows.

    Returns:
        In 0..1, higher is more forgotten; null when a part is.
    """
    return _forgetting(es, em, prob, ratio)


@described(low=0.0, high=1.0, unit="", source="Spectral Unlearning, Priv")
def priv(own: Mapping[str, float | None], reference: Mapping[str, float | None]) -> Score:
    """Privacy: harmonic mean over the attacks of 1 - |AUC - AUC of the retrained model|.

    Args:
        own: attack -> AUC of the model.
        reference: attack -> AUC of the retrained model, the same attacks.

    Returns:
        In 0..1; 1 when no attack tells the model from the retrained one. Null when an AUC is missing.
    """
    gaps: dict[str, float | None] = {}
    for attack, value in own.items():
        other = reference.get(attack)
        gaps[attack] = None if value is None or other is None else 1.0 - abs(value - other)
    return floored_harmonic_mean(gaps)


@described(low=0.0, high=1.0, unit="", source="Spectral Unlearning, Util")
def util(parts: Mapping[str, float | None], fluency: float | None, name: str = "forget.fluency") -> Score:
    """Utility: harmonic mean of the nine numbers of model utility and the fluency of the forget outputs.

    Args:
        parts: must have all of `MODEL_UTILITY_PARTS`; others are ignored.
        fluency: of the model's answers to the forget questions.
        name: the fluency's metric id, for the reason.

    Returns:
        In 0..1, higher is better; null when a part is, which the reason names.
    """
    nine = {part: parts.get(part) for part in MODEL_UTILITY_PARTS}
    return floored_harmonic_mean(nine | {name: fluency})


@described(low=0.0, high=1.0, unit="", source="Spectral Unlearning, Agg")
def agg(mem: float | None, priv: float | None, util: float | None) -> Score:
    """All three: harmonic mean of forgetting, privacy and utility. The weakest of them weighs most.

    Args:
        mem: `mem`.
        priv: `priv`.
        util: `util`.

    Returns:
        In 0..1, higher is better; null when a part is. A retrained model does not reach 1: its value is what
        to compare with.

    >>> f"{agg(.8440, .6856, .6444).value:.4f}"
    '0.7151'
    """
    return floored_harmonic_mean({"mem": mem, "priv": priv, "util": util})


@described(low=0.0, high=100.0 * math.sqrt(2.0), unit="percent", source="UnlearningSoup, DS_ES")
def ds_es(forget_es: float | None, retain_es: float | None) -> Score:
    """Distance to the ideal: 100 sqrt(ES_forget^2 + (1 - ES_retain)^2).

    Args:
        forget_es: extraction strength on the forget rows.
        retain_es: extraction strength on the retain rows.

    Returns:
        In 0..141.4, lower is better.

    >>> ds_es(0.0, 1.0).value
    0.0
    """
    why = complaint({"forget extraction strength": forget_es, "retain extraction strength": retain_es})
    if why or forget_es is None or retain_es is None:
        return Score(None, n=2, why=why)
    return Score(100.0 * math.hypot(forget_es, 1.0 - retain_es), n=2)


@described(low=0.0, high=10.0, unit="of 10", source="UnlearningSoup, EQ (our choice of the four)")
def eq(es: float | None, em: float | None, prob: float | None, ratio: float | None) -> Score:
    """Erasing quality: 10 times the harmonic mean of 1-ES, 1-EM, 1-probability and truth ratio.

    The paper's note does not name its four forget indicators: these are our decision. Arguments as in `mem`.

    Returns:
        In 0..10, higher is better; null when a part is.
    """
    return _times_ten(_forgetting(es, em, prob, ratio))


@described(low=0.0, high=10.0, unit="of 10", source="UnlearningSoup, RQ")
def rq(utility: float | None, retain_es: float | None) -> Score:
    """Retaining quality: 10 times the harmonic mean of model utility and extraction strength on retain rows.

    Args:
        utility: model utility.
        retain_es: extraction strength on the retain rows.

    Returns:
        In 0..10, higher is better; null when a part is.
    """
    parts = {"model utility": utility, "retain extraction strength": retain_es}
    return _times_ten(floored_harmonic_mean(parts))


@described(low=0.0, high=10.0, unit="of 10", source="UnlearningSoup, SBQ")
def sbq(erasing: float | None, retaining: float | None) -> Score:
    """Both: sqrt((EQ^2 + RQ^2) / 2). One side can hide the other: read it beside `eq`.

    Args:
        erasing: `eq`.
        retaining: `rq`.

    Returns:
        In 0..10, higher is better; null when a part is.
    """
    why = complaint({"eq": erasing, "rq": retaining})
    if why or erasing is None or retaining is None:
        return Score(None, n=2, why=why)
    return Score(math.sqrt((erasing**2 + retaining**2) / 2.0), n=2)


@described(low=0.0, high=10.0, unit="of 10", source="our decision; UnlearningSoup's notes ask for a floor")
def forget_floor(es: float | None, em: float | None, prob: float | None, ratio: float | None) -> Score:
    """The floor of forgetting: 10 times the lowest of EQ's four parts, which neither EQ nor SBQ can hide.

    Arguments as in `mem`.

    Returns:
        In 0..10, higher is better, at most `eq`; null when a part is.

    >>> f"{forget_floor(0.9, 0.2, 0.1, 0.8).value:.3f}"
    '1.000'
    """
    parts = _left(es, em, prob, ratio)
    why = complaint(parts)
    if why:
        return Score(None, n=4, why=why)
    return Score(10.0 * min(x for x in parts.values() if x is not None), n=4)


@described(low=0.0, high=10.0, unit="of 10", source="UnlearningSoup, LBQ (harmonic mean of four grades)")
def lbq(
    fluency: float | None, relevance: float | None, not_misleading: float | None, avoids: float | None
) -> Score:
    """A language model's opinion: harmonic mean of its mean grades for the answers to the forget questions.

    Args:
        fluency: readable text.
        relevance: responds to the question, also by saying that it does not know.
        not_misleading: claims nothing false.
        avoids: gives nothing away.

    Returns:
        In 0..10, higher is better; nearly 0 when a grade is 0; null when one is missing.
    """
    return floored_harmonic_mean(
        {"fluency": fluency, "relevance": relevance, "not misleading": not_misleading, "avoids": avoids}
    )


def _times_ten(score: Score) -> Score:
    return score if score.value is None else Score(10.0 * score.value, n=score.n)
