"""Class-level unlearning of image classifiers (Unmerge paper): a class, a group of classes, or a part of them.

One row of `mini:digits`, `train-4`: `inputs` is the 8 x 8 image of a handwritten digit, uint8 [1, 8, 8] with values 0
to 16, and `label` says which digit it is. On the board the request `class` takes the 92 training images of the digit 3
(`forget`, the other 809 are `retain`); a model that was never trained on them calls none of them a 3.

A model is asked for class logits of all rows, and on samples of equal size for the features that its head reads.
Almost every metric is a distance to the retrained model (role `retain`), which is trained on the retain rows alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import DataError, near
from harness.specs import TaskRef, Template
from harness.tasks import checks, images_data, images_scores
from harness.tasks.images_data import Columns, Images, Request
from harness.types import (
    Answers,
    ArrayRow,
    Case,
    Classify,
    Features,
    MetricInfo,
    Outline,
    Probe,
    RowValues,
    Score,
)

SAMPLE = 1000
"""Most rows of a set whose features are kept."""
RESOURCES = ("alternative_answers", "random_labels")
OPTIONS = {"requests": checks.TABLE, "columns": checks.TABLE}
"""Option -> what it must be."""
COLUMNS = {
    f.name: checks.Kind("1 or 3", lambda value: type(value) is int and value in (1, 3))
    if f.name == "channels"
    else checks.ANY_TEXT
    for f in fields(Columns)
}


class ImagesTask:
    """The task; built by `build`, which has read and checked its data."""

    name = "images"
    version = 1
    rows_public = True

    def __init__(self, images: Images, requests: Mapping[str, Request]) -> None:
        self.images, self.requests = images, requests
        self._rows = {
            name: tuple(
                ArrayRow(f"{name}-{i}", x, int(y))
                for i, (x, y) in enumerate(zip(split.pixels, split.labels, strict=True))
            )
            for name, split in (("train", images.train), ("test", images.test))
        }

    def case_ids(self) -> tuple[str, ...]:
        """Names of the requests."""
        return tuple(self.requests)

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order of the labels."""
        return self.images.names

    def request(self, case_id: str) -> Request:
        """The request of a case; `DataError` for a case that this task does not have."""
        if case_id not in self.requests:
            raise DataError(f"no case {case_id!r}", near(case_id, self.requests), "pick one of these")
        return self.requests[case_id]

    def rows(self, split: str) -> tuple[ArrayRow, ...]:
        """All rows of `train` or `test`."""
        return self._rows[split]

    def case(self, case_id: str, seed: int) -> Case:
        """The request's rows and all other training rows; the seed changes nothing."""
        forget = self.request(case_id).rows(self.images)
        train = self._rows["train"]
        retain = np.setdiff1d(np.arange(len(train)), forget)
        return Case(case_id, [train[i] for i in forget], [train[i] for i in retain])

    def probes(self, case: Case) -> tuple[Probe, ...]:
        """Logits of all rows; features of the forget rows, of as many retain rows, and of test rows for a probe.

        `test_sample` is asked where whole classes are forgotten: their test rows and as many of others, by turns.
        """
        size = min(len(case.forget), SAMPLE)
        probes: list[Probe] = [
            Features("forget", case.forget),  # type: ignore[arg-type]
            Classify("retain", case.retain),  # type: ignore[arg-type]
            Classify("test", self._rows["test"]),
            Features("retain_sample", _drawn(case.retain, size)),
        ]
        gone = images_scores.gone(case)
        if gone:
            test = self._rows["test"]
            inside = _drawn([row for row in test if row.label in gone], SAMPLE)
            outside = _drawn([row for row in test if row.label not in gone], len(inside))
            by_turns = tuple(row for pair in zip(inside, outside, strict=False) for row in pair)
            probes.append(Features("test_sample", by_turns))
        return tuple(probes)

    def resources(self) -> tuple[str, ...]:
        """Both names give the forget rows with one fixed wrong label each."""
        return RESOURCES

    def resource(self, name: str, case: Case, seed: int) -> tuple[ArrayRow, ...]:
        """The forget rows under labels drawn evenly from all other classes, once per (seed, row)."""
        if name not in RESOURCES:
            raise DataError(
                f"images supplies no {name!r}", near(name, RESOURCES), "correct the submission's needs"
            )
        count, out = len(self.images.names), []
        for row in case.forget:
            drawn = np.random.default_rng([seed, int(row.id.rpartition("-")[2])]).integers(1, count)
            out.append(ArrayRow(row.id, row.inputs, int((row.label + drawn) % count)))  # type: ignore[union-attr]
        return tuple(out)

    def compare(self, loaded: Any, others: Mapping[str, Callable[[], Any]]) -> dict[str, RowValues]:
        """Squared distance of every parameter from the retrained model's, and that one's squared norm."""
        names = ("weights.gap2", "weights.norm2")
        if "retain" not in others:
            return {name: RowValues((), (), "the board has no retrained model") for name in names}
        own, other = (dict(m.model.named_parameters()) for m in (loaded, others["retain"]()))
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in other.items()}:
            return {name: RowValues((), (), "the retrained model has another shape") for name in names}
        found: dict[str, list[float | None]] = {name: [] for name in names}
        for key, weight in own.items():
            mine, theirs = weight.detach().double(), other[key].detach().double()
            found["weights.gap2"].append(float(((mine - theirs) ** 2).sum()))
            found["weights.norm2"].append(float((theirs**2).sum()))
        return {name: RowValues(tuple(own), tuple(values)) for name, values in found.items()}

    def score(self, case: Case, answers: Answers, references: Mapping[str, Answers]) -> dict[str, Score]:
        """All metrics; those that need the retrained model are null, with the reason, without its answers."""
        return images_scores.score(case, self.probes(case), answers, references.get("retain"))

    def metrics(self) -> tuple[MetricInfo, ...]:
        """What `score` returns."""
        return images_scores.METRICS

    def data_hash(self) -> str:
        """SHA-256 over all images and labels, and which rows each request takes."""
        digest = hashlib.sha256(f"{self.version} {self.images.digest()}".encode())
        for name, request in self.requests.items():
            digest.update(json.dumps([name, asdict(request)]).encode())
            digest.update(request.rows(self.images).astype("<i8").tobytes())
        return digest.hexdigest()


