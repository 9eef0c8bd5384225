"""A model answers once: probes in, answers out, and answers as Parquet files.

All likelihood probes of a case share one pass: identical rows are scored once, whichever probe asks for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.text import prompt_key
from harness.types import (
    Answer,
    Answers,
    ClassAnswers,
    Classify,
    FeatureAnswers,
    Features,
    Generation,
    GenerationAnswers,
    Generator,
    Likelihood,
    LikelihoodAnswers,
    Probe,
    RowValues,
    Suite,
    SuiteAnswers,
    SuiteTask,
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
        elif isinstance(probe, Features):
            out[probe.name] = FeatureAnswers(
                tuple(r.id for r in probe.rows), *scoring.features(loaded.model, probe.rows)
            )
        elif isinstance(probe, Suite):
            from harness import lmeval

            out[probe.name] = lmeval.ask(loaded, probe)
    out |= generate(loaded.encoder, [p for p in probes if isinstance(p, Generation)], generator)
    return {probe.name: out[probe.name] for probe in probes}


def generate(encoder: Any, probes: Sequence[Generation], generator: Generator | None) -> dict[str, Answer]:
    """Texts alone: `encoder` (a `harness.text.Encoder`) makes the prompts' ids, and the generator goes on."""
    out: dict[str, Answer] = {}
    for limits in sorted({(p.max_tokens, p.stop) for p in probes}):
        group = [p for p in probes if (p.max_tokens, p.stop) == limits]
        ids = {prompt_key(row): encoder.prompt(row) for p in group for row in p.rows}
        distinct = sorted(set(ids.values()))
        if generator is None:
            raise ValueError("generation probes need a generator")
        texts = dict(
            zip(distinct, generator.generate(distinct, max_tokens=limits[0], stop=limits[1]), strict=True)
        )
        for probe in group:
            found = [texts[ids[prompt_key(row)]] for row in probe.rows]
            names = tuple(row.id for row in probe.rows)
            out[probe.name] = GenerationAnswers(names, tuple(t for t, _ in found), tuple(c for _, c in found))
    return out


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
    if isinstance(answer, SuiteAnswers):
        return _suite_table(answer, ids)
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
    columns = {"id": ids, "logits": _matrix(answer.logits)}
    if isinstance(answer, FeatureAnswers):
        columns["features"] = _matrix(answer.features)
    return pa.table(columns, metadata={"kind": "classes"})


def _matrix(values: np.ndarray) -> pa.Array:
    flat = np.ascontiguousarray(values, dtype=np.float32)
    width = flat.shape[1] if flat.ndim == 2 else 0
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), width) if width else pa.nulls(0)


def _answer(table: pa.Table) -> Answer:
    kind = (table.schema.metadata or {}).get(b"kind", b"").decode()
    ids = tuple(table["id"].to_pylist())
    if kind == "suite":
        return _suite(table, ids)
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
    if "features" in table.column_names:
        return FeatureAnswers(ids, _array(table["logits"]), _array(table["features"]))
    return ClassAnswers(ids, _array(table["logits"]))


def _array(column: pa.ChunkedArray) -> np.ndarray:
    whole = column.combine_chunks()
    width = whole.type.list_size if pa.types.is_fixed_size_list(whole.type) else 0
    flat = whole.flatten().to_numpy() if width else np.zeros(0, dtype=np.float32)
    return flat.reshape(len(whole), width)


def _suite_table(answer: SuiteAnswers, ids: pa.Array) -> pa.Table:
    columns = {
        "id": ids,
        "task": pa.array(answer.tasks, pa.string()),
        "gold": pa.array(answer.gold, pa.int32()),
        "loglikelihoods": pa.array(answer.loglikelihoods, pa.list_(pa.float64())),
        **{f"value.{name}": pa.array(column, pa.float64()) for name, column in answer.values.items()},
    }
    about = {name: asdict(task) for name, task in answer.about.items()}
    notes = {"about": json.dumps(about), "setting": json.dumps(dict(answer.setting))}
    return pa.table(columns, metadata={"kind": "suite", **notes})


def _suite(table: pa.Table, ids: tuple[str, ...]) -> SuiteAnswers:
    notes = {key.decode(): value for key, value in (table.schema.metadata or {}).items()}
    about = {name: SuiteTask(**task) for name, task in json.loads(notes["about"]).items()}
    values = {
        name.removeprefix("value."): tuple(table[name].to_pylist())
        for name in table.column_names
        if name.startswith("value.")
    }
    return SuiteAnswers(
        ids,
        tuple(table["task"].to_pylist()),
        tuple(table["gold"].to_pylist()),
        tuple(map(tuple, table["loglikelihoods"].to_pylist())),
        values,
        about,
        json.loads(notes["setting"]),
    )


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
        "answers.py", "scoring.py", "exact.py", "text.py", *GENERATORS, "modadd.py", "vision.py", "fluency.py",
        "gradnorm.py", "lmeval.py", "contained.py",
    ):  # fmt: skip
        digest.update((here / name).read_bytes())
    return digest.hexdigest()[:16]


def answers_of(folder: Path) -> Answers:
    """Answers of a stage folder: `answers/*.parquet`, with the checks of `unlearn.json` where there are any."""
    note = folder / "unlearn.json"
    checks = json.loads(note.read_text()).get("checks", []) if note.exists() else []
    return Answers(read(folder / "answers"), trajectory(checks))
