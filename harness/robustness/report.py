"""From what the axes' stages left in a run's folder to its record: scores, settings, curves. No torch.

A stage leaves `<axis>.json`: `settings`, `facts` (what the settings came to), and `scores` as of any run. Curves are
lines of the diagnostics table.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import InputError, near
from harness.recordtables import COLUMNS, DIAGNOSTICS, checked_table
from harness.robustness.columns import AXES, axis_of, ids
from harness.runs import read_json, write_json
from harness.specs import Board, Paraphrase, Quantise, Relearn, Robustness, RunRecord, ScoreRecord, Spec
from harness.types import Score

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "robustness"
"""Under this name a record's `env` has the settings of the axes that were measured."""
DEFAULTS: dict[str, Spec] = {"relearn": Relearn(), "quantise": Quantise(), "paraphrase": Paraphrase()}
NOT_KEPT = "the weights were not kept"


def asked(board: Board, named: str | None) -> Robustness:
    """Which axes are wanted of a board's runs, with the board's settings or the default ones.

    Args:
        board: its `[robustness]` table counts when nothing is named.
        named: axes with commas between them, `all`, or `none`; None leaves it to the board.

    Raises:
        InputError: a name that is no axis.
    """
    own = board.robustness or Robustness()
    if named is None:
        return own
    names = [part.strip() for part in named.split(",")]
    if names == ["none"]:
        return Robustness()
    for name in names:
        if name not in AXES and names != ["all"]:
            todo = "give some of them with commas between, all, or none"
            raise InputError(f"--robustness names {name!r}", near(name, AXES), todo)
    given = {**DEFAULTS, **own.axes}
    wanted = AXES if names == ["all"] else names
    return Robustness(**{name: given[name] for name in wanted})  # type: ignore[arg-type]


def note_scores(scores: Mapping[str, Score]) -> dict[str, dict[str, Any]]:
    """Scores as a note keeps them."""
    return {name: {"value": s.value, "n": s.n, "why": s.why} for name, s in scores.items()}


def write_note(
    folder: Path, axis: str, settings: Spec, scores: Mapping[str, Score], facts: Mapping[str, Any]
) -> None:
    """`<axis>.json` of a stage that has finished."""
    note = {
        "settings": settings.model_dump(mode="json"),
        "facts": dict(facts),
        "scores": note_scores(scores),
    }
    write_json(folder / f"{axis}.json", note)


def lacking(axis: str, settings: Spec, why: str) -> dict[str, Any]:
    """The note of an axis that could not be measured: every score null, with the reason."""
    scores = {name: Score(None, why=why) for name in ids(axis, settings)}
    return {"settings": settings.model_dump(mode="json"), "facts": {}, "scores": note_scores(scores)}


def notes(folder: Path) -> dict[str, dict[str, Any]]:
    """The notes that lie in a run's folder, by axis."""
    return {axis: read_json(folder / f"{axis}.json") for axis in AXES if (folder / f"{axis}.json").exists()}


def scores(found: Mapping[str, Mapping[str, Any]]) -> dict[str, ScoreRecord]:
    """Scores of some notes."""
    return {
        name: ScoreRecord.model_validate(s) for note in found.values() for name, s in note["scores"].items()
    }


def settings(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What `env` of the record keeps of some notes; empty where there are none."""
    told = {axis: {**note["settings"], **note["facts"]} for axis, note in found.items()}
    return {KEY: told} if told else {}


def added(record: RunRecord, found: Mapping[str, Mapping[str, Any]]) -> RunRecord:
    """A record with what some notes have; scores that an axis had under other settings are gone."""
    kept = {name: s for name, s in record.scores.items() if axis_of(name) not in found}
    told = {**record.env.get(KEY, {}), **settings(found).get(KEY, {})}
    return record.model_copy(update={"scores": kept | scores(found), "env": {**record.env, KEY: told}})


def same_settings(record: RunRecord, axis: str, wanted: Spec) -> bool:
    """Whether a record has an axis as it is wanted now."""
    told = record.env.get(KEY, {}).get(axis)
    return told is not None and all(told.get(k) == v for k, v in wanted.model_dump(mode="json").items())


def missing(record: RunRecord, wanted: Robustness) -> Robustness:
    """Axes that a record lacks, has under other settings, or has no value of."""

    def there(axis: str, settings: Spec) -> bool:
        values = [record.scores[name].value for name in ids(axis, settings) if name in record.scores]
        return same_settings(record, axis, settings) and any(v is not None for v in values)

    return Robustness(**{a: s for a, s in wanted.axes.items() if not there(a, s)})  # type: ignore[arg-type]


def comparable(board: Board, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Records whose robustness columns are null, with the reason, where they were measured otherwise than now."""
    columns = {column.partition("@")[0] for column in board.columns}
    axes = {axis for column in columns if (axis := axis_of(column)) is not None}
    wanted = {axis: s for axis, s in asked(board, "all").axes.items() if axis in axes}
    return [_comparable(record, wanted) for record in records] if wanted else list(records)


def _comparable(record: RunRecord, wanted: Mapping[str, Spec]) -> RunRecord:
    other = {a for a, s in wanted.items() if a in record.env.get(KEY, {}) and not same_settings(record, a, s)}
    if not other:
        return record
    why = "measured with other settings than the board's: submit it again with --robustness"
    scores = {
        name: ScoreRecord(value=None, why=why) if axis_of(name) in other and s.value is not None else s
        for name, s in record.scores.items()
    }
    return record.model_copy(update={"scores": scores})


# --- curves ---------------------------------------------------------------------------------------------------------
def keep_lines(folder: Path, axis: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Lines of an axis among the run's diagnostics; what else was diagnosed stays."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = folder / "diagnostics"
    place.mkdir(exist_ok=True)
    names = COLUMNS[DIAGNOSTICS]
    table = checked_table(pa.table({c: [{"kind": axis, **n}.get(c) for n in lines] for c in names}), names)
    pq.write_table(table, place / f"{axis}.parquet", compression="zstd")
    tables = [checked_table(pq.read_table(p), names) for p in sorted(place.glob("*.parquet"))]
    pq.write_table(pa.concat_tables(tables), folder / DIAGNOSTICS, compression="zstd")


def read_lines(folder: Path) -> pa.Table | None:
    """The run's diagnostics, or None where there are none."""
    import pyarrow.parquet as pq

    path = folder / DIAGNOSTICS
    return pq.read_table(path) if path.exists() else None


@functools.cache
def code_hash() -> str:
    """Hash of the code of the axes: part of the keys of what they leave."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
