"""Primal-dual unlearning: flatten the logits of forget rows subject to a bound on the retain loss (PDU)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch, Update
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class PDU:
    """gamma x squared logit margin of forget + multiplier x (NLL of retain - eps), token means.

    After each update the multiplier grows by `dual_step` x (retain NLL - eps), never below 0, once `dual_warmup` (a
    share of the budget) is over. `eps` is in nats per token. With `tolerance` it is (1 + tolerance) x the starting
    model's retain NLL, as the paper suggests; that costs a pass over the retain rows, and means little near 0.

    Defaults are the authors' for TOFU: 5 warm-up epochs of 10 (open-unlearning, community/methods/PDU/run.sh). Their
    code moves the multiplier after each micro-batch, per process; here it moves once per update, by the update's loss.
    """

    gamma: float = 1.0
    multiplier: float = 100.0
    dual_step: float = 5.0
    eps: float = 0.3
    tolerance: float | None = None
    dual_warmup: float = 0.5

    def __post_init__(self) -> None:
        if min(self.multiplier, self.dual_step) < 0:
            raise ValueError("multiplier and dual_step must not be below 0")

    def unlearn(self, job: Job) -> None:
        """Find eps, then train; the multiplier survives an interruption."""
        eps = self.eps if self.tolerance is None else (1 + self.tolerance) * self._starting_loss(job)
        state = {"multiplier": self.multiplier}
        seen = torch.zeros((), device=job.device)

        def loss(batch: Batch) -> Tensor:
            forget, retain = job.forward(batch.forget), job.forward(batch.retain)
            kept = losses.nll(token_logp(retain), retain.mask)
            seen.add_(kept.detach() * batch.weight)
            away = losses.logit_margin(forget.logits, forget.mask)
            return self.gamma * away + state["multiplier"] * (kept - eps)

        def after_update(update: Update) -> None:
            job.parallel.reduce([seen])
            if job.parallel.agree(job.clock.fraction >= self.dual_warmup):
                state["multiplier"] = losses.dual_step(state["multiplier"], seen.item() - eps, self.dual_step)
            seen.zero_()
            job.log("multiplier", state["multiplier"])

        fit(job, loss, after_update=after_update, state=state)

    def _starting_loss(self, job: Job) -> float:
        """Token mean of the retain rows' NLL, in nats."""
        return -float(job.score(job.retain).logp.mean())


submission = Submission(
    method=PDU(), title="PDU", paper="Entesari et al. 2025, Constrained Entropic Unlearning: A Primal-Dual Framework "
    "for Large Language Models (arXiv 2506.05314)", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4], "eps": [0.1, 0.3, 1.0], "multiplier": [50.0, 100.0]},
)  # fmt: skip
