"""Representation misdirection (RMU): the hidden states of forget answers go to one random direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch
from harness.errors import SubmissionError
from harness.job import Job
from harness.loop import fit
from harness.scoring import Inputs


@dataclass(frozen=True)
class RMU:
    """gamma x distance of forget states to c u + alpha x distance of retain states to the starting model's.

    u is uniform in [0, 1)^d, scaled to length 1, as in the public code: all its numbers are positive. It is drawn once,
    by the run's seed. States are one block's output on answer tokens. `form` full trains all weights; wmdp trains the
    matrices that end the MLPs of the block and of the two below, and freezes the rest.

    Defaults: c 2, alpha 1 and block 7 of 16, here as `depth` 7/16, by open-unlearning's RMU.yaml on TOFU. The paper's
    recipe for Zephyr 7B on WMDP is form wmdp, layer 7, c 6.5, alpha 1200, lr 5e-5; it masks nothing.
    """

    form: Literal["full", "wmdp"] = "full"
    c: float = 2.0
    gamma: float = 1.0
    alpha: float = 1.0
    depth: float = 7 / 16
    layer: int | None = None
    reduction: Literal["mean", "sum"] = "mean"

    def unlearn(self, job: Job) -> None:
        """Draw u, freeze what is not trained, keep a frozen copy for the retain term, and train."""
        layer = job.layer_at(self.depth) if self.layer is None else self.layer
        if self.form == "wmdp":
            self._freeze(job, layer)
        width = job.hidden(job.collate(job.forget[:1]), layer).shape[-1]
        u = torch.rand(width, generator=torch.Generator().manual_seed(job.seed))
        target = (self.c * u / u.norm()).to(job.device)
        reference = job.frozen_reference()

        def loss(batch: Batch) -> Tensor:
            away = losses.activation_distance(
                job.hidden(batch.forget, layer), target, _tokens(batch.forget), self.reduction
            )
            kept = losses.activation_distance(
                job.hidden(batch.retain, layer), reference.hidden(batch.retain, layer), _tokens(batch.retain),
                self.reduction,
            )  # fmt: skip
            return self.gamma * away + self.alpha * kept

        fit(job, loss)

    def _freeze(self, job: Job, layer: int) -> None:
        if job.loaded.adapters:
            raise SubmissionError(
                "rmu: form=wmdp trains matrices of its own choice", "", "leave lora.rank at 0"
            )
        if layer < 2:
            raise SubmissionError(
                f"rmu: form=wmdp trains three blocks up to block {layer}", "", "set layer to 2 or more"
            )
        ends = [job.down_projection(k) for k in range(layer - 2, layer + 1)]
        job.model.requires_grad_(False)
        for end in ends:
            end.weight.requires_grad_(True)


def _tokens(inputs: Inputs) -> Tensor:
    """Answer tokens themselves [B, T]; an array row is its one token."""
    return inputs.mask if inputs.answer is None else inputs.answer


submission = Submission(
    method=RMU(), title="RMU", paper="Li et al. 2024, The WMDP Benchmark (arXiv 2403.03218)",
    optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.01),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4], "c": [2, 6.5, 20], "alpha": [1, 10, 100]},
)  # fmt: skip
