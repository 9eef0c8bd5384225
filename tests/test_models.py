"""What the strings of a board's `models` mean."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.errors import ModelError
from harness.mini import families
from harness.models import MINI, check, load, resolve, save, weights_hash


def test_a_model_that_was_built_in_the_workspace_is_found(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"uharness mini build --family bma-full"):
        resolve("mini:bma-full/M4", (tmp_path,))
    folder = tmp_path / "build" / "mini" / "bma-full" / "M4"
    shutil.copytree(MINI / "bma" / "M4", folder)
    assert resolve("mini:bma-full/M4", (tmp_path,)) == str(folder)
    assert resolve("mini:bma/M4", (tmp_path,)) == str(MINI / "bma" / "M4")


def test_a_family_that_was_not_built_is_not_checked_as_if_it_were(tmp_path: Path) -> None:
    try:
        found = families.check(tmp_path, "bma-full")
    except ModelError:
        return
    assert found
    assert not any(c.ok for c in found)


def test_relative_folders_are_looked_for_in_the_workspace(tmp_path: Path) -> None:
    shutil.copytree(MINI / "bma" / "M4", tmp_path / "mine")
    assert resolve("mine", (tmp_path,)) == str(tmp_path / "mine")
    with pytest.raises(ModelError, match="does not exist"):
        resolve("./nothing", (tmp_path,))


def test_a_hub_model_that_is_not_here_is_told_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE=1 forbids fetching it"):
        resolve("nobody/nothing", (tmp_path,))


def test_what_is_saved_is_loaded_to_the_last_bit_and_changes_the_hash(tmp_path: Path) -> None:
    loaded = load(str(MINI / "bma" / "M4"))
    save(loaded, tmp_path / "same")
    again = load(str(tmp_path / "same"))
    for a, b in zip(loaded.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert a.equal(b)
    before = weights_hash(str(tmp_path / "same"))
    next(again.model.parameters()).data.mul_(2)
    save(again, tmp_path / "same")
    assert weights_hash(str(tmp_path / "same")) != before


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no config.json"),
        ({"config.json": "{}"}, "has no weights"),
        ({"config.json": "{}", "model.safetensors": ""}, "has no tokenizer"),
    ],
)
def test_a_folder_that_cannot_be_a_model_is_refused(tmp_path: Path, files: dict[str, str], says: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=says):
        check(str(tmp_path), needs_tokenizer=True)


def test_a_config_that_is_no_object_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelError, match="not a JSON object"):
        load(str(tmp_path))
