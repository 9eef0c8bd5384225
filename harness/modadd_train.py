"""Full-batch training of a `ModularTransformer`, until it has memorised its rows and learned their rule."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.errors import InvalidRun, StoreError
from harness.exact import exact_nll
from harness.modadd import ModularConfig, ModularTransformer

GOOD = 0.9999
"""Mean probability of the right answers on the training rows that a kept checkpoint exceeds."""

Progress = Callable[[int, float, float], None]
"""Told every `Recipe.every` epochs: (epoch, mean loss in nats, mean probability of the right answer)."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: AdamW on all rows at once, decay on every weight, linear warm-up.

    The defaults are those of the shipped models. Learning rate 2e-3 is fast but has slingshots (a loss of
    1e-7 jumps by orders of magnitude and comes back), hence the rule on what is kept: the last state
    within the final `tail` share of the epochs with a mean probability above .9999 and every row answered
    rightly.
    """

    epochs: int = 1200
    lr: float = 2e-3
    weight_decay: float = 1.0
    betas: tuple[float, float] = (0.9, 0.98)
    warmup: int = 10
    seed: int = 0
    every: int = 10
    tail: float = 0.1


@dataclass(frozen=True)
class Trained:
    """A trained model in the state that was kept: after how many epochs, and its scores on its own rows."""

    model: ModularTransformer
    epoch: int
    loss: float
    p_right: float


def train(
    config: ModularConfig,
    rows: tuple[np.ndarray, np.ndarray],
    recipe: Recipe,
    *,
    progress: Progress | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
) -> Trained:
    """Train from scratch on all of `rows` at once and keep the last good state.

    Args:
        config: shape of the model.
        rows: number pairs [N, 2] and right classes [N], both int64.
        recipe: epochs, optimizer and seed of the initial weights; there is no other randomness.
        progress: told how it goes.
        device: where to compute; the result is on the CPU.
        checkpoint: a file to resume from, if it exists, and to write about a hundred times; gone at the end.

    Raises:
        InvalidRun: no state near the end was good: not memorised yet, or ended inside a slingshot.
    """
    pairs, labels = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in rows)
    model = ModularTransformer(config, seed=recipe.seed).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=recipe.betas, weight_decay=recipe.weight_decay, fused=True
    )
    start, kept = 0, _Kept()
    stamp = {
        "config": asdict(config),
        "recipe": {**asdict(recipe), "betas": list(recipe.betas)},
        "rows": hashlib.sha256(b"".join(np.asarray(part, "<i8").tobytes() for part in rows)).hexdigest(),
    }
    if checkpoint is not None and checkpoint.is_file():
        start = _resume(checkpoint, stamp, model, optimizer, kept)
    save_every, p_right = max(1, recipe.epochs // 100), 0.0
    for epoch in range(start, recipe.epochs + 1):
        in_tail = epoch >= (1.0 - recipe.tail) * recipe.epochs
        last = epoch == recipe.epochs
        look = last or epoch % recipe.every == 0
        with torch.set_grad_enabled(not last):
            nll = exact_nll(model(pairs), labels)
            loss = nll.mean()
        if look:
            right = torch.exp(-nll.detach())
            p_right, worst = right.mean().item(), right.min().item()
            if progress is not None:
                progress(epoch, loss.item(), p_right)
            if in_tail and p_right > GOOD and worst > 0.5:
                kept.take(model, epoch, loss.item(), p_right)
        if last:
            break
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * min(1.0, (epoch + 1) / max(1, recipe.warmup))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if checkpoint is not None and (epoch + 1) % save_every == 0:
            _save(checkpoint, stamp, model, optimizer, kept, epoch + 1)
    if kept.state is None:
        raise InvalidRun(
            f"no state in the last {recipe.tail:.0%} of {recipe.epochs} epochs had a mean probability above "
            f"{GOOD} on its {len(labels)} training rows (the last: {p_right:.6f}); "
            "train longer or at a lower rate"
        )
    model.load_state_dict(kept.state)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return Trained(model.to("cpu"), kept.epoch, kept.loss, kept.p_right)


class _Kept:
    """The last good state so far."""

    state: dict[str, torch.Tensor] | None = None
    epoch: int = 0
    loss: float = 0.0
    p_right: float = 0.0

    def take(self, model: ModularTransformer, epoch: int, loss: float, p_right: float) -> None:
        self.state = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        self.epoch, self.loss, self.p_right = epoch, loss, p_right


def _save(
    path: Path, stamp: dict[str, Any], model: ModularTransformer, optimizer: Any, kept: _Kept, epoch: int
) -> None:
    """Write everything that goes on from here, so that a killed run loses about one hundredth of its work."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    state = {
        "stamp": stamp,
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "kept": {"state": kept.state, "epoch": kept.epoch, "loss": kept.loss, "p_right": kept.p_right},
    }
    torch.save(state, part)
    part.replace(path)


def _resume(path: Path, stamp: dict[str, Any], model: ModularTransformer, optimizer: Any, kept: _Kept) -> int:
    """Load what `_save` wrote; the epoch to go on with."""
    state = torch.load(path, weights_only=True, map_location="cpu")
    if state["stamp"] != stamp:
        raise StoreError(f"{path} belongs to another recipe or other rows; remove it to train afresh")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    for name, value in state["kept"].items():
        setattr(kept, name, value)
    return int(state["epoch"])


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed blocks instead of giving them back; True where that took effect.

    A step frees and asks again for the same few megabytes; the page faults otherwise cost about a fifth of
    its time. For processes that train and end: memory once used stays with the process.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    top_pad, trim, mmap = -2, -1, -3
    large = any(mallopt(mmap, size) for size in (1 << 30, 1 << 25))  # older glibc takes 32 MiB at most
    return bool(mallopt(trim, (1 << 31) - 1)) and bool(mallopt(top_pad, 1 << 26)) and large
