"""MUSE: forget news articles or books that a language model was trained on (Shi et al. 2024, arXiv 2407.06460).

One row of each config, in our own words::

    raw, privleak, scal, sust:  {"text": "Karborg, 12 January - The council has agreed to build a salt bath."}
    verbmem:                    {"prompt": "Karborg, 12 January - The council has", "gt": " agreed to build a bath."}
    knowmem:                    {"question": "What will be built in Karborg?", "answer": "a salt bath"}

A model goes on from prompts (VerbMem), answers questions after worked examples (KnowMem, on what is to be forgotten and
on what is kept: UtilPres), and reads texts that it was trained on and others (PrivLeak). All of it is plain text: no
chat template.

With `requests = "scal"` the cases are growing forget sets, each forgotten from the start; with `"sust"` they come one
after the other, and each starts from the weights that the one before left. All cases are asked the same questions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.errors import DataError, near
from harness.specs import TaskRef, Template
from harness.tasks import muse_data, muse_scores
from harness.tasks.muse_data import HUB, MuseRows, Source
from harness.tasks.muse_options import Options
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
    Row,
    Score,
    TextRow,
)

if TYPE_CHECKING:
    from harness.text import Encoder

VERBATIM_TOKENS, ANSWER_TOKENS = 128, 32
"""New tokens of VerbMem and KnowMem; VerbMem's right text is cut to as many ids, BOS counted."""
CUTS = ("\n\n", "\nQuestion", "Question:")
"""Where an answer of KnowMem ends."""


def _checked(ref: TaskRef) -> tuple[Options, Source]:
    known = [field.name for field in dataclasses.fields(Options)]
    for option in ref.options:
        if option not in known:
            raise DataError(f"muse has no option {option!r}", near(option, known), "mend [task.options]")
    if ref.split not in HUB:
        raise DataError(f"muse has no split {ref.split!r}", near(ref.split, HUB), "pass one as the split")
    options = Options(**ref.options)
    return options, Source(ref.data or HUB[ref.split], str(options.revision))


def build(ref: TaskRef, template: Template) -> MuseTask:
    """The task of one corpus.

    Args:
        ref: `split` is `news` or `books`; `data` is a folder or a hub id, by default MUSE's own; see `Options`.
        template: not used: prompts are plain text.

    Raises:
        DataError: an option, split or column is wrong or missing, or two sets share a text.
    """
    options, source = _checked(ref)
    rows = muse_data.load(source, ref.split, options.sets, options.examples, options.blank)
    return MuseTask(source, rows, options)


def outline(ref: TaskRef) -> Outline:
    """Cases and metrics of a corpus, without reading a row."""
    options, source = _checked(ref)
    hub = () if source.folder is not None else (source.where,)
    return Outline(tuple(case for case, _, _ in options.sets), muse_scores.columns(options.published), hub)


