"""Lists of texts that methods may ask for: refusals, prompts that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import DataError
from harness.tasks.sources import Hub, is_hub_id, parsed, read


@dataclass(frozen=True)
class TextList:
    """One list.

    Attributes:
        option: the task's option that may name a file or a hub data set.
        what: it is, in words.
        file: its name beside local data.
        hub: its hub data set, where the rows come from the hub.
    """

    option: str
    what: str
    file: str
    hub: str

    def find(self, folder: Path | None, given: str | None) -> Path | str | None:
        """The file, the hub data set, or None where local data have no such file.

        Args:
            folder: of local data; None for the hub.
            given: the option, where the board sets it.

        Raises:
            DataError: the option names no file, and cannot be a hub data set.
        """
        if given is None:
            if folder is None:
                return self.hub
            return folder / self.file if (folder / self.file).is_file() else None
        for path in (Path(given).expanduser(), (folder or Path()) / given):
            if path.is_file():
                return path
        if is_hub_id(given):
            return given
        raise DataError(
            f"{self.what} {given!r} do not exist",
            f"option {self.option} is a file, one text a line, or a hub data set",
            f"mend the option {self.option}",
        )


REFUSAL = TextList("refusal", "the refusal prompts", "refusal_prompts.jsonl", "mlabonne/harmful_behaviors")
"""Prompts that a model refuses. The hub data set has AdvBench's requests in its column `text`."""


def texts(at: Path | str) -> tuple[str, ...]:
    """All texts of a file, or of a hub data set's first text column."""
    if isinstance(at, Path):
        return read_texts(at)
    return tuple(first_text(record) for record in Hub(at).rows(None))


def read_texts(path: Path) -> tuple[str, ...]:
    """Texts, one a line: plain, a JSON string, or a JSON object with one text in it."""
    found: list[str] = []
    for number, line in enumerate(read(path).split("\n"), start=1):
        text = line.strip()
        if not text:
            continue
        if text.startswith("{") or (text.startswith('"') and text.endswith('"')):
            text = first_text(parsed(text, f"{path} line {number}"))
        found.append(text)
    if not found:
        raise DataError(f"{path} has no texts", "", "one text a line is needed")
    return tuple(found)


def first_text(value: Any) -> str:
    """The first text in a JSON value: itself, or the first text column of an object.

    >>> first_text({"n": 1, "answer": "No idea."})
    'No idea.'
    """
    if isinstance(value, Mapping):
        value = next((v for v in value.values() if isinstance(v, str)), None)
    if not isinstance(value, str) or not value:
        raise DataError(f"a line holds {value!r}", "", "one text a line is needed")
    return value
