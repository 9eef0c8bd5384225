"""What a comparison of optimizers will run: pairs of loss and optimizer, their rates, and the board with its budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import preflight, stages
from harness.entries import Entry, resolve_spec
from harness.errors import InputError, SubmissionError, near
from harness.plugins import optimizer_names
from harness.preflight import Ready
from harness.runs import RunSpec
from harness.session import Session
from harness.specs import Board, Budget, content_hash

LR, NAME = "optimizer.lr", "optimizer.name"


@dataclass(frozen=True)
class Request:
    """What is compared.

    Attributes:
        losses: submissions, as typed.
        optimizers: names.
        rates: learning rates by key, as `Board.lr_grid`; they go before the board's.
        overrides: settings for all runs.
        seeds: the board's without.
        updates, seconds: another budget than the board's.
        until_slowest: run the quicker ones again with the slowest optimizer's time.
    """

    losses: tuple[str, ...]
    optimizers: tuple[str, ...]
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    updates: int | None = None
    seconds: float | None = None
    until_slowest: bool = False


@dataclass(frozen=True)
class Trial:
    """One rate of a pair: its entry and its runs with the first seed, one a case."""

    loss: str
    optimizer: str
    lr: float
    entry: Entry
    specs: tuple[RunSpec, ...]


# --- planning -------------------------------------------------------------------------------------------------------
def with_budget(board: Board, request: Request) -> Board:
    """The board that is run: the same one, or one of another name with another budget, whose records never mix."""
    if request.updates is not None and request.seconds is not None:
        raise InputError("a budget is in updates or in seconds", "both were given", "give one of them")
    kept = {"max_peak_gib": board.budget.max_peak_gib, "hang_s": board.budget.hang_s}
    if request.until_slowest:
        if request.seconds is not None:
            raise InputError(
                "--until-slowest takes a budget in updates", "seconds were given", "leave them out"
            )
        updates = request.updates or board.budget.updates or board.budget.reference_steps
        if updates is None:
            raise InputError(
                f"board {board.name} has a budget in seconds", "--until-slowest needs one in updates",
                "give --budget-updates",
            )  # fmt: skip
        return derived(board, f"at-{updates}-updates", Budget(updates=updates, **kept))
    if request.updates is not None:
        return derived(board, f"at-{request.updates}-updates", Budget(updates=request.updates, **kept))
    if request.seconds is not None:
        return derived(board, f"at-{request.seconds:g}-s", Budget(seconds=request.seconds, **kept))
    return board


def derived(board: Board, suffix: str, budget: Budget) -> Board:
    """The same board under another name, with another budget."""
    return board.model_copy(update={"name": f"{board.name}-{suffix}", "budget": budget})


def plan(session: Session, ready: Ready, request: Request) -> list[Trial]:
    """Every (loss, optimizer, rate) with its runs of the first seed; all that can be wrong with them is found here."""
    _check(request)
    seed = (request.seeds or ready.board.seeds)[0]
    trials = []
    for loss in request.losses:
        for optimizer in request.optimizers:
            for lr in _rates(ready.board, request, loss, optimizer):
                changed = {**request.overrides, NAME: optimizer, LR: lr}
                entry = resolve_spec(loss, session.workspace.submissions, ready.board.settings, changed)
                preflight.entry_ready(entry, ready)
                specs = tuple(stages.plan_runs(session, ready, entry, [seed]))
                trials.append(Trial(entry.name, optimizer, lr, entry, specs))
    if len({t.loss for t in trials}) < len(request.losses):
        raise SubmissionError("two losses have the same name", ", ".join(request.losses), "rename one file")
    return trials


def _check(request: Request) -> None:
    for what, names in (("--loss", request.losses), ("--optimizers", request.optimizers)):
        if len(set(names)) != len(names) or not names:
            raise SubmissionError(
                f"{what} {','.join(names)} is empty or names one twice", "", "name each one once"
            )
    for name in request.optimizers:
        if name not in optimizer_names():
            raise SubmissionError(
                f"no optimizer {name!r}", near(name, optimizer_names()), "name one of these"
            )
    for loss in request.losses:
        if ":" in loss:
            raise SubmissionError(
                f"{loss} is a selector", "a comparison takes methods with a loss", "name its base"
            )
    for key in (NAME, LR):
        if key in request.overrides:
            raise SubmissionError(f"--set {key}", "a comparison sets it itself", "use --optimizers and --lr")


def _rates(board: Board, request: Request, loss: str, optimizer: str) -> tuple[float, ...]:
    name = loss.rpartition("/")[2].removesuffix(".py")
    given = board.model_copy(update={"lr_grid": dict(request.rates)}).learning_rates(name, optimizer)
    rates = given or board.learning_rates(name, optimizer)
    if not rates:
        raise InputError(
            f"no learning rates for {name} with {optimizer}", f"board {board.name} has no lr_grid for them",
            "give --lr 1e-5,1e-4",
        )  # fmt: skip
    return tuple(sorted(rates))


def identity(ready: Ready, base: str, request: Request, trials: Sequence[Trial]) -> str:
    """Readable, and the same for the same inputs on the same hardware: `grad_diff+npo-3opt-1a2b3c4d`."""
    seeds = request.seeds or ready.board.seeds
    inputs = [base, preflight.hardware(), list(seeds), request.until_slowest,
              [spec.input_hash() for t in trials for spec in t.specs]]  # fmt: skip
    losses = "+".join(dict.fromkeys(t.loss for t in trials))
    return f"{losses[:80]}-{len(request.optimizers)}opt-{content_hash(inputs, 8)}"
