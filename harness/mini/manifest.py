"""The manifest of a folder of built models, which says what each was made from; and criteria that a model must meet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import ModelError, near

FORMAT = 1


class Check(NamedTuple):
    """One criterion of one model; `value` is what was measured, None if it could not be."""

    name: str
    criterion: str
    value: float | None
    ok: bool


def at_least(name: str, scores: Mapping[str, float], key: str, least: float) -> Check:
    """Whether a score of a model is there and no lower."""
    found = scores.get(key)
    return Check(name, f"{key} >= {least}", found, found is not None and found >= least)


def at_most(name: str, scores: Mapping[str, float], key: str, most: float) -> Check:
    """Whether a score of a model is there and no higher."""
    found = scores.get(key)
    return Check(name, f"{key} <= {most}", found, found is not None and found <= most)


def unchanged(name: str, ready: bool) -> Check:
    """Whether a model is what `made` asks for."""
    return Check(name, "weights and recipe are those of the manifest", None, ready)


def chosen(which: Iterable[str] | None, plans: Iterable[str], world: str) -> list[str]:
    """Names of the models to build: those named, or all of a world; `ModelError` for one that it does not have."""
    known = list(plans)
    names = known if which is None else list(which)
    for name in names:
        if name not in known:
            raise ModelError(f"world {world} has no model {name!r}", near(name, known), "pick one of these")
    return names


def read(folder: Path) -> dict[str, Any]:
    """`folder/manifest.json`, or an empty one; `ModelError` where it has another format."""
    path = folder / "manifest.json"
    if not path.is_file():
        return {"format": FORMAT, "models": {}}
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if manifest.get("format") != FORMAT:
        raise ModelError(
            f"{path} has format {manifest.get('format')!r}", f"this version reads format {FORMAT}"
        )
    return manifest


def add(folder: Path, name: str, entry: Mapping[str, Any], plans: Iterable[str], **head: str) -> None:
    """List a model in `folder/manifest.json`, in the order of `plans`; `head` stands before the models."""
    place = {known: k for k, known in enumerate(plans)}
    models = {**read(folder)["models"], name: entry}
    models = dict(sorted(models.items(), key=lambda item: (place.get(item[0], len(place)), item[0])))
    part = folder / "manifest.json.part"
    part.write_text(
        json.dumps({"format": FORMAT, **head, "models": models}, indent=1) + "\n", encoding="utf-8"
    )
    part.replace(folder / "manifest.json")


def made(folder: Path, name: str, recipe_hash: str) -> bool:
    """Whether `folder` has the model under this recipe, with the weights that the manifest lists."""
    entry, weights = read(folder)["models"].get(name, {}), folder / name / "model.safetensors"
    listed = entry.get("recipe_hash") == recipe_hash and weights.is_file()
    return listed and sha256(weights) == entry["sha256"]


def sha256(path: Path) -> str:
    """Of a file, 64 hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
