"""Is a text fluent? Two judges of what a model writes, each in 0..1.

`own_fluency` is ours: a logistic regression in numpy over 17 facts about a text (how usual its letters and
the order of its words are, how often it repeats itself, what it is made of), trained by `harness.mini.fluency`
on sentences of our own and on damaged ones. It needs no download: its weights ship with the package.

`hub_logits` asks the classifier that the papers use, `madhurjindal/autonlp-Gibberish-Detector-492513457`:
class 0 is "clean", and its probability is the fluency (open-unlearning d3d7cf9, forget_Q_A_gibberish).

Neither can tell a fluent but repeated template from a good answer: read fluency beside the other numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from harness.errors import ModelError
from harness.metrics import OPEN_UNLEARNING, described

HUB = "madhurjindal/autonlp-Gibberish-Detector-492513457"
HUB_TOKENS = 32
"""The hub classifier reads this many tokens of an answer, as open-unlearning's TOFU settings have it."""
WEIGHTS = Path(__file__).parent / "mini" / "weights" / "fluency" / "weights.npz"

FEATURES = (
    "letters", "worst letters", "order", "worst order", "order two back", "distinct words", "distinct pairs",
    "loop", "longest run", "compression", "share of letters", "share of marks", "word length",
    "share of odd words", "capitals inside", "function words", "words",
)  # fmt: skip
_FUNCTION_WORDS = """
a an the this that these those and or but nor so yet if when while as than because although though since
until of in on at to for from by with without about into through during before after between among against
under over within throughout along near up down out off is am are was were be been being has have had do
does did will would can could may might must shall should not no yes i you he she it we they me him her us
them my your his its our their who whom whose which what where how why there here all each every both some
any most more many much few other such only own same too very also just even still then once again one two
three first like
"""
FUNCTION = frozenset(_FUNCTION_WORDS.split())
_SUFFIXES = (
    "ing", "ied", "ed", "ly", "tion", "sion", "ness", "ment", "ity", "ance", "ence", "ship", "ism", "ist",
    "ous", "ful", "ive", "ical", "ic", "al", "able", "ible", "er", "or", "est", "ies", "s",
)  # fmt: skip
CLASSES: tuple[str, ...] = (
    *sorted(FUNCTION), *(f"-{s}" for s in _SUFFIXES), "word", "Name", "number", *".,;:?!\"'()-", "mark",
    "edge",
)  # fmt: skip
"""What the order of words is judged by: function words as they are, others by ending."""
_CLASS = {name: i for i, name in enumerate(CLASSES)}
LETTERS = " abcdefghijklmnopqrstuvwxyz"
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|\d[\d.,/:]*|[^\w\s]|_")
_WORD = re.compile(r"[^\W\d_]")
_VOWEL = re.compile(r"[aeiouyAEIOUYáéíóúàèìòùâêîôûäëïöüåæøœ]")
_CAPITAL_INSIDE = re.compile(r"[^\W\d_A-Z][A-Z]")
SURE = 12.0
"""Log odds are cut off here."""


def tokens_of(text: str) -> list[str]:
    """Words, numbers and single marks.

    >>> tokens_of("It's 1,000 km (or so).")
    ["It's", '1,000', 'km', '(', 'or', 'so', ')', '.']
    """
    return _TOKEN.findall(text.replace("’", "'"))


def class_of(token: str) -> int:
    """Number of a token's class in `CLASSES`."""
    low = token.lower()
    if low in FUNCTION:
        return _CLASS[low]
    if not _WORD.match(token):
        return _CLASS["number"] if token[0].isdigit() else _CLASS.get(token, _CLASS["mark"])
    if token[0].isupper():
        return _CLASS["Name"]
    return next(
        (_CLASS[f"-{s}"] for s in _SUFFIXES if low.endswith(s) and len(low) > len(s) + 2), _CLASS["word"]
    )


def classes_of(tokens: Sequence[str]) -> np.ndarray:
    """Classes of all tokens between two edges [tokens + 2]."""
    edge = _CLASS["edge"]
    return np.array([edge, *map(class_of, tokens), edge], dtype=np.int64)


