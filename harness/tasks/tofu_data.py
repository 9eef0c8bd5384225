"""Rows of TOFU: where they come from, and every check that can be made before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import DataError, near
from harness.specs import content_hash
from harness.tasks import checks
from harness.tasks.checks import Kind
from harness.tasks.sources import Record, Source, SplitMissing
from harness.types import TextRow

HUB = "locuslab/TOFU"
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


def files(config: str) -> tuple[str, ...]:
    """What the file of a config may be called in a folder."""
    return f"{config}.json", f"{config}.jsonl"


def _check(records: Sequence[Record], where: str, columns: Sequence[str]) -> None:
    """Refuse rows without the columns: texts, or for `perturbed_answer` as many texts in each row."""
    width = len(records[0].get("perturbed_answer") or ()) if records else 0
    texts = Kind(f"a list of {width or 'some'} texts", lambda value: _are_texts(value, width))
    kinds = {name: texts if name == "perturbed_answer" else checks.TEXT for name in columns}
    told = {name: f"{name} is in {has}" for name, has in _HAS.items()}
    checks.rows(records, where, {n: replace(k, elsewhere=told.get(n, "")) for n, k in kinds.items()})


def _are_texts(value: Any, width: int) -> bool:
    return (
        isinstance(value, list) and len(value) == width > 0 and all(isinstance(v, str) and v for v in value)
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


def _read(source: Source, config: str, columns: Sequence[str]) -> Sequence[Record]:
    records = source.rows(config)
    _check(records, f"{config} in {source.where}", columns)
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
