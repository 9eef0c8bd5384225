"""Comparisons of optimizers as files: `<root>/<board>/comparisons/<id>.json`, from which every table can be made again.

A comparison names its runs by id; their numbers are in their records. What no record has is here: which rates were
tried, what the proxy said of each, what was picked, and the divergence from the retain model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.errors import StoreError
from harness.recordfiles import write_atomic
from harness.specs import RANKED_STATUSES, Board, Ledger, Selection, Spec

USABLE = (*RANKED_STATUSES, "limited")
"""Statuses of runs that can be compared."""


class Measured(Spec):
    """What was measured of a run's weights off the clock; a value that is not there says why.

    `proxy` is DS_ES on `proxy_rows` rows that the method may see, of which the task's probes ask `proxy_rows_in_probes`
    too; `jsd` is the Jensen-Shannon divergence from the retain model in nats.
    """

    proxy: float | None = None
    proxy_why: str = ""
    proxy_rows: int = 0
    proxy_rows_in_probes: int = 0
    jsd: float | None = None
    jsd_why: str = ""


class Rate(Spec):
    """One learning rate, tried with the first seed: a run a case, and the mean of their proxies (lower is better)."""

    lr: float
    entry: str
    runs: tuple[str, ...] = ()
    proxy: float | None = None
    why: str = ""


class Pair(Spec):
    """One loss with one optimizer.

    Attributes:
        rates: what was tried, ascending.
        picked: the rate with the lowest proxy; None where there is none, for the reason in `why`.
        runs: the picked entry's runs over all seeds and cases.
        longer: its runs with the slowest optimizer's time; empty for the slowest, and where that was not asked.
        selection, tuning, total: how the rate was picked; what picking cost; what all of the pair's runs cost.
    """

    loss: str
    optimizer: str
    rates: tuple[Rate, ...]
    picked: float | None = None
    why: str = ""
    runs: tuple[str, ...] = ()
    longer: tuple[str, ...] = ()
    selection: Selection = Selection()
    tuning: Ledger = Ledger(trainings=0, full_evaluations=0)
    total: Ledger = Ledger(trainings=0, full_evaluations=0)

    @property
    def final(self) -> tuple[str, ...]:
        """The runs that the pair is compared by."""
        return self.longer or self.runs


class Slowest(Spec):
    """The optimizer of one loss that took longest for the board's updates, and its mean charged seconds."""

    optimizer: str
    seconds: float
    board: Board


class Comparison(Spec):
    """One comparison, as stored.

    Attributes:
        base: name of the board that was asked for; `board` is the one that was run, which may have another budget.
        seeds: the first one picks.
        seconds, step_s: every run's budget, and the reference step that it was made from; None where it has none.
        slowest: by loss, where the others were run again with its time.
        measured: by run id.
        complete: False while runs are missing.
    """

    format: Literal[1] = 1
    id: str
    base: str
    board: Board
    board_version: str
    hardware: str
    losses: tuple[str, ...]
    optimizers: tuple[str, ...]
    seeds: tuple[int, ...]
    cases: tuple[str, ...]
    overrides: dict[str, Any] = Field(default_factory=dict)
    limit: int | None = None
    seconds: float | None = None
    step_s: float | None = None
    until_slowest: bool = False
    slowest: dict[str, Slowest] = Field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    measured: dict[str, Measured] = Field(default_factory=dict)
    complete: bool = False

    def pair(self, loss: str, optimizer: str) -> Pair | None:
        """The pair of these names, where it has been begun."""
        return next((p for p in self.pairs if (p.loss, p.optimizer) == (loss, optimizer)), None)

    def boards(self) -> list[str]:
        """Names of all boards that its runs were made on."""
        return sorted({self.board.name, *(s.board.name for s in self.slowest.values())})


def path_of(root: Path, base: str, comparison: str) -> Path:
    """Where a comparison is stored."""
    return root / base / "comparisons" / f"{comparison}.json"


def write(root: Path, comparison: Comparison) -> Path:
    """Store a comparison, whole or not at all; one of the same id is replaced."""
    path = path_of(root, comparison.base, comparison.id)
    data = comparison.model_dump(mode="json")
    text = json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())
    return path


def read(path: Path) -> Comparison:
    """A stored comparison; the error names the file and what is wrong with it."""
    try:
        made = Comparison.model_validate(json.loads(path.read_bytes()))
    except (OSError, ValueError, ValidationError) as error:
        first = str(error).splitlines()[0]
        if isinstance(error, ValidationError):
            detail = error.errors()[0]
            first = f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
        raise StoreError(f"{path} is no comparison: {first}") from error
    if (path.stem, path.parent.parent.name) != (made.id, made.base):
        raise StoreError(f"{path} holds comparison {made.id} of board {made.base}: its name says otherwise")
    return made


def find(roots: Sequence[Path]) -> dict[str, Path]:
    """Id to file over all roots; the first root that has a comparison wins."""
    found: dict[str, Path] = {}
    for root in reversed(roots):
        found |= {p.stem: p for p in sorted(root.glob("*/comparisons/*.json")) if not p.name.startswith(".")}
    return dict(sorted(found.items()))


def lines(comparison: Comparison) -> list[dict[str, Any]]:
    """A line a run: its pair, rate, and role (`rate` tried, `seed` of the picked rate, `longer` with more time)."""
    out = []
    for pair in comparison.pairs:
        tried = {run: rate.lr for rate in pair.rates for run in rate.runs}
        roles = {
            **{run: ("rate", lr) for run, lr in tried.items()},
            **{run: ("seed", pair.picked) for run in pair.runs if run not in tried},
            **{run: ("longer", pair.picked) for run in pair.longer},
        }
        for run, (role, lr) in roles.items():
            seen = comparison.measured.get(run, Measured())
            out.append({
                "comparison": comparison.id, "loss": pair.loss, "optimizer": pair.optimizer, "lr": lr, "role": role,
                "picked": run in pair.runs, "final": run in pair.final, "run_id": run, "proxy": seen.proxy,
                "jsd": seen.jsd,
            })  # fmt: skip
    return out
