"""RWKU: forget one famous person at a time, known from pre-training (arXiv 2406.10890).

One question of each level, in our own words::

    {"query": "Mirela Vonk was born in ___.", "answer": "Tarnholm", "level": "1", "subject": "Mirela Vonk", ...}
    {"query": "In which town was Mirela Vonk born?", "answer": "Tarnholm", "level": "2", ...}
    {"query": "You are her mother. Where was Mirela Vonk born?", "level": "3", "type": "role playing", ...}

A case is a target. A model answers in at most 30 tokens: fill-in (FB), plain (QA) and adversarial questions (AA) on the
target, the first two on its neighbours. There is no retrained model: gain compares with the original one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import DataError, near
from harness.specs import TaskRef, Template, content_hash
from harness.tasks import checks, rwku_columns, rwku_read, rwku_scores, rwku_utility, sources
from harness.tasks.rwku_data import PROBES, TEXTS, RwkuRows, Target
from harness.tasks.rwku_prompts import kind_of
from harness.tasks.rwku_resources import Resources
from harness.tasks.sources import Source, SplitMissing
from harness.types import (
    Answers,
    Case,
    Generation,
    Likelihood,
    MetricInfo,
    Outline,
    Probe,
    Score,
    Suite,
    TextRow,
)

OPTIONS = {
    **dict.fromkeys(("corpus", "forget", "prompts", "refusal", "revision"), checks.ANY_TEXT),
    **dict.fromkeys(("mmlu", "utility"), checks.TABLE),
    "targets": checks.either(checks.whole(1), checks.names("names")),
}
"""Option -> what it must be."""
MAX_TOKENS, FLUENCY_TOKENS = 30, 256
SHOTS = 5
CHOICES = {"prompts": ("official", "plain"), "forget": ("positive", "pair")}
"""Options that are one of a few words, the default first."""


def build(ref: TaskRef, template: Template) -> RwkuTask:
    """The task over a number of targets.

    Args:
        ref: `data` is a folder in the hub's shape or a hub id; default `jinzhuoran/RWKU`. Options: `targets` (how many,
            or their names; default all), `corpus` (whose training texts: `llama3`, `phi3`), `forget` and `prompts` (see
            `rwku_data.RwkuRows`), `mmlu` and `utility` (tables of lm-eval settings, see
            `rwku_utility.suite`; left out, nothing is asked), `refusal` (prompts that are refused), `revision`.
        template: not used; a prompt is rendered by the model's encoder.

    Raises:
        DataError: an option, file or column is wrong or missing.
    """
    suites = _check(ref)
    source = _source(ref)
    given = ref.options
    rows = RwkuRows(
        source,
        given.get("targets"),
        given.get("corpus", "llama3"),
        prompts=given.get("prompts", "official"),
        forget=given.get("forget", "positive"),
    )
    return RwkuTask(rows, Resources(rows, given.get("refusal")), suites)


def outline(ref: TaskRef) -> Outline:
    """Metrics, without reading a row. Cases are named after targets, which only local data can tell."""
    _check(ref)
    source = _source(ref)
    if source.folder is None:
        return Outline((), rwku_columns.METRICS, (source.where,))
    return Outline(build(ref, Template()).case_ids(), rwku_columns.METRICS)


def _check(ref: TaskRef) -> tuple[Suite, ...]:
    checks.options("rwku", ref.options, OPTIONS)
    if ref.split:
        raise DataError(
            f"rwku has no splits, and {ref.split!r} is asked", "", "choose people by the option targets"
        )
    for option, words in CHOICES.items():
        given = ref.options.get(option, words[0])
        if given not in words:
            raise DataError(f"rwku's option {option} is {given!r}", near(str(given), words), "")
    asked = (
        rwku_utility.suite(rwku_utility.MMLU, ref.options.get("mmlu"), ("mmlu",), SHOTS),
        rwku_utility.suite(rwku_utility.UTILITY, ref.options.get("utility"), rwku_utility.TASKS, None),
    )
    return tuple(suite for suite in asked if suite is not None)


def _source(ref: TaskRef) -> Source:
    folder = sources.folder_of(ref.data, f"a folder with the files of {rwku_read.HUB}, or a hub id,")
    if folder is None:
        return rwku_read.Hub(ref.data or rwku_read.HUB, ref.options.get("revision", "main"))
    return sources.Folder(folder, rwku_read.files, rwku_read.HUB, array=True)


class RwkuTask:
    """See the module's text. A case is a target.

    Args:
        rows: all rows.
        supplies: what methods can ask for.
        suites: what is asked through lm-eval.
    """

    name = "rwku"
    version = 1
    rows_public = True
    keeps_weights = False
    """A board has up to 200 cases: the weights of each are deleted once they are scored, unless they are asked for."""

    def __init__(self, rows: RwkuRows, supplies: Resources, suites: Sequence[Suite] = ()) -> None:
        self.rows, self.suites = rows, tuple(suites)
        self._supplies = supplies
        self._targets = {target.id: target for target in rows.targets}
        self._hash = ""

    @property
    def revision(self) -> str:
        """Of the hub's data set: as asked for, and once a file was read the commit."""
        return self.rows.source.revision

    def case_ids(self) -> tuple[str, ...]:
        """One for each target, in the order of the data."""
        return tuple(self._targets)

    def case(self, case_id: str, seed: int) -> Case:
        """Texts on the target, and texts on others; the seed changes nothing."""
        name = self._target(case_id).name
        return Case(case_id, self.rows.forget(name), self.rows.retain(name))

    def _target(self, case_id: str) -> Target:
        if case_id not in self._targets:
            raise DataError(f"no case {case_id!r}", near(case_id, self._targets), "take one of these targets")
        return self._targets[case_id]

    def probes(self, case: Case) -> tuple[Probe, ...]:
        """Short answers, likelihoods of texts, long answers for fluency, and lm-eval's questions."""
        rows = self._rows(case)
        asked: list[Probe] = [Generation(name, rows[name], MAX_TOKENS) for name in PROBES]
        asked += [Likelihood(name, rows[name]) for name in TEXTS if rows[name]]
        if rows["fluency"]:
            asked.append(Generation("fluency", rows["fluency"], FLUENCY_TOKENS))
        return (*asked, *self.suites)

    def _rows(self, case: Case) -> dict[str, tuple[TextRow, ...]]:
        name = self._target(case.id).name
        found = {probe: by_name[name] for probe, by_name in self.rows.probes.items()}
        found |= {config: self._optional(lambda c=config: self.rows.texts(c), name) for config in TEXTS}
        return found | {"fluency": self._optional(lambda: self.rows.instructions, name)}

    @staticmethod
    def _optional(read: Any, name: str) -> tuple[TextRow, ...]:
        """Rows of a file that local data may lack."""
        try:
            return read().get(name, ())
        except SplitMissing:
            return ()

    def questions(self, case: Case) -> dict[str, Generation]:
        """Plain questions on the target and on its neighbours, for the robustness axes."""
        rows, sides = self._rows(case), {"forget": "forget_qa", "retain": "neighbor_qa"}
        return {side: Generation(probe, rows[probe], MAX_TOKENS) for side, probe in sides.items()}

    def paraphrases(self, case: Case) -> dict[str, list[TextRow]]:
        """Adversarial questions that only say it otherwise: in synonyms, and in another language."""
        kinds = {"paraphrase": "synonym_manipulation", "translated": "cross_lingual"}
        rows = self._rows(case)["forget_aa"]
        return {kind: [r for r in rows if kind_of(r.meta["type"]) == type_] for kind, type_ in kinds.items()}

    def resources(self) -> tuple[str, ...]:
        """What `resource` can give for these rows."""
        return self._supplies.names()

    def resource(self, name: str, case: Case, seed: int) -> Any:
        """What a method asks for.

        `alternative_answers` are made-up texts on the target, in the order of the forget rows. `refusals` are
        questions on it with a refusal each, `idk_answers` the different refusals, `subjects` its name,
        `refusal_prompts` requests that a model refuses anyway.
        """
        return self._supplies.get(name, self._target(case.id))

    def score(self, case: Case, answers: Answers, references: Mapping[str, Answers]) -> dict[str, Score]:
        """All metrics; gain is null, with the reason, without the original model's answers."""
        return rwku_scores.score(self._rows(case), answers, references.get("original"))

    def metrics(self) -> Sequence[MetricInfo]:
        """What `score` returns."""
        return rwku_columns.METRICS

    def data_hash(self) -> str:
        """Content hash of all rows of the chosen targets."""
        self._hash = self._hash or content_hash([self.rows.hash(), rwku_utility.files_hash(self.suites)], 32)
        return self._hash

    def describe(self) -> dict[str, Any]:
        """Where the rows came from, for the run record."""
        return {"source": self.rows.source.where, "revision": self.revision, "rows": self.data_hash()}
