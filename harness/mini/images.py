"""The models of the boards of images: targets, models retrained without each request, and a second one of each.

Models of one seed start from the same weights. A target and a retrained model are worth comparing when they have
learned their rows and recognise new ones; a model that never saw a class must not name it. `check` says whether so.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from harness import models, scoring
from harness.metrics import circuits
from harness.mini import manifest
from harness.mini.images_worlds import DIGITS, Plan, World
from harness.mini.manifest import Check
from harness.models import LoadedModel
from harness.specs import content_hash
from harness.types import ArrayRow
from harness.vision import Pixels

LEARNED = 0.99
"""Least accuracy on the training rows."""


def build(
    folder: Path | str,
    *,
    progress: Callable[[str], None],
    which: Iterable[str] | None = None,
    world: World = DIGITS,
) -> tuple[str, ...]:
    """Train the models that `folder` lacks, and list them in `folder/manifest.json`.

    Args:
        folder: one folder a model is made in it.
        progress: told in one line what happens.
        which: names of models; all of the world by default.
        world: one of `harness.mini.images_worlds.WORLDS`.

    Returns:
        Names of the models that were trained now.

    Raises:
        ModelError: a name that this world does not have.
    """
    folder, plans = Path(folder), world.plans()
    names = manifest.chosen(which, plans, world.name)
    todo = [name for name in names if not _made(folder, name, world, plans[name])]
    progress(f"{world.name}: {len(todo)} of {len(names)} models to train")
    for name in todo:
        began, plan = time.perf_counter(), plans[name]
        loaded = train(world, plan)
        _save(loaded, folder / name, world.recipe.dtype)
        scores = measure(models.load(str(folder / name)), world, plan)
        weights = folder / name / "model.safetensors"
        entry = {
            "sha256": manifest.sha256(weights), "bytes": weights.stat().st_size,
            "recipe": _recipe(world, plan), "recipe_hash": _recipe_hash(world, plan),
            "scores": {key: round(value, 6) for key, value in scores.items()},
        }  # fmt: skip
        manifest.add(folder, name, entry, plans)
        said = ", ".join(f"{key} {value:.4f}" for key, value in scores.items())
        progress(f"{name}: {time.perf_counter() - began:.0f} s, {said}")
    return tuple(todo)


def start(world: World, seed: int) -> Any:
    """The model that training begins with; new weights are a function of the seed."""
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    names = world.task.images.names
    labels = {"num_labels": len(names), "id2label": dict(enumerate(names))}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if world.start:
            model: Any = AutoModelForImageClassification.from_pretrained(
                models.resolve(world.start), ignore_mismatched_sizes=True, **labels
            )
        else:
            shape = dict(world.shape)
            config = AutoConfig.for_model(shape.pop("model_type"), **shape, **labels)
            model = AutoModelForImageClassification.from_config(config)
    given = world.pixels
    pixels = Pixels(int(given["size"]), float(given["scale"]), tuple(given["mean"]), tuple(given["std"]))
    model.config.pixels = pixels.as_json()
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def rows_of(world: World, plan: Plan) -> tuple[list[ArrayRow], list[ArrayRow]]:
    """(rows that the model is trained on, rows that it is denied)."""
    cases = world.task.case_ids()
    case = world.task.case(plan.case or cases[0], plan.seed)
    kept, denied = list(case.retain), list(case.forget)
    return (kept, denied) if plan.case else ([*kept, *denied], [])  # type: ignore[return-value]


def train(world: World, plan: Plan) -> LoadedModel:
    """Train one model, without augmentation; one that is not to be trained is returned as it starts."""
    recipe, model = world.recipe, start(world, plan.seed)
    rows = sorted(rows_of(world, plan)[0], key=lambda row: int(row.id.rpartition("-")[2]))
    updates = recipe.epochs * (len(rows) // recipe.batch) if plan.trained else 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    warm = max(1, round(recipe.warmup * updates))
    model.train()
    for done in range(updates):
        epoch, at = divmod(done, len(rows) // recipe.batch)
        order = np.random.default_rng([plan.order, epoch]).permutation(len(rows))
        some = [rows[i] for i in order[at * recipe.batch : (at + 1) * recipe.batch]]
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * min((done + 1) / warm, (updates - done) / (updates - warm))
        out = scoring.forward(model, scoring.collate(some, None, device=str(model.device)))
        optimizer.zero_grad()
        F.cross_entropy(out.logits[:, 0], out.labels[:, 0]).backward()
        optimizer.step()
    return LoadedModel(model.eval(), None)


def _save(loaded: LoadedModel, folder: Path, dtype: str) -> None:
    loaded.model.to(getattr(torch, dtype))
    models.save(loaded, folder)
    (folder / "model.safetensors").chmod(0o644)


def measure(loaded: LoadedModel, world: World, plan: Plan) -> dict[str, float]:
    """`train.acc`, `test.acc` (of classes that were trained on), and `forget.acc` of a retrained model; 0..1."""
    rows, denied = rows_of(world, plan)
    known = {row.label for row in rows}
    test = [row for row in world.task.rows("test") if row.label in known]
    sets = {"train.acc": rows, "test.acc": test} | ({"forget.acc": denied} if denied else {})
    return {
        name: float(circuits.hits(scoring.classify(loaded.model, some), np.array([r.label for r in some])).mean())
        for name, some in sets.items()
    }  # fmt: skip


def check(folder: Path | str, *, world: World = DIGITS) -> list[Check]:
    """Load every model of the world from `folder`, measure it again, and apply the criteria.

    A model that is missing or whose weights are not those of the manifest is a failed criterion.
    """
    folder, found = Path(folder), []
    for name, plan in world.plans().items():
        made = _made(folder, name, world, plan)
        found.append(manifest.unchanged(name, made))
        if not made or not plan.trained:
            continue
        scores = measure(models.load(str(folder / name)), world, plan)
        for key, least in (("train.acc", LEARNED), ("test.acc", world.general)):
            found.append(manifest.at_least(name, scores, key, least))
        if plan.case and world.task.request(plan.case).part == "all":
            value = scores["forget.acc"]
            found.append(Check(name, "forget.acc = 0 (it never saw these classes)", value, value == 0))
    return found


def _recipe(world: World, plan: Plan) -> dict[str, Any]:
    """Everything that decides the weights, as plain values."""
    return {"training": asdict(world.recipe), "plan": asdict(plan), "start": world.start,
            "shape": dict(world.shape), "pixels": dict(world.pixels)}  # fmt: skip


def _recipe_hash(world: World, plan: Plan) -> str:
    ids = hashlib.sha256("\n".join(sorted(row.id for row in rows_of(world, plan)[0])).encode()).hexdigest()
    return content_hash([_recipe(world, plan), world.task.images.digest(), ids])


def _made(folder: Path, name: str, world: World, plan: Plan) -> bool:
    return manifest.made(folder, name, _recipe_hash(world, plan))
