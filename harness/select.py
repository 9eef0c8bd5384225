"""Selectors: methods that train several children of a base method, each under the full budget, and pick or merge.

A selector is a dataclass with two methods::

    children(seed) -> Sequence[Child]          what to train
    choose(pool) -> None                       leave the result in pool.loaded.model: `pool.put`

A mix is a mapping from children to weights, such as `{0: 0.75, ORIGINAL: 0.25}`; weights are never negative and sum
to 1. `pool.judge(mix)` is how far a mix is from the ideal: by default the proxy, on rows that the method may see; with
`by = "full_metric"` among the selector's settings it is the board's own metric, which marks the row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from harness.entries import resolve
from harness.errors import RunError, SubmissionError
from harness.models import INSTRUCTION, LoadedModel, save, weights_hash
from harness.plugins import load_source
from harness.preflight import bounds
from harness.runs import RunSpec, cut_probes, read_json, write_json
from harness.specs import content_hash
from harness.types import Case, Row, Task, TextRow

ORIGINAL = -1
"""In a mix: the model that the children were trained from."""
By = Literal["proxy", "full_metric"]
Mix = Mapping[int, float]


@dataclass(frozen=True)
class Child:
    """One training of the base method: its seed, and settings that differ from the base entry's."""

    seed: int
    overrides: Mapping[str, Any] = field(default_factory=dict)


