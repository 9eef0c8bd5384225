"""All numbers of TOFU from answers: a pure function. What they mean is in `tofu_columns`.

A metric's per-row values are keyed by the ids of the rows of the probe that its id begins with; those of
`mia.*` by the ids of forget and hold-out rows. Membership and what needs the retrained model are in
`tofu_privacy`, numbers made of other numbers in `tofu_composites`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from harness.metrics import composites, forgetting, mean_score, memorization
from harness.metrics.memorization import Values
from harness.tasks import tofu_composites, tofu_privacy
from harness.tasks.tofu_data import TofuRows
from harness.tasks.tofu_extras import Extras
from harness.tasks.tofu_read import PARAPHRASED, WRITTEN, ByRow, Read
from harness.types import Answers, Score

OPTIONS = ("real_authors", "world_facts")
LBQ = ("lbq", *(f"lbq.{grade}" for grade in composites.GRADES))
NOT_JUDGED = "no judge was asked: give --judge openai:URL#MODEL"
"""What `lbq` is without a judge; a judge's numbers replace it when the run is recorded."""
AGGREGATE = {"forget": memorization.forget_truth_ratio}
"""How R becomes a score, where it is not `retain_truth_ratio`."""


def score(
    rows: TofuRows, answers: Answers, reference: Answers | None, extras: Extras | None = None
) -> dict[str, Score]:
    """Every metric in `tofu_columns.columns(extras)`.

    Args:
        rows: the task's rows.
        answers: of the model; a probe that was not asked makes its metrics null, and fewer rows make n
            smaller.
        reference: answers of the model that was trained without the forget rows, to the same questions.
        extras: which fluency and which further attacks the board asks for.
    """
    return of(Read(rows, answers), None if reference is None else Read(rows, reference), extras)


def of(own: Read, other: Read | None, extras: Extras | None = None) -> dict[str, Score]:
    """The same from values by row: `own` of the model, `other` of the retrained one."""
    extras = extras or Extras()
    out: dict[str, Score] = {}
    for family in own.families:
        out |= _likelihoods(own, family)
        out |= _ratios(own, family)
        out |= _texts(own, family)
    for family in PARAPHRASED:
        out |= _memorised(own, family)
    out |= _fluency(own, extras)
    out |= tofu_privacy.scores(own, other, extras)
    out["tow"] = _tow(own, other)
    return out | tofu_composites.scores(out) | dict.fromkeys(LBQ, Score(None, why=NOT_JUDGED))


def _exp(losses: Iterable[float | None]) -> list[float | None]:
    return [None if x is None else math.exp(-x) for x in losses]


def _likelihoods(own: Read, family: str) -> dict[str, Score]:
    """Losses and probabilities of the answers to a family's questions."""
    why = own.lacks(family)
    loss = own.tokens(family, memorization.loss)
    out = {f"{family}.loss": mean_score(loss, why)}
    probability = own.tokens(family, memorization.probability)
    parts = own.losses(family)
    wrong = None if parts is None else {i: _exp(x) for i, x in parts[1].items()}
    raw = mean_score(probability, why)
    if family in OPTIONS:
        out[f"{family}.prob.raw"] = raw
        both = None
        if wrong is not None and probability is not None:
            ids = [i for i in probability if i in wrong]
            values = memorization.option_probability([probability[i] for i in ids], [wrong[i] for i in ids])
            both = dict(zip(ids, values, strict=True))
        out[f"{family}.prob"] = mean_score(both, own.lacks(family, f"{family}_pert"))
    else:
        out[f"{family}.prob"] = raw
        para = own.tokens(f"{family}_para", memorization.loss)
        out[f"{family}_para.loss"] = mean_score(para, own.lacks(f"{family}_para"))
        right = None if parts is None else dict(zip(parts[0], _exp(parts[0].values()), strict=True))
        out[f"{family}.para_prob"] = mean_score(right, own.lacks(f"{family}_para", f"{family}_pert"))
    out[f"{family}_pert.loss"] = mean_score(
        own.tokens(f"{family}_pert", memorization.loss), own.lacks(f"{family}_pert")
    )
    means = None if wrong is None else {i: _mean(x) for i, x in wrong.items()}
    out[f"{family}.pert_prob"] = mean_score(means, own.lacks(f"{family}_pert", f"{family}_para"))
    return out


def _mean(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [v for v in found if v is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def _over(ratios: ByRow | None, aggregate: Callable[..., Values]) -> ByRow | None:
    return None if ratios is None else dict(zip(ratios, aggregate(list(ratios.values())), strict=True))


def _ratios(own: Read, family: str) -> dict[str, Score]:
    """Truth ratios: the mean is of the aggregated values, the rows keep R itself."""
    why = own.lacks(f"{family}_para" if family in PARAPHRASED else family, f"{family}_pert")
    aggregate = AGGREGATE.get(family, memorization.retain_truth_ratio)
    geometric = own.ratios(family)
    out = {f"{family}.truth_ratio": mean_score(_over(geometric, aggregate), why, shown=geometric)}
    if family == "forget":
        arithmetic = own.ratios(family, "arithmetic")
        out["forget.truth_ratio.arithmetic"] = mean_score(_over(arithmetic, aggregate), why, shown=arithmetic)
        out["forget.truth_ratio.share"] = mean_score(_over(geometric, memorization.truth_share), why)
    return out


def _tow(own: Read, other: Read | None) -> Score:
    """ToW of greedy answers; real authors and world facts together are its test rows."""
    if other is None:
        return Score(None, why=own.no_reference)
    families = {"forget": ("forget",), "retain": ("retain",), "test": OPTIONS}
    shares: list[dict[str, float]] = []
    count = 0
    for read in (own, other):
        share = {}
        for name, parts in families.items():
            found = [read.written(family, "match") for family in parts if family in read.families]
            values = [v for part in found for v in (part or {}).values() if v is not None]
            if not values or None in found:
                return Score(None, why=own.lacks(*(f"{family}_text" for family in parts)))
            share[name], count = sum(values) / len(values), count + len(values)
        shares.append(share)
    return Score(forgetting.tow(*shares), n=count // 2)


TEXT_METRICS = tuple(name for name in WRITTEN if name != "own_fluency")


def _texts(own: Read, family: str) -> dict[str, Score]:
    why = own.lacks(f"{family}_text")
    out = {f"{family}.{name}": mean_score(own.written(family, name), why) for name in TEXT_METRICS}
    return out | {f"{family}.hit_limit": mean_score(own.hit_limit(family), why)}


MEMORISED = {
    "es": memorization.extraction_strength,
    "es.published": memorization.extraction_strength_published,
    "em": memorization.exact_memorization,
    "em.published": memorization.exact_memorization_published,
}


def _memorised(own: Read, family: str) -> dict[str, Score]:
    why = own.lacks(family)
    return {f"{family}.{name}": mean_score(own.tokens(family, f), why) for name, f in MEMORISED.items()}


def _fluency(own: Read, extras: Extras) -> dict[str, Score]:
    """Fluency of the greedy answers to the forget questions, by our classifier and by the hub's."""
    asked, why = own.written("forget", "own_fluency"), own.lacks("forget_text")
    if extras.fluency == "none":
        asked, why = None, 'the task option fluency is "none"'
    clean, reason = own.judged("forget_text.fluency")
    if clean is None and extras.fluency != "hub":
        reason = f'the hub\'s classifier was not asked: the task option fluency is "{extras.fluency}"'
    return {"forget.own_fluency": mean_score(asked, why), "forget.fluency": mean_score(clean, reason)}
