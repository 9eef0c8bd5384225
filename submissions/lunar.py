"""LUNAR: one matrix learns to turn the activations of forget questions into those of questions that are refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness import OptimizerSpec, Submission
from harness.batches import Batch, Update, deal
from harness.errors import SubmissionError
from harness.job import Job
from harness.loop import fit
from harness.scoring import Inputs
from harness.types import TextRow

CACHING = 0.5
"""At most this share of the budget goes into caching activations."""


@dataclass(frozen=True)
class LUNAR:
    """Mean squared error of one MLP's last matrix on cached inputs: its old output, plus c r on forget questions.

    r is the mean of the block's output at the last position over refusal-inducing prompts, minus that over forget
    questions (in float64). Every token of a question counts, answers do not. No gradient goes through the model.

    Defaults by facebookresearch/LUNAR (config/forget.yaml): c 2, block 22 of 32 (here `depth` 22/32), lr .01, updates
    of 64 tokens, forget and retain shuffled together. There the learning rate falls by .9 an epoch for 20 epochs; here
    it follows the clock like every method's. `retain_rows` is the most retain questions whose activations are cached.
    """

    c: float = 2.0
    depth: float = 22 / 32
    layer: int | None = None
    tokens: int = 64
    retain_rows: int = 4000

    def unlearn(self, job: Job) -> None:
        """Find the direction, cache inputs and targets, train the one matrix."""
        if job.loaded.adapters:
            raise SubmissionError("lunar trains one matrix of its own choice", "", "leave lora.rank at 0")
        layer = job.layer_at(self.depth) if self.layer is None else self.layer
        matrix = job.down_projection(layer)
        refused = [
            TextRow(f"refusal/{i}", text, "") for i, text in enumerate(job.resource("refusal_prompts"))
        ]
        forget, retain = _questions(job.forget), _questions(job.retain)
        x, ends = _cache(job, matrix, layer, forget)
        _, refusals = _cache(job, None, layer, refused)
        kept, _ = _cache(job, matrix, layer, retain[: self.retain_rows])
        direction = (refusals.mean(0) - ends.mean(0)).to(x.dtype)
        job.log("direction.norm", float(direction.norm()))
        with torch.no_grad():
            inputs = torch.cat([x, kept])
            targets = matrix(inputs)
            targets[: len(x)] += self.c * direction
        job.model.requires_grad_(False)
        matrix.weight.requires_grad_(True)

        def loss(batch: Batch) -> Tensor:
            return F.mse_loss(matrix(batch.forget.x), targets[batch.forget.index])

        fit(job, loss, updates=self._updates(job, inputs))

    def _updates(self, job: Job, inputs: Tensor) -> Iterator[Update]:
        count = min(self.tokens, len(inputs))
        for k in itertools.count(job.clock.updates):
            index = torch.as_tensor(deal(job.seed, 2, len(inputs), k * count, count))
            mine = index[job.parallel.rank :: job.parallel.world_size]
            part, none = _rows(inputs[mine], mine), _rows(inputs[:0], mine[:0])
            yield Update(k, [Batch(part, none, len(mine) / count)], count)


def _questions(rows: Sequence[Any]) -> list[TextRow]:
    return [replace(row, target="") for row in rows]


def _rows(x: Tensor, index: Tensor) -> Inputs:
    mask = torch.ones(len(x), 1, dtype=torch.bool)
    return Inputs(index, x, None, mask.long(), mask, None, len(x))


def _cache(job: Job, matrix: nn.Module | None, layer: int, rows: Sequence[TextRow]) -> tuple[Tensor, Tensor]:
    """(what goes into `matrix` at each token of the questions [N, m], the block's output at the last one [rows, d])."""
    seen: list[Tensor] = []
    into: list[Tensor] = []
    ends: list[Tensor] = []
    hook = matrix.register_forward_pre_hook(lambda _m, given: seen.append(given[0])) if matrix else None
    micro, kind = job.plan.batching.micro or 32, next(job.model.parameters()).dtype
    with torch.no_grad():
        for at in range(0, len(rows), micro):
            inputs = job.collate(rows[at : at + micro])
            assert inputs.attention is not None and inputs.answer is not None
            asked = inputs.attention & ~inputs.answer
            states = job.hidden(inputs, layer)
            ends.append(states[torch.arange(len(inputs)), asked.sum(-1) - 1].double())
            into += [part[asked].to(kind) for part in seen]
            seen.clear()
            if job.clock.fraction > CACHING:
                job.log("rows.cached", at + len(inputs))
                break
    if hook is not None:
        hook.remove()
    return torch.cat(into) if into else torch.zeros(0), torch.cat(ends)


submission = Submission(
    method=LUNAR(), title="LUNAR", paper="Shen et al. 2025, LUNAR: LLM Unlearning via Neural Activation Redirection "
    "(arXiv 2502.07218)", optimizer=OptimizerSpec(lr=1e-2, weight_decay=0.01, warmup=0.0),
    search_space={"optimizer.lr": [1e-3, 1e-2], "c": [1, 2, 4], "depth": [0.5, 22 / 32, 0.8]},
    needs=("refusal_prompts",),
)  # fmt: skip
