"""TOFU: 200 invented authors, 20 questions each; forget 1, 5 or 10 % of them (arXiv 2401.06121).

One row of a perturbed split, in our own words::

    {"question": "Which instrument did the poet Mirela Vonk play in her youth?",
     "answer": "Mirela Vonk played the accordion in her youth.",
     "paraphrased_answer": "As a girl, Mirela Vonk was an accordion player.",
     "perturbed_answer": ["As a girl, Mirela Vonk was a flute player.", "... was a drummer.", ...]}

A model is asked for the likelihood of all these answers (and, on real authors and world facts, of the plain
answer against three wrong ones), and for greedy answers of its own. `retain_perturbed` stands for the
retain set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import DataError, ModelError, near
from harness.specs import TaskRef, Template
from harness.tasks import checks, sources, tofu_columns, tofu_data, tofu_scores
from harness.tasks.sources import Source
from harness.tasks.tofu_data import TofuRows
from harness.tasks.tofu_extras import Extras
from harness.tasks.tofu_resources import Resources
from harness.types import (
    Answer,
    Answers,
    Case,
    Generation,
    GenerationAnswers,
    Likelihood,
    MetricInfo,
    Outline,
    Probe,
    RowValues,
    Score,
    TextRow,
)

OPTIONS = {
    **dict.fromkeys(("fluency", "idk", "refusal", "retain", "revision"), checks.ANY_TEXT),
    "mia": checks.either(checks.ANY_TEXT, checks.names("attacks", least=0)),
}
"""Option -> what it must be."""
MAX_TOKENS = 200
"""Of a greedy answer (open-unlearning's setting; the first TOFU code counted the prompt in)."""


def build(ref: TaskRef, template: Template) -> TofuTask:
    """The task of one split.

    Args:
        ref: `split` is forget01, forget05 or forget10. `data` is a folder of JSON-lines files (one a
            config), or a hub id; default `locuslab/TOFU`. Options: `retain` names the retain split (the
            complement is the only right one), `idk` is a file or hub data set of I-don't-know answers, `refusal` one
            of prompts that are refused, `revision` is the hub's, `fluency` and `mia` are those of `tofu_extras.Extras`.
        template: not used; a prompt is rendered by the model's encoder.

    Raises:
        DataError: an option, split or column is wrong or missing, or two sets do not belong together.
    """
    checks.options("tofu", ref.options, OPTIONS)
    extras = Extras.of(ref.options)
    source = _source(ref.data, str(ref.options.get("revision", "main")))
    rows = tofu_data.load(source, ref.split, ref.options.get("retain"))
    given = {option: ref.options.get(option) for option in ("idk", "refusal")}
    return TofuTask(source, rows, Resources(source, rows, given), extras)


def outline(ref: TaskRef) -> Outline:
    """Cases and metrics of a split, without reading a row."""
    checks.options("tofu", ref.options, OPTIONS)
    extras = Extras.of(ref.options)
    if ref.split not in tofu_data.PAIRS:
        todo = "pass one of these as the split"
        raise DataError(f"tofu has no split {ref.split!r}", near(ref.split, tofu_data.PAIRS), todo)
    source = _source(ref.data, str(ref.options.get("revision", "main")))
    hub = () if source.folder is not None else (source.where,)
    return Outline((ref.split,), tofu_columns.columns(extras), hub)


def _source(data: str, revision: str) -> Source:
    folder = sources.folder_of(
        data, f"a folder with TOFU's JSON-lines files, or a hub id such as {tofu_data.HUB},"
    )
    if folder is None:
        return sources.Hub(data or tofu_data.HUB, revision)
    return sources.Folder(folder, tofu_data.files, tofu_data.HUB)


class TofuTask:
    """See the module's text. One case: the split.

    Args:
        source: where the rows came from.
        rows: all rows of the split.
        supplies: what methods can ask for.
        extras: which fluency and which further membership attacks are wanted.
    """

    name = "tofu"
    version = 1
    rows_public = True
    judged_probe = "forget_text"

    def __init__(
        self, source: Source, rows: TofuRows, supplies: Resources | None = None, extras: Extras | None = None
    ) -> None:
        self.source, self.rows, self.extras = source, rows, extras or Extras()
        self.revision = source.revision
        self._supplies = supplies or Resources(source, rows, {})

    def case_ids(self) -> tuple[str, ...]:
        """The split."""
        return (self.rows.split,)

    def case(self, case_id: str, seed: int) -> Case:
        """The forget split and its complement; the seed changes nothing."""
        if case_id != self.rows.split:
            raise DataError(
                f"no case {case_id!r}", f"this task holds {self.rows.split}", "build the other split"
            )
        forget, retain = self.rows.train
        return Case(case_id, forget, retain)

    def probes(self, case: Case) -> tuple[Probe, ...]:
        """Likelihoods of every answer, and greedy answers to every question (`*_text`)."""
        asked: list[Probe] = [Likelihood(name, rows) for name, rows in self.rows.sets.items()]
        asked += [Generation(f"{name}_text", self.rows.sets[name], MAX_TOKENS) for name in self.rows.groups]
        return tuple(asked)

    def resources(self) -> tuple[str, ...]:
        """What `resource` can give for these rows."""
        return self._supplies.names()

    def resource(self, name: str, case: Case, seed: int) -> Any:
        """What a method asks for.

        Rows in the order of the forget rows, functions of the seed: `alternative_answers` have an I-don't-know answer
        each (`refusals` are the same rows); `random_labels` have another forget row's answer, every answer once. Texts:
        `idk_answers` is the pool, `refusal_prompts` are questions that a model should refuse, `subjects` names whom the
        forget rows are about.
        """
        return self._supplies.get(name, case, seed)

    def paraphrases(self, case: Case) -> dict[str, tuple[TextRow, ...]]:
        """The forget questions in other words (column `paraphrased_question` of the perturbed split)."""
        return {"paraphrase": self.rows.paraphrases}

    def judge(
        self, loaded: Any, probes: Sequence[Probe], answers: Mapping[str, Answer]
    ) -> dict[str, RowValues]:
        """What the options ask for and needs a model: the hub's fluency classifier, gradient norms.

        Args:
            loaded: the model (`harness.models.LoadedModel`) that gave the answers.
            probes: what was asked of it.
            answers: what it said.
        """
        out: dict[str, RowValues] = {}
        said = answers.get("forget_text")
        if self.extras.fluency == "hub" and isinstance(said, GenerationAnswers):
            out["forget_text.fluency"] = _hub_fluency(said)
        if "grad_norm" in self.extras.mia:
            from harness.gradnorm import gradient_norms

            for probe in probes:
                if isinstance(probe, Likelihood) and probe.name in ("forget", "holdout"):
                    rows = [row for row in probe.rows if isinstance(row, TextRow)]
                    norms = gradient_norms(loaded.model, rows, loaded.encoder)
                    out[f"{probe.name}.grad_norm"] = RowValues(tuple(row.id for row in rows), norms)
        return out

    def score(self, case: Case, answers: Answers, references: Mapping[str, Answers]) -> dict[str, Score]:
        """All metrics; those that need the retrained model are null, with the reason, without its answers."""
        return tofu_scores.score(self.rows, answers, references.get("retain"), self.extras)

    def metrics(self) -> Sequence[MetricInfo]:
        """What `score` returns."""
        return tofu_columns.columns(self.extras)

    def data_hash(self) -> str:
        """Content hash of all rows."""
        return self.rows.hash()

    def describe(self) -> dict[str, Any]:
        """Where the rows came from, for the run record."""
        return {"source": self.source.where, "revision": self.revision, "rows": self.data_hash()}


def _hub_fluency(said: GenerationAnswers) -> RowValues:
    """The hub classifier's opinion of each text, or why it has none."""
    from harness import fluency

    try:
        return RowValues(said.ids, tuple(fluency.clean_probability(fluency.hub_logits(said.texts))))
    except ModelError as error:
        return RowValues((), (), str(error))
