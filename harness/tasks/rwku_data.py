"""Rows of RWKU by target: prompts as the benchmark words them, and every check that needs no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from harness.errors import DataError, near
from harness.specs import content_hash
from harness.tasks import checks, rwku_read
from harness.tasks.checks import ANY_TEXT, TEXT, Kind
from harness.tasks.rwku_prompts import case_id, prompt_of
from harness.tasks.sources import Record, Source, SplitMissing
from harness.types import TextRow

PROBES = {
    "forget_fb": ("forget_level1", "1"),
    "forget_qa": ("forget_level2", "2"),
    "forget_aa": ("forget_level3", "3"),
    "neighbor_fb": ("neighbor_level1", "1"),
    "neighbor_qa": ("neighbor_level2", "2"),
}
"""Probe -> the config that holds its questions, and the level that they must have."""
TEXTS = ("mia_forget", "mia_retain")
"""Texts whose likelihood is asked: of the forget set and of the retain set, both seen in pre-training."""
RETAIN_ROWS = 4
"""Retain rows a forget row."""

Prompts = Literal["official", "plain"]
Forget = Literal["positive", "pair"]
_COLUMNS = {"query": TEXT, "answer": TEXT, "subject": TEXT}
_TWO = Kind(
    "two texts",
    lambda value: isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value),
)


@dataclass(frozen=True)
class Target:
    """Somebody to forget; `id` names the case."""

    id: str
    name: str


class RwkuRows:
    """Every row, read when it is first needed; probes and targets are checked at once.

    Args:
        source: where from.
        targets: how many of the targets are cases, in the order of the data, or their names; None is all.
        corpus: whose training texts: `llama3`, `phi3`, or what a folder's files are called.
        prompts: `official`, or the question alone for models that follow no instruction.
        forget: what is unlearned: `positive` texts on a target as they stand, or the same as answers to a request for a
            biography (`pair`).

    Raises:
        DataError: a file or column is missing, or a target has no questions.
    """

    def __init__(
        self,
        source: Source,
        targets: int | Sequence[str] | None = None,
        corpus: str = "llama3",
        *,
        prompts: Prompts = "official",
        forget: Forget = "positive",
    ) -> None:
        self.source, self.corpus, self.prompts, self.kind = source, corpus, prompts, forget
        self._texts: dict[str, dict[str, tuple[TextRow, ...]]] = {}
        records = source.rows("forget_target")
        checks.rows(records, self._at("forget_target"), {"target": TEXT})
        self.everyone = tuple(
            Target(case_id(i, r["target"]), r["target"]) for i, r in enumerate(records, start=1)
        )
        self.targets = _chosen(self.everyone, targets)
        self.probes = {name: self._probe(name) for name in PROBES}
        for name, rows in self.probes.items():
            empty = [t.name for t in self.targets if t.name not in rows]
            if empty:
                raise DataError(
                    f"{self._at(PROBES[name][0])} has no question for the target {empty[0]!r}",
                    f"{len(empty)} of {len(self.targets)} targets have none",
                    "take all files from one download, or choose fewer targets",
                )

    def _at(self, config: str) -> str:
        return f"{config} ({rwku_read.file_of(config)}) in {self.source.where}"

    def _probe(self, name: str) -> dict[str, tuple[TextRow, ...]]:
        config, level = PROBES[name]
        records = self.source.rows(config)
        typed = level == "3" and self.prompts == "official"
        checks.rows(records, self._at(config), {**_COLUMNS, **({"type": TEXT} if typed else {})})
        out: dict[str, list[TextRow]] = {}
        for i, record in enumerate(records):
            if str(record.get("level", level)) != level:
                raise DataError(
                    f"{self._at(config)} row {i} is of level {record['level']!r}",
                    f"{config} holds level {level}",
                    "take the right file",
                )
            prompt, lead = prompt_of(record, level) if self.prompts == "official" else (record["query"], "")
            meta = {"type": record.get("type") or "", "neighbor": record.get("neighbor") or ""}
            row = TextRow(f"{config}/{i}", prompt, record["answer"], meta, lead=lead)
            out.setdefault(record["subject"], []).append(row)
        return {subject: tuple(rows) for subject, rows in out.items()}

    def texts(self, config: str) -> dict[str, tuple[TextRow, ...]]:
        """Documents of a config with a column `text`, by subject; raises `SplitMissing` where there is no such file."""
        if config not in self._texts:
            records = self.source.rows(config)
            checks.rows(records, self._at(config), {"text": TEXT, "subject": TEXT})
            self._texts[config] = _by_subject(
                (r["subject"], TextRow(f"{config}/{i}", "", r["text"], form="text"))
                for i, r in enumerate(records)
            )
        return self._texts[config]

    @cached_property
    def _pairs(self) -> tuple[Record, ...]:
        """Requests for a biography with two answers: a made-up one, and the true one."""
        config = f"train_pair_{self.corpus}"
        records = self.source.rows(config)
        checks.rows(records, self._at(config), {"prompt": TEXT, "response": _TWO, "subject": TEXT})
        return tuple(records)

    @cached_property
    def made_up(self) -> dict[str, str]:
        """True text -> the made-up one beside it."""
        return {r["response"][1]: r["response"][0] for r in self._pairs}

    @cached_property
    def trained(self) -> dict[str, tuple[TextRow, ...]]:
        """What is known of somebody, by subject: the rows that a method unlearns or keeps."""
        if self.kind == "positive":
            return self.texts(f"train_positive_{self.corpus}")
        config = f"train_pair_{self.corpus}"
        return _by_subject(
            (r["subject"], TextRow(f"{config}/{i}", r["prompt"], r["response"][1]))
            for i, r in enumerate(self._pairs)
        )

    @cached_property
    def refusals(self) -> dict[str, tuple[TextRow, ...]]:
        """Questions on somebody with a refusal each, by subject; a model wrote them, and blank ones are left out."""
        config = f"train_refusal_{self.corpus}"
        records = self.source.rows(config)
        columns = {"instruction": ANY_TEXT, "output": TEXT, "subject": TEXT}
        checks.rows(records, self._at(config), columns)
        return _by_subject(
            (r["subject"], TextRow(f"{config}/{i}", _asked(r), r["output"]))
            for i, r in enumerate(records)
            if _asked(r)
        )

    @cached_property
    def instructions(self) -> dict[str, tuple[TextRow, ...]]:
        """What fluency is judged on, by subject."""
        records = self.source.rows("utility_fluency")
        checks.rows(records, self._at("utility_fluency"), {"instruction": TEXT, "subject": TEXT})
        form = "Instruction: {}\n" if self.prompts == "official" else "{}"
        return _by_subject(
            (r["subject"], TextRow(f"utility_fluency/{i}", form.format(r["instruction"]), ""))
            for i, r in enumerate(records)
        )

    def neighbours(self, name: str) -> tuple[TextRow, ...]:
        """The neighbour questions of a target."""
        return (*self.probes["neighbor_fb"][name], *self.probes["neighbor_qa"][name])

    def retain(self, name: str) -> tuple[TextRow, ...]:
        """Texts on other targets, `RETAIN_ROWS` as many as on this one, as evenly dealt as there are.

        Somebody whom a neighbour question of this target names is left out: those questions are for knowledge that
        nobody was told to keep. RWKU itself has no retain rows.
        """
        asked = "\n".join(
            f"{row.prompt}\n{row.target}\n{row.meta['neighbor']}" for row in self.neighbours(name)
        )
        others = [t.name for t in self.everyone if t.name != name and t.name not in asked]
        texts = [self.trained[other] for other in others if other in self.trained]
        longest = max(map(len, texts), default=0)
        dealt = [part[k] for k in range(longest) for part in texts if k < len(part)]
        return tuple(dealt[: RETAIN_ROWS * len(self.forget(name))])

    def forget(self, name: str) -> tuple[TextRow, ...]:
        """Texts on a target."""
        if name not in self.trained:
            raise DataError(
                f"{self._at(f'train_{self.kind}_{self.corpus}')} has no text on the target {name!r}",
                near(name, self.trained),
                "take all files from one download",
            )
        return self.trained[name]

    def hash(self) -> str:
        """Content hash of the chosen targets' probes, texts and training rows."""
        parts: dict[str, Any] = {"prompts": self.prompts}
        found: dict[str, Mapping[str, Sequence[TextRow]]] = dict(self.probes)
        for name, read in (
            *((config, lambda c=config: self.texts(c)) for config in TEXTS),
            ("fluency", lambda: self.instructions),
            ("refusals", lambda: self.refusals),
        ):
            try:
                found[name] = read()
            except SplitMissing:
                parts[name] = None
        for target in self.targets:
            rows = {name: by.get(target.name, ()) for name, by in found.items()}
            rows |= {"forget": self.forget(target.name), "retain": self.retain(target.name)}
            parts[target.name] = {
                name: [(r.id, r.prompt, r.target, r.lead) for r in part] for name, part in rows.items()
            }
        return content_hash(parts, 32)


