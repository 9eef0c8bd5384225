"""The families of built-in models: what `uharness mini` calls.

Building or checking a family loads torch; naming them does not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.errors import ModelError, near

FAMILIES = {
    "bma": ("bma", "bma"),
    "language": ("language", ""),
    "digits": ("images", "digits"),
    "bma-full": ("bma", "bma-full"),
    "cifar100-resnet50": ("images", "cifar100-resnet50"),
    "cifar100-resnet50-scratch": ("images", "cifar100-resnet50-scratch"),
    "cifar100-vit": ("images", "cifar100-vit"),
    "tinyimagenet-resnet50": ("images", "tinyimagenet-resnet50"),
    "tinyimagenet-resnet50-scratch": ("images", "tinyimagenet-resnet50-scratch"),
}
"""Family -> (module below `harness.mini`, folder below the weights folder; empty is the folder itself)."""
SHIPPED = ("bma", "language", "digits")
"""What comes with the package; the others are the papers' sizes and take hours a model, or a GPU."""


def build(
    folder: Path, family: str, *, progress: Callable[[str], None], names: Sequence[str] = ()
) -> tuple[str, ...]:
    """Train the models that `folder` lacks; returns the names of those trained now.

    Args:
        folder: the weights folder.
        family: one of `FAMILIES`, or empty for all that are shipped.
        progress: told in one line what happens.
        names: only these models; all without. They need a family.

    Raises:
        ModelError: there is no such family or model.
    """
    if names and not family:
        raise ModelError(
            "models are named without their family", near("", FAMILIES), "add --family with one of these"
        )
    made: list[str] = []
    for name in _chosen(family):
        module, place = _module(name)
        made += module.build(folder / place, progress=progress, which=names or None, **_world(name))
    return tuple(made)


def check(folder: Path, family: str) -> list[Any]:
    """(name, criterion, value, ok) of every criterion of one family, or of all."""
    found: list[Any] = []
    for name in _chosen(family):
        module, place = _module(name)
        found += module.check(folder / place, **_world(name))
    return found


def _module(family: str) -> tuple[Any, str]:
    module, place = FAMILIES[family]
    return importlib.import_module(f"harness.mini.{module}"), place


def _world(family: str) -> dict[str, Any]:
    if FAMILIES[family][0] == "images":
        from harness.mini.images_worlds import WORLDS

        return {"world": WORLDS[family]}
    if family != "bma-full":
        return {}
    from harness.mini.bma_worlds import FULL

    return {"world": FULL}


def _chosen(family: str) -> tuple[str, ...]:
    if family and family not in FAMILIES:
        raise ModelError(
            f"no family of built-in models {family!r}", near(family, FAMILIES), "name one of these"
        )
    return (family,) if family else SHIPPED
