"""Bucketed modular addition (BMA): a rule that is shared by all examples, and bits that must be memorised.

One row of the case `M4` with 64 classes (so p = 16), `bma-M4-25`: the pair a=0, b=25 falls into bucket
(0 + 25) mod 16 = 9, whose members are the classes 36, 37, 38, 39; a draw that is fixed for this pair picks
u = 1, so the label is 4 * 9 + 1 = 37. A model that has learned the rule still has log2 M bits per example
to memorise: the memorisation floor. M = 1 is modular addition itself, M = classes has nothing but random
labels. In general y(a, b) = M ((a + b) mod p) + u_ab with p M = classes; `harness.tasks.bma_data` draws u,
the split and the forget sets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from harness.errors import DataError, near
from harness.metrics import circuits
from harness.specs import TaskRef, Template
from harness.tasks.bma_data import BmaData
from harness.types import Answers, ArrayRow, Case, ClassAnswers, Classify, MetricInfo, Score, Trajectory

PAPER = "BMA paper"
FORGOTTEN = 0.1
"""Mean probability of the right answers on the forget rows at which damage is compared."""
RESOURCES = ("alternative_answers", "random_labels")


class BmaTask:
    """The task; built by `build`, which has checked its options."""

    name = "bma"
    version = 1
    rows_public = True

    def __init__(
        self, data: BmaData, *, buckets: Sequence[int], forget_fraction: float, in_bucket_labels: bool
    ) -> None:
        self.data = data
        self.buckets = tuple(buckets)
        self.forget_fraction = forget_fraction
        self.in_bucket_labels = in_bucket_labels
        self._row_of = lru_cache(maxsize=None)(self._make_rows)

    def case_ids(self) -> tuple[str, ...]:
        """`M1`, `M4`, ...: one case per bucket size."""
        return tuple(f"M{m}" for m in self.buckets)

    def bucket_size(self, case_id: str) -> int:
        """M of a case; `DataError` for a case that this task does not have."""
        if case_id not in self.case_ids():
            raise DataError(f"no case {case_id!r}", near(case_id, self.case_ids()), "pick one of these")
        return int(case_id[1:])

    def _make_rows(self, m: int) -> tuple[ArrayRow, ...]:
        """All n^2 rows of one bucket size, by pair index."""
        index = np.arange(self.data.n**2)
        labels, pairs = self.data.labels(m, index), self.data.pairs(index)
        pairs.setflags(write=False)
        return tuple(ArrayRow(f"bma-M{m}-{i}", pairs[i], int(labels[i])) for i in index)

    def rows(self, case_id: str, index: np.ndarray) -> tuple[ArrayRow, ...]:
        """Rows of pair indices, in their order."""
        table = self._row_of(self.bucket_size(case_id))
        return tuple(table[i] for i in index)

    def case(self, case_id: str, seed: int) -> Case:
        """Forget rows drawn by `seed`, the same pairs for every M; retain is the rest of training."""
        forget = self.data.forget(self.forget_fraction, seed)
        retain = np.setdiff1d(self.data.train, forget)
        return Case(case_id, self.rows(case_id, forget), self.rows(case_id, retain))

    def probes(self, case: Case) -> tuple[Classify, ...]:
        """Class logits of the forget rows, the retain rows and all pairs that were never trained on."""
        return (
            Classify("forget", case.forget),  # type: ignore[arg-type]
            Classify("retain", case.retain),  # type: ignore[arg-type]
            Classify("test", self.rows(case.id, self.data.test)),
        )

    def resources(self) -> tuple[str, ...]:
        """Both names give the forget rows with one fixed wrong label each."""
        return RESOURCES

    def resource(self, name: str, case: Case, seed: int) -> tuple[ArrayRow, ...]:
        """The forget rows under wrong labels that are drawn once per (data seed, forget seed, M)."""
        if name not in RESOURCES:
            raise DataError(
                f"bma supplies no {name!r}", near(name, RESOURCES), "correct the submission's needs"
            )
        index = np.array([_pair_index(row.id) for row in case.forget], dtype=np.int64)
        wrong = self.data.wrong_labels(
            self.bucket_size(case.id), index, seed, in_bucket=self.in_bucket_labels
        )
        return tuple(
            ArrayRow(row.id, row.inputs, int(label))  # type: ignore[arg-type]
            for row, label in zip(case.forget, wrong, strict=True)
        )

    def score(self, case: Case, answers: Answers, references: Mapping[str, Answers]) -> dict[str, Score]:
        """All metrics of one run; they need no reference answers."""
        m = self.bucket_size(case.id)
        unmirrored = self._unmirrored()
        scores: dict[str, Score] = {"floor.bits": Score(float(np.log2(m)), n=1)}
        for probe in self.probes(case):
            asked = _Asked(probe, answers)
            kept = probe.name != "test"
            if kept:
                scores[f"{probe.name}.p"] = asked.mean(circuits.right_prob, per_row=True)
            scores[f"{probe.name}.acc"] = asked.mean(circuits.hits, argmax=True, per_row=kept)
            bucket = asked.mean(lambda z, y: circuits.bucket_hits(z, y, m), argmax=m < self.data.classes)
            scores[f"{probe.name}.bucket_acc" if kept else "bucket.acc"] = bucket
            if probe.name == "test":
                scores["test.acc_unmirrored"] = asked.mean(circuits.hits, argmax=True, only=unmirrored)
                scores["within_bucket.acc"] = asked.mean(
                    lambda z, y: circuits.within_bucket_hits(z, y, m), argmax=m > 1
                )
        scores.update(damage(answers.trajectory))
        return scores

    def _unmirrored(self) -> np.ndarray:
        """Which test pairs (a, b) have no (b, a) among the training pairs: bool, ordered as `data.test`."""
        pairs = self.data.pairs(self.data.test)
        return ~np.isin(pairs[:, 1] * self.data.n + pairs[:, 0], self.data.train)

    def metrics(self) -> tuple[MetricInfo, ...]:
        """What `score` returns."""
        return METRICS

    def data_hash(self) -> str:
        """SHA-256 over the split, every label, and how forget sets and wrong labels are drawn."""
        digest = hashlib.sha256()
        settings = {
            **{f.name: getattr(self.data, f.name) for f in fields(self.data)},
            "version": self.version,
            "buckets": self.buckets,
            "forget_fraction": self.forget_fraction,
            "in_bucket_labels": self.in_bucket_labels,
        }
        digest.update(json.dumps(settings, sort_keys=True).encode())
        digest.update(self.data.train.astype("<i8").tobytes())
        every = np.arange(self.data.n**2)
        for m in self.buckets:
            digest.update(self.data.labels(m, every).astype("<i8").tobytes())
        return digest.hexdigest()


def damage(trajectory: Trajectory | None) -> dict[str, Score]:
    """`retain.damage` (first check with Pf <= .1) and `retain.damage.interpolated`, from a run's checks.

    The check before the first update counts: a model that never had the forget rows is compared where it
    stands.
    """
    ids = ("retain.damage", "retain.damage.interpolated")
    if trajectory is None:
        return {i: Score(None, why="no trajectory was recorded for this run") for i in ids}
    lacking = [name for name in ("forget.p", "retain.p") if name not in trajectory.values]
    if lacking:
        return {i: Score(None, why=f"the trajectory has no {' and no '.join(lacking)}") for i in ids}
    forget = np.asarray(trajectory.values["forget.p"], np.float64)
    retain = np.asarray(trajectory.values["retain.p"], np.float64)
    at = circuits.first_crossing(forget, FORGOTTEN)
    if at is None:
        seen = forget[np.isfinite(forget)]
        lowest = f"; the lowest of {len(forget)} checks is {seen.min():.4g}" if len(seen) else ""
        return {i: Score(None, why=f"forget.p never came down to {FORGOTTEN}{lowest}") for i in ids}
    between = circuits.interpolated_crossing(forget, retain, FORGOTTEN)
    missing = "forget.p or retain.p is not finite beside the crossing"
    return {
        "retain.damage": (
            Score(1.0 - float(retain[at]), n=at + 1) if np.isfinite(retain[at]) else Score(None, why=missing)
        ),
        "retain.damage.interpolated": (
            Score(1.0 - between, n=at + 1) if between is not None else Score(None, why=missing)
        ),
    }


class _Asked:
    """The logits that answer one probe (a limited run has those of its first rows), and what is wrong with them."""

    def __init__(self, probe: Classify, answers: Answers) -> None:
        answer = answers.probes.get(probe.name)
        wanted = tuple(row.id for row in probe.rows)
        count = len(answer.ids) if isinstance(answer, ClassAnswers) else 0
        if not isinstance(answer, ClassAnswers) or not count or tuple(answer.ids) != wanted[:count]:
            found = "none" if answer is None else f"{type(answer).__name__} of {len(answer.ids)} rows"
            raise DataError(
                f"the answers to probe {probe.name!r} are {found}",
                f"wanted class logits of its {len(wanted)} rows in order, or of the first of them",
                "answer the probe again",
            )
        self.ids = wanted[:count]
        self.logits = np.asarray(answer.logits, np.float64)
        self.labels = np.array([row.label for row in probe.rows[:count]], dtype=np.int64)
        bad = ~np.isfinite(self.logits.max(axis=1))
        tied = np.equal(self.logits, self.logits[:, :1]).all(axis=1)
        self.unusable = f"{bad.sum()} of {len(bad)} rows have NaN or infinite logits" if bad.any() else ""
        self.undecided = f"all logits tie on {tied.sum()} of {len(tied)} rows" if tied.any() else ""

    def mean(
        self,
        per_example: Callable[[np.ndarray, np.ndarray], np.ndarray],
        *,
        argmax: bool = False,
        per_row: bool = False,
        only: np.ndarray | None = None,
    ) -> Score:
        """Mean over rows of a function of (logits, labels); with `argmax`, none where logits tie."""
        only = only[: len(self.ids)] if only is not None else None
        n = len(self.ids) if only is None else int(only.sum())
        why = self.unusable or (self.undecided if argmax else "")
        if why or n == 0:
            return Score(None, n=n, why=why or "no row of this kind")
        values = per_example(self.logits, self.labels).astype(np.float64)
        rows = dict(zip(self.ids, values.tolist(), strict=True)) if per_row else None
        return Score(float(values.mean() if only is None else values[only].mean()), n=n, per_row=rows)


def _pair_index(row_id: str) -> int:
    return int(row_id.rsplit("-", 1)[1])


_AT = f"at the first check with forget.p <= {FORGOTTEN}"
_NEW = "Share of never-trained pairs"
_TABLE: tuple[tuple[str, Literal["higher", "lower", "none"], str, str], ...] = (
    ("forget.p", "lower", "probability", "Mean probability of the right answer on the forget rows (Pf)."),
    ("retain.p", "higher", "probability", "Mean probability of the right answer on the retain rows (Pr)."),
    ("retain.damage", "lower", "probability", f"1 - Pr {_AT}; .9 is what non-selective damage gives."),
    ("retain.damage.interpolated", "lower", "probability",
     f"1 - Pr at forget.p = {FORGOTTEN}, linear in Pf between the checks around the first crossing."),
    ("forget.acc", "lower", "share of rows", "Share of forget rows answered rightly."),
    ("retain.acc", "higher", "share of rows", "Share of retain rows answered rightly."),
    ("test.acc", "higher", "share of rows", f"{_NEW} answered rightly; at best near 1/M."),
    ("test.acc_unmirrored", "higher", "share of rows",
     f"{_NEW} (a, b), (b, a) never trained on either, answered rightly."),
    ("bucket.acc", "higher", "share of rows", f"{_NEW} answered in the right bucket: the shared rule."),
    ("within_bucket.acc", "none", "share of rows",
     f"{_NEW} whose right answer wins among its bucket's members; chance is 1/M."),
    ("retain.bucket_acc", "higher", "share of rows", "Share of retain rows answered in the right bucket."),
    ("forget.bucket_acc", "none", "share of rows",
     "Share of forget rows answered in the right bucket; high if only the memorised part went."),
    ("floor.bits", "none", "bits", "Memorisation floor: log2 M bits per row that the rule leaves open."),
)  # fmt: skip
METRICS = tuple(
    MetricInfo(id, direction, 0.0, None if unit == "bits" else 1.0, unit, text, source=PAPER)
    for id, direction, unit, text in _TABLE
)


# --- options ---
@dataclass(frozen=True)
class _Options:
    """What a board may set under `task.options`; the defaults are those of the board bma-mini."""

    classes: int = 64
    n: int | None = None
    buckets: tuple[int, ...] = (1, 4, 16, 64)
    train_fraction: float = 0.6
    data_seed: int = 0
    forget_fraction: float = 0.05
    wrong_labels: str = "all"


def build(ref: TaskRef, template: Template) -> BmaTask:
    """The task that `ref.options` describe; nothing is read from disk.

    Options: `classes` (64), `n` (numbers a, b are below it; default `classes`), `buckets` (the list of M),
    `train_fraction`, `data_seed`, `forget_fraction` (of the training pairs), `wrong_labels` (`all`
    classes, or only the right `bucket`). The template is not used: there are no texts.

    Raises:
        DataError: an unknown option, or a value that makes no task.
    """
    if ref.data or ref.split:
        given = "data" if ref.data else "split"
        raise DataError(
            f"bma makes its own rows but got {given} = {(ref.data or ref.split)!r}", todo=f"remove {given}"
        )
    known = [f.name for f in fields(_Options)]
    for name in ref.options:
        if name not in known:
            raise DataError(f"bma has no option {name!r}", near(name, known), "correct task.options")
    o = _Options(**{k: tuple(v) if isinstance(v, list) else v for k, v in ref.options.items()})
    n = o.classes if o.n is None else o.n
    for name, value, least in (("classes", o.classes, 2), ("n", n, 2), ("data_seed", o.data_seed, 0)):
        if not _whole(value) or value < least:
            raise DataError(f"{name} is {value!r}", f"wanted a whole number of at least {least}")
    for name in ("train_fraction", "forget_fraction"):
        value = getattr(o, name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1:
            raise DataError(f"{name} is {value!r}", "wanted a share between 0 and 1, both excluded")
    buckets = o.buckets
    if not isinstance(buckets, tuple) or not buckets or not all(_whole(m) and m >= 1 for m in buckets):
        raise DataError(f"buckets is {buckets!r}", "wanted a list of bucket sizes M such as [1, 4, 16, 64]")
    if len(set(buckets)) != len(buckets):
        raise DataError(f"buckets {list(buckets)} repeat", todo="name each M once")
    for m in buckets:
        if o.classes % m:
            good = ", ".join(str(d) for d in range(1, o.classes + 1) if o.classes % d == 0)
            raise DataError(
                f"M={m} does not divide {o.classes} classes", f"M can be {good}", "correct buckets"
            )
    if o.wrong_labels not in ("all", "bucket"):
        raise DataError(f"wrong_labels is {o.wrong_labels!r}", "known: all, bucket")
    data = BmaData(o.classes, n, float(o.train_fraction), o.data_seed)
    forget = round(o.forget_fraction * len(data.train))
    if not 0 < forget < len(data.train) < n * n:
        raise DataError(
            f"of {n * n} pairs {len(data.train)} are trained on and {forget} forgotten",
            "each of forget, retain and test needs at least one pair",
            "change train_fraction, forget_fraction or n",
        )
    return BmaTask(
        data,
        buckets=buckets,
        forget_fraction=float(o.forget_fraction),
        in_bucket_labels=o.wrong_labels == "bucket",
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