def spread(seed: int, n: int, each: Sequence[Mapping[str, Any]] = ()) -> list[Child]:
    """`n` trainings that differ in a setting of the base method, in the seed, or in both.

    Args:
        seed: the run's.
        n: how many.
        each: settings in the keys of `--set` (a rate, a strength), taken in turn; whenever all have been taken, and
            always when there are none, the next seed is 1000 away.

    Raises:
        SubmissionError: some of `each` would not be tried, or two are the same and so would be their trainings.

    >>> [(c.seed, dict(c.overrides)) for c in spread(7, 3, [{"alpha": 1.0}, {"alpha": 5.0}])]
    [(7, {'alpha': 1.0}), (7, {'alpha': 5.0}), (1007, {'alpha': 1.0})]
    """
    if len(each) > n:
        raise SubmissionError(
            f"each has {len(each)} settings", f"there are {n} trainings, and each takes one of them",
            "shorten each, or raise n where there is one",
        )  # fmt: skip
    for k, settings in enumerate(each):
        if settings in each[:k]:
            raise SubmissionError(f"each names {dict(settings)} twice", "", "name each setting once")
    turns = max(1, len(each))
    return [Child(seed + 1000 * (k // turns), each[k % turns] if each else {}) for k in range(n)]


def moments_of(selector: Any) -> tuple[float, ...]:
    """Fractions of the budget at which a child is saved, its end left out: none but for `checkpoints` of a selector.

    Those saved come before the child's end in the pool, in order.
    """
    count = int(getattr(selector, "checkpoints", 0))
    return tuple(k / count for k in range(1, count))


class Selector(Protocol):
    """What a selector offers; see the module's docstring."""

    def children(self, seed: int) -> Sequence[Child]:
        """The trainings to run."""
        ...

    def choose(self, pool: Pool) -> None:
        """Pick or merge; the result is what `pool.loaded.model` holds afterwards."""
        ...


class Pool:
    """The trained children, and a judge of mixes of their weights.

    Args:
        loaded: the original model; `choose` puts its result into `loaded.model`.
        original: the folder that it was loaded from.
        folders: the children's weights, in order.
        distance: of the weights that `loaded.model` holds, 0 (best) and up.
        journal: a file that keeps what was judged, so that an interrupted choice goes on where it stopped.
        now: seconds of a steady clock.

    Attributes:
        tried: every mix that was judged, once, in order: `mix`, `value`, `seconds`.
        dropped: children that a selector left out before mixing, as it says itself.
    """

    def __init__(
        self, loaded: LoadedModel, original: Path, folders: Sequence[Path], distance: Callable[[LoadedModel], float],
        journal: Path | None = None, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.loaded, self.original, self.folders = loaded, Path(original), tuple(map(Path, folders))
        self.tried: list[dict[str, Any]] = []
        self.dropped, self.chosen = 0, dict[str, float]()
        self._distance, self._journal, self._now = distance, journal, now
        self._key = content_hash([weights_hash(str(f)) for f in self.folders]) if journal is not None else ""
        if journal is not None and journal.exists() and (kept := read_json(journal))["key"] == self._key:
            self.tried = kept["tried"]

    def __len__(self) -> int:
        return len(self.folders)

    def put(self, mix: Mix) -> None:
        """Load a mix into `loaded.model`, tensor by tensor."""
        from harness.edits import soups

        kept = {k: w for k, w in mix.items() if w != 0}
        soups.pour(soups.mixed([self._source(k) for k in kept], list(kept.values())), self.loaded.model)
        self.chosen = _named(mix)

    def judge(self, mix: Mix) -> float:
        """How far a mix is from the ideal, lower is better. Judged once, however often it is asked for."""
        named = _named(mix)
        for entry in self.tried:
            if entry["mix"] == named:
                return float(entry["value"])
        began = self._now()
        self.put(mix)
        value = self._distance(self.loaded)
        if not np.isfinite(value):
            raise RunError(f"the mix {named} was judged as {value}")
        self.tried.append({"mix": named, "value": value, "seconds": self._now() - began})
        if self._journal is not None:
            write_json(self._journal, {"key": self._key, "tried": self.tried})
        return value

    def _source(self, k: int) -> Any:
        from harness.edits import soups

        return soups.Stored(self.original if k == ORIGINAL else self.folders[k])


def _named(mix: Mix) -> dict[str, float]:
    """A mix in words, for records: its weights by `original` and `child k`, zeros left out."""
    return {"original" if k == ORIGINAL else f"child {k}": float(w) for k, w in sorted(mix.items()) if w != 0}


def proxy_of(loaded: LoadedModel, forget: Sequence[Row], retain: Sequence[Row]) -> float:
    """DS_ES of a model, 0 (best) to sqrt 2, on rows the method may see: what is picked by in place of a metric.

    sqrt(ES_forget^2 + (1 - ES_retain)^2). Source: the distance score of UnlearningSoup, without its factor 100.
    """
    parts = proxy_parts(loaded, forget, retain)
    return float(np.hypot(parts[0], 1.0 - parts[1]))


def proxy_parts(loaded: LoadedModel, forget: Sequence[Row], retain: Sequence[Row]) -> tuple[float, float]:
    """Mean published extraction strength of forget and of retain rows, 0..1; accuracy where rows are class labels."""
    from harness.metrics.memorization import extraction_strength_published
    from harness.scoring import score

    found: list[float] = []
    for rows in (forget, retain):
        scores = score(loaded.model, rows, loaded.encoder)
        if loaded.encoder is None:
            found.append(float(scores.hit.mean()))
        else:
            values = [v for v in extraction_strength_published(scores) if v is not None and not np.isnan(v)]
            found.append(float(np.mean(values)))
    return found[0], found[1]


def run_proxy(
    folder: Path,
    case_of: Callable[[RunSpec], tuple[Task, Case]],
    load: Callable[[RunSpec, str], LoadedModel],
    begin: Callable[[RunSpec], None],
) -> None:
    """The `proxy` stage: judges a finished run's weights as a selector would; leaves proxy.json.

    `rows` counts the rows that decided, `rows_in_probes` those of them that the task asks about too.
    """
    spec = RunSpec.read(folder)
    begin(spec)
    task, case = case_of(spec)
    forget, retain = proxy_rows(case, spec.seed)
    value = proxy_of(load(spec, str(folder / "model")), forget, retain)
    asked = {
        row_key(row) for p in cut_probes(task.probes(case), spec.limit) for row in getattr(p, "rows", ())
    }
    seen = [row_key(row) for row in (*forget, *retain)]
    note = {"value": value if np.isfinite(value) else None, "rows": len(seen), "why": "",
            "rows_in_probes": sum(key in asked for key in seen)}  # fmt: skip
    if note["value"] is None:
        note["why"] = f"the proxy came out as {value}"
    write_json(folder / "proxy.json", note)


def run_selector(
    folder: Path,
    case_of: Callable[[RunSpec], tuple[Task, Case]],
    load: Callable[[RunSpec, str], LoadedModel],
    begin: Callable[[RunSpec], None],
) -> None:
    """The `select` stage: `folder/children/*` are finished runs of the base method; leaves model/ and select.json."""
    spec = RunSpec.read(folder)
    begin(spec)
    task, case = case_of(spec)
    selector = selector_of(spec)
    folders = [Path(p) for p in read_json(folder / "children.json")]
    if any((child / INSTRUCTION).exists() for child in folders):
        raise RunError(
            "a selector picks among weights, and its base method changes what is said before a question"
        )
    rows = proxy_rows(case, spec.seed)
    by: By = getattr(selector, "by", "proxy")
    distance = full_distance(spec, task, case) if by == "full_metric" else lambda m: proxy_of(m, *rows)
    loaded = load(spec, spec.start)
    pool = Pool(loaded, _original(spec, folder, folders, loaded), folders, distance, folder / "tried.json")
    selector.choose(pool)
    save(pool.loaded, folder / "model")
    seen = [row for side in rows for row in side]
    if by == "full_metric":
        seen = [
            row for probe in cut_probes(task.probes(case), spec.limit) for row in getattr(probe, "rows", ())
        ]
    write_json(folder / "select.json", {
        "by": by, "evaluations": len(pool.tried), "seconds": sum(t["seconds"] for t in pool.tried),
        "proxy_rows": sorted(row_key(row) for row in seen) if pool.tried else [],
        "dropped": pool.dropped, "chosen": pool.chosen, "tried": pool.tried,
    })  # fmt: skip


def _original(spec: RunSpec, folder: Path, children: Sequence[Path], loaded: LoadedModel) -> Path:
    """A folder with the original's weights under the names that the children's have; saved anew where they differ."""
    from harness.edits import soups

    given = Path(spec.start)
    if any(given.glob("*.safetensors")) and set(soups.Stored(given)) == set(soups.Stored(children[0])):
        return given
    save(loaded, folder / "original")
    return folder / "original"


def full_distance(spec: RunSpec, task: Task, case: Case) -> Callable[[LoadedModel], float]:
    """How far a model is from the best value of the board's own metric, as a share of the metric's range.

    Every call asks all probes. Sources: the searches of UnlearningSoup on WMDP and MUSE, which have no cheap proxy.
    """
    from harness import answers as answering
    from harness.generate.hf import HFGenerator
    from harness.types import Answers

    name = spec.board.rank_by.partition("@")[0]
    info = next(m for m in task.metrics() if m.id == name)
    low, high = bounds(info)
    probes, opinion = cut_probes(task.probes(case), spec.limit), getattr(task, "judge", None)
    references = {role: Answers(answering.read(Path(p) / "answers")) for role, p in spec.references.items()}

    def distance(loaded: LoadedModel) -> float:
        generator = HFGenerator(loaded.model, loaded.encoder) if loaded.encoder is not None else None
        made = answering.answer(loaded, probes, generator)
        if opinion is not None:
            made |= opinion(loaded, probes, made)
        found = task.score(case, Answers(made), references)[name]
        if found.value is None:
            raise RunError(f"the mixes cannot be judged by {name}: {found.why}")
        if info.direction == "target" and info.target is not None:
            return abs(found.value - info.target) / max(high - info.target, info.target - low)
        return (high - found.value if info.direction == "higher" else found.value - low) / (high - low)

    return distance


def row_key(row: Row) -> str:
    """What makes two rows the same, whichever file they come from: the texts, or an array row's id."""
    return content_hash([row.prompt, row.target]) if isinstance(row, TextRow) else row.id


def selector_of(spec: RunSpec) -> Any:
    """The selector of a run, with its settings."""
    source = spec.sources[0]
    loaded = load_source(source.name, source.source)
    own = {k: v for k, v in spec.overrides.items() if not k.startswith("base.")}
    return resolve(loaded, spec.board.settings.get(source.name, {}), own).method


def proxy_rows(case: Case, seed: int, most: int = 256) -> tuple[list[Row], list[Row]]:
    """All forget rows and as many retain rows (at most `most` each), drawn by the seed from what a method may see."""
    rng = np.random.default_rng([seed, 7])
    out = []
    for rows in (case.forget, case.retain):
        count = min(len(rows), len(case.forget), most)
        out.append([rows[i] for i in sorted(rng.permutation(len(rows))[:count].tolist())])
    return out[0], out[1]
