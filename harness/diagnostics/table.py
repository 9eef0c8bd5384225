"""Diagnostics as a tidy table: one line a number, with where and when it was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.diagnostics.places import Place
from harness.recordtables import COLUMNS, DIAGNOSTICS, checked_table
from harness.runs import RunSpec, read_json

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS = COLUMNS[DIAGNOSTICS]


@dataclass(frozen=True)
class Moment:
    """Weights of a run: step 0 is the start, the last one is what the run ended with.

    `updates` and `charged_s` are None where nobody counted (a reference model).
    """

    step: int
    updates: int | None
    charged_s: float | None
    weights: str


def moments(run: Path, spec: RunSpec) -> list[Moment]:
    """The start, the points that were saved along the way and are still there, and the end; each state once."""
    note = read_json(run / "unlearn.json")
    out = [Moment(0, 0, 0.0, spec.start)]
    for k, point in enumerate(note.get("points", [])):
        folder = run / "points" / str(k)
        new = point["updates"] not in (out[-1].updates, note["updates"])
        if new and (folder / "config.json").exists():
            out.append(Moment(len(out), int(point["updates"]), point["charged_s"], str(folder)))
    end = Moment(len(out), int(note["updates"] or 0), note["charged_s"], str(run / "model"))
    return [*out, end]


@dataclass
class Lines:
    """Lines of one kind, gathered and then written."""

    kind: str
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        name: str,
        measure: str,
        value: float | None,
        at: Moment | None,
        *,
        why: str = "",
        where: Place | None = None,
        block: int | None = None,
        role: str = "",
    ) -> None:
        """One number; `where` gives block and role of a parameter."""
        self.lines.append({
            "kind": self.kind, "name": name, "measure": measure, "value": value, "why": why,
            "block": where.block if where else block, "role": where.role if where else role,
            "step": at.step if at else None, "updates": at.updates if at else None,
            "charged_s": at.charged_s if at else None,
        })  # fmt: skip

    def write(self, folder: Path) -> None:
        """As `<kind>.parquet`."""
        import pyarrow.parquet as pq

        pq.write_table(table(self.lines), folder / f"{self.kind}.parquet", compression="zstd")


def table(lines: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Checked lines as a table; values that are not finite become null with their reason."""
    import pyarrow as pa

    return checked_table(pa.table({c: [line[c] for line in lines] for c in FIELDS}), FIELDS)


def read(folder: Path, kinds: Iterable[str]) -> list[dict[str, Any]]:
    """Lines of the kinds that were measured in this folder, in the order of `kinds`."""
    import pyarrow.parquet as pq

    files = [folder / f"{kind}.parquet" for kind in kinds]
    return [line for file in files if file.exists() for line in pq.read_table(file).to_pylist()]
