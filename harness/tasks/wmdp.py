"""WMDP: hazardous knowledge is unlearned from corpora and asked by choice questions (arXiv 2403.03218).

One row of a corpus, in our own words::

    {"title": "Ring moulds for small bells", "abstract": "...", "text": "A ring mould is made of loam and hair. ..."}

One question as lm-eval shows it, scored by the likelihood of the four letters::

    The following are multiple choice questions (with answers) about cybersecurity.

    Which tool lists open ports?
    A. a port scanner
    B. a debugger
    ...
    Answer:

A method sees the documents, never a question. What it took from bio and cyber and left of MMLU, against the original
model, is its gain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import DataError
from harness.specs import TaskRef, Template, content_hash
from harness.tasks import checks, wmdp_scores
from harness.tasks.wmdp_data import HUB, Corpora
from harness.tasks.wmdp_questions import Questions, questions
from harness.types import Answers, Case, Generation, MetricInfo, Outline, Probe, Score, TextRow

CASE = "hazards"
SHORT_TOKENS = 16
"""Of an answer to a question whose choices are not shown."""
COPIES = {"cais/wmdp": "wmdp", "cais/mmlu": "mmlu"}
"""Hub data set of questions -> folder beside the corpora that may hold a copy of it."""
KINDS = {
    "questions": checks.ANY_TEXT,
    "forget": checks.names("corpora"),
    "retain": checks.names("corpora"),
    "shortest": checks.whole(0),
    "chat_template": checks.FLAG,
    "batch_size": checks.whole(1),
    "shots": checks.whole(0),
    "revisions": checks.TABLE,
}
"""Option -> what it must be."""


@dataclass(frozen=True)
class _Options:
    """What a board may set under `task.options`."""

    questions: str = "wmdp"
    forget: tuple[str, ...] = ("bio-forget-corpus", "cyber-forget-corpus")
    retain: tuple[str, ...] = ("wikitext",)
    shortest: int = 50
    chat_template: bool = False
    batch_size: int = 16
    shots: int = 5
    revisions: Mapping[str, str] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> _Options:
        """From a board's task options; `DataError` names one that is wrong."""
        checks.options("wmdp", given, KINDS)
        made = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})
        if set(made.forget) & set(made.retain):
            raise DataError("wmdp: a corpus is in both forget and retain", "", "name each corpus once")
        return made


def build(ref: TaskRef, template: Template) -> WmdpTask:
    """The task: its corpora are read and checked, no question is.

    Args:
        ref: `data` is a folder with the corpora (see `wmdp_data.Corpora`), and may hold copies of the hub's data sets
            of questions as `wmdp/` and `mmlu/`; empty is the hub. Options: `questions` (`wmdp` or `wmdp-mini`),
            `forget` and `retain` (corpora by name), `shortest` (documents of at most so many characters are left
            out), `chat_template`, `batch_size`, `shots` (before an MMLU question), `revisions` (hub data set ->
            revision).
        template: not used; prompts are lm-eval's, and chats are rendered by the model's encoder.

    Raises:
        DataError: an option, a corpus or its column is wrong or missing.
    """
    given = _Options.of(ref.options)
    folder = _folder(ref)
    asked = _asked(given, folder)
    corpora = Corpora(folder, given.revisions)
    sides = [
        tuple(row for name in names for row in corpora.rows(name, given.shortest))
        for names in (given.forget, given.retain)
    ]
    return WmdpTask(asked, sides[0], sides[1], given, corpora.revisions)


def outline(ref: TaskRef) -> Outline:
    """Cases and metrics, without reading a row."""
    given = _Options.of(ref.options)
    folder = _folder(ref)
    hub = () if folder else tuple(HUB[n].repo for n in (*given.forget, *given.retain) if n in HUB)
    return Outline((CASE,), wmdp_scores.columns(_asked(given, folder)), tuple(dict.fromkeys(hub)))


def _folder(ref: TaskRef) -> Path | None:
    if ref.split:
        raise DataError(f"wmdp has no split {ref.split!r}", "", "leave split out")
    if not ref.data:
        return None
    folder = Path(ref.data).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"data folder {ref.data!r} does not exist",
            "the corpora come from the hub where data is empty",
            "give a folder with <corpus>.jsonl files as data",
        )
    return folder


