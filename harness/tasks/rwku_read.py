"""Where RWKU's rows are: files with the names that the hub's data set has, or its config names.

Each config is one JSON file below `All/`. The data set's card lists `utility_general` twice, which strict readers of
the card refuse; files are taken by their names, and the card is never read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from harness.errors import DataError
from harness.tasks import utf8

HUB = "jinzhuoran/RWKU"
FILES = {
    "forget_target": "intro",
    "mia_forget": "forget_mia",
    "mia_retain": "retain_mia",
    "utility_general": "retain_mmlu",
    "utility_reason": "retain_bbh",
    "utility_truthfulness": "truthful",
    "utility_factuality": "triviaqa",
    "utility_fluency": "fluency",
    "train_original_passage": "passage",
    "train_positive_llama3": "positive",
    "train_pair_llama3": "pair",
    "train_refusal_llama3": "reject",
    "train_positive_phi3": "positive_phi",
    "train_pair_phi3": "pair_phi",
    "train_refusal_phi3": "reject_phi",
}
"""Config -> name of its file, where that is another one."""

Record = Mapping[str, Any]


class FileMissing(DataError):
    """A config's file is not where it was looked for."""


class Source(Protocol):
    """Where configs are read.

    Attributes:
        where: for messages.
        folder: the local folder, None for the hub.
        revision: of the hub's data set: as asked for, and once a file was read the commit that it came from.
    """

    where: str
    folder: Path | None
    revision: str

    def rows(self, config: str) -> Sequence[Record]:
        """All records of one config; raises `FileMissing` when it is not there."""
        ...


def file_of(config: str) -> str:
    """The hub's path of a config.

    >>> file_of("utility_general"), file_of("forget_level1")
    ('All/retain_mmlu.json', 'All/forget_level1.json')
    """
    return f"All/{FILES.get(config, config)}.json"


class Folder:
    """A folder in the hub's shape (`All/intro.json`), or with one `<config>.json` a config."""

    def __init__(self, folder: Path) -> None:
        self.where, self.revision = str(folder), ""
        self.folder: Path | None = folder
        self._at = folder

    def rows(self, config: str) -> list[Record]:
        """Records of one file: a JSON array, or one JSON object a line."""
        names = (f"{config}.json", file_of(config), Path(file_of(config)).name)
        for name in names:
            if (self._at / name).is_file():
                return _read(self._at / name)
        raise FileMissing(
            f"{config} is missing: no {' or '.join(dict.fromkeys(names))} in {self.where}",
            f"the folder has {', '.join(sorted(p.stem for p in self._at.rglob('*.json'))[:20]) or 'no JSON file'}",
            f"save {file_of(config)} of {HUB} there, or give another --data-dir",
        )


class Hub:
    """The data set on the Hugging Face hub; a file is fetched when it is asked for, and read through `datasets`."""

    def __init__(self, repo: str, revision: str = "main") -> None:
        self.where, self.revision = repo, revision
        self.folder: Path | None = None

    def rows(self, config: str) -> list[Record]:
        """Records of one config."""
        import datasets
        import huggingface_hub
        from datasets.exceptions import DatasetsError

        try:
            path = huggingface_hub.hf_hub_download(
                self.where, file_of(config), repo_type="dataset", revision=self.revision
            )
            table: Any = datasets.load_dataset("json", data_files=str(path), split="train")
        except (OSError, ValueError, RuntimeError, DatasetsError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise FileMissing(
                f"{self.where} ({config}, file {file_of(config)}) cannot be read from the Hugging Face hub",
                first[:200],
                "pass --data-dir FOLDER with its files, or go online (unset HF_HUB_OFFLINE)",
            ) from None
        found = re.search(r"/snapshots/([0-9a-f]{40})/", str(path))
        self.revision = found[1] if found else self.revision
        return table.to_list()


def _read(path: Path) -> list[Record]:
    text = utf8.read(path)
    try:
        if text.lstrip().startswith("["):
            records = json.loads(text)
        else:
            records = [json.loads(line) for line in text.split("\n") if line.strip()]
    except json.JSONDecodeError as error:
        todo = "it should be a JSON array, or one JSON object a line"
        raise DataError(f"{path} is not JSON: {error.msg} in line {error.lineno}", "", todo) from None
    if not records:
        raise DataError(f"{path} has no rows", "", "take the file from a whole download")
    for i, record in enumerate(records):
        if not isinstance(record, dict):
            raise DataError(f"{path} row {i} is a {type(record).__name__}", "", "rows are JSON objects")
    return records


def check(records: Sequence[Record], where: str, columns: Mapping[str, str]) -> None:
    """Refuse rows without the columns.

    Args:
        records: all rows of a file.
        where: the file, for messages.
        columns: name -> `text`, `any text` for one that may be empty, or `texts` for a list of two.
    """
    for i, record in enumerate(records):
        for column, kind in columns.items():
            if column not in record:
                raise DataError(
                    f"{where} row {i} has no column {column!r}",
                    f"it has {', '.join(map(repr, record)) or 'none'}",
                    "take the right file",
                )
            value = record[column]
            good = isinstance(value, str) and (kind == "any text" or bool(value.strip()))
            if kind == "texts":
                good = isinstance(value, list) and len(value) == 2 and all(isinstance(v, str) for v in value)
            if not good:
                raise DataError(
                    f"{where} row {i}: column {column!r} is {json.dumps(value, default=str)[:60]}",
                    "it should be two texts" if kind == "texts" else "it should be a text",
                    "mend the file",
                )
