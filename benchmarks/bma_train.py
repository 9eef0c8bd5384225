"""What the engine of `harness.modadd` saves, and what the exact loss repairs: one table, ten seconds.

    python benchmarks/bma_train.py [--threads 2] [--repeats 15]

Both forms are timed in turn within one run, as machines drift. Size: p = 113, d_model 128, d_mlp 512,
3,830 rows (Nanda et al. 2023; 30 % of 113^2 pairs), one full-batch AdamW step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.exact import exact_nll
from harness.modadd import ModularConfig, ModularTransformer
from harness.modadd_train import keep_freed_memory

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from plain_modadd import plain_logits

P, ROWS = 113, 3830


def stepper(forward: Callable[[ModularTransformer, Tensor], Tensor], loss: Callable) -> Callable[[], float]:
    """A function that makes one update and returns its seconds."""
    model = ModularTransformer(ModularConfig(P, P, 128, 4, 512))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, weight_decay=1.0, betas=(0.9, 0.98), fused=True
    )
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, P, (ROWS, 2), generator=generator)
    labels = inputs.sum(1) % P

    def step() -> float:
        started = time.perf_counter()
        optimizer.zero_grad()
        loss(forward(model, inputs), labels).backward()
        optimizer.step()
        return time.perf_counter() - started

    return step


def gradient_errors() -> tuple[float, float, float]:
    """Loss of an almost certain model, and relative gradient errors of plain and exact float32 loss."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, P, generator=generator)
    labels = torch.randint(0, P, (ROWS,), generator=generator)
    logits[torch.arange(ROWS), labels] += 23.0

    def gradient(loss: Callable, z: Tensor) -> Tensor:
        z = z.clone().requires_grad_()
        loss(z, labels).backward()
        return z.grad.double()

    truth = gradient(exact_mean, logits.double())
    errors = [
        ((gradient(loss, logits) - truth).norm() / truth.norm()).item()
        for loss in (cross_entropy, exact_mean)
    ]
    return exact_mean(logits.double(), labels).item(), errors[0], errors[1]


def exact_mean(logits: Tensor, labels: Tensor) -> Tensor:
    return exact_nll(logits, labels).mean()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    memory = "kept" if keep_freed_memory() else "as the allocator likes"
    plain = stepper(plain_logits, cross_entropy)
    fast = stepper(lambda model, inputs: model(inputs), exact_mean)
    for step in (plain, fast):
        step()
    times = {"plain": [], "fast": []}
    for _ in range(chosen.repeats):
        times["plain"].append(plain())
        times["fast"] += [fast() for _ in range(3)]
    medians = {form: 1e3 * statistics.median(found) for form, found in times.items()}
    loss, plain_error, exact_error = gradient_errors()
    print(f"p = {P}, {ROWS} rows, torch {torch.__version__}, {chosen.threads} threads, freed memory {memory}")
    print(f"{'':34}{'plain':>12}{'fast/exact':>12}{'ratio':>8}")
    ratio = medians["plain"] / medians["fast"]
    print(f"{'ms per epoch (median)':34}{medians['plain']:12.1f}{medians['fast']:12.1f}{ratio:8.2f}")
    best = {form: 1e3 * min(found) for form, found in times.items()}
    ratio = best["plain"] / best["fast"]
    print(f"{'ms per epoch (best)':34}{best['plain']:12.1f}{best['fast']:12.1f}{ratio:8.2f}")
    print(f"{f'gradient error at loss {loss:.1e}':34}{plain_error:12.1e}{exact_error:12.1e}")


if __name__ == "__main__":
    main()
