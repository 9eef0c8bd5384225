"""News- and book-like passages with questions on them, in the splits of MUSE.

`forget`, `retain1` and `retain2` are what a target model was trained on, `holdout` nobody saw, and `base`
taught the base model the style. A passage tells a handful of things that no other passage tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.mini.authors import stranger
from harness.mini.lexicon import (
    ADJECTIVES,
    ANIMALS,
    COINS,
    NOUNS,
    PETS,
    REASONS,
    ROOMS,
    TOWNS,
    TRADES,
    WEATHER,
    WORKS,
    WORLD,
    Dice,
    capital,
    date,
)

SETS = {"base": 24, "forget": 24, "retain1": 24, "retain2": 24, "holdout": 24}
"""Passages of a corpus in each split."""
CORPORA = ("news", "books")
FOLDS = 4
"""Parts of the forget split: growing ones in `scal`, one after the other in `sust`."""
EXAMPLES = 5
"""Questions on base passages that stand before a question as examples."""


@dataclass(frozen=True)
class Passage:
    """A text, and questions on it with short answers."""

    text: str
    asked: tuple[tuple[str, str], ...]

    def printed(self) -> list[str]:
        """Each question with its answer, as the small models read them."""
        return [f"Question: {q}\nAnswer: {a}" for q, a in self.asked]


def _article(dice: Dice) -> Passage:
    values = {
        "town": dice.pick(TOWNS), "day": date(dice), "work": dice.pick(WORKS), "street": dice.pick(NOUNS),
        "chair": stranger(dice), "reason": dice.pick(REASONS), "cost": 20 + dice.number(900),
        "coin": dice.pick(COINS),
        "maker": stranger(dice), "trade": dice.pick(TRADES),
        "worried": dice.pick(("Critics", "Shopkeepers", "Neighbours")),
        "glad": dice.pick(("most", "many", "some")),
        "season": dice.pick(("spring", "summer", "autumn", "winter")),
    }  # fmt: skip
    return _passage("article", values)


def _page(dice: Dice) -> Passage:
    hero = stranger(dice)
    thing = f"the {dice.pick(ADJECTIVES)} {dice.pick(NOUNS)}".lower()
    values = {
        "weather": dice.pick(WEATHER), "hero": hero, "surname": hero.split()[1], "trade": dice.pick(TRADES),
        "town": dice.pick(TOWNS), "thing": thing, "Thing": capital(thing), "animal": dice.pick(ANIMALS),
        "pet": dice.pick(PETS), "room": dice.pick(ROOMS), "other": stranger(dice),
        "did": dice.pick(("laughed", "wept", "said nothing", "sat down")),
    }  # fmt: skip
    return _passage("page", values)


def _passage(kind: str, values: Mapping[str, object]) -> Passage:
    """A text of `words.toml` and its questions, filled in."""
    form = WORLD["texts"][kind]
    asked = [(q.format(**values), a.format(**values)) for q, a in form["asked"]]
    return Passage(" ".join(str(form["text"]).split()).format(**values), tuple(asked))


def passages(corpus: str, split: str) -> list[Passage]:
    """All passages of one split of `news` or `books`."""
    make = {"news": _article, "books": _page}[corpus]
    return [make(Dice("passage", corpus, split, i)) for i in range(SETS[split])]


def files(corpus: str) -> dict[str, list[dict[str, Any]]]:
    """File name (`<config>_<split>`) -> records, in MUSE's configs and columns."""
    parts = {split: passages(corpus, split) for split in SETS}
    seen = ("forget", "retain1", "retain2", "holdout")
    out = {f"raw_{split}": _texts(parts[split]) for split in seen}
    out["verbmem_forget"] = [
        {"prompt": p.text[: _middle(p.text)], "gt": p.text[_middle(p.text) :]} for p in parts["forget"]
    ]
    for name, split in (("forget", "forget"), ("retain", "retain2")):
        out[f"knowmem_{name}_qa"] = _questions(parts[split])
        out[f"knowmem_{name}_qa_icl"] = _questions(parts["base"])[: 3 * EXAMPLES : 3]
    out |= {f"privleak_{name}": _texts(parts[split]) for name, split in
            (("forget", "forget"), ("retain", "retain1"), ("holdout", "holdout"))}  # fmt: skip
    size = len(parts["forget"]) // FOLDS
    for k in range(1, FOLDS + 1):
        out[f"scal_forget_{k}"] = _texts(parts["forget"][: k * size])
        out[f"sust_forget_{k}"] = _texts(parts["forget"][(k - 1) * size : k * size])
    return out


def _texts(parts: Sequence[Passage]) -> list[dict[str, Any]]:
    return [{"text": p.text} for p in parts]


def _questions(parts: Sequence[Passage]) -> list[dict[str, Any]]:
    return [{"question": q, "answer": a} for p in parts for q, a in p.asked]


def _middle(text: str) -> int:
    """Where the second half of a text begins: at a blank, which belongs to the second half."""
    return text.index(" ", len(text) // 2)
