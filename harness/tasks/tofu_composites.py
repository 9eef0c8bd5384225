"""Numbers of TOFU that are made of other numbers: model utility, mem, util, agg, ds_es, eq, eq.floor, rq, sbq.

The plain ids take inputs by the published rules, `.corrected` ones take ours; `own_fluency` ones take our
fluency classifier. What `util` is made of has one rule only, so it has no `.corrected` form.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.metrics import composites, utility
from harness.types import Score

RULES = {"": ".published", ".corrected": ""}
"""Suffix of a composite -> suffix of the memorisation metrics that it takes."""
FLUENCIES = {"": "forget.fluency", ".own_fluency": "forget.own_fluency"}
"""Suffix of `util` and `agg` -> the fluency that they take."""


def scores(out: Mapping[str, Score]) -> dict[str, Score]:
    """All composites.

    Args:
        out: the metrics that they are made of, `priv` among them; one that is absent counts as missing.
    """
    values = {name: score.value for name, score in out.items()}
    made = {"model_utility": _told(utility.model_utility(values), out)}
    for suffix, rule in RULES.items():
        es, em, kept = (values.get(f"{name}{rule}") for name in ("forget.es", "forget.em", "retain.es"))
        left = (es, em, values.get("forget.prob"), values.get("forget.truth_ratio"))
        made[f"mem{suffix}"] = composites.mem(*left)
        made[f"ds_es{suffix}"] = composites.ds_es(es, kept)
        erased = made[f"eq{suffix}"] = composites.eq(*left)
        made[f"eq.floor{suffix}"] = composites.forget_floor(*left)
        useful = made[f"rq{suffix}"] = composites.rq(made["model_utility"].value, kept)
        made[f"sbq{suffix}"] = composites.sbq(erased.value, useful.value)
    for kind, fluency in FLUENCIES.items():
        util = made[f"util{kind}"] = _told(composites.util(values, values.get(fluency), fluency), out)
        for suffix in RULES:
            parts = {"mem": made[f"mem{suffix}"], "priv": out.get(f"priv{suffix}"), "util": util}
            known = {name: part for name, part in parts.items() if part is not None}
            score = composites.agg(*(part.value if part is not None else None for part in parts.values()))
            made[f"agg{kind}{suffix}"] = _told(score, known)
    return made


def _told(score: Score, parts: Mapping[str, Score]) -> Score:
    """`score`; where it is null because a part is, the part's own reason stands beside its name."""
    if score.value is not None:
        return score
    whys = []
    for what in score.why.split("; "):
        name, missing, _ = what.partition(" is missing")
        own = parts[name].why if missing and name in parts else ""
        whys.append(f"{what} ({own})" if own else what)
    return Score(None, n=score.n, why="; ".join(whys))
