"""A model answers once: probes in, answers out, and answers as Parquet files.

All likelihood probes of a case share one pass: identical rows are scored once, whichever probe asks for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.types import (
    Answer,
    Answers,
    ClassAnswers,
    Classify,
    Generation,
    GenerationAnswers,
    Generator,
    Likelihood,
    LikelihoodAnswers,
    Probe,
    RowValues,
    TextRow,
    TokenScores,
    Trajectory,
)

GENERATORS = tuple(f"generate/{name}.py" for name in ("hf", "openai", "stops", "vllm"))
FIELDS = ("logp", "hit", "is_eos", "mean_logp", "var_logp")


def answer(loaded: Any, probes: Sequence[Probe], generator: Generator | None) -> dict[str, Answer]:
    """Ask `loaded` (a `harness.models.LoadedModel`) every probe."""
    from harness import scoring

    out: dict[str, Answer] = {}
    asked = [p for p in probes if isinstance(p, Likelihood)]
    rows = [row for probe in asked for row in probe.rows]
    scores = scoring.score(loaded.model, rows, loaded.encoder)
    at = 0
    for probe in asked:
        out[probe.name] = LikelihoodAnswers(
            tuple(r.id for r in probe.rows), cut(scores, at, at + len(probe.rows))
        )
        at += len(probe.rows)
    for probe in probes:
        if isinstance(probe, Classify):
            logits = scoring.classify(loaded.model, probe.rows)
            out[probe.name] = ClassAnswers(tuple(r.id for r in probe.rows), logits)
    out |= generate(loaded.encoder, [p for p in probes if isinstance(p, Generation)], generator)
    return {probe.name: out[probe.name] for probe in probes}


def generate(encoder: Any, probes: Sequence[Generation], generator: Generator | None) -> dict[str, Answer]:
    """Texts alone: `encoder` (a `harness.text.Encoder`) makes the prompts' ids, and the generator goes on."""
    out: dict[str, Answer] = {}
    for limits in sorted({(p.max_tokens, p.stop) for p in probes}):
        group = [p for p in probes if (p.max_tokens, p.stop) == limits]
        ids = {row: encoder.prompt(row) for p in group for row in map(_question, p.rows)}
        distinct = sorted(set(ids.values()))
        if generator is None:
            raise ValueError("generation probes need a generator")
        texts = dict(
            zip(distinct, generator.generate(distinct, max_tokens=limits[0], stop=limits[1]), strict=True)
        )
        for probe in group:
            found = [texts[ids[_question(row)]] for row in probe.rows]
            names = tuple(row.id for row in probe.rows)
            out[probe.name] = GenerationAnswers(names, tuple(t for t, _ in found), tuple(c for _, c in found))
    return out


class _Prompt(str):
    """A prompt as a hashable stand-in for its row."""

    @property
    def prompt(self) -> str:
        return str(self)


def _question(row: TextRow) -> Any:
    return _Prompt(row.prompt)


def cut(scores: TokenScores, a: int, b: int) -> TokenScores:
    """Rows a..b."""
    lo, hi = int(scores.offsets[a]), int(scores.offsets[b])
    columns = [getattr(scores, name)[lo:hi] for name in FIELDS]
    return TokenScores(*columns, scores.offsets[a : b + 1] - scores.offsets[a])


def write(answers: Mapping[str, Answer], folder: Path) -> None:
    """One Parquet file a probe, named after it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, answer in answers.items():
        pq.write_table(_table(answer), folder / f"{name}.parquet", compression="zstd")


def read(folder: Path) -> dict[str, Answer]:
    """What `write` wrote; equal to the last bit."""
    return {path.stem: _answer(pq.read_table(path)) for path in sorted(folder.glob("*.parquet"))}


def _lists(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def _table(answer: Answer) -> pa.Table:
    ids = pa.array(answer.ids, pa.string())
    if isinstance(answer, LikelihoodAnswers):
        columns = {name: _lists(getattr(answer.scores, name), answer.scores.offsets) for name in FIELDS}
        return pa.table({"id": ids, **columns}, metadata={"kind": "likelihood"})
    if isinstance(answer, GenerationAnswers):
        return pa.table(
            {
                "id": ids,
                "text": pa.array(answer.texts, pa.string()),
                "hit_limit": pa.array(answer.hit_limit, pa.bool_()),
            },
            metadata={"kind": "generation"},
        )
    if isinstance(answer, RowValues):
        values = pa.array(answer.values, pa.float64())
        return pa.table({"id": ids, "value": values}, metadata={"kind": "values", "why": answer.why})
    flat = np.ascontiguousarray(answer.logits, dtype=np.float32)
    width = flat.shape[1] if flat.ndim == 2 else 0
    logits = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), width) if width else pa.nulls(0)
    return pa.table({"id": ids, "logits": logits}, metadata={"kind": "classes"})


def _answer(table: pa.Table) -> Answer:
    kind = (table.schema.metadata or {}).get(b"kind", b"").decode()
    ids = tuple(table["id"].to_pylist())
    if kind == "likelihood":
        first = table["logp"].combine_chunks()
        offsets = np.asarray(first.offsets, dtype=np.int64) if len(first) else np.zeros(1, dtype=np.int64)
        columns = [
            np.asarray(table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False))
            for name in FIELDS
        ]
        return LikelihoodAnswers(ids, TokenScores(*columns, offsets - offsets[0]))
    if kind == "generation":
        return GenerationAnswers(ids, tuple(table["text"].to_pylist()), tuple(table["hit_limit"].to_pylist()))
    if kind == "values":
        why = (table.schema.metadata or {}).get(b"why", b"").decode()
        return RowValues(ids, tuple(table["value"].to_pylist()), why)
    column = table["logits"].combine_chunks()
    width = column.type.list_size if pa.types.is_fixed_size_list(column.type) else 0
    flat = column.flatten().to_numpy() if width else np.zeros(0, dtype=np.float32)
    return ClassAnswers(ids, flat.reshape(len(ids), width))


def trajectory(checks: Sequence[Mapping[str, float]]) -> Trajectory | None:
    """The checks of a run as arrays; None when nothing was checked."""
    if not checks:
        return None
    names = [k for k in checks[0] if k not in ("updates", "charged_s")]
    column = {k: np.array([c[k] for c in checks], dtype=np.float64) for k in ("updates", "charged_s", *names)}
    return Trajectory(column["updates"], column["charged_s"], {k: column[k] for k in names})


def code_version() -> str:
    """Hash of the source files that decide what an answer is: part of every cache key."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for name in (
        "answers.py", "scoring.py", "exact.py", "text.py", *GENERATORS, "modadd.py", "fluency.py", "gradnorm.py",
    ):  # fmt: skip
        digest.update((here / name).read_bytes())
    return digest.hexdigest()[:16]


def answers_of(folder: Path) -> Answers:
    """Answers of a stage folder: `answers/*.parquet`, with the checks of `unlearn.json` where there are any."""
    note = folder / "unlearn.json"
    checks = json.loads(note.read_text()).get("checks", []) if note.exists() else []
    return Answers(read(folder / "answers"), trajectory(checks))
