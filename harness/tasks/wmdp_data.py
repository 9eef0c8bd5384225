"""Corpora that WMDP's hazards are unlearned on: where they come from, and every check before a model is loaded.

A row is a document: `TextRow(form="text", prompt="", target=text)`, all of whose tokens count. Documents are read by
their column `text`, never as raw lines, whose braces and keys would be trained on.

Sources: Li et al. 2024 (arXiv 2403.03218); data sets cais/wmdp-corpora, cais/wmdp-bio-forget-corpus (gated) and
Salesforce/wikitext; the public RMU code keeps documents of more than 50 characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import DataError, near
from harness.tasks import checks, sources
from harness.tasks.sources import Record, hub_rows
from harness.types import TextRow

SHORTEST = 50
"""Documents of at most so many characters are left out, as in the public RMU code: headings and blank lines."""
GATED = "cais/wmdp-bio-forget-corpus"


@dataclass(frozen=True)
class Place:
    """Where a corpus is on the hub."""

    repo: str
    config: str | None
    split: str = "train"
    gated: bool = False


HUB = {
    "bio-forget-corpus": Place(GATED, None, gated=True),
    "cyber-forget-corpus": Place("cais/wmdp-corpora", "cyber-forget-corpus"),
    "bio-retain-corpus": Place("cais/wmdp-corpora", "bio-retain-corpus"),
    "cyber-retain-corpus": Place("cais/wmdp-corpora", "cyber-retain-corpus"),
    "wikitext": Place("Salesforce/wikitext", "wikitext-2-raw-v1", "test"),
}
"""Corpus -> place. `wikitext` is what the public recipe for Zephyr keeps the model by."""


class Corpora:
    """Reads corpora from a folder, or from the hub where `folder` is None.

    In the folder a corpus is `<name>.jsonl` or `<name>.json`, JSON lines with the column `text` (others, such as title
    and abstract, are not trained on); or the folder has a copy of the hub's data set under its own name, such as
    `wmdp-corpora/`, which is read through `datasets`.

    Attributes:
        revisions: hub data set -> the commit that was read; as it was asked for until then.
    """

    def __init__(self, folder: Path | None, revisions: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.revisions = dict(revisions or {})

    def rows(self, name: str, shortest: int = SHORTEST) -> tuple[TextRow, ...]:
        """Documents of one corpus that are longer than `shortest` characters; ids are `<name>/<index in the data>`.

        Raises:
            DataError: it cannot be read, has no column `text`, or a text is itself a JSON object.
        """
        records, where = self._records(name)
        kept = []
        checks.rows(records, where, {"text": checks.ANY_TEXT}, show=False)
        for i, record in enumerate(records):
            text = record["text"]
            _no_json(text, f"{where} row {i}")
            if len(text) > shortest:
                kept.append(TextRow(f"{name}/{i}", "", text, form="text"))
        if not kept:
            raise DataError(
                f"{where} has no document of more than {shortest} characters",
                f"it has {len(records)} rows",
                "take the corpus anew",
            )
        return tuple(kept)

    def _records(self, name: str) -> tuple[Sequence[Record], str]:
        if self.folder is None:
            place = _place(name)
            return self._hub(name, place), place.repo
        for path in (self.folder / f"{name}.jsonl", self.folder / f"{name}.json"):
            if path.is_file():
                return sources.json_rows(path, column="text"), str(path)
        place = HUB.get(name)
        copy = self.folder / place.repo.partition("/")[2] if place is not None else None
        if place is not None and copy is not None and copy.is_dir():
            return self._hub(name, place, copy), str(copy)
        there = sorted(p.name for p in self.folder.iterdir())
        raise DataError(
            f"corpus {name} is missing: no {name}.jsonl in {self.folder}",
            f"the folder has {', '.join(there[:12]) or 'nothing'}",
            _how(name) or f"put the corpus there, one JSON object with a text a line{_or_copy(place)}",
        )

    def _hub(self, name: str, place: Place, copy: Path | None = None) -> list[Record]:
        """A data set by `datasets`, from the hub or from a local copy of it."""
        revision = self.revisions.get(place.repo, "main")
        records, commit = hub_rows(
            copy or place.repo, place.config, place.split, revision, _how(name) or sources.ONLINE
        )
        if copy is None:
            self.revisions[place.repo] = commit
        return records


def _place(name: str) -> Place:
    if name not in HUB:
        raise DataError(
            f"wmdp has no corpus {name!r}", near(name, HUB), "name one of these, or give a data folder"
        )
    return HUB[name]


def _how(name: str) -> str:
    """How to get a gated corpus; empty for the others."""
    if not (name in HUB and HUB[name].gated):
        return ""
    return (
        f"it is gated: ask for access at https://huggingface.co/datasets/{GATED}, then log in with `hf auth login`, or"
        f" save it as {name}.jsonl in a folder that is given as data"
    )


def _or_copy(place: Place | None) -> str:
    return f", or a copy of {place.repo} as {place.repo.partition('/')[2]}/" if place is not None else ""


def _no_json(text: str, where: str) -> None:
    """Refuse a document whose text is itself a record."""
    if text.lstrip().startswith("{") and text.rstrip().endswith("}") and _is_json(text):
        raise DataError(
            f"{where}: the text is itself a JSON object, braces and keys included",
            text.strip()[:40],
            "read the file as JSON lines and keep its text",
        )


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False
