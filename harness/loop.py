"""The one training loop. `fit` owns stopping before the deadline; the schedule follows the clock.

A method that does not use `fit` polls `job.clock.remaining_s` and ends in time by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness import scoring
from harness.batches import Batch
from harness.clock import StepGate
from harness.errors import InvalidRun
from harness.job import Job, Scheduled


def fit(job: Job, loss: Callable[[Batch], Tensor], optimizer: Scheduled | None = None) -> None:
    """Train until the budget is spent, the board's stop is reached, or the loss is no longer finite.

    Args:
        job: what the method was given.
        loss: micro-batch -> scalar tensor to minimise. Over the micro-batches of one update the losses are averaged by
            their share of rows (a token mean is then a mean of micro-batch means).
        optimizer: default `job.optimizer()`.

    No step is started that would end after the deadline, judged by the longest of the last 20 steps.
    Raises `InvalidRun` when a loss is NaN or infinite.
    """
    optimizer = optimizer or job.optimizer()
    if not job.resume_fit(optimizer):
        return
    clock, gate = job.clock, StepGate(job.clock)
    updates = job.batches()
    while gate.open():
        before = clock.charged_s
        update = next(updates)
        optimizer.zero_grad()
        total = torch.zeros((), device=job.device)
        for micro in update.micros:
            part = loss(micro) * micro.weight
            part.backward()
            total += part.detach()
        job.parallel.reduce([p.grad for p in optimizer.parameters if p.grad is not None])
        optimizer.step()
        if not torch.isfinite(total):
            raise InvalidRun(f"the loss is {total.item()} at update {clock.updates + 1}")
        took = clock.charged_s - before
        gate.passed(took)
        job.seen.longest_step_s = max(job.seen.longest_step_s, took)
        if job.end_update(update):
            return
        job.checkpoint_fit(optimizer)


def warm_up(job: Job) -> None:
    """One forward and backward pass on the first rows, so that lazy set-up is not charged; nothing is left changed."""
    state = torch.get_rng_state()
    for batch in next(iter(job.batches())).micros[:1]:
        for inputs in (batch.forget, batch.retain):
            (-scoring.token_logp(job.forward(inputs)).mean()).backward()
    for parameter in job.model.parameters():
        parameter.grad = None
    torch.set_rng_state(state)
