"""The families of built-in models: what `uharness mini` calls.

Building or checking a family loads torch; naming them does not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.errors import ModelError, near

FAMILIES = {"bma": "bma", "language": ""}
"""Module below `harness.mini` -> its folder below the weights folder (`language`: the folder itself)."""


def build(
    folder: Path, family: str, *, progress: Callable[[str], None], names: Sequence[str] = ()
) -> tuple[str, ...]:
    """Train the models that `folder` lacks; returns the names of those trained now.

    Args:
        folder: the weights folder.
        family: one of `FAMILIES`, or empty for all.
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
        module: Any = importlib.import_module(f"harness.mini.{name}")
        made += module.build(folder / FAMILIES[name], progress=progress, which=names or None)
    return tuple(made)


def check(folder: Path, family: str) -> list[Any]:
    """(name, criterion, value, ok) of every criterion of one family, or of all."""
    found: list[Any] = []
    for name in _chosen(family):
        found += importlib.import_module(f"harness.mini.{name}").check(folder / FAMILIES[name])
    return found


def _chosen(family: str) -> tuple[str, ...]:
    if family and family not in FAMILIES:
        raise ModelError(
            f"no family of built-in models {family!r}", near(family, FAMILIES), "name one of these"
        )
    return (family,) if family else tuple(FAMILIES)
