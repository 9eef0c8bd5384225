"""`uharness import`: an evaluation log that somebody already has becomes a scored row, marked `imported`.

Two formats are known: the aggregated log of the first TOFU code (`eval_log_aggregated.json`, one object a
set), and open-unlearning's `TOFU_EVAL.json` (metric name -> `agg_value`, `value_by_index`). Numbers are
worked out anew from the rows of the log, by the same functions as for our own runs; what a log does not hold
is null.

A reference is the same kind of log of the retained model. It must be another model's, on the same questions
in the same order: index keys say nothing, since every split counts from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import DataError, InputError, ReferenceError_
from harness.logfiles import read_log
from harness.logs import Log, LogRead
from harness.scores import score_json
from harness.specs import Board, Ledger, RunRecord, ScoreRecord
from harness.tasks import tofu_scores
from harness.tasks.tofu_data import PAIRS, SplitMissing
from harness.tasks.tofu_extras import Extras
from harness.types import Score

FORMAT = 1


@dataclass(frozen=True)
class Imported:
    """A log that was read and scored.

    Attributes:
        log: what was read.
        reference: the retained model's log, if one was given.
        scores: every metric of TOFU; null, with the reason, where the log does not hold it.
        notes: what a reader of the numbers should know.
    """

    log: Log
    reference: Log | None
    scores: Mapping[str, Score]
    notes: tuple[str, ...]


def import_log(path: Path, reference: Path | None = None) -> Imported:
    """Read and score a log.

    Args:
        path: the log.
        reference: the log of the model that was trained without the forget rows.

    Raises:
        InputError: a file is no log of a known format.
        ReferenceError_: the reference is the log itself, or was made on other rows.
    """
    log = read_log(path)
    other = None if reference is None else read_log(reference)
    notes = list(log.notes)
    if other is not None:
        notes += check_reference(log, other)
    read = LogRead(log)
    scores = tofu_scores.of(read, None if other is None else LogRead(other), Extras())
    return Imported(log, other, scores, tuple(notes))


def check_reference(log: Log, other: Log) -> list[str]:
    """Refuse a reference that cannot be one; returns notes on what could not be compared."""
    todo = "give the log of the retained model, made with the same forget split and evaluator"
    if log.digest == other.digest:
        what = f"the reference {other.name} is the log itself: forget quality would come out as 1"
        raise ReferenceError_(what, "", todo)
    if log.kind != other.kind:
        what = f"the reference {other.name} is {other.kind}'s log, and {log.name} is {log.kind}'s"
        raise ReferenceError_(what, "two evaluators ask in different ways", todo)
    mine, theirs = log.families["forget"], other.families["forget"]
    if mine.ids and mine.loss and mine.loss == theirs.loss and mine.pert == theirs.pert:
        what = f"the reference {other.name} has the same losses on the forget rows as {log.name}"
        raise ReferenceError_(what, "both are logs of one model", todo)
    if len(mine.ids) != len(theirs.ids):
        counts = f"{len(theirs.ids)} forget rows, and {log.name} has {len(mine.ids)}"
        what = f"the reference {other.name} has {counts}"
        raise ReferenceError_(what, "rows are compared one by one, so both must be whole", todo)
    if not theirs.ids:
        raise ReferenceError_(f"the reference {other.name} holds no forget rows", "", todo)
    if mine.prompts and theirs.prompts:
        asked, also = ([side.prompts.get(i, "") for i in side.ids] for side in (mine, theirs))
        wrong = [(k, a, b) for k, (a, b) in enumerate(zip(asked, also, strict=True)) if a != b]
        if wrong:
            row, a, b = wrong[0]
            what = f"{len(wrong)} of {len(mine.ids)} forget questions differ: row {row} asks {_short(a)}"
            raise ReferenceError_(f"{what}, the reference {_short(b)}", "", todo)
        return []
    if mine.shape != theirs.shape:
        what = f"the reference {other.name} was made on other forget rows than {log.name}"
        raise ReferenceError_(what, f"its {mine.shape_is} differ", todo)
    return [f"the logs hold no questions: only the {mine.shape_is} of the forget rows could be compared"]


def _short(text: str) -> str:
    """The end of a prompt, where the question is."""
    line = " ".join(text.split())
    return repr(line if len(line) <= 70 else f"...{line[-66:]}")


def report(made: Imported, split: str = "") -> dict[str, Any]:
    """Scores and rows in the shape of `uharness evaluate --json`; `split` names the rows, if it is known."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for name, family in made.log.families.items():
        for i in family.ids:
            rows.setdefault(name, {})[f"{name}/{i}"] = {"id": row_id(f"{name}/{i}", split), **family.texts(i)}
    for metric, score in made.scores.items():
        for key, value in (score.per_row or {}).items():
            found = rows.setdefault(key.split("/")[0], {})
            found.setdefault(key, {"id": row_id(key, split)})[metric] = value
    return {
        "format": FORMAT, "task": "tofu", "split": split, "case": split, "status": "imported",
        "error": "; ".join(made.notes), "scores": score_json(made.scores),
        "rows": {name: list(lines.values()) for name, lines in rows.items()}, "env": _origin(made),
    }  # fmt: skip


