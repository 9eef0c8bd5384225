"""Rows of MUSE: where they come from, and every check that can be made before a model is loaded.

No message shows a text: Books holds a novel that must stay where it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import DataError
from harness.specs import content_hash
from harness.tasks import checks, sources
from harness.tasks.sources import Record, SplitMissing
from harness.types import TextRow

HUB = {"news": "muse-bench/MUSE-News", "books": "muse-bench/MUSE-Books"}
FOLDS = 4
RETAIN = "retain1"
"""Of the two retain sets, the one that a method may see; questions on what is kept are on the other."""


class Source:
    """Where configs and splits are read: a data set of the hub, or a folder.

    A folder has `<config>_<split>.json` or `<config>/<split>.json` (JSON lines, or one JSON list as MUSE's own download
    script writes; also `.jsonl`), or is a copy of the hub's repository, read through `datasets`.

    Attributes:
        where: hub id or folder.
        folder: the folder; None for the hub.
        revision: of the hub's data set: as asked for, and once rows were read the commit they came from; else empty.
    """

    def __init__(self, where: str, revision: str = "main") -> None:
        self.folder = Path(where) if Path(where).is_dir() else None
        self.where, self.revision = where, "" if self.folder else revision

    def rows(self, config: str, split: str, columns: Sequence[str]) -> list[Record]:
        """Checked records of one split.

        Raises:
            DataError: the split or a column is missing, or a value is no text.
        """
        found = self._read(config, split)
        at = f"{config}/{split} in {self.where}"
        checks.rows(found, at, dict.fromkeys(columns, checks.TEXT), show=False)
        return found

    def _read(self, config: str, split: str) -> list[Record]:
        if self.folder is not None:
            for stem in (f"{config}_{split}", f"{config}/{split}"):
                for path in (self.folder / f"{stem}.json", self.folder / f"{stem}.jsonl"):
                    if path.is_file():
                        return sources.json_rows(path, array=True, column="text")
            if not (self.folder / "README.md").is_file():
                raise self._missing(config, split, self._there(config))
        return self._load(config, split)

    def _load(self, config: str, split: str) -> list[Record]:
        try:
            records, self.revision = sources.hub_rows(self.folder or self.where, config, split, self.revision)
        except SplitMissing as error:
            raise self._missing(config, split, error.known) from None
        return records

    def _there(self, config: str) -> str:
        """Splits of a config that the folder has, in words."""
        assert self.folder is not None
        names = [p.stem for p in self.folder.glob(f"{config}_*.json*")]
        names += [f"{config}/{p.stem}" for p in (self.folder / config).glob("*.json*")]
        return f"the folder has {', '.join(sorted(names)) or f'no file of {config}'}"

    def _missing(self, config: str, split: str, known: str) -> DataError:
        what = f"{config}/{split} of {self.where} cannot be read"
        older = split.replace("retain_", "retain2_", 1)
        if older != split and re.search(rf"\b(?:{config}_)?{older}\b", known):
            return DataError(
                what, f"there is {older}: older revisions of the data set named the split so",
                "set revision in [task.options] to a newer commit, or rename the files",
            )  # fmt: skip
        todo = "give a folder with <config>_<split>.json files as data"
        if self.folder is None:
            todo += ", or go online (unset HF_HUB_OFFLINE)"
        return DataError(what, known, todo)


@dataclass(frozen=True)
class MuseRows:
    """Every row of one corpus, checked.

    Attributes:
        corpus: `news` or `books`.
        requests: case id -> the texts to forget, in order.
        retain: texts that a method may see and that stay.
        asked: probe -> rows: `verbmem`, `knowmem_forget`, `knowmem_retain`, `privleak_forget`, `privleak_holdout`.
    """

    corpus: str
    requests: Mapping[str, tuple[TextRow, ...]]
    retain: tuple[TextRow, ...]
    asked: Mapping[str, tuple[TextRow, ...]]

    def hash(self) -> str:
        """Content hash of all rows."""
        rows = {**self.requests, "retain": self.retain, **self.asked}
        return content_hash(
            {name: [(r.id, r.prompt, r.target) for r in part] for name, part in rows.items()}, 32
        )


def load(
    source: Source,
    corpus: str,
    requests: Sequence[tuple[str, str, str]],
    examples: int = 10,
    blank: bool = True,
) -> MuseRows:
    """Read and check every set.

    Args:
        source: where from.
        corpus: `news` or `books`.
        requests: (case id, config, split) of what is to be forgotten.
        examples: most worked examples before a question.
        blank: whether a question's prompt ends with a blank.

    Raises:
        DataError: a split or column is missing, or sets that must be apart share a text.
    """
    forget = {case: _texts(source, config, split) for case, config, split in requests}
    retain = _texts(source, "raw", RETAIN)
    asked = {
        "verbmem": tuple(
            TextRow(f"verbmem_forget/{i}", r["prompt"], r["gt"], form="text")
            for i, r in enumerate(source.rows("verbmem", "forget", ("prompt", "gt")))
        ),
        "knowmem_forget": _questions(source, "forget", examples, blank),
        "knowmem_retain": _questions(source, "retain", examples, blank),
        "privleak_forget": _texts(source, "privleak", "forget"),
        "privleak_holdout": _texts(source, "privleak", "holdout"),
    }
    for case, rows in forget.items():
        _disjoint(case, rows, f"raw/{RETAIN}", retain)
    _disjoint("privleak/forget", asked["privleak_forget"], "privleak/holdout", asked["privleak_holdout"])
    return MuseRows(corpus, forget, retain, asked)


def knowmem_prompt(examples: Sequence[tuple[str, str]], question: str, blank: bool = True) -> str:
    r"""The prompt of KnowMem, to the byte: worked examples, the question, and (in MUSE) a blank at the end.

    >>> knowmem_prompt([("Who?", "Ada.")], "Where?")
    'Question: Who?\nAnswer: Ada.\n\nQuestion: Where?\nAnswer: '
    """
    shown = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in examples)
    return f"{shown}Question: {question}\nAnswer:" + " " * blank


def _texts(source: Source, config: str, split: str) -> tuple[TextRow, ...]:
    records = source.rows(config, split, ("text",))
    return tuple(TextRow(f"{config}_{split}/{i}", "", r["text"], form="text") for i, r in enumerate(records))


def _questions(source: Source, side: str, most: int, blank: bool) -> tuple[TextRow, ...]:
    split, columns = f"{side}_qa", ("question", "answer")
    records = source.rows("knowmem", split, columns)
    shown = source.rows("knowmem", f"{split}_icl", columns)[:most] if most else []
    examples = [(r["question"], r["answer"]) for r in shown]
    return tuple(
        TextRow(
            f"knowmem_{split}/{i}", knowmem_prompt(examples, r["question"], blank), r["answer"], form="text"
        )
        for i, r in enumerate(records)
    )


def _disjoint(name: str, rows: Sequence[TextRow], other: str, others: Sequence[TextRow]) -> None:
    """Refuse sets that were mixed up: more than a tenth in common. A stray article may be printed twice."""
    known = {row.target for row in others}
    shared = [row.id for row in rows if row.target in known]
    if 10 * len(shared) > len(rows):
        raise DataError(
            f"{name} and {other} share {len(shared)} texts, such as {shared[0]}",
            f"at most a tenth of the {len(rows)} may be in both",
            "take both from one download",
        )
