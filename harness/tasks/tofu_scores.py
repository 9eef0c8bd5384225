"""All numbers of TOFU from answers: a pure function. What they mean is in `tofu_columns`.

A metric's per-row values are keyed by the ids of the rows of the probe that its id begins with; those of
`mia.*` by the ids of forget and hold-out rows. Membership and what needs the retrained model are in
`tofu_privacy`, numbers made of other numbers in `tofu_composites`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.fluency import own_fluency
from harness.metrics import mean_score, memorization, text
from harness.metrics.memorization import Values
from harness.tasks import tofu_composites, tofu_privacy
from harness.tasks.tofu_data import TofuRows
from harness.tasks.tofu_extras import Extras
from harness.tasks.tofu_privacy import ByRow
from harness.types import Answers, GenerationAnswers, LikelihoodAnswers, RowValues, Score

PARAPHRASED = ("forget", "retain")
OPTIONS = ("real_authors", "world_facts")
AGGREGATE = {"forget": memorization.forget_truth_ratio}
"""How R becomes a score, where it is not `retain_truth_ratio`."""


class Read:
    """One model's answers as values by row id. A probe that was not answered gives None."""

    def __init__(self, rows: TofuRows, answers: Answers) -> None:
        self.rows, self.answers = rows, answers
        self.targets = {name: {row.id: row.target for row in part} for name, part in rows.sets.items()}

    def tokens(self, probe: str, metric: Callable[..., Values], *more: Any) -> ByRow | None:
        """A metric of token scores over the rows of a likelihood probe."""
        answer = self.answers.probes.get(probe)
        if not isinstance(answer, LikelihoodAnswers):
            return None
        return dict(zip(answer.ids, metric(answer.scores, *more), strict=True))

    def texts(self, family: str, metric: Callable[[list[str], list[str]], Values]) -> ByRow | None:
        """A metric of (what was written, what is right) over the rows of a generation probe."""
        answer = self.answers.probes.get(f"{family}_text")
        if not isinstance(answer, GenerationAnswers):
            return None
        right = [self.targets[family][i] for i in answer.ids]
        return dict(zip(answer.ids, metric(list(answer.texts), right), strict=True))

    def judged(self, name: str) -> tuple[ByRow | None, str]:
        """What the task's own judge said of rows, or None and why."""
        answer = self.answers.probes.get(name)
        if not isinstance(answer, RowValues):
            return None, f"{name} was not asked for"
        return (None, answer.why) if answer.why else (dict(zip(answer.ids, answer.values, strict=True)), "")

    def hit_limit(self, family: str) -> ByRow | None:
        """Whether each greedy answer was cut at the token limit."""
        answer = self.answers.probes.get(f"{family}_text")
        if not isinstance(answer, GenerationAnswers):
            return None
        return {i: float(cut) for i, cut in zip(answer.ids, answer.hit_limit, strict=True)}

    def losses(self, family: str) -> tuple[ByRow, dict[str, list[float | None]]] | None:
        """(loss of the right answer, losses of the wrong ones) by question, of questions asked in full."""
        right = self.tokens(f"{family}_para" if family in PARAPHRASED else family, memorization.loss)
        wrong = self.tokens(f"{family}_pert", memorization.loss)
        if right is None or wrong is None:
            return None
        asked = [g for g in self.rows.groups[family] if g.right in right and all(w in wrong for w in g.wrong)]
        return {g.id: right[g.right] for g in asked}, {g.id: [wrong[w] for w in g.wrong] for g in asked}

    def ratios(self, family: str, mean: Any = "geometric") -> ByRow | None:
        """R by question; see `memorization.truth_ratio`."""
        found = self.losses(family)
        if found is None:
            return None
        right, wrong = found
        values = memorization.truth_ratio(list(right.values()), list(wrong.values()), mean)
        return dict(zip(right, values, strict=True))


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
    extras = extras or Extras()
    own = Read(rows, answers)
    other = None if reference is None else Read(rows, reference)
    out: dict[str, Score] = {}
    for family in rows.groups:
        out |= _likelihoods(own, family)
        out |= _ratios(own, family)
        out |= _texts(own, family)
    for family in PARAPHRASED:
        out |= _memorised(own, family)
    out |= _fluency(own, extras)
    out |= tofu_privacy.scores(own, other, extras)
    return out | tofu_composites.scores(out)


