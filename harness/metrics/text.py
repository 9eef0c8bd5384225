"""What a model wrote beside what it should have written: ROUGE, and whether it wrote anything."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Literal

from harness.metrics import OPEN_UNLEARNING, described
from harness.metrics.memorization import Values

_WORD = re.compile(r"[^\W_]")
_WORDS = re.compile(r"[^\W_]+")


@functools.cache
def _scorer(kind: str, stem: bool) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], use_stemmer=stem)


@described(
    low=0.0, high=1.0, unit="share of words", source=f"Lin 2004, rouge-score; {OPEN_UNLEARNING}, rouge"
)
def rouge(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    kind: Literal["rougeL", "rouge1"] = "rougeL",
    part: Literal["recall", "f1"] = "recall",
    stem: bool = True,
) -> Values:
    """Overlap of the answer with the right one (ROUGE).

    Args:
        predictions: what the model wrote.
        references: the right answers, as many.
        kind: longest common subsequence (`rougeL`) or single words (`rouge1`).
        part: `recall` is over the reference's words, so a model that rambles keeps it high; `f1` punishes
            that.
        stem: compare word stems, as TOFU does; MUSE does not.

    Returns:
        Per row in 0..1. A prediction without a word ("", ".", blanks) scores 0 and never raises.

    >>> rouge(["Paris Rome Oslo Bonn"], ["Paris"]), rouge(["Paris Rome Oslo Bonn"], ["Paris"], part="f1")
    ([1.0], [0.4])
    """
    scorer = _scorer(kind, stem)
    name = "fmeasure" if part == "f1" else part
    return [
        float(getattr(scorer.score(right, said)[kind], name))
        for said, right in zip(predictions, references, strict=True)
    ]


@described(low=0.0, high=1.0, unit="share of rows", source="ours: answer accuracy, which ToW takes")
def match(predictions: Sequence[str], references: Sequence[str]) -> Values:
    """Whether the right answer stands in the answer, word by word, without case and punctuation; None if it is empty.

    >>> match(["It is Paris, France.", "It is Par"], ["paris", "Paris"])
    [1.0, 0.0]
    """
    found: Values = []
    for said, right in zip(predictions, references, strict=True):
        words, wanted = (_WORDS.findall(text.lower()) for text in (said, right))
        at = range(len(words) - len(wanted) + 1)
        found.append(float(any(words[i : i + len(wanted)] == wanted for i in at)) if wanted else None)
    return found


@described(low=0.0, high=1.0, unit="share of rows", source="pltrdy/rouge issues 53, 75: such answers crash")
def empty(predictions: Sequence[str]) -> Values:
    """Whether the answer has no letter and no digit at all (1) or has (0).

    >>> sum(empty(["", " ", ".", "...", "No."]))
    4.0
    """
    return [0.0 if _WORD.search(text) else 1.0 for text in predictions]
