"""All numbers of TOFU from answers: a pure function. What they mean is in `tofu_columns`.

A metric's per-row values are keyed by the ids of the rows of the probe that its id begins with; those of
`mia.*` by the ids of forget and hold-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.metrics import composites, mean_score, memorization, privacy, text, utility
from harness.metrics.memorization import Values
from harness.tasks.tofu_data import TofuRows
from harness.types import Answers, GenerationAnswers, LikelihoodAnswers, Score

ByRow = dict[str, float | None]

PARAPHRASED = ("forget", "retain")
OPTIONS = ("real_authors", "world_facts")
NO_REFERENCE = "no answers of a retrained model: run `uharness reference BOARD`, which makes them"
NEED_REFERENCE = (
    "privleak", "priv", "priv.corrected", "forget_quality.p", "forget_quality.log10p", "forget_quality.d",
)  # fmt: skip
AGGREGATE = {"forget": memorization.forget_truth_ratio}
"""How R becomes a score, where it is not `retain_truth_ratio`."""


class _Read:
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


def score(rows: TofuRows, answers: Answers, reference: Answers | None) -> dict[str, Score]:
    """Every metric in `tofu_columns.METRICS`.

    Args:
        rows: the task's rows.
        answers: of the model; a probe that was not asked makes its metrics null, and fewer rows make n
            smaller.
        reference: answers of the model that was trained without the forget rows, to the same questions.
    """
    own = _Read(rows, answers)
    other = None if reference is None else _Read(rows, reference)
    out: dict[str, Score] = {}
    for family in rows.groups:
        out |= _likelihoods(own, family)
        out |= _ratios(own, family)
        out |= _texts(own, family)
    for family in PARAPHRASED:
        out |= _memorised(own, family)
    own_auc = _membership(own, out)
    out["model_utility"] = utility.model_utility({name: score.value for name, score in out.items()})
    out |= _against(own, other, own_auc)
    return out | _composites(out)


def _exp(losses: Iterable[float | None]) -> list[float | None]:
    return [None if x is None else math.exp(-x) for x in losses]


def _likelihoods(own: _Read, family: str) -> dict[str, Score]:
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


def _ratios(own: _Read, family: str) -> dict[str, Score]:
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


def _texts(own: _Read, family: str) -> dict[str, Score]:
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


def _memorised(own: _Read, family: str) -> dict[str, Score]:
    why = f"probe {family} was not asked"
    return {f"{family}.{name}": mean_score(own.tokens(family, f), why) for name, f in MEMORISED.items()}


ATTACKS = ("loss", "zlib", "min_k", "min_k_pp")
TRIMMED = ("min_k", "min_k_pp")
"""Attacks that leave the end of the answer out, and so have a published variant."""


def _attack(own: _Read, probe: str, attack: str, published: bool) -> ByRow | None:
    if attack == "loss":
        return own.tokens(probe, privacy.loss)
    if attack in TRIMMED:
        metric: Callable[..., Values] = getattr(privacy, attack)
        return own.tokens(probe, metric, privacy.K, published)
    answer = own.answers.probes.get(probe)
    ids = answer.ids if isinstance(answer, LikelihoodAnswers) else ()
    return own.tokens(probe, privacy.zlib, [own.targets[probe][i] for i in ids])


def _auc(own: _Read, attack: str, published: bool, only: Mapping[str, float | None] | None = None) -> Score:
    """AUC of one attack, forget rows against hold-out rows; `only` limits both to some row ids."""
    if own.rows.holdout_missing:
        return Score(None, why=own.rows.holdout_missing)
    inside, outside = (_attack(own, probe, attack, published) for probe in ("forget", "holdout"))
    if inside is None or outside is None:
        return Score(None, why=f"probe {'forget' if inside is None else 'holdout'} was not asked")
    sides = [[v for i, v in side.items() if only is None or i in only] for side in (inside, outside)]
    return privacy.auc(sides[0], sides[1])


def _membership(own: _Read, out: dict[str, Score]) -> ByRow:
    """Row scores and AUCs into `out`; returns the ids of forget and hold-out rows that were asked."""
    out["holdout.loss"] = mean_score(
        own.tokens("holdout", memorization.loss), own.rows.holdout_missing or "probe holdout was not asked"
    )
    for attack in ATTACKS:
        inside = _attack(own, "forget", attack, False)
        outside = _attack(own, "holdout", attack, False) or {}
        shown = None if inside is None else {**inside, **outside}
        out[f"mia.{attack}"] = mean_score(inside, "probe forget was not asked", shown=shown)
        out[f"mia.{attack}.auc"] = _auc(own, attack, False)
        if attack in TRIMMED:
            out[f"mia.{attack}.auc.published"] = _auc(own, attack, True)
    return dict(out["mia.loss"].per_row or {})


def _against(own: _Read, other: _Read | None, asked: ByRow) -> dict[str, Score]:
    """What needs the retrained model: privleak, priv, forget quality."""
    if other is None:
        names = (
            "privleak",
            "priv",
            "priv.corrected",
            "forget_quality.p",
            "forget_quality.log10p",
            "forget_quality.d",
        )
        return {name: Score(None, why=NO_REFERENCE) for name in names}
    return _privacy(own, other, asked) | _quality(own.ratios("forget"), other.ratios("forget"))


def _privacy(own: _Read, other: _Read, asked: ByRow) -> dict[str, Score]:
    """PrivLeak by the published rule, and priv by both."""
    names = ("privleak", "priv", "priv.corrected")
    known = {i for probe in ("forget", "holdout") for i in (_attack(other, probe, "loss", True) or {})}
    strange = [i for i in asked if i not in known]
    why = own.rows.holdout_missing or (_strangers(strange, len(asked)) if strange else "")
    if why:
        return {name: Score(None, why=why) for name in names}
    out: dict[str, Score] = {}
    for name, published in (("priv", True), ("priv.corrected", False)):
        mine = {a: _auc(own, a, published) for a in ATTACKS}
        theirs = {a: _auc(other, a, published, asked) for a in ATTACKS}
        lost = next(
            (f"AUC of {a}: {side[a].why}" for side in (mine, theirs) for a in ATTACKS if side[a].why), ""
        )
        made = {
            name: composites.priv(
                {a: x.value for a, x in mine.items()}, {a: x.value for a, x in theirs.items()}
            )
        }
        if published:
            made["privleak"] = privacy.privleak(mine["min_k"].value, theirs["min_k"].value)
        out |= {key: Score(None, why=lost) for key in made} if lost else made
    return out


def _strangers(rows: list[str], of: int) -> str:
    return f"the retrained model was not asked {len(rows)} of {of} rows, such as {rows[0]}"


def _quality(own: ByRow | None, reference: ByRow | None) -> dict[str, Score]:
    names = ("p", "log10p", "d")
    why = ""
    if own is None or reference is None:
        why = f"{'the model' if own is None else 'the retrained model'} was not asked the paraphrased answers"
        return {f"forget_quality.{name}": Score(None, why=why) for name in names}
    strange = [i for i in own if i not in reference]
    if strange:
        why = (
            f"the retrained model was not asked {len(strange)} of {len(own)} questions, such as {strange[0]}"
        )
        return {f"forget_quality.{name}": Score(None, why=why) for name in names}
    result = privacy.forget_quality(list(own.values()), [reference[i] for i in own])
    if isinstance(result, str):
        return {f"forget_quality.{name}": Score(None, why=result) for name in names}
    return {f"forget_quality.{name}": Score(getattr(result, name), n=result.n) for name in names}


def _composites(out: Mapping[str, Score]) -> dict[str, Score]:
    """Composites from published-rule inputs, and beside each the one from ours (`.corrected`)."""
    made: dict[str, Score] = {}
    for rule, suffix in ((".published", ""), ("", ".corrected")):
        value = {name: out[f"{name}{rule}"].value for name in ("forget.es", "forget.em", "retain.es")}
        left = (
            value["forget.es"],
            value["forget.em"],
            out["forget.prob"].value,
            out["forget.truth_ratio"].value,
        )
        made[f"mem{suffix}"] = composites.mem(*left)
        made[f"ds_es{suffix}"] = composites.ds_es(value["forget.es"], value["retain.es"])
        erased = made[f"eq{suffix}"] = composites.eq(*left)
        kept = made[f"rq{suffix}"] = composites.rq(out["model_utility"].value, value["retain.es"])
        made[f"sbq{suffix}"] = composites.sbq(erased.value, kept.value)
    return made
