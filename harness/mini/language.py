"""The small language models: which there are, how they are built, and whether they came out right.

`base` knows the world. `tofu-full` was then trained on all 800 author rows, `tofu-retain90` and
`tofu-retain95` on the rows that stay, by the same recipe; `muse-target` on forget and retain passages,
`muse-retrain` on the retain passages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import ModelError, near
from harness.mini import documents, language_scores, llama, manifest
from harness.mini.documents import Group
from harness.mini.llama import Shape, Training
from harness.mini.manifest import Check
from harness.specs import content_hash

SHAPE = Shape()
_RETAINED = ("retain1", "retain2")
_TOFU = Training(epochs=14, lr=1e-3, replay=0.4)
_MUSE = Training(epochs=30, lr=1e-3, replay=0.4)


@dataclass(frozen=True)
class Plan:
    """One model: what it reads, how, and which model it starts from (none: random weights)."""

    own: Callable[[], list[Group]]
    training: Training
    start: str = ""


PLANS = {
    "base": Plan(documents.base, Training(epochs=44, lr=2e-3)),
    "tofu-retain90": Plan(lambda: documents.tofu("retain90"), _TOFU, "base"),
    "tofu-retain95": Plan(lambda: documents.tofu("retain95"), _TOFU, "base"),
    "tofu-full": Plan(lambda: documents.tofu("full"), _TOFU, "base"),
    "muse-retrain": Plan(lambda: documents.muse(*_RETAINED), _MUSE, "base"),
    "muse-target": Plan(lambda: documents.muse("forget", *_RETAINED), _MUSE, "base"),
}
"""In the order in which they are built: a model comes after those that it starts from or is compared with."""


def build(
    folder: Path | str, *, progress: Callable[[str], None], which: Iterable[str] | None = None
) -> tuple[str, ...]:
    """Train the models that `folder` lacks, and list them in `folder/manifest.json`.

    A model is skipped when the manifest has it under the same recipe and its weights have the listed
    SHA-256. A model that others start from is built first where it is missing.

    Args:
        folder: one folder per model is made in it.
        progress: told in one line what happens.
        which: names of models; all by default.

    Returns:
        Names of the models that were trained now.

    Raises:
        ModelError: a name that is none of these models.
        InvalidRun: a loss was not finite.
    """
    folder = Path(folder)
    wanted = set(PLANS if which is None else which)
    for name in sorted(wanted):
        if name not in PLANS:
            raise ModelError(
                f"there is no small language model {name!r}", near(name, PLANS), "pick one of these"
            )
    wanted |= {PLANS[name].start for name in wanted} - {""}
    todo = [name for name in PLANS if name in wanted and not made(folder, name)]
    progress(f"language: {len(todo)} of {len(wanted)} models to train")
    for name in todo:
        _make(folder, name, progress)
    return tuple(todo)


def _make(folder: Path, name: str, progress: Callable[[str], None]) -> None:
    """Train, save and measure one model, and write its manifest entry."""
    started = time.perf_counter()
    plan, target = PLANS[name], folder / name
    if plan.start:
        model, tokenizer = llama.load(folder / plan.start)
    else:
        model = llama.new_model(SHAPE, plan.training.seed)
        tokenizer = llama.make_tokenizer(documents.vocabulary(), SHAPE.vocab)

    def tell(epoch: int, loss: float) -> None:
        if epoch % 10 == 0:
            progress(f"{name}: epoch {epoch} of {plan.training.epochs}, loss {loss:.4f}")

    replayed = documents.base() if plan.training.replay else []
    loss = llama.train(model, tokenizer, plan.own(), replayed, plan.training, tell)
    llama.save(model, tokenizer, target)
    scores = language_scores.measure(folder, name)
    weights = target / "model.safetensors"
    entry = {
        "sha256": manifest.sha256(weights),
        "bytes": sum(path.stat().st_size for path in target.iterdir()),
        "dtype": "bfloat16",
        "parameters": sum(p.numel() for p in model.parameters()),
        "recipe": recipe(name),
        "recipe_hash": recipe_hash(name),
        "loss": round(loss, 6),
        "scores": {key: float(f"{value:.6g}") for key, value in scores.items()},
    }
    manifest.add(folder, name, entry, PLANS)
    progress(f"{name}: {time.perf_counter() - started:.0f} s, loss {loss:.4f}")


def check(folder: Path | str) -> list[Check]:
    """Load every model from `folder`, measure it again, and apply the criteria.

    A model that is missing or whose weights are not those of the manifest is a failed criterion, not an
    exception.
    """
    folder = Path(folder)
    found: list[Check] = []
    scores: dict[str, dict[str, float]] = {}
    for name in PLANS:
        ready = made(folder, name)
        found.append(manifest.unchanged(name, ready))
        if ready:
            scores[name] = language_scores.measure(folder, name)
            found += language_scores.judge(name, scores)
    return found


def recipe(name: str) -> dict[str, Any]:
    """Everything that decides the weights of a model but its texts, as plain values."""
    plan = PLANS[name]
    return {"shape": asdict(SHAPE), "training": asdict(plan.training), "start": plan.start}


def recipe_hash(name: str) -> str:
    """Hash of a model's recipe, of its texts, and of the same of the model that it starts from."""
    plan = PLANS[name]
    start = recipe_hash(plan.start) if plan.start else content_hash(documents.vocabulary())
    return content_hash({"recipe": recipe(name), "texts": plan.own(), "start": start})


def made(folder: Path, name: str) -> bool:
    """Whether `folder` has the model under the present recipe, unchanged."""
    return manifest.made(folder, name, recipe_hash(name))
