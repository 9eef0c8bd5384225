"""What a board may set for MUSE under `[task.options]`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from harness.errors import DataError, near
from harness.tasks.muse_data import FOLDS
from harness.tasks.muse_scores import PUBLISHED

REQUESTS = ("one", "scal", "sust")
LAST = ("refill", "short")


@dataclasses.dataclass(frozen=True)
class Options:
    """The options, checked; `DataError` names one that is wrong.

    Attributes:
        requests: `one` forget set, growing ones (`scal`), or one after the other (`sust`).
        chunk: tokens of a training row, BOS counted: the texts are joined by a blank line and cut. 0: one row a text.
        last_chunk: `refill` fills the last row up from the first one, whose BOS stands in the middle, as MUSE's code
            does; `short` leaves it as it is.
        examples: most worked examples before a question of KnowMem; MUSE has ten.
        blank: whether the prompt of KnowMem ends with a blank, as MUSE's does; it changes the answer's first token.
        published: `news` or `books`: the target is MUSE's published model, and PrivLeak is also taken against the AUC
            that MUSE prints for its own retrained one.
        revision: of the hub's data set.
    """

    requests: str = "one"
    chunk: int = 2048
    last_chunk: str = "refill"
    examples: int = 10
    blank: bool = True
    published: str = ""
    revision: str = "main"

    def __post_init__(self) -> None:
        _one_of("requests", self.requests, REQUESTS)
        _one_of("last_chunk", self.last_chunk, LAST)
        _one_of("published", self.published, ("", *PUBLISHED))
        if not isinstance(self.blank, bool):
            raise DataError(f"muse's option blank is {self.blank!r}", "true or false", "mend [task.options]")
        if not isinstance(self.examples, int) or isinstance(self.examples, bool) or self.examples < 0:
            known = "a number of worked examples; 0 shows none"
            raise DataError(f"muse's option examples is {self.examples!r}", known, "mend [task.options]")
        if (
            not isinstance(self.chunk, int)
            or isinstance(self.chunk, bool)
            or self.chunk < 0
            or self.chunk == 1
        ):
            raise DataError(
                f"muse's option chunk is {self.chunk!r}", "tokens of a training row, at least 2; 0 cuts nothing",
                "mend [task.options]",
            )  # fmt: skip

    @property
    def sets(self) -> tuple[tuple[str, str, str], ...]:
        """(case id, config, split) of every request."""
        if self.requests == "one":
            return (("forget", "raw", "forget"),)
        return tuple((f"{self.requests}_{k}", self.requests, f"forget_{k}") for k in range(1, FOLDS + 1))


def _one_of(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise DataError(f"muse's option {name} is {value!r}", near(str(value), known), "mend [task.options]")
