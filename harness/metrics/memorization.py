"""How much of an answer a model holds: probability, extraction strength, exact memorisation, truth ratio.

Functions of `TokenScores` return one value per row: a float, or None for a row without a token to score.

Two rules of what counts as the answer's end, for everything but the probability:

* published (`*_published`): the last answer token is left out, whatever it is;
* ours (plain names): it is left out only if it is the end-of-answer token, so plain text and cut rows keep
  it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from harness.metrics import OPEN_UNLEARNING, described
from harness.types import TokenScores

Values = list[float | None]
TINY = 1e-10
"""Keeps the published ratios finite."""


def without_end(row: TokenScores, published: bool) -> slice:
    """Which tokens of a one-row `TokenScores` count: not the last (published), or not a closing EOS."""
    length = len(row.logp)
    drop = length > 0 and (published or bool(row.is_eos[-1]))
    return slice(0, length - int(drop))


@described(low=0.0, high=None, unit="nats", source=f"{OPEN_UNLEARNING}, evaluate_probability")
def loss(scores: TokenScores) -> Values:
    """Mean over the answer's tokens, EOS included, of -log p.

    Returns:
        Per row, at least 0 and lower for an answer that is known; None for a row without tokens.
    """
    return [-float(np.mean(row.logp, dtype=np.float64)) + 0.0 if len(row.logp) else None for row in scores]


@described(low=0.0, high=1.0, unit="probability", source=f"{OPEN_UNLEARNING}, probability; TOFU sec. 2.2")
def probability(scores: TokenScores) -> Values:
    """Geometric mean over tokens of the probability of the right answer: exp(-loss).

    Returns:
        Per row in 0..1; None for a row without tokens.
    """
    return [None if value is None else float(np.exp(-value)) for value in loss(scores)]


@described(low=0.0, high=1.0, unit="probability", source=f"{OPEN_UNLEARNING}, probability_w_options")
def option_probability(right: Sequence[float | None], wrong: Sequence[Sequence[float | None]]) -> Values:
    """Probability of the right answer among the right one and the wrong ones.

    Args:
        right: probability of the right answer, per row.
        wrong: probabilities of the row's wrong answers.

    Returns:
        p / (p + sum of wrong + 1e-10) per row; None where a part is missing.
    """
    return [_ratio(p, others) for p, others in zip(right, wrong, strict=True)]


def _ratio(right: float | None, wrong: Sequence[float | None]) -> float | None:
    others = [p for p in wrong if p is not None]
    if right is None or not others or len(others) < len(wrong):
        return None
    return right / (right + sum(others) + TINY)


def _of_hits(scores: TokenScores, published: bool, share: Callable[[np.ndarray], Any]) -> Values:
    """A share of each row's hits; NaN where log p is NaN, for a broken model's misses are not forgetting."""
    out: Values = []
    for row in scores:
        hit = row.hit[without_end(row, published)]
        broken = bool(np.isnan(row.logp).any())
        out.append(None if not len(hit) else float("nan") if broken else float(share(hit)))
    return out


def _suffix(hit: np.ndarray) -> int:
    """Length of the longest run of hits that ends at the last token."""
    misses = np.flatnonzero(~np.asarray(hit, dtype=bool))
    return len(hit) if not len(misses) else len(hit) - 1 - int(misses[-1])


@described(
    low=0.0,
    high=1.0,
    unit="share of the answer",
    source="Carlini et al. 2021; Spectral Unlearning; corrected",
)
def extraction_strength(scores: TokenScores) -> Values:
    """Share of the answer that greedy decoding completes from the shortest sufficient prefix.

    Returns:
        Length of the longest correct suffix over the answer's length (a closing EOS counts in neither); 0
        when even the last token is missed, 1 when all are right; None when the row has no other token than
        EOS.
    """
    return _of_hits(scores, False, lambda hit: _suffix(hit) / len(hit))


@described(low=0.0, high=1.0, unit="share of the answer", source=f"{OPEN_UNLEARNING}, extraction_strength")
def extraction_strength_published(scores: TokenScores) -> Values:
    """Extraction strength as published: the last token never counts, and the least value is 1/length, not 0.

    Returns:
        1 - k/L with k the first position from which all L tokens are right, or L - 1 when there is none; None
        when nothing is left of the row (the public code stores 0 there).
    """
    return _of_hits(scores, True, lambda hit: 1.0 - min(len(hit) - _suffix(hit), len(hit) - 1) / len(hit))


@described(
    low=0.0, high=1.0, unit="share of tokens", source="Tirumala et al. 2022; Spectral Unlearning; corrected"
)
def exact_memorization(scores: TokenScores) -> Values:
    """Share of the answer's tokens that are the model's first choice, given the right ones before them.

    Returns:
        Per row in 0..1, a closing EOS left out; None when the row has no other token.
    """
    return _of_hits(scores, False, np.mean)


@described(low=0.0, high=1.0, unit="share of tokens", source=f"{OPEN_UNLEARNING}, exact_memorization")
def exact_memorization_published(scores: TokenScores) -> Values:
    """Exact memorisation as published: the last token is left out whatever it is.

    Returns:
        Per row in 0..1; None when nothing is left of the row.
    """
    return _of_hits(scores, True, np.mean)


@described(low=0.0, high=None, unit="ratio", source=f"{OPEN_UNLEARNING}, truth_ratio; TOFU eq. 1")
def truth_ratio(
    right: Sequence[float | None],
    wrong: Sequence[Sequence[float | None]],
    mean: Literal["geometric", "arithmetic"] = "geometric",
) -> Values:
    """How likely wrong answers are beside the right one: R = P(wrong) / (P(right) + 1e-10).

    Args:
        right: loss of the paraphrased right answer, per row (see `loss`).
        wrong: losses of the row's wrong answers.
        mean: over the wrong answers, of losses (`geometric`, what the public code computes) or of
            probabilities (`arithmetic`, what the TOFU paper writes). The two differ.

    Returns:
        Per row, at least 0; 1 when both are as likely; None where a part is missing.

    >>> [round(r, 4) for r in truth_ratio([1.0], [[2.0, 4.0]])]
    [0.1353]
    >>> [round(r, 4) for r in truth_ratio([1.0], [[2.0, 4.0]], mean="arithmetic")]
    [0.2088]
    """
    out: Values = []
    for good, bad in zip(right, wrong, strict=True):
        losses = [value for value in bad if value is not None]
        if good is None or not losses or len(losses) < len(bad):
            out.append(None)
            continue
        p_wrong = np.exp(-np.mean(losses)) if mean == "geometric" else np.mean(np.exp(-np.asarray(losses)))
        out.append(float(p_wrong / (np.exp(-good) + TINY)))
    return out


@described(low=0.0, high=1.0, unit="probability", source=f"{OPEN_UNLEARNING}, prob_mean")
def truth_share(ratios: Sequence[float | None]) -> Values:
    """Share of the right answer: P(right) / (P(right) + P(wrong)) = 1 / (1 + R), the third form in use.

    Returns:
        Per row in 0..1, high for an answer that is known.

    >>> [round(v, 3) for v in truth_share([0.1353])]
    [0.881]
    """
    return [None if r is None else 1.0 / (1.0 + r) for r in ratios]


@described(low=0.0, high=1.0, unit="ratio", source=f"{OPEN_UNLEARNING}, closer_to_1_better")
def forget_truth_ratio(ratios: Sequence[float | None]) -> Values:
    """How close R is to 1, on rows to forget: min(R, 1/(R + 1e-10)).

    Returns:
        Per row in 0..1; 1 when right and wrong answers are equally likely. The retrained model's mean is the
        value to come close to.
    """
    return [None if r is None else min(r, 1.0 / (r + TINY)) for r in ratios]


@described(low=0.0, high=1.0, unit="ratio", source=f"{OPEN_UNLEARNING}, true_better")
def retain_truth_ratio(ratios: Sequence[float | None]) -> Values:
    """How far the right answer is ahead, on rows to keep: max(0, 1 - R).

    Returns:
        Per row in 0..1, higher is better; 0 when wrong answers are at least as likely as the right one.
    """
    return [None if r is None else max(0.0, 1.0 - r) for r in ratios]
