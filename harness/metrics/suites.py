"""Answers to a `Suite` probe as accuracies: which questions count, what was chosen, how that compares with chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.metrics import mean_score
from harness.metrics.choice import choice_accuracy, macro_mean, too_many_invalid
from harness.metrics.memorization import Values
from harness.types import Score, SuiteAnswers


@dataclass(frozen=True)
class Chosen:
    """What a model chose on some of a suite's questions.

    Attributes:
        score: accuracy in 0..1 over valid questions, or why there is none; per-row values are 1, 0, or None.
        macro: mean over tasks of each one's own accuracy.
        letters: option number -> how often it was chosen.
        invalid: number of questions without a choice: a likelihood is not finite, or all of them tie.
        chance: accuracy that guessing is expected to give: the mean of 1 / number of options.
    """

    score: Score
    macro: Score
    letters: dict[int, int]
    invalid: int
    chance: float | None


def accuracy(answer: SuiteAnswers | None, tasks: Callable[[str], bool] = lambda _: True) -> Chosen:
    """Accuracy by the likeliest option, over the choice questions of the tasks that `tasks` accepts.

    A question of which likelihoods are not finite or all tie is no choice and is left out; more than 1 % of them
    leave no accuracy. That is lm-eval's `acc` wherever all questions are valid.
    """
    if answer is None:
        return _nothing("the suite was not asked")
    picked = [
        i
        for i, task in enumerate(answer.tasks)
        if tasks(task) and answer.loglikelihoods[i] and answer.gold[i] is not None
    ]
    if not picked:
        return _nothing("the suite has no choice question of this kind")
    hits: dict[int, float | None] = {}
    letters: Counter[int] = Counter()
    for width in sorted({len(answer.loglikelihoods[i]) for i in picked}):
        part = [i for i in picked if len(answer.loglikelihoods[i]) == width]
        found = choice_accuracy(
            np.array([answer.loglikelihoods[i] for i in part]),
            [int(answer.gold[i] or 0) for i in part],
        )
        hits |= dict(zip(part, found.hits, strict=True))
        letters += Counter(dict(enumerate(found.letters)))
    invalid = sum(hit is None for hit in hits.values())
    rows = {answer.ids[i]: hits[i] for i in picked}
    score = mean_score(rows)
    by_task: dict[str, Values] = {}
    for i in picked:
        by_task.setdefault(answer.tasks[i], []).append(hits[i])
    macro = macro_mean(by_task)
    why = too_many_invalid(invalid, len(picked))
    if why:
        score = Score(None, n=len(picked), why=why, per_row=rows)
        macro = Score(None, n=len(by_task), why=why)
    chance = float(np.mean([1.0 / len(answer.loglikelihoods[i]) for i in picked]))
    return Chosen(score, macro, dict(letters), invalid, chance)


def _nothing(why: str) -> Chosen:
    return Chosen(Score(None, why=why), Score(None, why=why), {}, 0, None)


def own_value(
    answer: SuiteAnswers | None, metric: str, tasks: Callable[[str], bool] = lambda _: True
) -> Score:
    """Mean over questions of a metric that the tasks themselves compute, such as `exact_match` or `acc_norm`."""
    if answer is None:
        return Score(None, why="the suite was not asked")
    column = answer.values.get(metric)
    if column is None:
        known = ", ".join(answer.values) or "none"
        return Score(None, why=f"the suite's tasks have no metric {metric!r} (they have {known})")
    rows = {
        row_id: value
        for row_id, task, value in zip(answer.ids, answer.tasks, column, strict=True)
        if tasks(task)
    }
    return mean_score(rows, f"no question of this kind has a value of {metric!r}")


def invalid(answer: SuiteAnswers) -> str:
    """Why the answers cannot be used, or an empty text: more than 1 % of the choice questions have no choice."""
    asked = [values for values in answer.loglikelihoods if values]
    bad = sum(not _has_choice(values) for values in asked)
    return too_many_invalid(bad, len(asked))


def _has_choice(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values)) and (len(values) == 1 or len(set(values)) > 1)


def chance_band(n: int, options: int = 4, z: float = 1.96) -> tuple[float, float]:
    """Where 95 % of the accuracies of pure guessing on `n` questions fall: 1/options +- z sqrt(p (1 - p) / n).

    >>> [f"{edge:.3f}" for n in (1273, 1987, 408) for edge in chance_band(n)]
    ['0.226', '0.274', '0.231', '0.269', '0.208', '0.292']
    """
    p = 1.0 / options
    half = z * math.sqrt(p * (1.0 - p) / n)
    return max(p - half, 0.0), min(p + half, 1.0)
