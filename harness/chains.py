"""Sequential requests: a case that comes `after` another starts from the weights that the same entry and seed left.

A chain's runs go in order. The weights of a case are kept until the case after it has a usable record. What a run cost
is its own; its ledger also has what the cases before it cost.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from harness import models
from harness.errors import BoardError, InputError, RunError
from harness.preflight import Ready
from harness.runs import RunSpec, write_json
from harness.specs import Ledger, RunRecord

AFTER, START = "after", "model.start"
"""In a run's hashes: the planned id of the run before, and the weights that it left."""
NOTE = "before.json"
"""In a run's folder: the ledger of the run before."""


def ordered(ready: Ready, seed: int, cases: Sequence[str] = ()) -> list[tuple[str, str | None]]:
    """(case, the case before it) of every case of a board, each after the one that it builds on.

    With `cases`, any of the task's: of these and of all that come before them.

    Raises:
        BoardError: the board leaves out a case that another one comes after.
    """
    waiting = {case: ready.task.case(case, seed).after for case in cases or ready.cases()}
    while cases and (missing := {b for b in waiting.values() if b is not None} - set(waiting)):
        waiting |= {case: ready.task.case(case, seed).after for case in missing}
    out: list[tuple[str, str | None]] = []
    while waiting:
        done = {case for case, _ in out}
        case = next((c for c, before in waiting.items() if before is None or before in done), None)
        if case is None:
            case, before = next(iter(waiting.items()))
            raise BoardError(
                f"board {ready.board.name}: case {case} comes after {before}, which the board does not have",
                f"its cases are {', '.join(ready.cases())}", f"add {before} to the board's cases",
            )  # fmt: skip
        out.append((case, waiting.pop(case)))
    return out


def followed(ready: Ready, spec: RunSpec) -> bool:
    """Whether another case of the board starts from what this run leaves."""
    return any(ready.task.case(case, spec.seed).after == spec.case for case in ready.cases())


def follow(
    spec: RunSpec, old: RunSpec | None, usable: Sequence[RunRecord], others: Sequence[RunRecord], runs: Path
) -> RunSpec:
    """The spec with the weights that it starts from; the spec itself where no case comes before.

    Args:
        spec: what is to be run.
        old: what was planned when the run was begun, if it was.
        usable: records of the run before.
        others: its records that have nothing to start from.
        runs: the folder of the board's runs.

    Raises:
        RunError: the run before failed, or its weights are gone.
        InputError: the run before has not ended yet.
    """
    if AFTER not in spec.hashes:
        return spec
    there = [r for r in usable if (runs / r.run_id / "model").is_dir()]
    if there:
        path = str(runs / max(there, key=_age).run_id / "model")
        return _started(spec, path, models.weights_hash(path))
    if old is not None and START in old.hashes and (runs / spec.run_id / "unlearn.done").exists():
        return _started(spec, old.start, old.hashes[START])
    if usable:
        raise RunError(
            f"it starts from the weights of {max(usable, key=_age).run_id}, which are not on this machine; "
            "run the cases anew with --again"
        )
    if others:
        last = max(others, key=_age)
        raise RunError(f"case {last.case}, which comes before, is {last.status}: {last.error}")
    raise InputError(
        f"case {spec.case} comes after another one that has not been run",
        f"{spec.hashes[AFTER]} has no record", "run the cases in order",
    )  # fmt: skip


def _age(record: RunRecord) -> tuple[int, str]:
    """Orders the ids of repeated runs: plain, -r2, ... -r10."""
    return len(record.run_id), record.run_id


def _started(spec: RunSpec, path: str, weights: str) -> RunSpec:
    more = {"hashes": {**spec.hashes, START: weights}, "models": {**spec.models, "start": path}}
    return spec.model_copy(update=more)


def note_ledger(spec: RunSpec, usable: Sequence[RunRecord], folder: Path) -> None:
    """Leave the ledger of the run that this one starts from in its folder."""
    before = Path(spec.start).parent.name
    record = next((r for r in usable if r.run_id == before), None)
    if START in spec.hashes and record is not None:
        write_json(folder / NOTE, record.ledger.model_dump(mode="json"))


def joined(own: Ledger, before: Ledger) -> Ledger:
    """What a run and those before it cost together."""
    names = type(own).model_fields
    return Ledger.model_validate({name: getattr(own, name) + getattr(before, name) for name in names})


def release(spec: RunSpec, runs: Path) -> None:
    """Delete the weights that a finished run started from, where a run of the same board left them."""
    start = Path(spec.start)
    if START in spec.hashes and start.parent.parent == runs:
        shutil.rmtree(start, ignore_errors=True)
