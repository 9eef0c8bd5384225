"""The models of the BMA boards: trained here, shipped for `mini`, built on request for `full`.

For every bucket size M one target such as `M4`, trained on all training pairs, and per forget set one
model such as `M4-retain-17` that starts from the same weights and follows the same recipe without the
forget pairs of seed 17. A target is only worth unlearning if it has memorised its rows *and* learned the
shared rule; `check` says for each model whether it has.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.metrics import circuits
from harness.mini import manifest
from harness.mini.bma_worlds import MINI, Plan, World
from harness.mini.manifest import Check
from harness.modadd import ModularTransformer
from harness.modadd_train import GOOD, keep_freed_memory, train
from harness.specs import content_hash
from harness.tasks.bma_data import BmaData

RULE_LEARNED = 0.75
"""Least bucket accuracy on never-trained pairs for 1 < M < classes.

Measured when this board was designed: where damage was ordered by the memorisation floor it was .84 to
.90, and where the order broke it was .74 (M=4) and .46 (M=16). A model that knows its training pairs and
that (a, b) and (b, a) share a bucket, but not the rule, gets at most .61 (M=4) and .69 (M=16): 58 % of the
test pairs have their mirror image in training, and the rest are guesses among p buckets."""
GROKKED = 0.99
"""Least bucket accuracy for M = 1, where the rule is everything: at .93 the order of M = 1 and 4 broke."""


def build(
    folder: Path | str,
    *,
    progress: Callable[[str], None],
    which: Iterable[str] | None = None,
    world: World = MINI,
    processes: int | None = None,
    device: str = "cpu",
) -> tuple[str, ...]:
    """Train the models that `folder` lacks, and list them in `folder/manifest.json`.

    A model is skipped when the manifest has it under the same recipe and its weights have the listed
    SHA-256. Long training that was interrupted goes on from `folder/<name>/checkpoint.pt`.

    Args:
        folder: one folder per model is made in it.
        progress: told in one line what happens.
        which: names of models; all of the world by default.
        world: `MINI` or `FULL`.
        processes: models that are trained at once, one thread each; default: one per CPU core. With 1, all
            runs in this process, with torch's own number of threads.
        device: torch device to train on; other than `cpu` means one process.

    Returns:
        Names of the models that were trained now.

    Raises:
        ModelError: a name that this world does not have.
        InvalidRun: a model did not come out good (see `harness.modadd_train.train`).
    """
    folder = Path(folder)
    plans = world.plans()
    names = manifest.chosen(which, plans, world.name)
    todo = [name for name in names if not manifest.made(folder, name, _recipe_hash(world, plans[name]))]
    progress(f"bma {world.name}: {len(todo)} of {len(names)} models to train")
    if processes is None:
        processes = os.cpu_count() or 1
    processes = 1 if device != "cpu" else min(processes, len(todo))
    for name, entry, seconds in _trained(folder, todo, world, processes, device, progress):
        manifest.add(folder, name, entry, plans, world=world.name)
        scores = ", ".join(f"{key} {value:.4f}" for key, value in entry["scores"].items())
        progress(f"{name}: {seconds:.0f} s, {entry['dtype']}, epoch {entry['epoch']}, {scores}")
    return tuple(todo)


def _trained(
    folder: Path, todo: list[str], world: World, processes: int, device: str, progress: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """(name, manifest entry, seconds) of each model as it gets ready."""
    if processes <= 1:
        for name in todo:
            yield make(folder, name, world, device=device, progress=partial(_tell, progress, name))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker) as pool:
        for done in as_completed([pool.submit(make, folder, name, world) for name in todo]):
            yield done.result()


def _start_worker() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()


def _tell(progress: Callable[[str], None], name: str, epoch: int, loss: float, p_right: float) -> None:
    if epoch % 100 == 0:
        progress(f"{name}: epoch {epoch}, loss {loss:.2e}, mean probability {p_right:.6f}")


def make(
    folder: Path,
    name: str,
    world: World,
    *,
    device: str = "cpu",
    progress: Callable[[int, float, float], None] | None = None,
) -> tuple[str, dict[str, Any], float]:
    """Train and save one model; its name, its manifest entry, and the seconds it took.

    Weights are stored as bfloat16 when the rounded model still has every training row right with a mean
    probability above .9999, else as float32.
    """
    started = time.perf_counter()
    plan, target = world.plans()[name], folder / name
    rows = plan.rows(world.data)
    trained = train(
        world.config,
        (world.data.pairs(rows), world.data.labels(plan.m, rows)),
        world.recipe,
        progress=progress,
        device=device,
        checkpoint=target / "checkpoint.pt" if world.recipe.epochs > 5000 else None,
    )
    for dtype in ("bfloat16", "float32"):
        trained.model.save(target, dtype=dtype)
        scores = measure(ModularTransformer.load(target), world.data, plan)
        if scores["train.acc"] == 1.0 and scores["train.p"] > GOOD:
            break
    weights = target / "model.safetensors"
    entry = {
        "sha256": manifest.sha256(weights),
        "bytes": weights.stat().st_size,
        "dtype": dtype,
        "rows": len(rows),
        "recipe": _recipe(world, plan),
        "recipe_hash": _recipe_hash(world, plan),
        "epoch": trained.epoch,
        "scores": {key: round(value, 9) for key, value in scores.items()},
    }
    return name, entry, time.perf_counter() - started


def measure(model: ModularTransformer, data: BmaData, plan: Plan) -> dict[str, float]:
    """Scores of a model on what it was trained on, on never-trained pairs, and on the pairs it was denied.

    Returns:
        `train.acc`, `train.p` (mean probability), `test.acc`, `test.acc_unmirrored` (mirror image not
        trained on), `test.bucket_acc`, `test.within_bucket_acc`, and for a retain model `forget.acc`; all
        in 0..1.
    """
    rows, forget = plan.rows(data), plan.forget(data)

    def ask(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            parts = [
                model(torch.from_numpy(data.pairs(part))).numpy()
                for part in np.array_split(index, len(index) // 8192 + 1)
            ]
        return np.concatenate(parts), data.labels(plan.m, index)

    logits, labels = ask(rows)
    scores = {
        "train.acc": circuits.hits(logits, labels).mean(),
        "train.p": circuits.right_prob(logits, labels).mean(),
    }
    logits, labels = ask(data.test)
    hits = circuits.hits(logits, labels)
    unmirrored = ~np.isin(data.pairs(data.test) @ np.array([1, data.n]), rows)
    scores |= {
        "test.acc": hits.mean(),
        "test.acc_unmirrored": hits[unmirrored].mean(),
        "test.bucket_acc": circuits.bucket_accuracy(logits, labels, plan.m),
        "test.within_bucket_acc": circuits.within_bucket_accuracy(logits, labels, plan.m),
    }
    if len(forget):
        scores["forget.acc"] = circuits.hits(*ask(forget)).mean()
    return {key: float(value) for key, value in scores.items()}


def judge(name: str, scores: dict[str, float], data: BmaData, plan: Plan) -> list[Check]:
    """The criteria that a model must meet, applied to what `measure` found.

    Chance levels are allowed four standard errors of a share of that many rows, plus one row.
    """
    m, tests, forget = plan.m, len(data.test), len(plan.forget(data))

    def at_least(key: str, least: float) -> Check:
        return manifest.at_least(name, scores, key, least)

    def close(key: str, chance: float, rows: int, why: str) -> Check:
        allowed = 4 * (chance * (1 - chance) / rows) ** 0.5 + 1 / rows
        text = f"{key} within {allowed:.4f} of {chance:.4f} ({why})"
        return Check(name, text, scores[key], abs(scores[key] - chance) <= allowed)

    found = [at_least("train.acc", 1.0), at_least("train.p", GOOD)]
    if m == 1:
        found += [at_least("test.bucket_acc", GROKKED), at_least("test.acc_unmirrored", GROKKED)]
    elif m < data.classes:
        found.append(at_least("test.bucket_acc", RULE_LEARNED))
    if m > 1:
        found.append(close("test.within_bucket_acc", 1 / m, tests, "nothing in a bucket can be generalised"))
    if forget:
        found.append(close("forget.acc", scores["test.bucket_acc"] / m, forget, "what the rule alone gives"))
    return found


def check(folder: Path | str, *, world: World = MINI) -> list[Check]:
    """Load every model of the world from `folder`, measure it again, and apply the criteria.

    A model that is missing or whose weights are not those of the manifest is a failed criterion, not an
    exception.
    """
    folder = Path(folder)
    found: list[Check] = []
    for name, plan in world.plans().items():
        made = manifest.made(folder, name, _recipe_hash(world, plan))
        found.append(manifest.unchanged(name, made))
        if made:
            scores = measure(ModularTransformer.load(folder / name), world.data, plan)
            found += judge(name, scores, world.data, plan)
    return found


def _recipe(world: World, plan: Plan) -> dict[str, Any]:
    """Everything that decides the weights, as plain values."""
    return {
        "config": asdict(world.config),
        "training": asdict(world.recipe) | {"betas": list(world.recipe.betas)},
        "data": asdict(world.data),
        "plan": asdict(plan),
    }


def _recipe_hash(world: World, plan: Plan) -> str:
    rows = plan.rows(world.data)
    digest = hashlib.sha256(
        rows.astype("<i8").tobytes() + world.data.labels(plan.m, rows).astype("<i8").tobytes()
    )
    return content_hash({"recipe": _recipe(world, plan), "rows": digest.hexdigest()})
