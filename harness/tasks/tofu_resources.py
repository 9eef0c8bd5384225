"""What TOFU supplies to methods beside its rows: other answers, I-don't-know answers, refusal prompts, names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from harness.errors import DataError, near
from harness.tasks import textlists
from harness.tasks.sources import Source
from harness.tasks.textlists import TextList
from harness.tasks.tofu_data import TofuRows
from harness.types import Case, TextRow

IDK = TextList("idk", "the I-don't-know answers", "idontknow.jsonl", "open-unlearning/idk")
LISTS = {found.option: found for found in (IDK, textlists.REFUSAL)}
"""By option."""
SEEN = 3
"""Rows that a name must occur in to count as one."""
_WORDS = 4


class Resources:
    """Supplies of one split.

    Args:
        source: where the rows came from.
        rows: all rows of the split.
        given: options `idk` and `refusal`, each a file or a hub data set, where the board sets them.

    Raises:
        DataError: a file or data set that an option names cannot be one.
    """

    def __init__(self, source: Source, rows: TofuRows, given: dict[str, str | None]) -> None:
        self._rows = rows
        self._at = {option: found.find(source.folder, given.get(option)) for option, found in LISTS.items()}

    def names(self) -> tuple[str, ...]:
        """What `get` can give for these rows."""
        found = ["alternative_answers", "idk_answers", "refusals"] if self._at["idk"] is not None else []
        if self._at["refusal"] is not None:
            found.append("refusal_prompts")
        if self._subjects:
            found.append("subjects")
        if len(self._rows.train[0]) > 1:
            found.append("random_labels")
        return tuple(found)

    def get(self, name: str, case: Case, seed: int) -> Any:
        """One resource; see `TofuTask.resource`."""
        if name not in self.names():
            idk = ("alternative_answers", "idk_answers", "refusals")
            missing = {**dict.fromkeys(idk, "idk"), "refusal_prompts": "refusal"}.get(name)
            todo = (
                f"put {LISTS[missing].file} beside the data, or give the option {missing}" if missing else ""
            )
            raise DataError(f"tofu supplies no {name!r} here", near(name, self.names()), todo)
        if name == "subjects":
            return self._subjects
        if name == "idk_answers":
            return self._lines("idk")
        if name == "refusal_prompts":
            return self._lines("refusal")
        if name == "random_labels":
            answers = [case.forget[i].target for i in derangement(len(case.forget), seed)]  # type: ignore[union-attr]
        else:
            pool = self._lines("idk")
            picked = np.random.default_rng(seed).integers(len(pool), size=len(case.forget))
            answers = [pool[i] for i in picked]
        return tuple(
            TextRow(row.id, row.prompt, answer)
            for row, answer in zip(case.forget, answers, strict=True)
            if isinstance(row, TextRow)
        )

    def _lines(self, option: str) -> tuple[str, ...]:
        at = self._at[option]
        assert at is not None
        return textlists.texts(at)

    @cached_property
    def _subjects(self) -> tuple[str, ...]:
        return subjects(*self._rows.train)


def derangement(count: int, seed: int) -> list[int]:
    """A random permutation of 0..count-1 in which nothing stays in its place (one cycle: Sattolo 1986).

    >>> all(i != j for i, j in enumerate(derangement(5, seed=0)))
    True
    """
    order = list(range(count))
    rng = np.random.default_rng(seed)
    for i in range(count - 1, 0, -1):
        j = int(rng.integers(i))
        order[i], order[j] = order[j], order[i]
    return order


def subjects(forget: Sequence[TextRow], retain: Sequence[TextRow]) -> tuple[str, ...]:
    """Names of those whom the forget rows are about, in the order of the rows.

    A name is a run of two to four capitalised words that no retain row has. The one that is in most rows is taken, its
    rows are set aside, and so on until nothing is left that is in `SEEN` rows; of two in equally many rows the longer
    one. TOFU has no column for them.

    >>> row = lambda text: TextRow("", text, "")
    >>> subjects([row(f"{word} Ada Finch of Marl Point?") for word in ("Was", "Who", "Is")], [row("Marl Point")])
    ('Ada Finch',)
    """
    known = {run for row in retain for run in _runs(row)}
    left = {i: {run for run in _runs(row) if run not in known} for i, row in enumerate(forget)}
    found: list[tuple[int, str]] = []
    while left:
        counts = Counter(run for runs in left.values() for run in runs)
        best = max(counts, key=lambda run: (counts[run], len(run), run), default="")
        if counts[best] < SEEN:
            break
        mine = [i for i, runs in left.items() if best in runs]
        found.append((mine[0], best))
        left = {i: runs for i, runs in left.items() if i not in mine}
    return tuple(name for _, name in sorted(found))


def _runs(row: TextRow) -> Iterator[str]:
    """Every two to four capitalised words in a row that nothing but a blank parts."""
    for stretch in re.findall(r"[^\W\d_a-z][\w'’-]*(?: [^\W\d_a-z][\w'’-]*)+", f"{row.prompt}\n{row.target}"):
        words = [re.sub(r"['’]s?$", "", word) for word in stretch.split(" ")]
        for size in range(2, min(_WORDS, len(words)) + 1):
            for at in range(len(words) - size + 1):
                yield " ".join(words[at : at + size])
