"""Labelled images as arrays, and which of them a request takes; see `harness.tasks.images`.

A folder has `images.npz` (`train_images` uint8 [N, H, W] or [N, H, W, C], `train_labels` int [N], `test_images`,
`test_labels`, `names` [classes]), or the Parquet files of a hub data set. What comes from Parquet is decoded once and
kept by `datasets` in its cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness.errors import DataError, near
from harness.tasks.sources import folder_of, one_line

ARRAYS = "images.npz"
PARTS = ("all", "half", "random")
Part = Literal["all", "half", "random"]


@dataclass(frozen=True)
class Split:
    """Images uint8 [N, C, H, W] and their classes int64 [N]."""

    pixels: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Images:
    """A data set: `names` of the classes, by number, and two splits."""

    names: tuple[str, ...]
    train: Split
    test: Split

    def digest(self) -> str:
        """SHA-256 over names, labels and pixels."""
        digest = hashlib.sha256("\n".join(self.names).encode())
        for split in (self.train, self.test):
            digest.update(str(split.pixels.shape).encode())
            digest.update(np.ascontiguousarray(split.pixels).tobytes())
            digest.update(split.labels.astype("<i8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Request:
    """What is to be forgotten.

    Attributes:
        classes: names of classes.
        part: `all` of their training images; of each class the `half` on one side of the median along the first
            principal component of its pixels (a coherent half); or as many images, drawn at `random` from all classes.
    """

    classes: tuple[str, ...]
    part: Part = "all"

    def labels(self, images: Images) -> np.ndarray:
        """Numbers of its classes, ascending."""
        return np.array(sorted(images.names.index(name) for name in self.classes))

    def rows(self, images: Images) -> np.ndarray:
        """Indices of the training images, ascending."""
        train, labels = images.train, self.labels(images)
        whole = np.flatnonzero(np.isin(train.labels, labels))
        if self.part == "random":
            draw = np.random.default_rng([0, len(whole)])
            return np.sort(draw.permutation(len(train.labels))[: len(whole)])
        if self.part == "half":
            halves = [_half(train.pixels, np.flatnonzero(train.labels == k)) for k in labels]
            return np.sort(np.concatenate(halves))
        return whole


def _half(pixels: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Of the images `index` the half with the larger first principal component; its largest entry is positive."""
    x = pixels[index].reshape(len(index), -1).astype(np.float64)
    x -= x.mean(0)
    _, _, axes = np.linalg.svd(x, full_matrices=False)
    first = axes[0] * np.sign(axes[0][np.argmax(np.abs(axes[0]))])
    order = np.argsort(-(x @ first), kind="stable")
    return index[order[: len(index) // 2]]


def requests(given: Any, names: Sequence[str] | None) -> dict[str, Request]:
    """The requests of `[task.options.requests]`, by case.

    Args:
        given: case -> {classes, part}.
        names: of the data's classes; None leaves them unchecked.

    Raises:
        DataError: there are none, or one is not of this form.
    """
    if not isinstance(given, Mapping) or not given:
        todo = 'write [task.options] requests = { trees = { classes = ["oak_tree", ...] } }'
        raise DataError("images has no requests", "a request names the classes to forget", todo)
    out: dict[str, Request] = {}
    for case, value in given.items():
        known = ("classes", "part")
        wrong = sorted(set(value) - set(known)) if isinstance(value, Mapping) else ["?"]
        listed = None if wrong else value.get("classes")
        if not isinstance(listed, list | tuple) or not listed:
            told = f"it has {' and '.join(known)}; classes is a list of names"
            raise DataError(f"request {case!r} is {value!r}", told, "mend it")
        part = value.get("part", "all")
        if part not in PARTS:
            raise DataError(f"request {case!r} has part {part!r}", near(str(part), PARTS), "mend it")
        classes = tuple(map(str, listed))
        if len(set(classes)) < len(classes):
            raise DataError(f"request {case!r} names a class twice", ", ".join(classes), "name each one once")
        for name in classes if names is not None else ():
            if name not in names:
                raise DataError(f"request {case!r}: no class {name!r}", near(name, names), "mend it")
        out[case] = Request(classes, part)
    return out


# --- reading --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Columns:
    """Where a data set of the hub keeps what is needed: two columns, two splits, a revision, channels."""

    image: str = "image"
    label: str = "label"
    train: str = "train"
    test: str = "test"
    revision: str = "main"
    channels: int = 3


def load(data: str, columns: Columns) -> Images:
    """Read a folder or a hub data set.

    Raises:
        DataError: it cannot be read, or its images differ in size.
    """
    folder = folder_of(data, "a folder, or a hub id such as uoft-cs/cifar100,")
    if folder is not None and (folder / ARRAYS).is_file():
        return _arrays(folder / ARRAYS)
    return _parquet(data, columns)


def _arrays(path: Path) -> Images:
    wanted = ("train_images", "train_labels", "test_images", "test_labels", "names")
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            lacking = [name for name in wanted if name not in file]
            if lacking:
                raise DataError(f"{path} has no {lacking[0]}", f"it has {', '.join(file)}", "write it again")
            got = {name: file[name] for name in wanted}
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        told = "write it by numpy.savez, with numbers and texts alone"
        raise DataError(f"{path} cannot be read", str(error).partition("\n")[0], told) from None
    splits = {}
    for name in ("train", "test"):
        x, y = got[f"{name}_images"], got[f"{name}_labels"]
        if x.ndim not in (3, 4) or y.ndim != 1 or y.dtype.kind not in "iu" or got["names"].ndim != 1:
            raise DataError(
                f"{path} ({name}) has images {x.shape}, labels {y.shape} ({y.dtype}), names {got['names'].shape}",
                "images are [N, H, W] or [N, H, W, C], labels whole numbers [N], names [classes]", "write it again",
            )  # fmt: skip
        pixels = x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        splits[name] = Split(pixels, y.astype(np.int64))
    return checked(Images(tuple(map(str, got["names"])), splits["train"], splits["test"]), str(path))


def _parquet(data: str, columns: Columns) -> Images:
    splits: dict[str, Split] = {}
    names: tuple[str, ...] = ()
    for split in (columns.train, columns.test):
        table = _table(data, split, columns)
        label = table.features[columns.label]
        found = tuple(getattr(label, "names", ()))
        names = names or found or tuple(str(k) for k in range(1 + max(table[columns.label])))
        mode = "L" if columns.channels == 1 else "RGB"
        flat = table.map(
            _decode, batched=True, batch_size=1000, remove_columns=table.column_names,
            fn_kwargs={"image": columns.image, "label": columns.label, "mode": mode},
        )  # fmt: skip
        shapes = set(zip(flat["height"], flat["width"], strict=True))
        if len(shapes) != 1:
            raise DataError(
                f"{data} ({split}) has images of {len(shapes)} sizes", f"{sorted(shapes)[:3]}", "resize them"
            )
        height, width = shapes.pop()
        raw = np.frombuffer(b"".join(flat["pixels"]), dtype=np.uint8)
        pixels = raw.reshape(len(flat), height, width, columns.channels).transpose(0, 3, 1, 2)
        splits[split] = Split(np.ascontiguousarray(pixels), np.array(flat["label"], dtype=np.int64))
    return checked(Images(names, splits[columns.train], splits[columns.test]), data)


def _table(data: str, split: str, columns: Columns) -> Any:
    import datasets

    if not importlib.util.find_spec("PIL"):
        raise DataError(
            f"{data} has images to decode", "Pillow is not installed", "pip install 'uharness[images]'"
        )
    datasets.disable_progress_bars()
    local = Path(data).expanduser().is_dir()
    with one_line(f"{data} ({split}) cannot be read"):
        table: Any = datasets.load_dataset(data, split=split, revision=None if local else columns.revision)
    for column in (columns.image, columns.label):
        if column not in table.column_names:
            todo = "set task.options.columns"
            raise DataError(f"{data} has no column {column!r}", near(column, table.column_names), todo)
    strange = [k for k in table[columns.label] if not isinstance(k, int)]
    if strange:
        raise DataError(
            f"{data} ({split}) has {len(strange)} labels such as {strange[0]!r}", "labels are whole numbers from 0 on",
            "mend the data, or set task.options.columns",
        )  # fmt: skip
    try:
        return table.cast_column(columns.image, datasets.Image(decode=False))
    except (RuntimeError, TypeError, ValueError):
        kind = table.features[columns.image]
        raise DataError(
            f"{data}: column {columns.image!r} holds no images", f"it is {kind}", "set task.options.columns"
        ) from None


def _decode(rows: Mapping[str, Any], image: str, label: str, mode: str) -> dict[str, Any]:
    from PIL import Image

    out: dict[str, list[Any]] = {"pixels": [], "height": [], "width": [], "label": list(rows[label])}
    for value in rows[image]:
        try:
            source = io.BytesIO(value["bytes"]) if value["bytes"] else value["path"]
            with Image.open(source) as picture:
                pixels = np.asarray(picture.convert(mode), dtype=np.uint8)
        except (OSError, SyntaxError, TypeError, ValueError, AttributeError) as error:
            told = f"{type(error).__name__}: {str(error)[:100]}"
            raise DataError(f"column {image!r} has a value that is no image", told, "mend the data") from None
        out["pixels"].append(pixels.tobytes())
        out["height"].append(pixels.shape[0])
        out["width"].append(pixels.shape[1])
    return out


def checked(images: Images, where: str) -> Images:
    """Refuse class names that repeat, and splits that are empty or whose labels and images do not fit."""
    repeated = sorted({name for name in images.names if images.names.count(name) > 1})
    if repeated:
        numbers = [str(k) for k, name in enumerate(images.names) if name == repeated[0]]
        raise DataError(
            f"{where} has {len(numbers)} classes named {repeated[0]!r}", f"numbers {', '.join(numbers)}",
            "give each class a name of its own",
        )  # fmt: skip
    for name, split in (("train", images.train), ("test", images.test)):
        x, y = split.pixels, split.labels
        if not len(y) or len(x) != len(y) or x.dtype != np.uint8 or x.ndim != 4:
            what = f"{len(x)} images ({x.dtype}, {x.ndim} axes) and {len(y)} labels"
            raise DataError(
                f"{where} ({name}) has {what}", "uint8 images, one label each, are needed", "mend it"
            )
        if y.min() < 0 or y.max() >= len(images.names):
            raise DataError(
                f"{where} ({name}) has labels {y.min()} to {y.max()}",
                f"there are {len(images.names)} names of classes", "mend it",
            )  # fmt: skip
    sizes = images.train.pixels.shape[1:], images.test.pixels.shape[1:]
    if sizes[0] != sizes[1]:
        raise DataError(
            f"{where} has training images {sizes[0]} and test images {sizes[1]}",
            "they are [channels, height, width]", "bring them to one size",
        )  # fmt: skip
    return images