def row_id(key: str, split: str) -> str:
    """Data file's name and index of a row `set/index`.

    >>> row_id("forget/3", "forget05"), row_id("retain/0", ""), row_id("forget/3", "")
    ('forget05/3', 'retain_perturbed/0', 'forget/3')
    """
    name, _, index = key.partition("/")
    if name in ("forget", "holdout"):
        file = {"forget": split, "holdout": PAIRS[split][1]}[name] if split in PAIRS else name
    elif name.startswith("forget"):
        file = f"{split or 'forget'}_perturbed"
    else:
        file = f"{name.removesuffix('_para').removesuffix('_pert')}_perturbed"
    return f"{file}/{index}"


def _origin(made: Imported) -> dict[str, Any]:
    """Where the numbers come from."""
    logs = {"log": made.log, "reference": made.reference}
    about = {
        role: {"file": log.name, "format": log.kind, "sha256": log.digest, "rows": log.sizes()}
        for role, log in logs.items()
        if log is not None
    }
    return {"imported": about}


def _about_tofu(board: Board) -> None:
    if board.task.name != "tofu":
        todo = "name a TOFU board, or leave --board out"
        raise InputError(f"board {board.name} is about {board.task.name}, and the log about tofu", "", todo)


def record(made: Imported, board: Board, notes: tuple[str, ...] = ()) -> RunRecord:
    """The row of a board, never ranked with measured ones.

    Args:
        made: the scored log.
        board: a TOFU board.
        notes: what else a reader should know, such as `compare_rows` says.
    """
    _about_tofu(board)
    stem = re.sub(r"[^A-Za-z0-9._+=@,-]+", "_", Path(made.log.name).stem)[:80]
    hashes = {"log": made.log.digest} | ({"reference": made.reference.digest} if made.reference else {})
    told = (f"from a log of {made.log.kind}", *made.notes, *notes)
    return RunRecord(
        run_id=f"imported-{stem}-{made.log.digest[:8]}", board=board.name, board_version=board.board_version,
        entry=f"imported:{stem}", submission=f"imported:{stem}", title=stem, case=board.task.split,
        seed=board.seeds[0], hashes=hashes, env=_origin(made), status="imported", error="; ".join(told),
        ledger=Ledger(trainings=0, full_evaluations=0),
        scores={k: ScoreRecord(value=s.value, n=s.n, why=s.why) for k, s in made.scores.items()},
    )  # fmt: skip


def row_texts(made: Imported) -> dict[str, dict[str, dict[str, str]]]:
    """Prompts, targets and answers by family and row, for the table beside the record."""
    return {
        name: {f"{name}/{i}": family.texts(i) for i in family.ids}
        for name, family in made.log.families.items()
    }


def compare_rows(made: Imported, board: Board, data: str) -> tuple[str, ...]:
    """Refuse a log of other forget rows than the board's; a note where that cannot be told.

    Args:
        made: the log.
        board: where it is to be stored.
        data: folder or hub id of the board's rows.
    """
    from harness.tasks.tofu import build

    _about_tofu(board)
    split, family = board.task.split, made.log.families["forget"]
    if split not in PAIRS or not family.prompts:
        return (f"the log holds no questions, so that its rows are those of {split} is taken on trust",)
    try:
        rows = build(board.task.model_copy(update={"data": data}), board.template).rows.train[0]
    except SplitMissing as error:
        return (f"its questions were not compared with the board's: {error.what}",)
    logged = list(family.prompts.values())
    wrong = [k for k, (row, text) in enumerate(zip(rows, logged, strict=False)) if row.prompt not in text]
    if wrong or len(logged) > len(rows):
        k = wrong[0] if wrong else len(rows)
        wanted = _short(rows[k].prompt) if wrong else "nothing"
        raise DataError(
            f"{made.log.name} was not made on {split}, which board {board.name} asks for",
            f"its row {k} asks {_short(logged[k])}, the board {wanted}",
            "name the board of the split that the log was made on",
        )
    return () if len(logged) == len(rows) else (f"{len(logged)} of the split's {len(rows)} forget rows",)