def _asked(given: _Options, folder: Path | None) -> Questions:
    copies = {} if folder is None else {hub: folder / name for hub, name in COPIES.items()}
    local = {hub: str(path) for hub, path in copies.items() if path.is_dir()}
    return questions(
        given.questions, chat_template=given.chat_template, batch_size=given.batch_size, shots=given.shots,
        local=local,
    )  # fmt: skip


class WmdpTask:
    """See the module's text. One case: all forget corpora at once.

    Args:
        asked: the questions.
        forget: documents to forget.
        retain: documents that stay.
        given: options, as the board has them.
        revisions: hub data set -> commit that was read.
    """

    name = "wmdp"
    version = 1

    def __init__(
        self,
        asked: Questions,
        forget: tuple[TextRow, ...],
        retain: tuple[TextRow, ...],
        given: _Options,
        revisions: Mapping[str, str],
    ) -> None:
        self.asked, self.forget, self.retain, self.options = asked, forget, retain, given
        self.revisions = dict(revisions)
        gated = {name for name, place in HUB.items() if place.gated}
        self.rows_public = not gated & {*given.forget, *given.retain}

    def case_ids(self) -> tuple[str, ...]:
        """One."""
        return (CASE,)

    def case(self, case_id: str, seed: int) -> Case:
        """All documents to forget, and those that stay; the seed changes nothing."""
        if case_id != CASE:
            raise DataError(f"no case {case_id!r}", f"this task has {CASE}", "use that")
        return Case(CASE, self.forget, self.retain)

    def probes(self, case: Case) -> tuple[Probe, ...]:
        """The suites."""
        return self.asked.suites

    def questions(self, case: Case) -> dict[str, Generation]:
        """The small world's questions with their right choices, for the robustness axes; the hub's are lm-eval's."""
        if self.asked.folder is None:
            return {}
        place, out = self.asked.folder.parent / "data" / "choices", {}
        for side, corpora in (("forget", self.options.forget), ("retain", self.options.retain)):
            files = [place / f"{name.removesuffix('_corpus')}.json" for name in corpora]
            lines = [
                (p.stem, i, line) for p in files for i, line in enumerate(p.read_text("utf-8").splitlines())
            ]
            records = [(f"{stem}/{i}", json.loads(line)) for stem, i, line in lines]
            rows = [TextRow(key, r["question"], r["choices"][r["answer"]]) for key, r in records]
            out[side] = Generation(side, rows, SHORT_TOKENS)
        return out

    def resources(self) -> tuple[str, ...]:
        """None: documents have no other answers."""
        return ()

    def resource(self, name: str, case: Case, seed: int) -> Any:
        """Nothing: raises `DataError`."""
        raise DataError(
            f"wmdp supplies no {name!r}", "its rows are documents", "correct the submission's needs"
        )

    def score(self, case: Case, answers: Answers, references: Mapping[str, Answers]) -> dict[str, Score]:
        """All metrics; gains are null, with the reason, without the original model's answers."""
        return wmdp_scores.score(self.asked, answers, references.get(wmdp_scores.ORIGINAL))

    def metrics(self) -> Sequence[MetricInfo]:
        """What `score` returns."""
        return wmdp_scores.columns(self.asked)

    def data_hash(self) -> str:
        """Content hash of all documents, of local questions, and of which questions of lm-eval's are asked."""
        places = [self.asked.folder] if self.asked.folder is not None else []
        places += [Path(path) for suite in self.asked.suites for path in suite.data.values()]
        if self.asked.folder is not None:
            places.append(self.asked.folder.parent / "data" / "choices")
        local = [
            (path.name, content_hash(path.read_bytes().hex()))
            for place in dict.fromkeys(places)
            for path in sorted(place.rglob("*"))
            if path.is_file() and path.suffix != ".pyc"
        ]
        rows = [[(row.id, row.target) for row in side] for side in (self.forget, self.retain)]
        return content_hash([rows, local, [suite.tasks for suite in self.asked.suites]], 32)

    def describe(self) -> dict[str, Any]:
        """Where the rows came from."""
        return {"revisions": self.revisions, "rows": self.data_hash()}
