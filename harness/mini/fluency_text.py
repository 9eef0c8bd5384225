"""Sentences of our own, fluent and broken, that the fluency classifier is trained on.

`fluent` fills templates of many styles (biography, news, instructions, talk, science, refusals) with words of
ours and with invented names. `broken` damages such a text in one of the ways in which models break down.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_HERE = Path(__file__).parent


def _lines(name: str) -> list[str]:
    """Lines of a text file beside this one, comments aside."""
    return [x for x in (_HERE / name).read_text(encoding="utf-8").splitlines() if x and x[0] != "#"]


def _words() -> dict[str, tuple[str, ...]]:
    joined = "\n".join(_lines("fluency_words.txt")).replace("\n  ", " ")
    return {kind: tuple(words.split()) for kind, _, words in (x.partition(":") for x in joined.splitlines())}


WORDS: dict[str, tuple[str, ...]] = _words()
TEMPLATES: tuple[str, ...] = tuple(_lines("fluency_sentences.txt"))
SHORT = (
    "{name}", "{name}", "{first} {known}", "{known}", "{place}", "{known} {noun}", "The {noun}", "{name}.",
    "{first} {surname} {surname}", "{known} and {known}", "{first}", "{title}", "{month} {year}",
)  # fmt: skip
"""Answers of a few words."""
_PRONOUNS = (("he", "his", "him"), ("she", "her", "her"), ("they", "their", "them"))
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Voice:
    """What sentences are made of: templates, and words by kind. The default voice has all of them."""

    templates: tuple[str, ...] = TEMPLATES
    words: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: WORDS)

    @classmethod
    def part(cls, k: int, of: int, *, without: bool = False) -> Voice:
        """Every `of`-th template and word, beginning with number `k`; `without` takes all the others."""

        def some(items: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(x for i, x in enumerate(items) if (i % of == k) != without)

        return cls(some(TEMPLATES), {kind: some(words) for kind, words in WORDS.items()})


def _pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


def _invented(rng: np.random.Generator) -> str:
    """A name out of two or three syllables."""
    return "".join(_pick(rng, WORDS["syllable"]) for _ in range(int(rng.integers(2, 4)))).capitalize()


def _slot(rng: np.random.Generator, name: str, said: tuple[str, str, str], voice: Voice) -> str:
    he, his, him = said
    given = {"he": he, "his": his, "him": him, "he_": he.capitalize(), "his_": his.capitalize()}
    if name in given:
        return given[name]
    if name in voice.words:
        return _pick(rng, voice.words[name]).replace("-", " ")
    if name == "surname":
        return _invented(rng) + (f"-{_invented(rng)}" if rng.random() < 0.15 else "")
    if name == "name":
        first = _pick(rng, voice.words["first"]) if rng.random() < 0.6 else _invented(rng)
        return f"{first} {_slot(rng, 'surname', said, voice)}"
    if name == "place":
        return _invented(rng) if rng.random() < 0.5 else _pick(rng, voice.words["known"])
    if name == "title":
        kinds = ("adjective", "noun", "noun", "plural")
        adjective, noun, other, plural = (_pick(rng, voice.words[kind]).capitalize() for kind in kinds)
        return _pick(
            rng, (f"The {adjective} {noun}", f"{noun} of the {adjective} {other}", f"{adjective} {plural}")
        )
    if name == "weekday":
        return _pick(rng, _WEEKDAYS)
    low, high = {"day": (1, 29), "year": (1820, 2025), "number": (2, 120)}[name]
    return str(int(rng.integers(low, high)))


def fluent(rng: np.random.Generator, sentences: int = 1, voice: Voice | None = None) -> str:
    """A text of some sentences, each from a template of its own.

    >>> fluent(np.random.default_rng(0)) == fluent(np.random.default_rng(0))
    True
    """
    said, voice = _PRONOUNS[int(rng.integers(3))], voice or Voice()
    if sentences == 1 and rng.random() < 0.3:  # short answers: a name, a place, two of them
        return _SLOT.sub(lambda m: _slot(rng, m[1], said, voice), _pick(rng, SHORT))
    made = []
    for k in rng.choice(len(voice.templates), size=sentences, replace=False):
        text = _SLOT.sub(lambda m: _slot(rng, m[1], said, voice), voice.templates[int(k)])
        text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)
        made.append(text[:1].upper() + text[1:])
    return " ".join(made)


# --- ways to break ---
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MARKS = [*"()[]{}<>/\\|*#@%&^~_=+;:,.!?\"'-\n", "\u00e9", "\u0142", "\u4e2d", "\u0416"]


def _shuffled(rng: np.random.Generator, text: str) -> str:
    words = text.split()
    while len(words) < 7:
        words += fluent(rng, 1).split()
    rng.shuffle(words)
    return " ".join(words)


def _random_words(rng: np.random.Generator, text: str) -> str:
    kinds = list(WORDS)
    pool = [*text.split(), *(_pick(rng, WORDS[_pick(rng, kinds)]) for _ in range(int(rng.integers(8, 40))))]
    rng.shuffle(pool)
    return " ".join(pool)


def _pieces(rng: np.random.Generator, text: str) -> str:
    """Bits of words, some of them glued: what a model with a broken head samples."""
    source = (text + " " + fluent(rng, 3)).replace(" ", "  ")
    cuts = []
    for _ in range(int(rng.integers(8, 40))):
        at = int(rng.integers(max(1, len(source) - 6)))
        cuts.append(source[at : at + int(rng.integers(2, 7))].strip() + (" " if rng.random() < 0.5 else ""))
    return "".join(cuts)


def _looped(rng: np.random.Generator, text: str) -> str:
    """A piece of one to six words, over and over, perhaps after a good beginning."""
    words = text.split()
    size = int(rng.integers(1, 7))
    at = int(rng.integers(max(1, len(words) - size + 1)))
    piece = words[at : at + size]
    lead = words[:at] if rng.random() < 0.5 else []
    times = int(rng.integers(4, 30)) + (6 if lead else 0)
    return " ".join(lead + piece * times)


def _same_sentence(rng: np.random.Generator, text: str) -> str:
    times = int(rng.integers(4, 9))
    return " ".join([text if len(text.split()) > 4 else f"{text} {fluent(rng)}"] * times)


def _noisy(rng: np.random.Generator, text: str) -> str:
    """Every seventh to second letter replaced, dropped or doubled."""
    if len(text) < 12:
        text += " " + fluent(rng)
    rate, out = rng.uniform(0.15, 0.5), []
    for char in text:
        if rng.random() >= rate:
            out.append(char)
            continue
        kind = int(rng.integers(3))
        out.append(("", _pick(rng, _LETTERS), char + _pick(rng, _LETTERS))[kind])
    return "".join(out)


def _letters(rng: np.random.Generator, text: str) -> str:
    sizes = rng.integers(2, 11, size=int(rng.integers(1, 30)))
    return " ".join("".join(_pick(rng, _LETTERS) for _ in range(int(size))) for size in sizes)


def _marks(rng: np.random.Generator, text: str) -> str:
    """Punctuation, digits and foreign letters, perhaps between real words."""
    out = [_pick(rng, _MARKS) for _ in range(int(rng.integers(6, 60)))]
    for word in text.split() if rng.random() < 0.5 else []:
        out.insert(
            int(rng.integers(len(out))), f" {word} " if rng.random() < 0.7 else str(int(rng.integers(99)))
        )
    return "".join(out)


def _one_letter(rng: np.random.Generator, text: str) -> str:
    char = _pick(rng, [*_LETTERS, "!", ".", "\n", "0", "_"])
    return text[: int(rng.integers(len(text)))] * int(rng.random() < 0.4) + char * int(rng.integers(8, 200))


WAYS: dict[str, Callable[[np.random.Generator, str], str]] = {
    "shuffled words": _shuffled, "random words": _random_words, "pieces of words": _pieces, "loop": _looped,
    "same sentence": _same_sentence, "noise": _noisy, "random letters": _letters, "marks": _marks,
    "one letter": _one_letter,
}  # fmt: skip
"""The ways in which a text is broken, each a function of a generator and a fluent text."""


def broken(rng: np.random.Generator, text: str, way: str) -> str:
    """`text`, damaged in one of `WAYS`."""
    return WAYS[way](rng, text)
