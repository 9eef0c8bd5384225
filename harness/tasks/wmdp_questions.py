"""What WMDP asks: choice questions by lm-eval, on what is to be forgotten and on what must stay, and their columns.

`wmdp` is lm-eval's own tasks: WMDP without worked examples, MMLU with five. `wmdp-mini` is the small world's twin in
lm-eval's YAML (`harness/mini/lmeval`): dyes stand for biology, bells for computer security, guilds, countries and
classic authors for MMLU; each is asked with letters and, under ids of its own, by the choices' texts; and a control on
dyes that nobody has heard of stays at chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import DataError, near
from harness.types import Suite

LMEVAL = "EleutherAI/lm-evaluation-harness 0.4.13"
MINI = Path(__file__).parent.parent / "mini" / "lmeval"
LETTERS = "abcd"
SHOTS = 5
"""Worked examples before an MMLU question."""


@dataclass(frozen=True)
class Asked:
    """One set of questions: where its answers are, and what its metrics are called.

    Attributes:
        name: first part of the metric ids.
        variant: last part, such as `continuation`; empty for the lettered form.
        probe: the suite that asks it.
        tasks: lm-eval tasks, by their whole names, or by their beginnings where they end in `*`.
        text: the questions in words, such as `questions on dyes`.
    """

    name: str
    variant: str
    probe: str
    tasks: tuple[str, ...]
    text: str

    def holds(self, task: str) -> bool:
        """Whether an lm-eval task is one of this set's."""
        return any(task == name or (name[-1] == "*" and task.startswith(name[:-1])) for name in self.tasks)

    def id(self, metric: str) -> str:
        """A metric's id: `wmdp_bio.acc`, `wmdp_bio.acc.continuation`."""
        return f"{self.name}.{metric}" + (f".{self.variant}" if self.variant else "")


@dataclass(frozen=True)
class Questions:
    """All sets of one kind of board, the suites that ask them, and the folder of local definitions, if any."""

    suites: tuple[Suite, ...]
    sets: tuple[Asked, ...]
    folder: Path | None = None

    @property
    def variants(self) -> tuple[str, ...]:
        """Forms of the questions, the lettered one (an empty text) first."""
        return tuple(dict.fromkeys(asked.variant for asked in self.sets))

    def of(self, name: str, variant: str) -> Asked:
        """The set `name` in one form."""
        return next(asked for asked in self.sets if (asked.name, asked.variant) == (name, variant))


_TOPICS = {"bio": "biology", "cyber": "computer security", "chem": "chemistry"}
_MINI_TOPICS = {
    "wmdp_bio": (("wmdp_mini_dyeing",), "dyes"),
    "wmdp_cyber": (("wmdp_mini_bells",), "bells"),
    "mmlu": (
        ("mmlu_mini_guilds", "mmlu_mini_world", "mmlu_mini_authors"),
        "guilds, countries and classic authors",
    ),
    "control": (("wmdp_mini_unseen",), "dyes that no text names"),
}


def _full(chat_template: bool, batch_size: int, shots: int, local: Mapping[str, str]) -> Questions:
    asked = [
        Asked(f"wmdp_{topic}", "", "wmdp", (f"wmdp_{topic}",), f"questions on {text}")
        for topic, text in _TOPICS.items()
    ]
    common = {"chat_template": chat_template, "batch_size": batch_size, "data": dict(local)}
    suites = (
        Suite("wmdp", tuple(name for one in asked for name in one.tasks), **common),
        Suite("mmlu", ("mmlu",), shots=shots, **common),
    )
    return Questions(suites, (*asked, Asked("mmlu", "", "mmlu", ("mmlu_*",), "questions of MMLU")))


def _mini(batch_size: int) -> Questions:
    sets = []
    for variant in ("", "continuation"):
        end = f"_{variant}" if variant else ""
        sets += [
            Asked(name, variant, "questions", tuple(task + end for task in tasks), f"questions on {text}")
            for name, (tasks, text) in _MINI_TOPICS.items()
        ]
    tasks = tuple(task for asked in sets for task in asked.tasks)
    suite = Suite("questions", tasks, chat_template=True, batch_size=batch_size, folder=str(MINI))
    return Questions((suite,), tuple(sets), MINI)


KINDS = ("wmdp", "wmdp-mini")


def questions(
    kind: str, *, chat_template: bool = False, batch_size: int = 16, shots: int = SHOTS, local: Mapping[str, str] = {}
) -> Questions:  # fmt: skip
    """The questions of one kind of board.

    Args:
        kind: `wmdp` or `wmdp-mini`.
        chat_template: of `wmdp`: whether questions are turns of a chat (the mini ones always are).
        batch_size: questions that go through the model at once.
        shots: of `wmdp`: worked examples before an MMLU question.
        local: of `wmdp`: hub data set -> folder with a copy of it.
    """
    if kind not in KINDS:
        raise DataError(f"wmdp has no questions {kind!r}", near(kind, KINDS), "mend [task.options]")
    return _mini(batch_size) if kind == "wmdp-mini" else _full(chat_template, batch_size, shots, local)
