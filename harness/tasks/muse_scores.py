"""All numbers of MUSE from answers: a pure function, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.metrics import composites, described, mean_score, privacy, text
from harness.metrics import metric_info as info
from harness.metrics.memorization import Values
from harness.metrics.utility import complaint
from harness.tasks.muse_data import MuseRows
from harness.types import Answers, GenerationAnswers, LikelihoodAnswers, MetricInfo, Score

MUSE = "MUSE, arXiv 2407.06460; swj0419/muse_bench fcd6651"
PUBLISHED = {"news": 0.4772, "books": 0.5393}
"""1 - AUC of MUSE's own retrained models, forget against hold-out by Min-40 % (muse_bench constants.py)."""
RIGHT = "verbmem.right"
"""What the task adds to the answers: VerbMem's right texts as the model's tokenizer cuts them."""
ROUGE = "rougeL_f1.nostem"
WRITTEN = {"verbmem": "lower", "knowmem_forget": "lower", "knowmem_retain": "higher"}
"""Probe of written answers -> which way is better."""
ATTACKS = ("loss", "zlib", "min_k", "min_k_pp")
NO_RETRAINED = "no answers of a retrained model: run `uharness reference BOARD`, which makes them"

ByRow = dict[str, float | None]


@described(low=0.0, high=1.0, unit="share of words", source="UnlearningSoup, MemQ")
def memq(verbatim: float | None, knowledge: float | None) -> Score:
    """What is still known of the forget texts: sqrt((VerbMem^2 + KnowMem^2) / 2).

    Args:
        verbatim: VerbMem, 0..1.
        knowledge: KnowMem on the forget texts, 0..1.

    Returns:
        In 0..1, lower is better (UnlearningSoup prints percent); null when a part is.

    >>> round(memq(.6, .8).value, 4)
    0.7071
    """
    why = complaint({"verbmem": verbatim, "knowmem_forget": knowledge})
    if why or verbatim is None or knowledge is None:
        return Score(None, n=2, why=why)
    return Score(math.hypot(verbatim, knowledge) / math.sqrt(2.0), n=2)


@described(low=0.0, high=1.0, unit="", source="our decision: MUSE prints its criteria side by side")
def balance(verbatim: float | None, knowledge: float | None, kept: float | None) -> Score:
    """Forgotten and kept at once: harmonic mean of 1 - VerbMem, 1 - KnowMem and UtilPres.

    Args:
        verbatim: VerbMem.
        knowledge: KnowMem on the forget texts.
        kept: KnowMem on the retain texts (UtilPres).

    Returns:
        In 0..1, higher is better; 0 for a model that says nothing. Null when a part is.
    """
    left = {"1 - verbmem": verbatim, "1 - knowmem_forget": knowledge}
    parts = {name: None if value is None else 1.0 - value for name, value in left.items()}
    return composites.floored_harmonic_mean({**parts, "knowmem_retain": kept})


def score(rows: MuseRows, answers: Answers, reference: Answers | None, published: str) -> dict[str, Score]:
    """Every metric in `columns(published)`.

    Args:
        rows: the task's rows.
        answers: of the model; a probe that was not asked makes its metrics null, fewer rows make n smaller.
        reference: answers of the model that was trained without the forget texts.
        published: `news` or `books` where the models are MUSE's own.
    """
    out: dict[str, Score] = {}
    for probe in WRITTEN:
        out |= _written(rows, answers, probe)
    said = {probe: out[f"{probe}.{ROUGE}"].value for probe in WRITTEN}
    out["memq"] = memq(said["verbmem"], said["knowmem_forget"])
    out["balance"] = balance(*said.values())
    out |= _membership(rows, answers)
    own = out["mia.min_k.auc"]
    if reference is None:
        out["privleak"] = Score(None, why=NO_RETRAINED)
    else:
        asked = {
            i: None for probe in ("forget", "holdout") for i in _attack(rows, answers, probe, "min_k") or {}
        }
        out["privleak"] = _privleak(own, _auc(rows, reference, "min_k", asked))
    if published:
        out["privleak.published"] = _privleak(own, Score(1.0 - PUBLISHED[published], n=1))
    return out


def _written(rows: MuseRows, answers: Answers, probe: str) -> dict[str, Score]:
    """ROUGE-L F1 of what was written, and how often nothing was or the limit was hit."""
    why = f"probe {probe} was not asked"
    said, right = answers.probes.get(probe), _right(rows, answers, probe)
    if not isinstance(said, GenerationAnswers):
        return {f"{probe}.{name}": Score(None, why=why) for name in (ROUGE, "empty", "hit_limit")}
    texts = list(said.texts)
    values: ByRow | None = None
    if right is None:
        why = f"{RIGHT} was not made: answer the run again"
    else:
        scores = text.rouge(texts, [right[i] for i in said.ids], part="f1", stem=False)
        values = dict(zip(said.ids, scores, strict=True))
    return {
        f"{probe}.{ROUGE}": mean_score(values, why),
        f"{probe}.empty": mean_score(dict(zip(said.ids, text.empty(texts), strict=True))),
        f"{probe}.hit_limit": mean_score(dict(zip(said.ids, map(float, said.hit_limit), strict=True))),
    }


