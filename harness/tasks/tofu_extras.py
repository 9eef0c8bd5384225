"""What a board may ask of TOFU beyond its probes: `[task.options]` fluency and mia."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.errors import DataError, near

FLUENCY = ("own", "hub", "none")
FURTHER_MIA = ("reference", "grad_norm")


@dataclass(frozen=True)
class Extras:
    """The options, checked.

    Attributes:
        fluency: `own` is our classifier; `hub` asks the papers' one as well, which is loaded from the hub
            where the model answers; `none` is neither.
        mia: further membership attacks, of `reference` (loss minus the retrained model's) and `grad_norm`
            (one backward pass a row).
    """

    fluency: Literal["own", "hub", "none"] = "own"
    mia: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Extras:
        """From a board's task options.

        Raises:
            DataError: a value is not known.
        """
        fluency, mia = options.get("fluency", "own"), options.get("mia", ())
        if fluency not in FLUENCY:
            todo = f"write one of {', '.join(FLUENCY)}"
            raise DataError(f"tofu's option fluency is {fluency!r}", near(str(fluency), FLUENCY), todo)
        attacks = [mia] if isinstance(mia, str) else list(mia)
        for attack in attacks:
            if attack not in FURTHER_MIA:
                todo = "the other attacks are always made"
                raise DataError(f"tofu's option mia names {attack!r}", near(str(attack), FURTHER_MIA), todo)
        return cls(fluency, tuple(dict.fromkeys(attacks)))
