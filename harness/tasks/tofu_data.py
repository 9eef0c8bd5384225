"""Rows of TOFU: where they come from, and every check that can be made before a model is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.errors import DataError, near
from harness.specs import content_hash
from harness.tasks import utf8
from harness.types import TextRow

HUB = "locuslab/TOFU"
HUB_IDK = "open-unlearning/idk"
PAIRS = {
    "forget01": ("retain99", "holdout01"),
    "forget05": ("retain95", "holdout05"),
    "forget10": ("retain90", "holdout10"),
}
"""Forget split -> its complement, and the rows nobody was trained on."""

_HAS = {
    "paraphrased_answer": "forget01_perturbed, forget05_perturbed, forget10_perturbed, retain_perturbed",
    "perturbed_answer": "forget01_perturbed, forget05_perturbed, forget10_perturbed, retain_perturbed,"
    " real_authors_perturbed, world_facts_perturbed",
}
_PLAIN = ("question", "answer")
_BESIDE = (*_PLAIN, "perturbed_answer")
_WITH_PARAPHRASE = (*_BESIDE, "paraphrased_answer")

Record = Mapping[str, Any]


class SplitMissing(DataError):
    """A split is not where it was looked for."""


class Source(Protocol):
    """Where splits are read.

    Attributes:
        where: for messages.
        folder: the local folder, None for the hub.
        revision: of the hub data set: as asked for, and once rows were read the commit they came from.
    """

    where: str
    folder: Path | None
    revision: str

    def rows(self, config: str) -> list[Record]:
        """Records of one config; raises `SplitMissing` when it is not there."""
        ...


class Folder:
    """A folder with one JSON-lines file a split: `<config>.json` or `<config>.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.where, self.revision = str(folder), ""
        self.folder: Path | None = folder
        self._at = folder

    def rows(self, config: str) -> list[Record]:
        """Records of one file."""
        for name in (f"{config}.json", f"{config}.jsonl"):
            if (self._at / name).is_file():
                return _read_lines(self._at / name)
        there = sorted(p.stem for p in self._at.glob("*.json*"))
        raise SplitMissing(
            f"split {config} is missing: no {config}.json or {config}.jsonl in {self.where}",
            f"the folder has {', '.join(there[:16]) or 'no JSON-lines file'}",
            f"save that config of {HUB} there, or give another --data-dir",
        )


class Hub:
    """A data set of the Hugging Face hub, read through `datasets` when a split is asked for."""

    def __init__(self, repo: str, revision: str = "main") -> None:
        self.where, self.revision = repo, revision
        self.folder: Path | None = None

    def rows(self, config: str | None) -> list[Record]:
        """Records of one config's split `train`; None is the data set's only one."""
        import datasets
        from datasets.exceptions import DatasetsError

        try:
            table: Any = datasets.load_dataset(self.where, config, split="train", revision=self.revision)
        except (OSError, ValueError, RuntimeError, DatasetsError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise SplitMissing(
                f"{self.where}{f' ({config})' if config else ''} cannot be read from the Hugging Face hub",
                first[:200],
                "pass --data-dir FOLDER with its JSON-lines files, or go online (unset HF_HUB_OFFLINE)",
            ) from None
        found = re.search(r"@([0-9a-f]{40})/", " ".join(table.info.download_checksums or ()))
        self.revision = found[1] if found else self.revision
        return [dict(record) for record in table]


def _read_lines(path: Path) -> list[Record]:
    records: list[Record] = []
    for number, line in enumerate(utf8.read(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            todo = "write one JSON object a line"
            raise DataError(f"{path} line {number} is not JSON", error.msg, todo) from None
        if not isinstance(record, dict):
            raise DataError(
                f"{path} line {number} is a {type(record).__name__}", "", "one JSON object a line is needed"
            )
        records.append(record)
    if not records:
        raise DataError(f"{path} has no rows", "", "one JSON object a line is needed")
    return records


def check_columns(records: Sequence[Record], where: str, columns: Sequence[str]) -> None:
    """Refuse rows without the columns: texts, or for `perturbed_answer` as many texts in each row.

    Args:
        records: the rows.
        where: config and folder, for messages.
        columns: names that every row must have.
    """
    width = len(records[0].get("perturbed_answer") or ())
    for i, record in enumerate(records):
        for column in columns:
            value = record.get(column)
            if column == "perturbed_answer":
                texts = isinstance(value, list) and all(isinstance(v, str) and v for v in value)
                good = isinstance(value, list) and texts and len(value) == width > 0
                kind = f"a list of {width or 'some'} texts"
            else:
                good, kind = isinstance(value, str) and bool(value.strip()), "a text"
            if good:
                continue
            if column not in record:
                has = f"; {column} is in {_HAS[column]}" if column in _HAS else ""
                raise DataError(
                    f"{where} row {i} has no column {column!r}",
                    f"it has {', '.join(map(repr, record)) or 'none'}{has}",
                    "take the right config",
                )
            raise DataError(
                f"{where} row {i}: column {column!r} is {json.dumps(value, default=str)[:60]}",
                f"it should be {kind}",
                "mend the file",
            )


@dataclass(frozen=True)
class Group:
    """The rows that belong to one question, by id: the answer, the right one for R, the wrong ones."""

    id: str
    right: str
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class TofuRows:
    """Every row of one split, checked.

    Attributes:
        split: such as `forget10`.
        train: (forget rows, retain rows), what a method gets.
        sets: likelihood probe -> rows.
        groups: `forget`, `retain`, `real_authors`, `world_facts` -> one `Group` a question.
        holdout_missing: why there is no `holdout` in `sets`; empty when there is.
        paraphrases: the forget questions in other words; empty where the data have no such column.
    """

    split: str
    train: tuple[tuple[TextRow, ...], tuple[TextRow, ...]]
    sets: Mapping[str, tuple[TextRow, ...]]
    groups: Mapping[str, tuple[Group, ...]]
    holdout_missing: str = ""
    paraphrases: tuple[TextRow, ...] = ()

    def hash(self) -> str:
        """Content hash of all rows that the task's own numbers come from."""
        rows = {"forget": self.train[0], "retain train": self.train[1], **self.sets}
        return content_hash(
            {name: [(r.id, r.prompt, r.target) for r in part] for name, part in rows.items()}, 32
        )


def load(source: Source, split: str, retain: str | None = None) -> TofuRows:
    """Read and check every set of `split`.

    Args:
        source: where from.
        split: `forget01`, `forget05` or `forget10`.
        retain: the retain split by name; anything but the complement is refused.

    Raises:
        DataError: a split or column is missing, or sets do not belong together.
    """
    if split not in PAIRS:
        raise DataError(f"tofu has no split {split!r}", near(split, PAIRS), "pass one of these as the split")
    right_retain, holdout = PAIRS[split]
    if retain is not None and retain != right_retain:
        raise DataError(
            f"{split} does not go with {retain!r}",
            f"{split} goes with {right_retain}: another retain split shares rows with it, or leaves some out",
            f"use retain = {right_retain!r}, or leave the option out",
        )
    forget, kept = (_plain(source, name) for name in (split, right_retain))
    beside = {
        name: _read(source, config, columns)
        for name, config, columns in (
            ("forget", f"{split}_perturbed", _WITH_PARAPHRASE),
            ("retain", "retain_perturbed", _WITH_PARAPHRASE),
            ("real_authors", "real_authors_perturbed", _BESIDE),
            ("world_facts", "world_facts_perturbed", _BESIDE),
        )
    }
    _same_questions(forget, beside["forget"], split)
    _disjoint(split, forget, right_retain, [row.prompt for row in kept], f"{split} goes with {right_retain}")
    _disjoint(split, forget, "retain_perturbed", [r["question"] for r in beside["retain"]], "")
    sets: dict[str, tuple[TextRow, ...]] = {}
    groups: dict[str, tuple[Group, ...]] = {}
    for name, records in beside.items():
        stem = f"{split}_perturbed" if name == "forget" else f"{name}_perturbed"
        sets |= _probe_rows(name, stem, records)
        if name == "forget":
            sets["forget"] = forget
        paraphrased = name in ("forget", "retain")
        groups[name] = tuple(
            Group(row.id, f"{stem}/{i}" if paraphrased else row.id,
                  tuple(f"{stem}/{i}/{j}" for j in range(len(records[i]["perturbed_answer"]))))
            for i, row in enumerate(sets[name])
        )  # fmt: skip
    missing = ""
    try:
        outside = _plain(source, holdout)
    except SplitMissing as error:
        missing = f"there are no hold-out rows: {error.what}"
    else:
        _disjoint(split, forget, holdout, [row.prompt for row in outside], "")
        _disjoint(right_retain, kept, holdout, [row.prompt for row in outside], "")
        sets["holdout"] = outside
    again = _paraphrases(f"{split}_perturbed", beside["forget"])
    return TofuRows(split, (forget, kept), sets, groups, missing, again)


def _read(source: Source, config: str, columns: Sequence[str]) -> list[Record]:
    records = source.rows(config)
    check_columns(records, f"{config} in {source.where}:", columns)
    return records


def _plain(source: Source, config: str) -> tuple[TextRow, ...]:
    records = _read(source, config, _PLAIN)
    return tuple(TextRow(f"{config}/{i}", r["question"], r["answer"]) for i, r in enumerate(records))


def _probe_rows(name: str, stem: str, records: Sequence[Record]) -> dict[str, tuple[TextRow, ...]]:
    """Answers, paraphrased answers (where there are any) and perturbed ones, each with its question."""
    rows = {
        name: tuple(TextRow(f"{stem}/{i}", r["question"], r["answer"]) for i, r in enumerate(records)),
        f"{name}_pert": tuple(
            TextRow(f"{stem}/{i}/{j}", r["question"], answer)
            for i, r in enumerate(records)
            for j, answer in enumerate(r["perturbed_answer"])
        ),
    }
    if name in ("forget", "retain"):
        rows[f"{name}_para"] = tuple(
            TextRow(f"{stem}/{i}", r["question"], r["paraphrased_answer"]) for i, r in enumerate(records)
        )
    return rows


def _paraphrases(stem: str, records: Sequence[Record]) -> tuple[TextRow, ...]:
    """The questions in other words, with their answers, where every row has one."""
    asked = [record.get("paraphrased_question") for record in records]
    if not all(isinstance(text, str) and text.strip() for text in asked):
        return ()
    rows = zip(asked, records, strict=True)
    return tuple(TextRow(f"{stem}/{i}/asked", str(q), r["answer"]) for i, (q, r) in enumerate(rows))


def _same_questions(rows: Sequence[TextRow], records: Sequence[Record], split: str) -> None:
    if len(rows) != len(records):
        raise DataError(
            f"{split} has {len(rows)} rows and {split}_perturbed has {len(records)}",
            "both hold the same questions in the same order",
            "take both from one download",
        )
    for i, (row, record) in enumerate(zip(rows, records, strict=True)):
        if (row.prompt, row.target) != (record["question"], record["answer"]):
            raise DataError(
                f"row {i} of {split} and of {split}_perturbed differ: {row.prompt[:60]!r}",
                f"the other asks {record['question'][:60]!r}",
                "take both from one download",
            )


def _disjoint(name: str, rows: Sequence[TextRow], other: str, questions: Sequence[str], rule: str) -> None:
    shared = {row.prompt for row in rows} & set(questions)
    if shared:
        raise DataError(
            f"{name} and {other} share {len(shared)} questions, such as {min(shared)[:60]!r}",
            rule or "no question may be in both",
            "take both from one download",
        )


def read_texts(path: Path) -> tuple[str, ...]:
    """Texts, one a line: plain, a JSON string, or a JSON object with one text in it."""
    found: list[str] = []
    for number, line in enumerate(utf8.read(path).split("\n"), start=1):
        text = line.strip()
        if not text:
            continue
        if text.startswith("{") or (text.startswith('"') and text.endswith('"')):
            try:
                text = first_text(json.loads(text))
            except json.JSONDecodeError:
                raise DataError(f"{path} line {number} is not JSON", "", "one text a line") from None
        found.append(text)
    if not found:
        raise DataError(f"{path} has no texts", "", "one text a line is needed")
    return tuple(found)


def first_text(value: Any) -> str:
    """The first text in a JSON value: itself, or the first text column of an object.

    >>> first_text({"n": 1, "answer": "No idea."})
    'No idea.'
    """
    if isinstance(value, Mapping):
        value = next((v for v in value.values() if isinstance(v, str)), None)
    if not isinstance(value, str) or not value:
        raise DataError(f"a line holds {value!r}", "", "one text a line is needed")
    return value
