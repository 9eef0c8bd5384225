"""Membership attacks on TOFU, and what is measured against the retrained model."""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness.metrics import composites, mean_score, memorization, privacy
from harness.tasks.tofu_extras import Extras
from harness.tasks.tofu_read import ATTACKS, TRIMMED, ByRow, Read
from harness.types import Score

NEED_REFERENCE = (
    "privleak", "priv", "priv.corrected", "forget_quality.p", "forget_quality.log10p", "forget_quality.d",
)  # fmt: skip
FEW = 40
"""Below so many rows a side the KS test can hardly tell models apart, and its result says so."""


def scores(own: Read, other: Read | None, extras: Extras) -> dict[str, Score]:
    """Row scores and AUCs of all attacks, privleak, priv and forget quality.

    Args:
        own: the model's answers.
        other: the retrained model's.
        extras: further attacks to make.
    """
    out = _membership(own)
    asked = {i: None for attack in ATTACKS for i in out[f"mia.{attack}"].per_row or {}}
    for attack in extras.mia:
        out |= _further(own, other, attack)
    if other is None:
        return out | {name: Score(None, why=own.no_reference) for name in NEED_REFERENCE}
    return out | _privacy(own, other, asked) | quality(own.ratios("forget"), other.ratios("forget"))


def priv(own: Mapping[str, Score], reference: Mapping[str, Score]) -> Score:
    """`composites.priv` of AUCs by attack; null, with the reason of the first one that is."""
    lost = next((f"AUC of {a}: {side[a].why}" for side in (own, reference) for a in own if side[a].why), "")
    if lost:
        return Score(None, why=lost)
    return composites.priv({a: x.value for a, x in own.items()}, {a: x.value for a, x in reference.items()})


def _auc(own: Read, attack: str, published: bool, only: Mapping[str, float | None] | None = None) -> Score:
    """AUC of one attack, forget rows against hold-out rows; `only` limits both to some row ids."""
    if own.holdout_missing:
        return Score(None, why=own.holdout_missing)
    inside, outside = (own.attack(probe, attack, published) for probe in ("forget", "holdout"))
    if inside is None or outside is None:
        return Score(None, why=own.lacks("forget" if inside is None else "holdout"))
    sides = [[v for i, v in side.items() if only is None or i in only] for side in (inside, outside)]
    return privacy.auc(sides[0], sides[1])


def _membership(own: Read) -> dict[str, Score]:
    """Row scores and AUCs of the four attacks; rows are forget and hold-out ones."""
    lost = own.holdout_missing or own.lacks("holdout")
    out = {"holdout.loss": mean_score(own.tokens("holdout", memorization.loss), lost)}
    for attack in ATTACKS:
        inside = own.attack("forget", attack, False)
        outside = own.attack("holdout", attack, False) or {}
        shown = None if inside is None else {**inside, **outside}
        out[f"mia.{attack}"] = mean_score(inside, own.lacks("forget"), shown=shown)
        out[f"mia.{attack}.auc"] = _auc(own, attack, False)
        if attack in TRIMMED:
            out[f"mia.{attack}.auc.published"] = _auc(own, attack, True)
    return out


def _further(own: Read, other: Read | None, attack: str) -> dict[str, Score]:
    """An attack that a board must ask for: loss beside the retrained model's, or the gradient's norm."""
    if own.holdout_missing:
        why = Score(None, why=own.holdout_missing)
        return {f"mia.{attack}": why, f"mia.{attack}.auc": why}
    sides: list[ByRow] = []
    for probe in ("forget", "holdout"):
        if attack == "reference":
            values, reason = _excess_loss(own, other, probe)
        else:
            values, reason = own.judged(f"{probe}.{attack}")
        if values is None:
            why = Score(None, why=reason)
            return {f"mia.{attack}": why, f"mia.{attack}.auc": why}
        sides.append(values)
    inside, outside = sides
    auc = privacy.auc(list(inside.values()), list(outside.values()))
    return {f"mia.{attack}": mean_score(inside, shown={**inside, **outside}), f"mia.{attack}.auc": auc}


def _excess_loss(own: Read, other: Read | None, probe: str) -> tuple[ByRow | None, str]:
    """Loss minus the retrained model's, by row; or None and why."""
    mine = own.tokens(probe, privacy.loss)
    if mine is None:
        return None, own.lacks(probe)
    theirs = None if other is None else other.tokens(probe, privacy.loss)
    if theirs is None:
        return None, own.no_reference
    strange = [i for i in mine if i not in theirs]
    if strange:
        return None, _strangers(strange, len(mine))
    return {i: _minus(value, theirs[i]) for i, value in mine.items()}, ""


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _privacy(own: Read, other: Read, asked: ByRow) -> dict[str, Score]:
    """PrivLeak by the published rule, and priv by both."""
    names = ("privleak", "priv", "priv.corrected")
    sides = [other.attack(probe, attack, True) or {} for probe in ("forget", "holdout") for attack in ATTACKS]
    known = {i for side in sides for i in side}
    strange = [i for i in asked if i not in known]
    why = own.holdout_missing or (_strangers(strange, len(asked)) if strange else "")
    if why:
        return {name: Score(None, why=why) for name in names}
    out: dict[str, Score] = {}
    for name, published in (("priv", True), ("priv.corrected", False)):
        mine = {a: _auc(own, a, published) for a in ATTACKS}
        theirs = {a: _auc(other, a, published, asked) for a in ATTACKS}
        out[name] = priv(mine, theirs)
        if published:
            lost = mine["min_k"].why or theirs["min_k"].why
            made = privacy.privleak(mine["min_k"].value, theirs["min_k"].value)
            out["privleak"] = Score(None, why=f"AUC of min_k: {lost}") if lost else made
    return out


def _strangers(rows: list[str], of: int) -> str:
    return f"the retrained model was not asked {len(rows)} of {of} rows, such as {rows[0]}"


def quality(own: ByRow | None, reference: ByRow | None) -> dict[str, Score]:
    """Forget quality from the truth ratios of both models by question; every question of `own` is needed."""
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
    note = ""
    if min(result.n, result.m) < FEW:
        note = f"only {min(result.n, result.m)} rows a side: even total separation gives no smaller p than"
        note = f"{note} {_least_p(result.n, result.m):.3g}"
    return {f"forget_quality.{name}": Score(getattr(result, name), n=result.n, why=note) for name in names}


def _least_p(n: int, m: int) -> float:
    """The smallest p that a two-sample KS test of n against m rows can give."""
    return 2.0 / math.comb(n + m, n)
