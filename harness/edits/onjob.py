"""What edits do with a job: rows through the model once, a strength by forget accuracy, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from harness import scoring
from harness.edits.layers import Layer
from harness.edits.line_search import Found, line_search
from harness.edits.moments import Gathering, Kind, Moments, Seen, gather
from harness.edits.separability import CONTROLS, random_requests
from harness.errors import SubmissionError
from harness.job import Job
from harness.types import ArrayRow, Row

LOOKING = 0.5
"""At most this share of the budget goes into looking at rows; retain rows that are left over are not looked at."""
TEXTS, ARRAYS = 32, 256
"""Rows that go through the model at once where the board does not say."""


def refuse_adapters(job: Job, name: str) -> None:
    """Edits change the weights themselves."""
    if job.loaded.adapters:
        raise SubmissionError(f"{name} edits weights, not adapters", "", "leave lora.rank at 0")


def look(
    job: Job, layers: Sequence[Layer], how: Gathering, *, retain_rows: int = 0, classes: bool = False,
    controls: int = CONTROLS,
) -> tuple[dict[str, Moments], list[str]]:  # fmt: skip
    """Moments of all layers' inputs over forget and retain rows, one pass; and the names of the marked groups.

    The groups are `forget`, then with `classes` each label among the forget rows, then `controls` random requests of
    as many rows as are to be forgotten. `retain_rows` is the most retain rows that are looked at (0: all), drawn by the
    run's seed. Past half of the budget no further retain rows are looked at, so that an edit still fits.
    """
    order = np.random.default_rng([job.seed, 4]).permutation(len(job.retain))
    retain = [job.retain[i] for i in order[: retain_rows or None]]
    names, marks = _marks(job.forget, retain, classes, controls, job.seed)
    how = Gathering(len(names), how.tokens, how.sample, how.positions, job.seed)
    micro = job.plan.batching.micro or (TEXTS if job.encoder is not None else ARRAYS)

    def batches() -> Iterator[Seen]:
        kinds: list[tuple[Kind, Sequence[Row], Tensor]] = [
            ("forget", job.forget, marks[:, : len(job.forget)]),
            ("retain", retain, marks[:, len(job.forget) :]),
        ]
        for kind, rows, mine in kinds:
            for index in _by_length(rows, micro):
                if kind == "retain" and job.clock.fraction > LOOKING and index[0]:
                    return
                job.seen.examples += len(index)
                inputs = job.collate([rows[i] for i in index], index)
                job.seen.tokens += inputs.tokens
                yield Seen(kind, inputs, mine[:, index])

    found = gather(job.model, layers, batches(), job.forward, how)
    return found, names


def _by_length(rows: Sequence[Row], micro: int, window: int = 16) -> Iterator[list[int]]:
    """Indices of all rows in micro-batches; within a window of batches the rows are sorted by length, less padding."""
    for at in range(0, len(rows), micro * window):
        part = list(range(at, min(at + micro * window, len(rows))))
        part.sort(
            key=lambda i: 0 if isinstance(rows[i], ArrayRow) else len(rows[i].prompt) + len(rows[i].target)
        )  # type: ignore[union-attr]
        for k in range(0, len(part), micro):
            yield part[k : k + micro]


def _marks(
    forget: Sequence[Row], retain: Sequence[Row], classes: bool, controls: int, seed: int
) -> tuple[list[str], Tensor]:
    """Names of the groups, and which rows are in them [G, forget + retain rows] bool."""
    rows = [*forget, *retain]
    total, labelled = len(rows), isinstance(rows[0], ArrayRow)
    whole = torch.zeros(1, total, dtype=torch.bool)
    whole[:, : len(forget)] = True
    names, parts = ["forget"], [whole]
    if classes:
        labels = class_labels(forget)
        for label in sorted(set(labels)):
            one = torch.zeros(1, total, dtype=torch.bool)
            one[0, : len(forget)] = torch.tensor([x == label for x in labels])
            names.append(f"class {label}")
            parts.append(one)
    names += [f"random {k}" for k in range(controls)]
    return names, torch.cat(
        [*parts, random_requests(whole[0], class_labels(rows) if labelled else None, controls, seed)]
    )


def class_labels(rows: Sequence[Row]) -> list[int]:
    """Labels of array rows; texts have none."""
    if not all(isinstance(row, ArrayRow) for row in rows):
        raise SubmissionError("texts have no class labels", "basis=cav_class needs them", "set another basis")
    return [row.label for row in rows if isinstance(row, ArrayRow)]


def forget_accuracy(job: Job) -> float:
    """Share of the forget rows' answer tokens (or rows of arrays) that are the model's first choice, 0 to 1."""
    if any(not torch.isfinite(p).all() for p in job.model.parameters()):
        return math.nan
    return scoring.row_means(job.score(job.forget))[1]


def choose(
    job: Job, apply: Callable[[float], None], alphas: Sequence[float], wanted: float, halvings: int
) -> Found:
    """Line search on forget accuracy; leaves the model edited with the strength it chose, and logs what it tried.

    `apply(alpha)` puts the edited weights into the model. When the time that is left is less than the longest look so
    far took, the search ends with the best strength known.
    """
    longest = 0.0

    def accuracy(alpha: float) -> float:
        nonlocal longest
        before = job.clock.charged_s
        if job.clock.allowance.seconds is not None and job.clock.remaining_s < 2 * longest:
            return math.nan
        apply(alpha)
        value = forget_accuracy(job)
        longest = max(longest, job.clock.charged_s - before)
        job.log(f"forget.acc@{alpha:g}", value)
        return value

    found = line_search(accuracy, alphas, wanted, halvings)
    apply(found.alpha)
    for name, value in (("alpha", found.alpha), ("forget.acc", found.accuracy), ("reached", found.reached)):
        job.log(name, float(value))
    return found


def settle(
    job: Job, apply: Callable[[float], None], alpha: float | None, alphas: Sequence[float], wanted: float,
    halvings: int,
) -> float:  # fmt: skip
    """Apply the strength that is given, or the one that `choose` finds; returns it."""
    if alpha is None:
        return choose(job, apply, alphas, wanted, halvings).alpha
    apply(alpha)
    job.log("alpha", alpha)
    return alpha


def load_state(job: Job, state: Mapping[str, Tensor]) -> None:
    """Put a whole state into the model, in the model's own dtypes."""
    own = job.model.state_dict()
    with torch.no_grad():
        for name, value in state.items():
            own[name].copy_(value)
