"""What entries are called in charts and comparisons, so that no two of a board are called the same."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.tables import Table

BODY = ("ranked", "incomplete", "reference")
"""Sections of a board's table; the others are shown apart."""
_BRACKET = re.compile(r"\[(.*)\]@")


def has_several_optimizers(table: Table) -> bool:
    """Whether titles alone do not tell a table's rows apart."""
    return len({row.optimizer for row in table.rows if row.optimizer}) > 1


def names_of(table: Table) -> dict[str, str]:
    """Entry of the table's body to title; with the optimizer where the board has rows of several.

    Equal ones get the settings in their entries' brackets that not all of them have; if these are equal too, the hash.
    """
    several = has_several_optimizers(table)
    names = {
        row.entry: f"{row.title or row.entry}, {row.optimizer}" if several and row.optimizer else row.title or row.entry
        for row in table.section(*BODY)
    }  # fmt: skip
    for same in _equal(names):
        settings = {entry: _settings(entry) for entry in same}
        common = set.intersection(*map(set, settings.values()))
        for entry, mine in settings.items():
            own = ",".join(setting for setting in mine if setting not in common)
            names[entry] += f" [{own}]" if own else ""
    for same in _equal(names):
        for entry in same:
            names[entry] += f" {entry[entry.rfind('@') :]}" if "@" in entry else f" {entry}"
    return names


def _equal(names: Mapping[str, str]) -> list[list[str]]:
    """Entries that have the same name."""
    found: dict[str, list[str]] = {}
    for entry, name in names.items():
        found.setdefault(name, []).append(entry)
    return [entries for entries in found.values() if len(entries) > 1]


def _settings(entry: str) -> list[str]:
    """What an entry's id says of its settings: `["n=7", "betas=[1, 2]"]` of `a:b[n=7,betas=[1, 2]]@0a1b2c`."""
    found = _BRACKET.search(entry)
    return re.split(r",(?=[\w.]+=)", found[1]) if found else []
