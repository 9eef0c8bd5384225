"""What every task's reader of rows refuses, in one line, and what it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import DataError
from harness.tasks import checks, sources, textlists


@pytest.mark.parametrize("content", ['{"text": "a"}\n\n{"text": "b"}\n', '\n[{"text": "a"}, {"text": "b"}]'])
def test_lines_and_arrays_are_the_same_records(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    assert sources.json_rows(path, array=True) == [{"text": "a"}, {"text": "b"}]


def test_bare_texts_go_into_a_column_where_there_may_be_some(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('"a"\n{"text": "b"}')
    assert sources.json_rows(path, column="text") == [{"text": "a"}, {"text": "b"}]
    with pytest.raises(DataError, match="line 1 is a str"):
        sources.json_rows(path)


@pytest.mark.parametrize(
    ("content", "array", "said"),
    [
        ('{"a": 1}\n{', True, "a.json line 2 is not JSON"),
        ('[{"a": 1},\n{', True, r"a.json is not JSON; .* in line 2"),
        ('[{"a": 1}, 2]', True, "a.json row 1 is a int"),
        ('[{"a": 1}]', False, "a.json line 1 is a list"),
        (
            '{"a": 1}\n{"a": ["x", {"b": "\\ud800y"}]}',
            False,
            r"a.json line 2 has \\ud800, half of a character",
        ),
        ('[{"\\uDFFF": 1}]', True, r"a.json has \\udfff, half of a character"),
    ],
)
def test_what_is_no_file_of_rows_is_one_line(tmp_path: Path, content: str, array: bool, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(DataError, match=said) as caught:
        sources.json_rows(path, array=array)
    assert "\n" not in str(caught.value) and str(caught.value).encode()


def test_both_halves_of_a_character_are_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"text": "😀"}))
    assert "\\ud83d" in path.read_text() and sources.json_rows(path) == [{"text": "😀"}]


def test_a_list_of_texts_has_whole_characters(tmp_path: Path) -> None:
    path = tmp_path / "idk.jsonl"
    path.write_text('"No \\ud800 idea."')
    with pytest.raises(DataError, match=r"line 1 has \\ud800"):
        textlists.read_texts(path)


@pytest.mark.parametrize("content", ["", "\n \n", "[]"])
def test_no_rows_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(DataError, match="here has no rows"):
        checks.rows(sources.json_rows(path, array=True), "here", {})


def test_a_value_is_shown_only_where_it_may_be() -> None:
    rows = [{"text": "a"}, {"text": ["a secret"]}]
    with pytest.raises(
        DataError, match=r"here row 1: column 'text' is \[\"a secret\"\]; it should be a text"
    ):
        checks.rows(rows, "here", {"text": checks.TEXT})
    with pytest.raises(DataError, match="column 'text' is a list") as caught:
        checks.rows(rows, "here", {"text": checks.TEXT}, show=False)
    assert "secret" not in str(caught.value)
    checks.rows([{"text": ""}], "here", {"text": checks.ANY_TEXT})
    with pytest.raises(DataError, match="is an empty text"):
        checks.rows([{"text": " "}], "here", {"text": checks.TEXT}, show=False)
