"""What RWKU supplies to methods beside its rows: made-up texts, refusals, and the target's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.errors import DataError, near
from harness.tasks import textlists
from harness.tasks.rwku_data import RwkuRows, Target
from harness.tasks.sources import SplitMissing
from harness.types import TextRow


class Resources:
    """Supplies of one board.

    Args:
        rows: of the task.
        refusal: the option: a file or hub data set of prompts that a model refuses; None is `refusal_prompts.jsonl`
            beside local data, or a data set where the rows come from the hub.

    Raises:
        DataError: the option names no file and cannot be a hub data set.
    """

    def __init__(self, rows: RwkuRows, refusal: str | None = None) -> None:
        self._rows, self._refusal = rows, textlists.REFUSAL.find(rows.source.folder, refusal)

    def names(self) -> tuple[str, ...]:
        """What `get` can give for these rows; files on the hub are taken to be there.

        A refusal answers a question, so `idk_answers` go only with rows that have one.
        """
        rows, hub = self._rows, self._rows.source.folder is None
        found = ["subjects"]
        if hub or _there(lambda: rows.made_up):
            found.append("alternative_answers")
        if hub or _there(lambda: rows.refusals):
            found += ["idk_answers", "refusals"] if rows.kind == "pair" else ["refusals"]
        if self._refusal is not None:
            found.append("refusal_prompts")
        return tuple(found)

    def get(self, name: str, target: Target) -> Any:
        """One resource; see `RwkuTask.resource`."""
        if name == "subjects":
            return (target.name,)
        if name == "alternative_answers":
            return self._made_up(target)
        if name in ("idk_answers", "refusals"):
            refusals = self._rows.refusals.get(target.name, ())
            if not refusals:
                raise DataError(
                    f"the refusal corpus has nothing on {target.name!r}",
                    "",
                    "take all files from one download",
                )
            return refusals if name == "refusals" else tuple(dict.fromkeys(row.target for row in refusals))
        if name == "refusal_prompts" and self._refusal is not None:
            return textlists.texts(self._refusal)
        raise DataError(f"rwku supplies no {name!r} here", near(name, self.names()), "")

    def _made_up(self, target: Target) -> tuple[TextRow, ...]:
        """The made-up text that was written beside each forget row's true one."""
        pairs, out = self._rows.made_up, []
        for row in self._rows.forget(target.name):
            if row.target not in pairs:
                raise DataError(
                    f"train_pair_{self._rows.corpus} has no pair for {row.id}, {row.target[:60]!r}",
                    "a pair holds a made-up text and the true one, as train_positive has it",
                    "take both files from one download",
                )
            out.append(replace(row, target=pairs[row.target]))
        return tuple(out)


def _there(read: Callable[[], Any]) -> bool:
    try:
        read()
    except SplitMissing:
        return False
    return True