def letters_of(text: str) -> np.ndarray:
    """Places of a text's letters in `LETTERS`, accents dropped; runs of anything else are one blank."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))
    plain = re.sub(r"[^a-z]+", " ", bare).strip()
    return np.array([LETTERS.index(c) for c in f" {plain} "], dtype=np.int64)


def features(text: str, tables: Mapping[str, np.ndarray]) -> np.ndarray:
    """The 17 facts of `FEATURES` about a text that has a word.

    Args:
        text: what a model wrote.
        tables: log-probabilities `letters` [27, 27, 27], `order` and `order2` [classes, classes].
    """
    tokens = tokens_of(text)
    words = [t for t in tokens if _WORD.match(t)]
    low = [t.lower() for t in tokens]
    letters, classes = letters_of(text), classes_of(tokens)
    logp = (
        tables["letters"][letters[:-2], letters[1:-1], letters[2:]] if len(letters) > 2 else np.array([-5.0])
    )
    order = tables["order"][classes[:-1], classes[1:]]
    order2 = tables["order2"][classes[:-2], classes[2:]]
    pairs = list(itertools.pairwise(low))
    count, size = len(tokens), len(text.encode())
    inside = sum(bool(_CAPITAL_INSIDE.search(w)) for w in words)
    odd = sum(len(w) > 16 or (len(w) > 2 and not _VOWEL.search(w)) for w in words)
    return np.array([
        logp.mean(), _low(logp), order.mean(), _low(order), order2.mean(),
        _excess(low), _excess(pairs), _loop(low), _longest_run(text),
        len(zlib.compress(text.encode(), 9)) / (9.0 + size), sum(map(str.isalpha, text)) / max(1, len(text)),
        (count - len(words)) / count, min(12.0, float(np.mean([len(w) for w in words]))), odd / len(words),
        inside / len(words), sum(t in FUNCTION for t in low) / len(words), math.log(len(words)),
    ])  # fmt: skip


def _low(values: np.ndarray) -> float:
    """Mean of the lowest fifth."""
    return float(np.sort(values)[: max(1, len(values) // 5)].mean())


def _excess(items: Sequence[object]) -> float:
    """How many fewer distinct items than a text of this length has: 0 is usual, large is repetitive."""
    return max(0.0, math.log(len(items) ** 0.85) - math.log(len(set(items)))) if len(items) > 2 else 0.0


def _loop(tokens: Sequence[str]) -> float:
    """Share of tokens in a third or later copy of the same four tokens (of one token in short texts)."""
    n = 4 if len(tokens) >= 12 else 1
    seen: Counter[tuple[str, ...]] = Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
    again = sum(count - 2 for gram, count in seen.items() if count > 2 and (n > 1 or _WORD.match(gram[0])))
    return again / max(1, len(tokens) - n + 1)


def _longest_run(text: str) -> float:
    """Log of the longest run of one character."""
    return math.log(max((len(m[0]) for m in re.finditer(r"(.)\1*", text, re.DOTALL)), default=1))


@functools.cache
def weights(path: Path = WEIGHTS) -> dict[str, np.ndarray]:
    """The shipped tables, and per feature `low`, `high`, `centre`, `scale`, `slope`, `bend`."""
    if not path.is_file():
        raise ModelError(
            f"the weights of the fluency classifier are missing: {path}", "", "install the package again"
        )
    with np.load(path) as file:
        return {name: file[name].astype(np.float64) for name in file.files}


def standard(facts: np.ndarray, learnt: Mapping[str, np.ndarray]) -> np.ndarray:
    """Facts [..., features], cut to `low` and `high`, in at most 4 standard deviations from `centre`."""
    inner = (np.clip(facts, learnt["low"], learnt["high"]) - learnt["centre"]) / learnt["scale"]
    return np.clip(inner, -4.0, 4.0)


def log_odds(facts: np.ndarray, learnt: Mapping[str, np.ndarray]) -> np.ndarray:
    """Log odds of being fluent [...]: linear in the standardised facts and their squares."""
    inner = standard(facts, learnt)
    return inner @ learnt["slope"] + (inner**2) @ learnt["bend"] + learnt["offset"]


@described(low=0.0, high=1.0, unit="probability", source="our classifier, harness.mini.fluency")
def own_fluency(text: str) -> float:
    """How likely a text is fluent, by our own small classifier.

    Args:
        text: what a model wrote, of any length.

    Returns:
        In 0..1; a text without a letter scores 0.

    >>> own_fluency("She was born in a small town by the sea, where her father was a teacher.") > 0.9
    True
    >>> own_fluency("the the the the the the the the") < 0.1, own_fluency(""), own_fluency("... 42")
    (True, 0.0, 0.0)
    """
    if not _WORD.search(text):
        return 0.0
    learnt = weights()
    odds = float(log_odds(features(text, learnt), learnt))
    return 1.0 / (1.0 + math.exp(-min(max(odds, -SURE), SURE)))


@described(low=0.0, high=1.0, unit="probability", source=f"{HUB}; {OPEN_UNLEARNING}, classifier_prob")
def clean_probability(logits: np.ndarray) -> list[float | None]:
    """Probability of class 0, "clean", from logits [rows, classes] of the hub's gibberish classifier."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return [float(p) for p in shifted[:, 0] / shifted.sum(axis=-1)]


def hub_logits(texts: Sequence[str], *, batch: int = 32) -> np.ndarray:
    """Class logits [texts, classes] float32 of the hub classifier on the first 32 tokens of each text.

    Raises:
        ModelError: it cannot be loaded here.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(HUB)
        model = AutoModelForSequenceClassification.from_pretrained(HUB).eval()
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        todo = 'go online once, or set fluency = "own" under [task.options]'
        raise ModelError(f"the fluency classifier {HUB} cannot be loaded", first, todo) from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    parts: list[np.ndarray] = []
    with torch.inference_mode():
        for at in range(0, len(texts), batch):
            inputs = tokenizer(
                list(texts[at : at + batch]),
                return_tensors="pt",
                padding=True,
                truncation=True,
                max_length=HUB_TOKENS,
            ).to(device)
            parts.append(model(**inputs).logits.float().cpu().numpy())
    return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)
