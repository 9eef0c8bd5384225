"""Rows that papers report, beside a board's measured ones: `leaderboards/<board>/reported.toml`.

One row of such a file::

    [[rows]]
    title = "RMU, SOAP"
    source = "Spectral Unlearning, Tables 12 and 16 (arXiv 2611.11902v1)"
    model = "Llama-3.2-3B-Instruct"
    split = "forget05"
    values = { agg = 0.7360, mem = 0.7160, priv = 0.8468, util = 0.6673 }
    sd = { agg = 0.0011 }
    note = "mean of three seeds; learning rate tuned"

Above the rows may stand a `note` on all of them: what of a paper is left out, and why. They are shown for orientation
and never ranked: other hardware, other tuning, and often another budget.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from harness.errors import BoardError, near
from harness.specs import METRIC_ID, Spec

FILE = "reported.toml"


class ReportedRow(Spec):
    """One row of a paper's table.

    `values` maps metric ids to numbers as printed, in our units (shares in 0..1, seconds, GiB); `sd` has the
    standard deviations that the paper gives for some of them.
    """

    title: str = Field(min_length=1)
    source: str = Field(min_length=1)
    model: str = Field(min_length=1)
    split: str = Field(min_length=1)
    values: dict[str, float] = Field(min_length=1)
    sd: dict[str, float] = Field(default_factory=dict)
    reference: bool = False
    note: str = ""

    @field_validator("values", "sd")
    @classmethod
    def _numbers(cls, values: dict[str, float]) -> dict[str, float]:
        for name, value in values.items():
            if not METRIC_ID.fullmatch(name):
                raise ValueError(f"{name!r} is not a metric id")
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}; leave out what a paper does not give")
        return values

    @model_validator(mode="after")
    def _spread_of_values(self) -> ReportedRow:
        if extra := sorted(set(self.sd) - set(self.values)):
            raise ValueError(f"sd names {extra[0]!r}, which has no value")
        return self


class Reported(Spec):
    """A whole file; `note` says what of a paper is left out of it, and why."""

    note: str = ""
    rows: tuple[ReportedRow, ...] = ()

    @field_validator("rows")
    @classmethod
    def _once(cls, rows: tuple[ReportedRow, ...]) -> tuple[ReportedRow, ...]:
        seen: set[tuple[str, str]] = set()
        for row in rows:
            key = (row.title, row.source)
            if key in seen:
                raise ValueError(f"row {row.title!r} of {row.source!r} stands there twice")
            seen.add(key)
        return rows


def load_reported(board_folder: Path) -> tuple[ReportedRow, ...]:
    """Rows in `<board_folder>/reported.toml`; none where there is no such file.

    Args:
        board_folder: `leaderboards/<board>`.

    Raises:
        BoardError: the file is no TOML, or a row has an unknown key, no source, or a value that is no number.
    """
    return _read(board_folder).rows


def _read(board_folder: Path) -> Reported:
    path = board_folder / FILE
    if not path.exists():
        return Reported()
    try:
        return Reported.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BoardError(f"{path} is not valid TOML: {error}", "", f"edit {path}") from None
    except ValidationError as error:
        raise BoardError(f"{path}: {_first(error)}", "", f"edit {path}") from None


def reported_of(leaderboards: Sequence[Path], board: str) -> tuple[ReportedRow, ...]:
    """A board's rows from the first of these folders that has any."""
    return _first_of(leaderboards, board).rows


def note_of(leaderboards: Sequence[Path], board: str) -> str:
    """What those rows leave out, and why, in a sentence; empty where nothing is."""
    return _first_of(leaderboards, board).note


def _first_of(leaderboards: Sequence[Path], board: str) -> Reported:
    folders = [root / board for root in leaderboards if (root / board / FILE).is_file()]
    return _read(folders[0]) if folders else Reported()


def _first(error: ValidationError) -> str:
    """The first complaint, with the row's number from 1."""
    first: Any = error.errors(include_url=False)[0]
    where = [f"row {part + 1}" if isinstance(part, int) else str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        known = ReportedRow.model_fields if len(where) > 1 else Reported.model_fields
        return f"{', '.join(where[1:-1])}: unknown key {where[-1]!r} ({near(where[-1], known)})".lstrip(": ")
    return f"{', '.join(where[1:] or where)}: {first['msg'].removeprefix('Value error, ')}"
