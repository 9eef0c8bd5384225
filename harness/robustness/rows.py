"""Which rows the axes ask about: questions of both sets, and draws that are functions of their arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from harness.errors import DataError, near
from harness.robustness.columns import KINDS
from harness.types import Case, Generation, Row, TextRow

T = TypeVar("T")
SIDES = ("forget", "retain")
_RELEARN, _DRAW = 11, 12


def relearnt(rows: int, share: float, run_seed: int, seed: int) -> list[int]:
    """Numbers of the rows that are relearnt: `share` of them, rounded, at least one; ascending.

    >>> len(relearnt(40, 0.1, 0, 0)), relearnt(1, 0.1, 0, 0)
    (4, [0])
    """
    count = min(rows, max(1, round(share * rows)))
    return sorted(np.random.default_rng([run_seed, seed, _RELEARN]).permutation(rows)[:count].tolist())


def drawn(rows: Sequence[T], most: int) -> list[T]:
    """At most `most` of the rows, in their order, the same ones every time: runs are compared on equal rows."""
    picked = np.random.default_rng(_DRAW).permutation(len(rows))[:most]
    return [rows[i] for i in sorted(picked.tolist())]


def texts(rows: Sequence[Row]) -> list[TextRow]:
    """The rows that are texts."""
    return [row for row in rows if isinstance(row, TextRow)]


def numbered(values: Sequence[float | None]) -> dict[str, float | None]:
    """Values of rows whose ids may repeat, by place."""
    return {str(i): value for i, value in enumerate(values)}


def questions(task: Any, case: Case, most: int, max_tokens: int) -> dict[str, Generation]:
    """Questions of both sets: what the task's optional `questions(case)` gives, else the rows that have a prompt.

    At most `most` of each, with answers of at most `max_tokens` tokens; a set without questions has no rows.
    """
    if hasattr(task, "questions"):
        given: Mapping[str, Generation] = task.questions(case)
        _known(task, "questions", given, SIDES)
    else:
        sides = {"forget": texts(case.forget), "retain": texts(case.retain)}
        given = {s: Generation(s, [r for r in rows if r.prompt], max_tokens) for s, rows in sides.items()}
    none = Generation("", ())
    return {
        side: dataclasses.replace(
            given.get(side, none), name=side, rows=drawn(given.get(side, none).rows, most),
            max_tokens=min(max_tokens, given.get(side, none).max_tokens),
        )
        for side in SIDES
    }  # fmt: skip


def own_questions(task: Any, case: Case, most: int) -> list[TextRow]:
    """At most `most` of the forget questions that a task names beside its forget rows; none where it names none."""
    if not hasattr(task, "questions"):
        return []
    given: Mapping[str, Generation] = task.questions(case)
    return drawn(texts(given["forget"].rows), most) if "forget" in given else []


def paraphrases(task: Any, case: Case) -> dict[str, list[TextRow]]:
    """The forget questions in other words, by kind: what the task's optional `paraphrases(case)` gives."""
    if not hasattr(task, "paraphrases"):
        return {}
    given: Mapping[str, Sequence[Row]] = task.paraphrases(case)
    _known(task, "paraphrases", given, KINDS)
    return {kind: texts(rows) for kind, rows in given.items() if rows}


def _known(task: Any, method: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise DataError(f"{method} of task {task.name} gives {name!r}", near(name, names), "rename it")
