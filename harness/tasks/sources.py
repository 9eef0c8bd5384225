"""Where a task's rows are read: JSON files of a folder, or a data set of the Hugging Face hub."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from harness.errors import DataError

ONLINE = "give a folder with its files as data, or go online (unset HF_HUB_OFFLINE)"
"""What to do when the hub cannot be read."""

Record = Mapping[str, Any]


class SplitMissing(DataError):
    """A split, or the file that holds it, is not where it was looked for."""


class Source(Protocol):
    """Where splits are read.

    Attributes:
        where: for messages.
        folder: the local folder, None for the hub.
        revision: of the hub's data set: as asked for, and once rows were read the commit they came from.
    """

    where: str
    folder: Path | None
    revision: str

    def rows(self, config: str) -> Sequence[Record]:
        """All records of one config; raises `SplitMissing` when it is not there."""
        ...


def is_hub_id(text: str) -> bool:
    """Whether a text can be the id of a hub data set.

    >>> [is_hub_id(text) for text in ("locuslab/TOFU", "./TOFU", "~/TOFU", "a/b/c", "TOFU", "")]
    [True, False, False, False, False, False]
    """
    return text.count("/") == 1 and not text.startswith((".", "~", "/"))


def folder_of(data: str, kind: str) -> Path | None:
    """The folder that a board's `data` names; None for a hub id, or where it names nothing.

    Args:
        data: as the board has it.
        kind: what may be given, in words, such as `a folder with TOFU's files`.

    Raises:
        DataError: it is neither.
    """
    folder = Path(data).expanduser()
    if data and folder.is_dir():
        return folder
    if not data or is_hub_id(data):
        return None
    raise DataError(
        f"data folder {data!r} does not exist", f"looked for {folder.absolute()}", f"give {kind} as data"
    )


# --- folders --------------------------------------------------------------------------------------------------------
class Folder:
    """A folder with a JSON file a config.

    Args:
        folder: the folder.
        names: config -> paths in the folder that its file may have.
        hub: the hub's data set that has the files, for messages.
        array: whether a file may also be one JSON array.
    """

    def __init__(
        self, folder: Path, names: Callable[[str], Sequence[str]], hub: str, *, array: bool = False
    ) -> None:
        self.where, self.revision = str(folder), ""
        self.folder: Path | None = folder
        self._at, self._names, self._hub, self._array = folder, names, hub, array

    def rows(self, config: str) -> list[Record]:
        """Records of one file."""
        names = tuple(dict.fromkeys(self._names(config)))
        for name in names:
            if (self._at / name).is_file():
                return json_rows(self._at / name, array=self._array)
        there = sorted(p.stem for way in ("*.json*", "*/*.json*") for p in self._at.glob(way))
        raise SplitMissing(
            f"split {config} is missing: no {' or '.join(names)} in {self.where}",
            f"the folder has {', '.join(there[:20]) or 'no JSON file'}",
            f"save it from {self._hub}, or give another folder as data",
        )


def read(path: Path) -> str:
    """The text of a UTF-8 file, with or without a byte order mark.

    Raises:
        DataError: the file is in another encoding.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8",
            f"byte {error.start} is {error.object[error.start]:#04x}",
            "save it as UTF-8",
        ) from None


def json_rows(path: Path, *, array: bool = False, column: str = "") -> list[Record]:
    """Records of a file of JSON lines.

    Args:
        path: the file.
        array: whether it may also be one JSON array.
        column: what a bare text is a record's column of; empty where there may be none.

    Raises:
        DataError: it is not UTF-8 or not JSON, a row is no object, or a text no text.
    """
    text = read(path)
    found: Iterator[tuple[str, Any]]
    if array and text.lstrip().startswith("["):
        found = ((f"{path} row {i}", value) for i, value in enumerate(parsed(text, str(path))))
    else:
        lines = ((f"{path} line {i}", line) for i, line in enumerate(text.split("\n"), start=1))
        found = ((at, parsed(line, at)) for at, line in lines if line.strip())
    records: list[Record] = []
    for at, value in found:
        record = {column: value} if column and isinstance(value, str) else value
        if not isinstance(record, dict):
            raise DataError(f"{at} is a {type(record).__name__}", "", "write one JSON object a row")
        records.append(record)
    return records


def parsed(text: str, where: str) -> Any:
    r"""A JSON value whose texts can all be written as UTF-8, which those with half a surrogate pair cannot.

    >>> parsed('["\\ud83d\\ude00"]', "here")
    ['😀']
    >>> parsed('["\\ud83d"]', "here")
    Traceback (most recent call last):
    harness.errors.DataError: here has \ud83d, half of a character; texts are Unicode; mend the file
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        known = error.msg if "\n" not in text else f"{error.msg} in line {error.lineno}"
        raise DataError(f"{where} is not JSON", known, "mend the file") from None
    half = re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False)) if "\\u" in text else None
    if half:
        raise DataError(
            f"{where} has \\u{ord(half[0]):x}, half of a character", "texts are Unicode", "mend the file"
        )
    return value


# --- the hub --------------------------------------------------------------------------------------------------------
class Hub:
    """A data set of the Hugging Face hub, read through `datasets` when a split is asked for."""

    def __init__(self, repo: str, revision: str = "main") -> None:
        self.where, self.revision = repo, revision
        self.folder: Path | None = None

    def rows(self, config: str | None) -> list[Record]:
        """Records of one config's split `train`; None is the data set's only one."""
        records, self.revision = hub_rows(self.where, config, "train", self.revision)
        return records


def hub_rows(
    where: str | Path, config: str | None, split: str, revision: str = "", todo: str = ONLINE
) -> tuple[list[Record], str]:
    """Records of one split by `datasets`, and the commit they came from.

    Args:
        where: hub id, or a folder with a copy of the hub's data set, of which nothing is kept in a cache.
        config: None is the only one.
        split: such as `train`.
        revision: of the hub's data set; returned as it is where no commit is known.
        todo: what to do when it cannot be read.

    Raises:
        SplitMissing: it cannot be read.
    """
    import datasets

    more: dict[str, Any] = {"streaming": True} if isinstance(where, Path) else {"revision": revision}
    with one_line(f"{where}{f' ({config})' if config else ''} cannot be read", todo):
        table: Any = datasets.load_dataset(str(where), config, split=split, **more)
        records: list[Record] = [dict(record) for record in table]
    checksums = table.info.download_checksums if table.info else None
    found = re.search(r"@([0-9a-f]{40})/", " ".join(checksums or ()))
    return records, found[1] if found else revision


@contextlib.contextmanager
def one_line(what: str, todo: str = ONLINE) -> Iterator[None]:
    """Turn what `datasets` and the hub raise into one `SplitMissing` with the first line of it."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SplitMissing(what, first[:200], todo) from None