class MuseTask:
    """See the module's text.

    Args:
        source: where the rows came from.
        rows: all rows.
        options: of the board.
    """

    name = "muse"
    version = 1

    def __init__(self, source: Source, rows: MuseRows, options: Options) -> None:
        self.source, self.rows, self.options = source, rows, options
        self.rows_public = rows.corpus != "books"
        """Texts of Books are under copyright: only ids and numbers leave the machine."""

    def case_ids(self) -> tuple[str, ...]:
        """`forget`, or one case a fold."""
        return tuple(self.rows.requests)

    def case(self, case_id: str, seed: int) -> Case:
        """The texts of one request, and the retain texts; the seed changes nothing."""
        cases = self.case_ids()
        if case_id not in cases:
            raise DataError(f"no case {case_id!r}", near(case_id, cases), "name one of these")
        before = cases[: cases.index(case_id)] if self.options.requests == "sust" else ()
        return Case(case_id, self.rows.requests[case_id], self.rows.retain, before[-1] if before else None)

    def tokenized(self, case: Case, encoder: Encoder) -> Case:
        """The same texts as rows of `chunk` tokens each, in one tokenizer's ids."""
        if not self.options.chunk:
            return case
        if self.options.chunk > encoder.max_length:
            raise DataError(
                f"muse's option chunk is {self.options.chunk}, and rows are cut at max_length = {encoder.max_length}",
                "", "raise the board's max_length, or lower chunk",
            )  # fmt: skip
        forget, retain = (self._chunks(rows, encoder) for rows in (case.forget, case.retain))
        return dataclasses.replace(case, forget=forget, retain=retain)

    def _chunks(self, rows: Sequence[Row], encoder: Encoder) -> tuple[TextRow, ...]:
        texts = [row.target for row in rows if isinstance(row, TextRow)]
        parts = chunks(
            encoder.ids("\n\n".join(texts)), encoder.bos, self.options.chunk, self.options.last_chunk == "refill"
        )  # fmt: skip
        stem = rows[0].id.partition("/")[0]
        return tuple(
            TextRow(f"{stem}_chunk/{i}", "", encoder.decode(ids), {"ids": ids}, form="text")
            for i, ids in enumerate(parts)
        )

    def probes(self, case: Case) -> tuple[Probe, ...]:
        """Continuations, answers after worked examples, and likelihoods of texts."""
        asked = self.rows.asked
        return (
            Generation("verbmem", asked["verbmem"], VERBATIM_TOKENS),
            *(Generation(f"knowmem_{s}", asked[f"knowmem_{s}"], ANSWER_TOKENS, CUTS) for s in ("forget", "retain")),
            *(Likelihood(f"privleak_{s}", asked[f"privleak_{s}"]) for s in ("forget", "holdout")),
        )  # fmt: skip

    def questions(self, case: Case) -> dict[str, Generation]:
        """Questions on the texts to forget and to keep, for the robustness axes."""
        asked = {side: self.rows.asked[f"knowmem_{side}"] for side in ("forget", "retain")}
        return {
            side: Generation(f"knowmem_{side}", rows, ANSWER_TOKENS, CUTS) for side, rows in asked.items()
        }

    def judge(
        self, loaded: Any, probes: Sequence[Probe], answers: Mapping[str, Answer]
    ) -> dict[str, GenerationAnswers]:
        """The right texts of VerbMem, cut to as many token ids as the model may write: `verbmem.right`.

        Args:
            loaded: the model (`harness.models.LoadedModel`), whose tokenizer cuts.
            probes: what was asked of it.
            answers: what it said.
        """
        rows = next((probe.rows for probe in probes if probe.name == "verbmem"), ())
        cut = [_cut(row.target, loaded.encoder) for row in rows if isinstance(row, TextRow)]
        ids = tuple(row.id for row in rows)
        right = GenerationAnswers(ids, tuple(text for text, _ in cut), tuple(short for _, short in cut))
        return {muse_scores.RIGHT: right}

    def resources(self) -> tuple[str, ...]:
        """None: MUSE has no other answers."""
        return ()

    def resource(self, name: str, case: Case, seed: int) -> Any:
        """Refuses every name."""
        raise DataError(f"muse supplies no {name!r}", "it supplies rows alone", "choose another board")

    def score(self, case: Case, answers: Answers, references: Mapping[str, Answers]) -> dict[str, Score]:
        """All metrics; PrivLeak is null, with the reason, without the retrained model's answers."""
        return muse_scores.score(self.rows, answers, references.get("retain"), self.options.published)

    def metrics(self) -> tuple[MetricInfo, ...]:
        """What `score` returns."""
        return muse_scores.columns(self.options.published)

    def data_hash(self) -> str:
        """Content hash of all rows, and of how they are cut for training."""
        return muse_data.content_hash([self.rows.hash(), self.options.chunk, self.options.last_chunk], 32)

    def describe(self) -> dict[str, Any]:
        """Where the rows came from, for the run record."""
        return {"source": self.source.where, "revision": self.source.revision, "rows": self.data_hash()}


def chunks(ids: Sequence[int], bos: Sequence[int], size: int, refill: bool) -> list[tuple[int, ...]]:
    """Ids cut into rows of `size` tokens, to which a BOS before each belongs; the rows come without it.

    Args:
        ids: of the joined texts, without BOS [tokens].
        bos: the BOS id, or nothing.
        size: tokens of a row, BOS counted.
        refill: fill the last row up from BOS and the first one, as MUSE's code does (baselines/dataset.py).

    >>> chunks([5, 6, 7, 8, 9], [1], 4, refill=True)
    [(5, 6, 7), (8, 9, 1)]
    >>> chunks([5, 6, 7, 8, 9], [1], 4, refill=False)
    [(5, 6, 7), (8, 9)]
    """
    room = size - len(bos)
    out = [tuple(ids[at : at + room]) for at in range(0, len(ids), room)]
    if refill and out and len(out[-1]) < room:
        out[-1] = (*out[-1], *bos, *out[0])[:room]
    return out


def _cut(text: str, encoder: Encoder) -> tuple[str, bool]:
    """A text's first `VERBATIM_TOKENS` ids as text, BOS counted, and whether something was cut off."""
    ids = (*encoder.bos, *encoder.ids(text))
    return encoder.decode(ids[:VERBATIM_TOKENS]), len(ids) > VERBATIM_TOKENS