def _drawn(rows: Any, size: int) -> tuple[ArrayRow, ...]:
    """At most `size` of the rows, in their order, as drawn by the generator of (1, number of rows, size)."""
    if len(rows) <= size:
        return tuple(rows)
    keep = np.random.default_rng([1, len(rows), size]).permutation(len(rows))[:size]
    return tuple(rows[i] for i in np.sort(keep))


def build(ref: TaskRef, template: Template) -> ImagesTask:
    """The task that `ref` describes.

    Args:
        ref: `data` is `mini:digits`, a folder, or a hub id (`harness.tasks.images_data`). Options: `requests`, by case
            the names of `classes` and which `part` of them is forgotten; `columns`, where a hub data set keeps
            `image`, `label`, `train`, `test`, its `revision`, and how many `channels` are wanted.
        template: not used; there are no texts.

    Raises:
        DataError: an option or the data are not of this form.
    """
    columns = _columns(ref)
    if not ref.data:
        raise DataError("images has no data", "", "set task.data to mini:digits, a folder or a hub id")
    images = images_data.load(ref.data, columns)
    found = images_data.requests(ref.options.get("requests"), images.names)
    for case, request in found.items():
        size = len(request.rows(images))
        if not 0 < size < len(images.train.labels):
            todo = "name classes that have training images"
            raise DataError(f"request {case!r} takes {size} of {len(images.train.labels)} images", "", todo)
    return ImagesTask(images, found)


def outline(ref: TaskRef) -> Outline:
    """Cases and metrics, without reading an image."""
    _columns(ref)
    hub = () if Path(ref.data).expanduser().is_dir() else (ref.data,)
    return Outline(tuple(images_data.requests(ref.options.get("requests"), None)), images_scores.METRICS, hub)


def _columns(ref: TaskRef) -> Columns:
    if ref.split:
        raise DataError(f"images takes no split, but got {ref.split!r}", "", "remove split")
    given = ref.options.get("columns", {})
    checks.options("images", ref.options, OPTIONS)
    checks.options("images", given, COLUMNS)
    return Columns(**given)
