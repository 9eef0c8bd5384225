"""Multiple choice: accuracy from log-likelihoods of the options, and two ways to average it over subjects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.metrics import described
from harness.metrics.memorization import Values
from harness.types import Score

MOST_INVALID = 0.01
"""With more than this share of invalid questions there is no accuracy."""


@dataclass(frozen=True)
class ChoiceResult:
    """What a model chose.

    Attributes:
        score: the accuracy in 0..1 over valid questions, or why there is none.
        hits: per question 1 (right), 0 (wrong), or None (invalid).
        letters: how often each option was chosen [options]; a model that always says "A" shows here.
        invalid: number of questions without a choice: a likelihood is not finite, or all of them tie.
    """

    score: Score
    hits: Values
    letters: tuple[int, ...]
    invalid: int


@described(
    low=0.0, high=1.0, unit="accuracy", source="lm-evaluation-harness, acc; its issue 1340 for invalid rows"
)
def choice_accuracy(
    loglikelihoods: np.ndarray, gold: Sequence[int] | np.ndarray, *, most_invalid: float = MOST_INVALID
) -> ChoiceResult:
    """Share of questions whose likeliest option is the right one.

    Args:
        loglikelihoods: [questions, options], natural logs.
        gold: number of the right option, per question.
        most_invalid: largest share of invalid questions at which there is still an accuracy.

    A broken model gives NaN everywhere, and the first option, which an argmax then picks, is right about one
    time in four: such questions have no choice, and too many of them leave no accuracy, not one near chance.

    >>> choice_accuracy(np.log([[.7, .1, .1, .1], [.1, .7, .1, .1]]), [0, 2]).score.value
    0.5
    >>> choice_accuracy(np.full((100, 4), np.nan), [0, 1, 2, 3] * 25).score.why
    '100 of 100 questions have no choice: a likelihood is not finite, or all options tie'
    """
    values, right = np.asarray(loglikelihoods, dtype=np.float64), np.asarray(gold, dtype=np.int64)
    if values.ndim != 2 or right.shape != values.shape[:1]:
        raise ValueError(f"likelihoods {values.shape} and right answers {right.shape} do not belong together")
    if not len(values):
        return ChoiceResult(Score(None, why="there are no questions"), [], (0,) * values.shape[1], 0)
    valid = np.isfinite(values).all(1) & ~(values == values[:, :1]).all(1)
    chosen = np.where(valid, np.argmax(np.where(np.isfinite(values), values, -np.inf), axis=1), -1)
    hits: Values = [float(c == g) if ok else None for c, g, ok in zip(chosen, right, valid, strict=True)]
    letters = tuple(int((chosen == k).sum()) for k in range(values.shape[1]))
    bad = int((~valid).sum())
    why = too_many_invalid(bad, len(values), most_invalid)
    if why:
        return ChoiceResult(Score(None, n=len(values), why=why), hits, letters, bad)
    kept = [hit for hit in hits if hit is not None]
    return ChoiceResult(Score(float(np.mean(kept)), n=len(kept)), hits, letters, bad)


def too_many_invalid(bad: int, asked: int, most: float = MOST_INVALID) -> str:
    """Why there is no accuracy when `bad` of `asked` questions have no choice; empty up to a share of `most`."""
    if bad <= most * asked:
        return ""
    return f"{bad} of {asked} questions have no choice: a likelihood is not finite, or all options tie"


@described(low=0.0, high=1.0, unit="accuracy", source="MMLU: mean over its 14042 documents")
def document_mean(subjects: Mapping[str, Values]) -> Score:
    """Mean over all questions of all subjects: the official MMLU number.

    Args:
        subjects: subject -> hits; None is an invalid question, which is left out.

    >>> document_mean({"a": [1.0], "b": [0.0] * 9}).value, macro_mean({"a": [1.0], "b": [0.0] * 9}).value
    (0.1, 0.5)
    """
    kept = [hit for hits in subjects.values() for hit in hits if hit is not None]
    return Score(float(np.mean(kept)), n=len(kept)) if kept else Score(None, why="no question has a choice")


@described(low=0.0, high=1.0, unit="accuracy", source="mean over subjects; not the official MMLU number")
def macro_mean(subjects: Mapping[str, Values]) -> Score:
    """Mean over subjects of each one's own mean: small subjects weigh as much as large ones.

    Args:
        subjects: subject -> hits; None is an invalid question. A subject without a valid one makes it null.
    """
    means = {name: [hit for hit in hits if hit is not None] for name, hits in subjects.items()}
    empty = [name for name, kept in means.items() if not kept]
    if empty or not means:
        return Score(
            None, why=f"no question of {empty[0]} has a choice" if empty else "there are no subjects"
        )
    return Score(float(np.mean([np.mean(kept) for kept in means.values()])), n=len(means))