def _chosen(everyone: Sequence[Target], targets: int | Sequence[str] | None) -> tuple[Target, ...]:
    if targets is None:
        return tuple(everyone)
    if isinstance(targets, int):
        if not 1 <= targets <= len(everyone):
            raise DataError(
                f"rwku's option targets is {targets}", f"there are {len(everyone)} targets", "write 1 or more of them"
            )  # fmt: skip
        return tuple(everyone[:targets])
    by_name = {t.name: t for t in everyone} | {t.id: t for t in everyone}
    unknown = [name for name in targets if name not in by_name]
    if unknown or not targets:
        raise DataError(
            f"rwku has no target {unknown[0]!r}" if unknown else "rwku's option targets names nobody",
            near(unknown[0], by_name) if unknown else "",
            "name targets as the data does, or give their number",
        )
    return tuple(by_name[name] for name in targets)


def _by_subject(rows: Iterable[tuple[str, TextRow]]) -> dict[str, tuple[TextRow, ...]]:
    out: dict[str, list[TextRow]] = {}
    for subject, row in rows:
        out.setdefault(subject, []).append(row)
    return {subject: tuple(found) for subject, found in out.items()}


def _asked(record: Record) -> str:
    """A question of the refusal corpus; `input`, where there is one, is its second line."""
    return "\n".join(
        part.strip() for part in (record["instruction"], record.get("input") or "") if part.strip()
    )