def _right(rows: MuseRows, answers: Answers, probe: str) -> Mapping[str, str] | None:
    if probe != "verbmem":
        return {row.id: row.target for row in rows.asked[probe]}
    found = answers.probes.get(RIGHT)
    return dict(zip(found.ids, found.texts, strict=True)) if isinstance(found, GenerationAnswers) else None


def _attack(rows: MuseRows, answers: Answers, side: str, attack: str) -> ByRow | None:
    """Membership scores of one side's texts: the higher, the less like a member. EOS, if any, is left out."""
    found = answers.probes.get(f"privleak_{side}")
    if not isinstance(found, LikelihoodAnswers):
        return None
    texts = {row.id: row.target for row in rows.asked[f"privleak_{side}"]}
    metric: Callable[..., Values] = getattr(privacy, attack)
    more: list[Any] = [[texts[i] for i in found.ids]] if attack == "zlib" else []
    return dict(zip(found.ids, metric(found.scores, *more), strict=True))


def _auc(rows: MuseRows, answers: Answers, attack: str, only: Mapping[str, Any] | None = None) -> Score:
    """Forget texts against hold-out texts; `only` limits both to some row ids, all of which must be there."""
    sides = [_attack(rows, answers, side, attack) for side in ("forget", "holdout")]
    if sides[0] is None or sides[1] is None:
        return Score(None, why="probes privleak_forget and privleak_holdout were not both asked")
    known = {i for side in sides if side is not None for i in side}
    strange = [i for i in only or () if i not in known]
    if strange:
        return Score(None, why=f"{len(strange)} texts were not asked, such as {strange[0]}")
    kept = [[v for i, v in side.items() if only is None or i in only] for side in sides if side is not None]
    return privacy.auc(kept[0], kept[1])


def _membership(rows: MuseRows, answers: Answers) -> dict[str, Score]:
    out: dict[str, Score] = {}
    for attack in ATTACKS:
        inside = _attack(rows, answers, "forget", attack)
        outside = _attack(rows, answers, "holdout", attack) or {}
        shown = None if inside is None else {**inside, **outside}
        out[f"mia.{attack}"] = mean_score(inside, "probe privleak_forget was not asked", shown=shown)
        out[f"mia.{attack}.auc"] = _auc(rows, answers, attack)
    return out


def _privleak(own: Score, reference: Score) -> Score:
    for name, side in (("the model", own), ("the retrained model", reference)):
        if side.value is None:
            return Score(None, why=f"AUC of {name}: {side.why}")
    return privacy.privleak(own.value, reference.value)


def columns(published: str) -> tuple[MetricInfo, ...]:
    """All columns of a board; `published` as in `score`."""
    return tuple(_columns(published))


def _columns(published: str) -> Iterable[MetricInfo]:
    cut = "the right text is cut to 128 token ids, BOS counted"
    titles = {
        "verbmem": f"VerbMem: ROUGE-L F1, not stemmed, of greedy continuations of forget texts; {cut}.",
        "knowmem_forget": "KnowMem: ROUGE-L F1, not stemmed, of greedy answers to questions on the forget texts.",
        "knowmem_retain": "UtilPres: KnowMem on texts that are kept.",
    }
    for probe, good in WRITTEN.items():
        yield info(text.rouge, f"{probe}.{ROUGE}", good, titles[probe], source=MUSE)  # type: ignore[arg-type]
        yield info(text.empty, f"{probe}.empty", "none", f"Share of {probe} texts without a word.")
        yield info(
            text.empty, f"{probe}.hit_limit", "none", f"Share of {probe} texts cut at the limit.", source=""
        )
    yield info(memq, "memq", "lower")
    yield info(balance, "balance", "higher")
    for attack in ATTACKS:
        what = f"Membership score {attack}: mean over forget texts; rows are forget and hold-out ones."
        yield info(getattr(privacy, attack), f"mia.{attack}", "none", what)
        what = f"Chance that a forget text looks more like a member than a hold-out text, by {attack}."
        yield info(privacy.auc, f"mia.{attack}.auc", "target", what, target=0.5)
    what = "Min-40 % AUC relative to our own retrained model's: ((1-AUC) - (1-AUC_ref)) / (1-AUC_ref) x 100."
    yield info(privacy.privleak, "privleak", "target", what, target=0.0, roles=("retain",), source=MUSE)
    if published:
        what = f"The same against the AUC that MUSE prints for its retrained model: 1 - AUC = {PUBLISHED[published]}."
        yield info(privacy.privleak, "privleak.published", "target", what, target=0.0, source=MUSE)
