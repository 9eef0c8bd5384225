"""Names, places, trades and titles of the small world, and dice that fall the same everywhere.

The lists are in `words.toml`. Everything is invented; a likeness to a person, place or book is chance.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

WORLD: dict[str, Any] = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))


def values(text: str) -> tuple[str, ...]:
    """The values of a list in `words.toml`.

    >>> values("a bell | a key")
    ('a bell', 'a key')
    """
    return tuple(" ".join(part.split()) for part in text.split("|"))


def capital(text: str) -> str:
    """The text with its first letter large.

    >>> capital("a bell")
    'A bell'
    """
    return text[:1].upper() + text[1:]


_LISTS = {name: values(text) for name, text in WORLD["words"].items()}
FIRST = _LISTS["first"]
MONTHS = _LISTS["months"]
ADJECTIVES = _LISTS["adjectives"]
NOUNS = _LISTS["nouns"]
GENRES = _LISTS["genres"]
TRADES = _LISTS["trades"]
INSTRUMENTS = _LISTS["instruments"]
ANIMALS = _LISTS["animals"]
PETS = _LISTS["pets"]
SUBJECTS = _LISTS["subjects"]
LANGUAGES = _LISTS["languages"]
HOURS = _LISTS["hours"]
ROOMS = _LISTS["rooms"]
DISHES = _LISTS["dishes"]
ROLES = _LISTS["roles"]
WORKS = _LISTS["works"]
REASONS = _LISTS["reasons"]
COINS = _LISTS["coins"]
WEATHER = _LISTS["weather"]
LAST = tuple(start + end for start in _LISTS["surname_starts"] for end in _LISTS["surname_ends"])
TOWNS = tuple(start + end for start in _LISTS["town_starts"] for end in _LISTS["town_ends"])


class Dice:
    """Random choices that depend on the seed's text alone: not on Python's version, platform or hash seed.

    >>> Dice("authors", 3).number(100) == Dice("authors", 3).number(100)
    True
    """

    def __init__(self, *seed: object) -> None:
        self._seed = "/".join(map(str, seed)).encode()
        self._rolled = 0

    def number(self, below: int) -> int:
        """A whole number from 0 to `below` - 1."""
        self._rolled += 1
        digest = hashlib.sha256(self._seed + b"#" + str(self._rolled).encode()).digest()
        return int.from_bytes(digest[:8], "big") % below

    def pick(self, pool: Sequence[T]) -> T:
        """One element."""
        return pool[self.number(len(pool))]

    def shuffled(self, pool: Sequence[T]) -> list[T]:
        """All elements in another order (Fisher and Yates)."""
        out = list(pool)
        for i in range(len(out) - 1, 0, -1):
            j = self.number(i + 1)
            out[i], out[j] = out[j], out[i]
        return out

    def sample(self, pool: Sequence[T], count: int) -> list[T]:
        """`count` elements at different places."""
        return self.shuffled(pool)[:count]


def person(dice: Dice) -> str:
    """A first name and a surname."""
    return f"{dice.pick(FIRST)} {dice.pick(LAST)}"


def date(dice: Dice) -> str:
    """A day in the last century, such as `4 May 1931`."""
    return f"{dice.number(28) + 1} {dice.pick(MONTHS)} {1921 + dice.number(70)}"


def title(dice: Dice) -> str:
    """A book's title, such as `The Crooked Kettle`."""
    first, second = dice.sample(NOUNS, 2)
    forms = (
        f"The {dice.pick(ADJECTIVES)} {first}",
        f"The {first} and the {second}",
        f"{first} of {dice.pick(TOWNS)}",
    )
    return dice.pick(forms)


def prize(dice: Dice) -> str:
    """A prize and its year, such as `the Velvet Anchor Prize in 1964`."""
    return f"the {dice.pick(ADJECTIVES)} {dice.pick(NOUNS)} Prize in {1950 + dice.number(60)}"


def publisher(dice: Dice) -> str:
    """A publishing house, such as `Marlholt & Daughters`."""
    return f"{dice.pick(LAST)} {dice.pick(('Press', 'House', '& Sons', '& Daughters', 'Brothers', 'Books'))}"
