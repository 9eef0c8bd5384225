"""Where RWKU's rows are: files with the names that the hub's data set has, or its config names.

Each config is one JSON file below `All/`. The data set's card lists `utility_general` twice, which strict readers of
the card refuse; files are taken by their names, and the card is never read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness.tasks.sources import Record, one_line

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


def file_of(config: str) -> str:
    """The hub's path of a config.

    >>> file_of("utility_general"), file_of("forget_level1")
    ('All/retain_mmlu.json', 'All/forget_level1.json')
    """
    return f"All/{FILES.get(config, config)}.json"


def files(config: str) -> tuple[str, ...]:
    """Where the file of a config may be in a folder: under the config's own name, or as on the hub.

    >>> files("utility_general")
    ('utility_general.json', 'All/retain_mmlu.json', 'retain_mmlu.json')
    """
    return f"{config}.json", file_of(config), Path(file_of(config)).name


class Hub:
    """The data set on the Hugging Face hub; a file is fetched when it is asked for, and read through `datasets`."""

    def __init__(self, repo: str, revision: str = "main") -> None:
        self.where, self.revision = repo, revision
        self.folder: Path | None = None

    def rows(self, config: str) -> list[Record]:
        """Records of one config."""
        import datasets
        import huggingface_hub

        with one_line(f"{self.where} ({config}, file {file_of(config)}) cannot be read"):
            path = huggingface_hub.hf_hub_download(
                self.where, file_of(config), repo_type="dataset", revision=self.revision
            )
            table: Any = datasets.load_dataset("json", data_files=str(path), split="train")
        found = re.search(r"/snapshots/([0-9a-f]{40})/", str(path))
        self.revision = found[1] if found else self.revision
        return table.to_list()
