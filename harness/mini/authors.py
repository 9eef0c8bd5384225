"""Fictitious authors: 20 questions each, with paraphrases and wrong answers in TOFU's columns.

A `Kind` is one thing that can be asked about an author. Each has several ways to ask and to answer; which
one an author's row uses is drawn, so that the wording does not tell what is asked next. The paraphrased
answer is another way to say the same, and the wrong answers say it in exactly that way with another value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from harness.mini.lexicon import (
    ANIMALS,
    DISHES,
    FIRST,
    GENRES,
    HOURS,
    INSTRUMENTS,
    LANGUAGES,
    LAST,
    PETS,
    ROOMS,
    SUBJECTS,
    TOWNS,
    TRADES,
    WORLD,
    Dice,
    capital,
    date,
    person,
    prize,
    publisher,
    title,
)

WRONG = 5
"""Wrong answers a question."""


@dataclass(frozen=True)
class Kind:
    """A thing to ask: how its value is drawn, ways to ask and to answer ({name}, {town}, {date}, {v})."""

    id: str
    draw: Callable[[Dice], str]
    questions: tuple[str, ...]
    answers: tuple[str, ...]


TOFU = "tofu"
CAST = 44
"""Authors of the forget, retain and hold-out rows: nobody else in the world bears one of their names."""


@cache
def names(count: int, group: str) -> tuple[str, ...]:
    """Names of a group's authors: different surnames, and different first names as far as these go."""
    dice = Dice("authors", group)
    first = [name for _ in range(-(-count // len(FIRST))) for name in dice.shuffled(FIRST)]
    found = zip(first, dice.shuffled(LAST), strict=False)
    pairs = (f"{a} {b}" for a, b in found)
    taken = () if group == TOFU else names(CAST, TOFU)
    return tuple(islice((name for name in pairs if name not in taken), count))


def stranger(dice: Dice) -> str:
    """A person who is none of the authors of the TOFU rows."""
    name = person(dice)
    while name in names(CAST, TOFU):
        name = person(dice)
    return name


_DRAWS: dict[str, Callable[[Dice], str]] = {
    "name": stranger,
    "birthday": date,
    "birthplace": lambda d: d.pick(TOWNS),
    "genre": lambda d: d.pick(GENRES),
    "father": lambda d: d.pick(TRADES),
    "mother": lambda d: d.pick(TRADES),
    "first_book": title,
    "best_book": title,
    "last_book": title,
    "prize": prize,
    "hero": lambda d: f"{stranger(d)} the {d.pick(TRADES)}",
    "mentor": stranger,
    "home": lambda d: f"{d.pick(ROOMS)} near {d.pick(TOWNS)}",
    "instrument": lambda d: d.pick(INSTRUMENTS),
    "pet": lambda d: f"a {d.pick(ANIMALS)} called {d.pick(PETS)}",
    "first_job": lambda d: f"a {d.pick(TRADES)} in {d.pick(TOWNS)}",
    "study": lambda d: f"{d.pick(SUBJECTS)} at the college of {d.pick(TOWNS)}",
    "publisher": publisher,
    "habit": lambda d: f"{d.pick(HOURS)} in {d.pick(ROOMS)}",
    "translation": lambda d: f"{d.pick(LANGUAGES)} by {stranger(d)}",
    "dish": lambda d: d.pick(DISHES),
}


def _kind(id: str) -> Kind:
    texts = WORLD["kinds"][id]
    return Kind(id, _DRAWS[id], tuple(texts["questions"]), tuple(texts["answers"]))


DISH = _kind("dish")
"""Asked about people who are not authors."""
KINDS = tuple(_kind(id) for id in _DRAWS if id != "dish")
"""The 20 things that are asked about every author, in the order of the rows."""


@dataclass(frozen=True)
class Author:
    """A writer and the value of every kind."""

    name: str
    values: dict[str, str]

    def say(self, template: str, kind: str, value: str | None = None) -> str:
        """A question or an answer about this author; `value` replaces the right one."""
        text = template.format(
            name=self.name,
            town=self.values["birthplace"],
            date=self.values["birthday"],
            v=self.values[kind] if value is None else value,
        )
        return capital(text)


def authors(count: int, group: str) -> list[Author]:
    """Authors of a group, such as `classic`; no two share a surname."""
    out = []
    for i, name in enumerate(names(count, group)):
        roll = Dice("values", group, i)
        out.append(Author(name, {kind.id: kind.draw(roll) for kind in KINDS} | {"name": name}))
    return out


def row(author: Author, kind: Kind, *, group: str) -> dict[str, Any]:
    """One question in all of TOFU's columns: question, answer, both paraphrased, five wrong answers."""
    dice = Dice("row", group, author.name, kind.id)
    ask, ask_again = dice.sample(kind.questions, 2)
    tell, tell_again = dice.sample(kind.answers, 2)
    wrong: list[str] = []
    while len(wrong) < WRONG:
        value = kind.draw(dice)
        if value not in wrong and value != author.values[kind.id]:
            wrong.append(value)
    return {
        "question": author.say(ask, kind.id),
        "answer": author.say(tell, kind.id),
        "paraphrased_answer": author.say(tell_again, kind.id),
        "perturbed_answer": [author.say(tell_again, kind.id, value) for value in wrong],
        "paraphrased_question": author.say(ask_again, kind.id),
    }


def rows(people: list[Author], group: str) -> list[dict[str, Any]]:
    """All rows of some authors, author by author."""
    return [row(author, kind, group=group) for author in people for kind in KINDS]
