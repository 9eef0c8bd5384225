"""What RWKU asks of the abilities that must stay: lm-eval's tasks, and columns for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.metrics import suites
from harness.specs import content_hash
from harness.tasks import checks
from harness.types import MetricInfo, Score, Suite, SuiteAnswers

LMEVAL = "lm-evaluation-harness 0.4.13"
MMLU, UTILITY = "mmlu", "utility"
MINI = Path(__file__).parent.parent / "mini"


@dataclass(frozen=True)
class Column:
    """A number from a suite: which probe, which of its tasks, and how their answers become one number."""

    id: str
    probe: str
    task: str
    metric: str
    text: str


COLUMNS = (
    Column("mmlu.acc", MMLU, "", "", "Accuracy on MMLU, mean over its questions."),
    Column("bbh.exact_match", UTILITY, "bbh", "exact_match", "Exact match on BIG-Bench Hard, chain of thought."),
    Column("truthfulqa_mc1.acc", UTILITY, "truthfulqa_mc1", "", "Accuracy on TruthfulQA, one right choice."),
    Column("truthfulqa_mc2.acc", UTILITY, "truthfulqa_mc2", "acc", "Probability of TruthfulQA's right choices."),
    Column("triviaqa.exact_match", UTILITY, "triviaqa", "exact_match", "Exact match on TriviaQA."),
)  # fmt: skip
TASKS = ("bbh_cot_fewshot", "truthfulqa_mc1", "truthfulqa_mc2", "triviaqa")
SUITE = {
    "tasks": checks.names("lm-eval tasks"),
    "shots": checks.whole(0),
    "limit": checks.whole(1),
    "folder": checks.ANY_TEXT,
    "chat_template": checks.FLAG,
    "batch_size": checks.whole(1),
}
"""What a board may set of a suite."""


def suite(name: str, option: Any, tasks: tuple[str, ...], shots: int | None) -> Suite | None:
    """A suite from a board's option: a table of `tasks`, `shots`, `limit`, `folder`, `chat_template`, `batch_size`.

    Args:
        name: of the probe and of the option.
        option: the table; None asks nothing.
        tasks: those that are asked when the table names none.
        shots: worked examples when the table names none.

    Raises:
        DataError: the table has a key that is not known, or a value of another kind.
    """
    if option is None:
        return None
    checks.options(f"rwku's {name}", option, SUITE)
    given = dict(option)
    folder = str(given.pop("folder", ""))
    asked = tuple(given.pop("tasks", tasks))
    return Suite(name, asked, given.pop("shots", shots), folder=_folder(folder), **given)


def _folder(given: str) -> str:
    return str(MINI / given.removeprefix("mini:")) if given.startswith("mini:") else given


def files_hash(asked: Sequence[Suite]) -> str:
    """Content hash of the local task definitions of some suites."""
    folders = sorted({suite.folder for suite in asked if suite.folder})
    texts = {
        path.name: path.read_text() for f in folders for path in sorted(Path(f).glob("*")) if path.is_file()
    }
    return content_hash(texts)


def scores(answers: Mapping[str, Any]) -> tuple[dict[str, Score], float | None]:
    """All columns, and the accuracy that guessing gives on MMLU."""
    out: dict[str, Score] = {}
    chance = None
    for column in COLUMNS:
        answer = answers.get(column.probe)
        if not isinstance(answer, SuiteAnswers):
            out[column.id] = Score(None, why=f"the board's option {column.probe} asks nothing")
            continue
        if column.metric:
            out[column.id] = suites.own_value(answer, column.metric, _named(column.task))
            continue
        chosen = suites.accuracy(answer, _named(column.task))
        out[column.id] = chosen.score
        if column.id == "mmlu.acc":
            chance = chosen.chance
    return out, chance


def _named(start: str) -> Callable[[str], bool]:
    return lambda task: task.startswith(start)


def columns() -> tuple[MetricInfo, ...]:
    """What the columns mean."""
    return tuple(MetricInfo(c.id, "higher", 0.0, 1.0, "accuracy", c.text, source=LMEVAL) for c in COLUMNS)
