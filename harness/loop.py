"""The one training loop. `fit` owns stopping before the deadline; the schedule follows the clock.

A method that does not use `fit` polls `job.clock.remaining_s` and ends in time by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harness import scoring
from harness.batches import Batch, Update
from harness.clock import StepGate
from harness.errors import InvalidRun, SubmissionError
from harness.job import Job
from harness.schedule import Scheduled
from harness.scoring import Inputs

STILL = 5
"""Updates after which weights that have not moved at all end the run."""


def fit(
    job: Job,
    loss: Callable[[Batch], Tensor],
    optimizer: Scheduled | None = None,
    *,
    updates: Iterator[Update] | None = None,
    after_update: Callable[[Update], None] | None = None,
    state: MutableMapping[str, Any] | None = None,
) -> None:
    """Train until the budget is spent, the board's stop is reached, or the loss is no longer finite.

    Args:
        job: what the method was given.
        loss: micro-batch -> scalar tensor to minimise. Over the micro-batches of one update the losses are averaged by
            their share of rows (a token mean is then a mean of micro-batch means).
        optimizer: default `job.optimizer()`.
        updates: default `job.batches()`. A generator of a method's own counts from `job.clock.updates`, which it reads
            when it begins: by then an interrupted run has been put back.
        after_update: called after each step, on the clock.
        state: what `loss` and `after_update` remember between updates (numbers and tensors); it is saved with every
            checkpoint and put back, in place, when an interrupted run goes on.

    No step is started that would end after the deadline, judged by the longest of the last 20 steps.
    Raises `InvalidRun` when a loss is NaN or infinite, or when the weights have not moved.
    """
    optimizer = optimizer or job.optimizer()
    if not job.resume_fit(optimizer, state):
        return
    clock, gate, still = job.clock, StepGate(job.clock), _Still(job, optimizer)
    stopped = False
    own, updates = updates is not None, updates if updates is not None else job.batches()
    while not stopped and job.parallel.agree(gate.open()):
        before = clock.charged_s
        update = next(updates)
        if optimizer.wants_curvature:
            if own:
                raise SubmissionError(
                    "an optimizer that estimates curvature needs rows",
                    "this method trains on data of its own",
                    "set another optimizer.name",
                )
            _estimate_curvature(job, update, optimizer)
        optimizer.zero_grad()
        total = torch.zeros((), device=job.device)
        for micro in update.micros:
            part = loss(micro) * micro.weight
            part.backward()
            total += part.detach()
        job.parallel.reduce([total, *(p.grad for p in optimizer.parameters if p.grad is not None)])
        optimizer.step()
        if not torch.isfinite(total):
            raise InvalidRun(f"the loss is {total.item()} at update {clock.updates + 1}")
        if after_update is not None:
            after_update(update)
        took = clock.charged_s - before
        gate.passed(took)
        job.seen.longest_step_s = max(job.seen.longest_step_s, took)
        stopped = job.end_update(update)
        still.look()
        if not stopped:
            job.checkpoint_fit(optimizer, state)
    still.conclude()


class _Still:
    """Watches for training that trains nothing: frozen weights, adapters that the pass does not reach."""

    def __init__(self, job: Job, optimizer: Scheduled) -> None:
        self._job, self._optimizer, self._moved = job, optimizer, job.clock.updates > 0
        self._at = [] if self._moved else self._norms()

    def _norms(self) -> list[Tensor]:
        with self._job.clock.lane("check"), torch.no_grad():
            return [torch.linalg.vector_norm(p, dtype=torch.float64) for p in self._optimizer.parameters]

    def look(self) -> None:
        if not self._moved:
            self._moved = any(bool(a != b) for a, b in zip(self._at, self._norms(), strict=True))
            if not self._moved and self._job.clock.updates >= STILL:
                self.conclude()

    def conclude(self) -> None:
        if not self._moved and self._job.clock.updates:
            raise InvalidRun(f"the trainable weights did not move in {self._job.clock.updates} updates")


def _estimate_curvature(job: Job, update: Update, optimizer: Scheduled) -> None:
    """Gauss-Newton-Bartlett: gradient of the mean cross-entropy on labels drawn from the model, both sets together.

    Source: Liu et al. 2023, Sophia (arXiv 2305.14342), algorithm 2. The mean is over all answer tokens of the update's
    forget and retain rows. The labels are a function of (seed, update, row), so they do not depend on the number of
    processes or on micro-batches.
    """
    both = [pair for micro in update.micros for pair in ((0, micro.forget), (1, micro.retain))]
    tokens = torch.stack([inputs.mask.sum() for _, inputs in both]).sum().double()
    job.parallel.reduce([tokens])
    optimizer.zero_grad()
    for side, inputs in both:
        out = job.forward(inputs)
        logits = out.logits[out.mask].float()
        drawn = _draw_labels(logits.detach().softmax(-1), inputs, (job.seed, update.index, side))
        (F.cross_entropy(logits, drawn, reduction="sum") / tokens).float().backward()
    job.parallel.reduce([p.grad for p in optimizer.parameters if p.grad is not None])
    optimizer.update_curvature(int(tokens))


def _draw_labels(p: Tensor, inputs: Inputs, key: tuple[int, ...]) -> Tensor:
    """One label for each answer token of `inputs`, drawn from p [tokens, V] by a generator of the row's own."""
    drawn: list[Tensor] = []
    counts = inputs.mask.sum(-1).tolist()
    for row, part in zip(inputs.index.tolist(), p.split(counts), strict=True):
        state = np.random.SeedSequence([*key, row]).generate_state(1, np.uint64)[0] >> np.uint64(1)
        draw = torch.Generator(p.device).manual_seed(int(state))
        drawn.append(
            torch.multinomial(part, 1, generator=draw)[:, 0] if len(part) else part.new_zeros(0).long()
        )
    return torch.cat(drawn)


def warm_up(job: Job) -> None:
    """One forward and backward pass on the first rows, so that lazy set-up is not charged; nothing is left changed."""
    state = torch.get_rng_state()
    for batch in next(iter(job.batches())).micros[:1]:
        for inputs in (batch.forget, batch.retain):
            (-scoring.token_logp(job.forward(inputs)).mean()).backward()
    for parameter in job.model.parameters():
        parameter.grad = None
    torch.set_rng_state(state)
