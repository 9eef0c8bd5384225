"""SalUn: random labels, in which only the weights that matter most to the forget rows may move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness import OptimizerSpec, Submission, losses
from harness.batches import Batch, Update
from harness.job import Job
from harness.loop import fit
from harness.scoring import token_logp


@dataclass(frozen=True)
class SalUn:
    """NLL of the task's `random_labels` + alpha x NLL of retain, on the `share` of weights with the largest |gradient|.

    The gradient is that of the forget rows' NLL, summed over batches, and the threshold is one for all weights, as in
    the public code (OPTML-Group/Unlearn-Saliency, Classification/generate_mask.py; .5 is its example's share). Weights
    outside the mask have no gradient and are put back after each step. The random labels are the task's, fixed and
    never the right one; the public code draws them anew each epoch from all classes.
    """

    share: float = 0.5
    alpha: float = 1.0

    def unlearn(self, job: Job) -> None:
        """Find the mask, then train under it."""
        masks = saliency_masks(job, self.share)
        before = {name: p.detach().clone() for name, p in job.model.named_parameters() if name in masks}
        handles = [
            p.register_hook(lambda gradient, mask=masks[name]: gradient * mask)
            for name, p in job.model.named_parameters()
            if name in masks
        ]

        def loss(batch: Batch) -> Tensor:
            wrong, retain = job.forward(job.aligned("random_labels", batch.forget)), job.forward(batch.retain)
            away = losses.nll(token_logp(wrong), wrong.mask)
            return away + self.alpha * losses.nll(token_logp(retain), retain.mask)

        def put_back(_update: Update) -> None:
            with torch.no_grad():
                for name, p in job.model.named_parameters():
                    if name in masks:
                        p.copy_(torch.where(masks[name], p, before[name]))

        fit(job, loss, after_update=put_back)
        for handle in handles:
            handle.remove()


def saliency_masks(job: Job, share: float) -> dict[str, Tensor]:
    """Parameter name -> bool mask: True on the `share` of all trainable weights with the largest |gradient|."""
    trained = {name: p for name, p in job.model.named_parameters() if p.requires_grad}
    for rows in _chunks(job):
        out = job.forward(job.collate(rows))
        (losses.nll(token_logp(out), out.mask) * len(rows)).backward()
    sizes = {name: torch.zeros_like(p) if p.grad is None else p.grad.abs() for name, p in trained.items()}
    for p in trained.values():
        p.grad = None
    flat = torch.cat([size.flatten() for size in sizes.values()])
    keep = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    keep[flat.topk(round(share * len(flat))).indices] = True
    parts = keep.split([size.numel() for size in sizes.values()])
    return {name: part.view_as(size) for (name, size), part in zip(sizes.items(), parts, strict=True)}


def _chunks(job: Job) -> Iterator[list]:
    size = job.plan.batching.micro or 256
    for at in range(0, len(job.forget), size):
        yield list(job.forget[at : at + size])


submission = Submission(
    method=SalUn(), title="SalUn", paper="Fan et al. 2024, SalUn: Empowering Machine Unlearning via Gradient-based "
    "Weight Saliency (arXiv 2310.12508)", optimizer=OptimizerSpec(lr=1e-5, weight_decay=0.0),
    search_space={"optimizer.lr": [1e-6, 1e-5, 1e-4], "share": [0.3, 0.5, 0.7]}, needs=("random_labels",),
)  # fmt: skip
