"""What RWKU computes in its own way: ROUGE-L recall, log-likelihoods of texts, n-gram entropy.

The public code is jinzhuoran/RWKU b8a03b3, `LLaMA-Factory/src/llmtuner/eval`.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.metrics import described
from harness.metrics.memorization import Values, without_end
from harness.metrics.privacy import min_k_pp
from harness.types import TokenScores

RWKU = "jinzhuoran/RWKU b8a03b3"
MIN_K = 0.2
NGRAMS = ((2, 2.0 / 3.0), (3, 4.0 / 3.0))
"""Length of an n-gram and the weight of its entropy."""

_WORD = re.compile(r"[^\W_]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


# --- ROUGE-L as the package `rouge` has it --------------------------------------------------------------------------
def _sentences(text: str) -> list[list[str]]:
    """Words of each piece between full stops; a piece of blanks is one empty word."""
    return [" ".join(piece.split()).split(" ") for piece in text.split(".") if piece]


def _common(x: Sequence[str], y: Sequence[str]) -> set[str]:
    """Words of one longest common subsequence; of several the one that the package finds."""
    table = np.zeros((len(x) + 1, len(y) + 1), dtype=np.int64)
    for i, a in enumerate(x, 1):
        for j, b in enumerate(y, 1):
            table[i, j] = (
                table[i - 1, j - 1] + 1 if a == b else max(int(table[i - 1, j]), int(table[i, j - 1]))
            )
    found, i, j = set(), len(x), len(y)
    while i and j:
        if x[i - 1] == y[j - 1]:
            found.add(x[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1, j] > table[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return found


@described(
    low=0.0, high=1.0, unit="share of words", source=f"{RWKU}, eval_forget.py; rouge 1.0.1, rouge-l, r"
)
def rouge_recall(predictions: Sequence[str], references: Sequence[str]) -> Values:
    """ROUGE-L recall as the package `rouge` computes it: words as they stand, sentences parted by full stops.

    It is the number of distinct words in the union of the longest common subsequences of every two sentences, over
    the number of distinct words of the right answer. Case, punctuation and accents count.

    Args:
        predictions: what the model wrote.
        references: the right answers, as many.

    Returns:
        Per row in 0..1. A prediction without a word ("", ".", blanks) is 0: the package raises on some of them. None
        where the right answer has no word.

    >>> rouge_recall(["Paris Rome", "He run daily", "."], ["Paris", "He runs daily", "Paris"])
    [1.0, 0.6666666666666666, 0.0]
    """
    return [_recall(said, right) for said, right in zip(predictions, references, strict=True)]


def _recall(said: str, right: str) -> float | None:
    if not _WORD.search(right):
        return None
    if not _WORD.search(said):
        return 0.0
    wanted, given = _sentences(right), _sentences(said)
    common: set[str] = set().union(*(_common(w, g) for w in wanted for g in given))
    return len(common) / len({word for sentence in wanted for word in sentence})


def first_line(text: str) -> str:
    r"""The first line of an answer that has one; what follows it is not the answer.

    >>> first_line("\n Paris\nQuestion: and Rome?")
    'Paris'
    """
    return text.strip().split("\n", 1)[0].strip()


# --- how likely a text is -------------------------------------------------------------------------------------------
@described(low=None, high=0.0, unit="nats", source=f"{RWKU}, eval_mia.py, loss")
def log_likelihood(scores: TokenScores) -> Values:
    """Mean log-probability of a text's tokens, a closing EOS left out; higher looks more like a member."""
    kept = [row.logp[without_end(row, published=False)] for row in scores]
    return [float(np.mean(logp, dtype=np.float64)) if len(logp) else None for logp in kept]


@described(low=None, high=0.0, unit="nats per byte", source=f"{RWKU}, eval_mia.py, zlib")
def log_likelihood_zlib(scores: TokenScores, texts: Sequence[str]) -> Values:
    """Mean log-probability over the compressed size of the text; higher looks more like a member."""
    sizes = [len(zlib.compress(text.encode())) for text in texts]
    return [None if x is None else x / size for x, size in zip(log_likelihood(scores), sizes, strict=True)]


@described(low=None, high=None, unit="standard deviations", source=f"{RWKU}, eval_mia.py, mink++_0.2")
def min_k_plus(scores: TokenScores) -> Values:
    """Min-K++ of the 20 % least likely tokens, at least one; higher looks more like a member."""
    return [None if x is None else 0.0 - x for x in min_k_pp(scores, MIN_K)]


# --- fluency --------------------------------------------------------------------------------------------------------
@functools.cache
def _tokenizer() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()


def words(text: str) -> list[str]:
    """Words and punctuation by NLTK's tokenizer, sentence by sentence.

    NLTK's own `word_tokenize` finds the sentences with a model that is a download; here a sentence ends at `.`, `!` or
    `?` before a blank.
    """
    return [word for part in _SENTENCE_END.split(text.strip()) for word in _tokenizer().tokenize(part)]


@described(low=0.0, high=None, unit="bits", source=f"{RWKU}, eval_fluency.py; Zhang et al. 2018")
def ngram_entropy(texts: Sequence[str]) -> Values:
    """Mean of 2/3 of the entropy of a text's bigrams and 4/3 of that of its trigrams; low for one that repeats itself.

    Returns:
        Per text in bits, at least 0; a text without a bigram has 0. Long texts can reach more than short ones: at most
        (2/3 log2(n - 1) + 4/3 log2(n - 2)) / 2 for n words.

    >>> ngram_entropy(["a a a a a", "a b c", ""])
    [0.0, 0.3333333333333333, 0.0]
    """
    return [_entropies(words(text)) for text in texts]


def _entropies(tokens: Sequence[str]) -> float:
    total = 0.0
    for n, weight in NGRAMS:
        counts = Counter(zip(*(tokens[k:] for k in range(n)), strict=False))
        size = sum(counts.values())
        total += weight * math.fsum(-c / size * math.log2(c / size) for c in counts.values())
    return total / len(NGRAMS) + 0.0
