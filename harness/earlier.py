"""Which planned runs have a record already, and what makes two runs the same."""

from __future__ import annotations

import re

from harness import preflight
from harness.recordtables import TRAJECTORY
from harness.runs import RunSpec
from harness.session import UNUSABLE, Session
from harness.specs import RANKED_STATUSES, RunRecord


def recorded(session: Session, spec: RunSpec) -> RunRecord | None:
    """The record of an earlier, usable run with the same inputs; None when there is none, or `--again` was said."""
    if session.again:
        return None
    return next((r for r in same_inputs(session, spec) if r.status not in UNUSABLE), None)


def same_inputs(session: Session, spec: RunSpec) -> list[RunRecord]:
    """All records of runs with the same inputs, in the order of their run ids, however they ended.

    One that ended well is known by what it was made from, so that it counts in every folder; under a budget in seconds
    only one from hardware like this, as nothing is compared across hardware.
    """
    records = session.store.load_records(spec.board.name)
    hardware = preflight.hardware() if spec.updates is None else ""
    return [r for r in records if repeats(r.run_id, spec.run_id) or _made_from(r, spec, hardware)]


def repeats(run: str, planned: str) -> bool:
    """Whether a run id is that of a planned run, or of one of its repetitions.

    >>> [repeats(run, "npo-c-s0-12") for run in ("npo-c-s0-12", "npo-c-s0-12-r2", "npo-c-s0-123")]
    [True, True, False]
    """
    return re.fullmatch(re.escape(planned) + r"(-r\d+)?", run) is not None


def _made_from(record: RunRecord, spec: RunSpec, hardware: str) -> bool:
    """Whether a whole run that ended well is one of this spec: the same rows, models, code, settings and budget.

    And the same hardware, where one is given.
    """
    told = (record.entry, record.case, record.seed, record.board_version)
    asked = (spec.entry, spec.case, spec.seed, spec.board.board_version)
    texts = record.env.get("generator", {}).get("name", spec.generator_kind) == spec.generator_kind
    hashes = spec.hashes.items() <= record.hashes.items()
    curve = not spec.points or TRAJECTORY in record.rows
    here = not hardware or record.env.get("hardware") == hardware
    usable = record.status in RANKED_STATUSES and spec.limit is None
    return usable and told == asked and texts and hashes and curve and here


def records_of(session: Session, board: str, run: str) -> list[RunRecord]:
    """All records of a planned run and its repetitions, in the order of their run ids."""
    return [r for r in session.store.load_records(board) if repeats(r.run_id, run)]
