"""One model's answers to TOFU's questions, as values by row id: what all of its numbers are made of.

Another source of the same values, such as an evaluation log, is a subclass that overrides the lookups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from harness.fluency import own_fluency
from harness.metrics import memorization, privacy, text
from harness.metrics.memorization import Values
from harness.tasks.tofu_data import TofuRows
from harness.types import Answers, GenerationAnswers, LikelihoodAnswers, RowValues

ByRow = dict[str, float | None]
Losses = tuple[ByRow, dict[str, list[float | None]]]

PARAPHRASED = ("forget", "retain")
ATTACKS = ("loss", "zlib", "min_k", "min_k_pp")
TRIMMED = ("min_k", "min_k_pp")
"""Attacks that leave the end of the answer out, and so have a published variant."""
WRITTEN: dict[str, Callable[[list[str], list[str]], Values]] = {
    "rougeL_recall": lambda said, right: text.rouge(said, right),
    "rougeL_f1": lambda said, right: text.rouge(said, right, part="f1"),
    "rouge1_recall": lambda said, right: text.rouge(said, right, kind="rouge1"),
    "match": lambda said, right: text.match(said, right),
    "empty": lambda said, right: text.empty(said),
    "own_fluency": lambda said, right: [own_fluency(x) for x in said],
}
"""Metrics of what was written beside what is right."""


class Read:
    """Answers by row id. What was not asked gives None, and `lacks` says so in words.

    Args:
        rows: the task's rows.
        answers: of one model.
    """

    no_reference = "no answers of a retrained model: run `uharness reference BOARD`, which makes them"
    """Why metrics that need the retrained model are null without it."""

    def __init__(self, rows: TofuRows, answers: Answers) -> None:
        self.rows, self.answers = rows, answers
        self.families: tuple[str, ...] = tuple(rows.groups)
        self.holdout_missing = rows.holdout_missing
        self.targets = {name: {row.id: row.target for row in part} for name, part in rows.sets.items()}

    def lacks(self, *probes: str) -> str:
        """Why values of one of these probes may be missing."""
        return f"probe {' or '.join(probes)} was not asked"

    def tokens(self, probe: str, metric: Callable[..., Values], *more: Any) -> ByRow | None:
        """A metric of token scores over the rows of a likelihood probe."""
        answer = self.answers.probes.get(probe)
        if not isinstance(answer, LikelihoodAnswers):
            return None
        return dict(zip(answer.ids, metric(answer.scores, *more), strict=True))

    def written(self, family: str, name: str) -> ByRow | None:
        """One of `WRITTEN` over the rows of a family's greedy answers."""
        answer = self.answers.probes.get(f"{family}_text")
        if not isinstance(answer, GenerationAnswers):
            return None
        right = [self.targets[family][i] for i in answer.ids]
        return dict(zip(answer.ids, WRITTEN[name](list(answer.texts), right), strict=True))

    def hit_limit(self, family: str) -> ByRow | None:
        """Whether each greedy answer was cut at the token limit."""
        answer = self.answers.probes.get(f"{family}_text")
        if not isinstance(answer, GenerationAnswers):
            return None
        return {i: float(cut) for i, cut in zip(answer.ids, answer.hit_limit, strict=True)}

    def judged(self, name: str) -> tuple[ByRow | None, str]:
        """What the task's own judge said of rows, or None and why."""
        answer = self.answers.probes.get(name)
        if not isinstance(answer, RowValues):
            return None, f"{name} was not asked for"
        return (None, answer.why) if answer.why else (dict(zip(answer.ids, answer.values, strict=True)), "")

    def attack(self, probe: str, attack: str, published: bool) -> ByRow | None:
        """Membership scores of the rows of `forget` or `holdout`: the higher, the less like a member."""
        if attack == "loss":
            return self.tokens(probe, privacy.loss)
        if attack in TRIMMED:
            metric: Callable[..., Values] = getattr(privacy, attack)
            return self.tokens(probe, metric, privacy.K, published)
        answer = self.answers.probes.get(probe)
        ids = answer.ids if isinstance(answer, LikelihoodAnswers) else ()
        return self.tokens(probe, privacy.zlib, [self.targets[probe][i] for i in ids])

    def losses(self, family: str) -> Losses | None:
        """(loss of the right answer, losses of the wrong ones) by question, of questions asked in full."""
        right = self.tokens(f"{family}_para" if family in PARAPHRASED else family, memorization.loss)
        wrong = self.tokens(f"{family}_pert", memorization.loss)
        if right is None or wrong is None:
            return None
        asked = [g for g in self.rows.groups[family] if g.right in right and all(w in wrong for w in g.wrong)]
        return {g.id: right[g.right] for g in asked}, {g.id: [wrong[w] for w in g.wrong] for g in asked}

    def ratios(self, family: str, mean: Literal["geometric", "arithmetic"] = "geometric") -> ByRow | None:
        """R by question; see `memorization.truth_ratio`."""
        found = self.losses(family)
        if found is None:
            return None
        right, wrong = found
        values = memorization.truth_ratio(list(right.values()), list(wrong.values()), mean)
        return dict(zip(right, values, strict=True))
