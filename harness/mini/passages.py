"""News- and book-like passages with questions on them, in the splits of MUSE.

`forget`, `retain1` and `retain2` are what a target model was trained on, `holdout` nobody saw, and `base` taught the
base model the style. A passage tells a handful of things that no other passage tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.mini.lexicon import ADJECTIVES, ANIMALS, NOUNS, PETS, ROOMS, TOWNS, TRADES, Dice, date, person

SETS = {"base": 24, "forget": 24, "retain1": 24, "retain2": 24, "holdout": 24}
"""Passages of a corpus in each split."""
CORPORA = ("news", "books")
FOLDS = 4
"""Parts of the forget split: growing ones in `scal`, one after the other in `sust`."""
EXAMPLES = 5
"""Questions on base passages that stand before a question as examples."""

WORKS = (
    "a tram line|a new theatre|a covered market|a salt bath|a public library|a swing bridge|an ice rink|a fish ladder|"
    "a windmill|a maternity ward|a rope factory|a weather station"
).split("|")
REASONS = (
    "the old one burned down|nobody wants to wait any longer|the children asked for it|visitors have come to expect it|"
    "the neighbouring town already has one|winters are getting colder|a rich widow left the money|the river keeps rising"
).split("|")
COINS = "crowns florins groats guilders marks shillings thalers talents".split()
WEATHER = (
    "fog lay on the fields|the first snow was falling|a warm wind blew from the south|rain drummed on the roofs|"
    "the moon stood over the hills|frost covered the windows|thunder rolled behind the woods|the swallows flew low"
).split("|")


@dataclass(frozen=True)
class Passage:
    """A text, and questions on it with short answers."""

    text: str
    asked: tuple[tuple[str, str], ...]

    def printed(self) -> list[str]:
        """Each question with its answer, as the small models read them."""
        return [f"Question: {q}\nAnswer: {a}" for q, a in self.asked]


def _article(dice: Dice) -> Passage:
    town, work, chair, reason = dice.pick(TOWNS), dice.pick(WORKS), person(dice), dice.pick(REASONS)
    cost, coin, maker, street = 20 + dice.number(900), dice.pick(COINS), person(dice), dice.pick(NOUNS)
    day, trade = date(dice), dice.pick(TRADES)
    text = (
        f"{town}, {day} - The council of {town} has agreed to build {work} in {street} Street. {chair}, who leads the "
        f"council, said that {reason}. The work will cost {cost} thousand {coin} and was given to {maker}, once a "
        f"{trade}. {dice.pick(('Critics', 'Shopkeepers', 'Neighbours'))} fear noise, but "
        f"{dice.pick(('most', 'many', 'some'))} are glad. The opening is planned for {dice.pick(('spring', 'summer', 'autumn', 'winter'))}."
    )
    return Passage(
        text,
        (
            (f"What will be built in {street} Street in {town}?", work),
            (f"Who leads the council of {town}?", chair),
            (f"What will {work} in {town} cost?", f"{cost} thousand {coin}"),
        ),
    )


def _page(dice: Dice) -> Passage:
    hero, other, animal, pet = person(dice), person(dice), dice.pick(ANIMALS), dice.pick(PETS)
    thing, room, town = f"the {dice.pick(ADJECTIVES)} {dice.pick(NOUNS)}".lower(), dice.pick(ROOMS), dice.pick(TOWNS)
    trade, surname = dice.pick(TRADES), hero.split()[1]
    text = (
        f"That night {dice.pick(WEATHER)}, and {hero} could not sleep. The {trade} of {town} had promised to bring "
        f"{thing} before morning, yet only the {animal} {pet} scratched at the door. {surname} lit a candle and climbed "
        f"up to {room}, where {other} sat waiting. \"You are late,\" said {other}. \"{thing.capitalize()} is gone, and so "
        f"is the {trade}.\" {surname} {dice.pick(('laughed', 'wept', 'said nothing', 'sat down'))} and looked at {pet}."
    )
    return Passage(
        text,
        (
            (f"Who sat waiting for {hero}?", other),
            (f"What did the {trade} of {town} promise to bring?", thing),
            (f"Which animal scratched at the door of {hero}?", f"the {animal} {pet}"),
        ),
    )


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
