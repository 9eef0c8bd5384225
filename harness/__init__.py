"""uharness: the benchmark and leaderboard for machine unlearning.

A submission file needs what is named here, `harness.losses` and `harness.loop.fit`. Importing this package loads
nothing else: names are looked up when they are first used, so that `uharness --help` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.errors import InputError, RunError, UharnessError
    from harness.specs import Board, Budget, OptimizerSpec, RunRecord
    from harness.types import ArrayRow, Case, MetricInfo, Score, Submission, TextRow, TokenScores

__version__ = "0.1.0"

__all__ = [
    "ArrayRow",
    "Board",
    "Budget",
    "Case",
    "InputError",
    "MetricInfo",
    "OptimizerSpec",
    "RunError",
    "RunRecord",
    "Score",
    "Submission",
    "TextRow",
    "TokenScores",
    "UharnessError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    specs = ("Board", "Budget", "OptimizerSpec", "RunRecord")
    module = "errors" if name.endswith("Error") else "specs" if name in specs else "types"
    return getattr(importlib.import_module(f"harness.{module}"), name)
