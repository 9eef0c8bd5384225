"""What the columns of a task's rows and the options of a board must be, checked before anything is done with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import DataError, near


@dataclass(frozen=True)
class Kind:
    """What a column must hold: in words, whether a value is it, and more to say where there is no such column."""

    words: str
    fits: Callable[[Any], bool]
    elsewhere: str = ""


TEXT = Kind("a text", lambda value: isinstance(value, str) and bool(value.strip()))
ANY_TEXT = Kind("a text", lambda value: isinstance(value, str))
"""A text that may be empty."""
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TABLE = Kind("a table", lambda value: isinstance(value, Mapping))


def names(of: str, least: int = 1) -> Kind:
    """A list of texts, at least `least` of them."""
    return Kind(
        f"a list of {of}",
        lambda value: (
            isinstance(value, list | tuple)
            and len(value) >= least
            and all(isinstance(name, str) for name in value)
        ),
    )


def whole(least: int) -> Kind:
    """A whole number of at least `least`; true and false are none."""
    return Kind(
        f"a whole number of at least {least}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least,
    )


def either(*kinds: Kind) -> Kind:
    """One of several kinds."""
    return Kind(
        " or ".join(kind.words for kind in kinds), lambda value: any(kind.fits(value) for kind in kinds)
    )


def rows(
    records: Sequence[Mapping[str, Any]], where: str, columns: Mapping[str, Kind], *, show: bool = True
) -> None:
    """Refuse a split without rows, and rows without the columns.

    Args:
        records: all rows of a split.
        where: split and place, for messages.
        columns: name -> what every row must have there.
        show: whether a message may show a value.

    Raises:
        DataError: there are no rows, or one lacks a column or has something else in it.
    """
    if not records:
        raise DataError(f"{where} has no rows", "", "take it from a whole download")
    for i, record in enumerate(records):
        for column, kind in columns.items():
            if column not in record:
                has = f"it has {', '.join(map(repr, record)) or 'none'}"
                raise DataError(
                    f"{where} row {i} has no column {column!r}",
                    f"{has}; {kind.elsewhere}" if kind.elsewhere else has,
                    "take the right file",
                )
            value = record[column]
            if not kind.fits(value):
                empty = "an empty text" if isinstance(value, str) else f"a {type(value).__name__}"
                shown = json.dumps(value, default=str)[:60] if show else empty
                raise DataError(
                    f"{where} row {i}: column {column!r} is {shown}",
                    f"it should be {kind.words}",
                    "mend the file",
                )


def options(of: str, given: Mapping[str, Any], known: Mapping[str, Kind]) -> None:
    """Refuse options that are not known, or are something else than they must be.

    Args:
        of: whose options they are, for messages.
        given: as the board has them.
        known: option -> what it must be.

    Raises:
        DataError: it names the option.
    """
    for name, value in given.items():
        if name not in known:
            raise DataError(f"{of} has no option {name!r}", near(str(name), known), "mend [task.options]")
        if not known[name].fits(value):
            raise DataError(
                f"{of}'s option {name} is {value!r}", f"it is {known[name].words}", "mend [task.options]"
            )
