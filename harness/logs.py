"""Evaluation logs of other tools on TOFU, as values by row: `harness.logfiles` reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.metrics import memorization
from harness.metrics.memorization import Values
from harness.tasks.tofu_read import PARAPHRASED, WRITTEN, ByRow, Losses, Read

SETS = ("forget", "retain", "real_authors", "world_facts")
ROUGE = ("rougeL_recall", "rougeL_f1", "rouge1_recall")


@dataclass(frozen=True)
class Family:
    """What a log holds of one set, by row index. None and empty mean that it does not.

    Attributes:
        ids: indices, in the order of the log.
        loss, para: mean token loss of the answer and of the paraphrased one.
        pert: the same of each wrong answer.
        values: other metrics by their name here (`rougeL_recall`, `es.published`, `option_prob`, ...).
        prompts: what was asked, as the log has it; targets, said: right answers and greedy ones.
        shape: what identifies the rows where there are no prompts; `shape_is` says what that is.
    """

    ids: tuple[str, ...] = ()
    loss: ByRow | None = None
    para: ByRow | None = None
    pert: Mapping[str, list[float | None]] | None = None
    values: Mapping[str, ByRow] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)
    shape: Any = None
    shape_is: str = "row indices"

    def texts(self, index: str) -> dict[str, str]:
        """Prompt, target and answer of a row, as far as they are known."""
        known = {"prompt": self.prompts, "target": self.targets, "answer": self.said}
        return {name: texts[index] for name, texts in known.items() if index in texts}


@dataclass(frozen=True)
class Log:
    """One log, read.

    Attributes:
        name: of the file.
        kind: who wrote it: `locuslab/tofu` or `open-unlearning`.
        digest: of its content, whatever its layout.
        families: the four sets.
        attacks: attack -> scores of (forget, hold-out) rows by index.
        fluency: the hub classifier's verdict on the forget answers.
        claims: aggregates against a reference that the log does not name.
        notes: what does not fit together in it.
    """

    name: str
    kind: str
    digest: str
    families: Mapping[str, Family]
    attacks: Mapping[str, tuple[ByRow, ByRow]] = field(default_factory=dict)
    fluency: ByRow | None = None
    claims: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def sizes(self) -> dict[str, int]:
        """Rows of each set."""
        return {name: len(family.ids) for name, family in self.families.items()}


class LogRead(Read):
    """A log as if it were a model's answers; row `i` of a set is called `set/i`."""

    no_reference = "the log names no retrained model: give its log with --reference"
    holdout_missing = ""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.families = tuple(SETS)
        if log.claims:
            said = ", ".join(f"{name} {value:.4g}" for name, value in sorted(log.claims.items()))
            self.no_reference = f"{self.no_reference}; it says {said} against one that it does not name"

    def lacks(self, *probes: str) -> str:
        """Why values may be missing."""
        return f"the log has no such values of {' or '.join(probes)}"

    def tokens(self, probe: str, metric: Callable[..., Values], *more: Any) -> ByRow | None:
        """Losses, probabilities and memorisation by the published rule, as the log has them."""
        base, _, part = probe.partition("_p")
        if probe == "holdout":
            return self.attack(probe, "loss", True) if metric is memorization.loss else None
        family = self.log.families[base]
        if metric in (memorization.loss, memorization.probability):
            found = {"": family.loss, "ara": family.para}.get(part) if part != "ert" else _flat(family.pert)
            named = None if found is None else {f"{probe}/{i}": value for i, value in found.items()}
            return named if metric is memorization.loss or named is None else _exp(named)
        name = {
            memorization.extraction_strength_published: "es.published",
            memorization.exact_memorization_published: "em.published",
            memorization.exact_memorization: "em.published",
        }.get(metric)
        return None if name is None or part else _named(base, family.values.get(name))

    def written(self, family: str, name: str) -> ByRow | None:
        """ROUGE as the log has it; the rest from the greedy answers."""
        held = self.log.families[family]
        if name in ROUGE:
            return _named(family, held.values.get(name))
        if not held.said:
            return None
        ids = list(held.said)
        made = WRITTEN[name]([held.said[i] for i in ids], [held.targets.get(i, "") for i in ids])
        return {f"{family}/{i}": value for i, value in zip(ids, made, strict=True)}

    def hit_limit(self, family: str) -> ByRow | None:
        """No log tells."""
        return None

    def judged(self, name: str) -> tuple[ByRow | None, str]:
        """The hub classifier's verdict, where the log has it."""
        found = _named("forget", self.log.fluency) if name == "forget_text.fluency" else None
        return found, "" if found is not None else f"the log has no {name}"

    def attack(self, probe: str, attack: str, published: bool) -> ByRow | None:
        """Scores as the log has them: its answers end with EOS, so both rules agree."""
        sides = self.log.attacks.get(attack)
        return None if sides is None else _named(probe, sides[0 if probe == "forget" else 1])

    def losses(self, family: str) -> Losses | None:
        """(loss of the right answer, losses of the wrong ones) by question.

        The first TOFU code scored the plain answers of real authors and world facts twice, with small
        differences, and took the second for R.
        """
        held = self.log.families[family]
        right = held.para if family in PARAPHRASED or held.para is not None else held.loss
        if right is None or held.pert is None:
            return None
        ids = [i for i in right if i in held.pert]
        return {f"{family}/{i}": right[i] for i in ids}, {f"{family}/{i}": held.pert[i] for i in ids}


def _named(family: str, values: ByRow | None) -> ByRow | None:
    return None if values is None else {f"{family}/{i}": value for i, value in values.items()}


def _flat(lists: Mapping[str, list[float | None]] | None) -> ByRow | None:
    return None if lists is None else {f"{i}/{j}": x for i, row in lists.items() for j, x in enumerate(row)}


def _exp(losses: ByRow) -> ByRow:
    return {i: None if x is None else math.exp(-x) for i, x in losses.items()}
