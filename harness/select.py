"""Selectors: methods that train several children of a base method, each under the full budget, and pick or merge.

A selector is a dataclass with two methods::

    children(seed) -> Sequence[Child]          what to train
    choose(pool) -> None                       leave the result in pool.model, by any use of the children's weights

The pool holds the rows that the method may see, never a probe, and counts what choosing costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from harness.errors import RunError
from harness.models import INSTRUCTION, LoadedModel, save
from harness.plugins import load_source, resolve
from harness.runs import RunSpec, cut_probes, read_json, write_json
from harness.specs import content_hash
from harness.types import Case, Row, Task, TextRow


@dataclass(frozen=True)
class Child:
    """One training of the base method: its seed, and settings that differ from the base entry's."""

    seed: int
    overrides: Mapping[str, Any] = field(default_factory=dict)


class Selector(Protocol):
    """What a selector offers; see the module's docstring."""

    def children(self, seed: int) -> Sequence[Child]:
        """The trainings to run."""
        ...

    def choose(self, pool: Pool) -> None:
        """Pick or merge; the result is what `pool.loaded.model` holds afterwards."""
        ...


class Pool:
    """The trained children, and a proxy to judge weights by.

    Attributes:
        loaded: the original model; `choose` puts its result into `loaded.model`.
        folders: the children's weights, in order.
        forget, retain: rows the method may see.
        proxy_evaluations: how often `proxy` was called.
    """

    def __init__(
        self, loaded: LoadedModel, folders: Sequence[Path], forget: Sequence[Row], retain: Sequence[Row],
        load: Callable[[str], LoadedModel],
    ) -> None:  # fmt: skip
        self.loaded, self.folders, self.forget, self.retain = loaded, tuple(folders), forget, retain
        self.proxy_evaluations = 0
        self._load = load

    def weights(self, k: int) -> dict[str, Any]:
        """State dict of child `k`."""
        return self._load(str(self.folders[k])).model.state_dict()

    def proxy(self) -> float:
        """`proxy_of` the weights that `loaded.model` holds now."""
        self.proxy_evaluations += 1
        return proxy_of(self.loaded, self.forget, self.retain)


def proxy_of(loaded: LoadedModel, forget: Sequence[Row], retain: Sequence[Row]) -> float:
    """DS_ES of a model, 0 (best) to sqrt 2, on rows the method may see: what is picked by in place of a metric.

    sqrt(ES_forget^2 + (1 - ES_retain)^2) with the published extraction strength; for rows that are one class label,
    accuracy takes the place of ES. Source: the distance score of UnlearningSoup, without its factor 100.
    """
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
    return float(np.hypot(found[0], 1.0 - found[1]))


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
    asked = {row_key(row) for probe in cut_probes(task.probes(case), spec.limit) for row in probe.rows}
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
    _, case = case_of(spec)
    selector = selector_of(spec)
    folders = [Path(p) for p in read_json(folder / "children.json")]
    if any((child / INSTRUCTION).exists() for child in folders):
        raise RunError(
            "a selector picks among weights, and its base method changes what is said before a question"
        )
    rows = proxy_rows(case, spec.seed)
    pool = Pool(load(spec, spec.models["target"]), folders, *rows, lambda path: load(spec, path))
    selector.choose(pool)
    save(pool.loaded, folder / "model")
    seen = sorted(row_key(row) for side in rows for row in side)
    note = {"proxy_evaluations": pool.proxy_evaluations, "proxy_rows": seen}
    write_json(folder / "select.json", note)


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