def _exp(losses: Iterable[float | None]) -> list[float | None]:
    return [None if x is None else math.exp(-x) for x in losses]


def _likelihoods(own: Read, family: str) -> dict[str, Score]:
    """Losses and probabilities of the answers to a family's questions."""
    why = f"probe {family} was not asked"
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
        out[f"{family}.prob"] = mean_score(both, f"probe {family} or {family}_pert was not asked")
    else:
        out[f"{family}.prob"] = raw
        para = own.tokens(f"{family}_para", memorization.loss)
        out[f"{family}_para.loss"] = mean_score(para, f"probe {family}_para was not asked")
        right = None if parts is None else dict(zip(parts[0], _exp(parts[0].values()), strict=True))
        out[f"{family}.para_prob"] = mean_score(right, f"probe {family}_para or {family}_pert was not asked")
    out[f"{family}_pert.loss"] = mean_score(
        own.tokens(f"{family}_pert", memorization.loss), f"probe {family}_pert was not asked"
    )
    means = None if wrong is None else {i: _mean(x) for i, x in wrong.items()}
    out[f"{family}.pert_prob"] = mean_score(means, f"probe {family}_pert or its right answers were not asked")
    return out


def _mean(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [v for v in found if v is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def _over(ratios: ByRow | None, aggregate: Callable[..., Values]) -> ByRow | None:
    return None if ratios is None else dict(zip(ratios, aggregate(list(ratios.values())), strict=True))


def _ratios(own: Read, family: str) -> dict[str, Score]:
    """Truth ratios: the mean is of the aggregated values, the rows keep R itself."""
    why = f"the paraphrased or perturbed answers of {family} were not asked"
    aggregate = AGGREGATE.get(family, memorization.retain_truth_ratio)
    geometric = own.ratios(family)
    out = {f"{family}.truth_ratio": mean_score(_over(geometric, aggregate), why, shown=geometric)}
    if family == "forget":
        arithmetic = own.ratios(family, "arithmetic")
        out["forget.truth_ratio.arithmetic"] = mean_score(_over(arithmetic, aggregate), why, shown=arithmetic)
        out["forget.truth_ratio.share"] = mean_score(_over(geometric, memorization.truth_share), why)
    return out


TEXT_METRICS: dict[str, Callable[[list[str], list[str]], Values]] = {
    "rougeL_recall": lambda said, right: text.rouge(said, right),
    "rougeL_f1": lambda said, right: text.rouge(said, right, part="f1"),
    "rouge1_recall": lambda said, right: text.rouge(said, right, kind="rouge1"),
    "empty": lambda said, right: text.empty(said),
}


def _texts(own: Read, family: str) -> dict[str, Score]:
    why = f"probe {family}_text was not asked"
    out = {
        f"{family}.{name}": mean_score(own.texts(family, metric), why)
        for name, metric in TEXT_METRICS.items()
    }
    return out | {f"{family}.hit_limit": mean_score(own.hit_limit(family), why)}


MEMORISED = {
    "es": memorization.extraction_strength,
    "es.published": memorization.extraction_strength_published,
    "em": memorization.exact_memorization,
    "em.published": memorization.exact_memorization_published,
}


def _memorised(own: Read, family: str) -> dict[str, Score]:
    why = f"probe {family} was not asked"
    return {f"{family}.{name}": mean_score(own.tokens(family, f), why) for name, f in MEMORISED.items()}


def _fluency(own: Read, extras: Extras) -> dict[str, Score]:
    """Fluency of the greedy answers to the forget questions, by our classifier and by the hub's."""
    asked = own.texts("forget", lambda said, _: [own_fluency(x) for x in said])
    why = "probe forget_text was not asked"
    if extras.fluency == "none":
        asked, why = None, 'the task option fluency is "none"'
    clean, reason = own.judged("forget_text.fluency")
    if extras.fluency != "hub":
        reason = f'the hub\'s classifier was not asked: the task option fluency is "{extras.fluency}"'
    return {"forget.own_fluency": mean_score(asked, why), "forget.fluency": mean_score(clean, reason)}
