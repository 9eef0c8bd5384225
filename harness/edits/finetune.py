"""Fine-tuning on forget rows within a part of the budget: what task-vector negation negates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness import losses
from harness.batches import deal
from harness.clock import Clock, StepGate
from harness.errors import InvalidRun, SubmissionError
from harness.job import Job
from harness.schedule import Scheduled
from harness.scoring import token_logp


@dataclass(frozen=True)
class Part:
    """A clock's budget between two fractions of it, as a clock of its own for a schedule and a step gate."""

    clock: Clock
    begin: float
    end: float

    @property
    def fraction(self) -> float:
        """Share of this part that is spent, 0 to 1."""
        return min(1.0, (self.clock.fraction - self.begin) / max(self.end - self.begin, 1e-9))

    @property
    def remaining_s(self) -> float:
        """Seconds left of this part; infinite or 0 where the budget is in updates."""
        allowance = self.clock.allowance
        if allowance.seconds is not None:
            return max(0.0, self.end * allowance.seconds - self.clock.charged_s)
        return float("inf") if self.clock.updates < round(self.end * (allowance.updates or 0)) else 0.0


def fine_tune(job: Job, until: float, *, stream: int = 0, rate: float = 1.0) -> int:
    """Train the model on forget answers until a fraction of the budget is spent; returns the number of updates.

    The loss is the token-mean NLL; the schedule runs once over this part of the budget. `stream` numbers the order of
    the rows, `rate` multiplies the learning rate. Raises `InvalidRun` when there was no time for a single update, or
    the loss is not finite.
    """
    part = Part(job.clock, job.clock.fraction, until)
    inner = job.optimizer().inner
    for group in inner.param_groups:
        group["lr"] *= rate
    optimizer = Scheduled(inner, job.plan.optimizer, part, job.parallel)  # type: ignore[arg-type]
    if optimizer.wants_curvature:
        raise SubmissionError(
            "an optimizer that estimates curvature needs forget and retain rows",
            "task vectors are trained on forget rows",
            "set another optimizer.name",
        )
    gate, done = StepGate(part), 0  # type: ignore[arg-type]
    while job.parallel.agree(gate.open()):
        before = job.clock.charged_s
        total = _update(job, optimizer, stream, done)
        if not torch.isfinite(total):
            raise InvalidRun(f"the loss is {total.item()} at update {job.clock.updates + 1}")
        took = job.clock.charged_s - before
        gate.passed(took)
        job.seen.longest_step_s = max(job.seen.longest_step_s, took)
        job.clock.tick()
        done += 1
    if not done:
        raise InvalidRun("there was no time for a single update on the forget rows")
    return done


def _update(job: Job, optimizer: Scheduled, stream: int, k: int) -> Tensor:
    effective = job.plan.batching.effective
    count = len(job.forget) if effective == "full" else min(int(effective), len(job.forget))
    rows = deal(job.seed, 100 + stream, len(job.forget), k * count, count).tolist()
    micro = job.plan.batching.micro or count
    pieces = [rows[at : at + micro] for at in range(0, count, micro)]
    optimizer.zero_grad()
    total = torch.zeros((), device=job.device)
    for piece in job.parallel.share(pieces):
        inputs = job.collate([job.forget[i] for i in piece], piece)
        outputs = job.forward(inputs)
        loss = losses.nll(token_logp(outputs), outputs.mask) * (len(piece) / count)
        loss.backward()
        total += loss.detach()
        job.seen.tokens += inputs.tokens
    job.parallel.reduce([total, *(p.grad for p in optimizer.parameters if p.grad is not None)])
    optimizer.step()
    job.seen.examples += count
    return total
