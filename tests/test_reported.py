from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BoardError
from harness.reported import load_reported
from harness.workspace import Workspace

LEADERBOARDS = Path(__file__).parent.parent / "leaderboards"
ROW = '[[rows]]\ntitle = "A"\nsource = "B, Table 1"\nmodel = "M"\nsplit = "forget10"\n'


def write(folder, text):
    (folder / "reported.toml").write_text(text)
    return folder


def test_rows_are_read_in_order(tmp_path):
    assert load_reported(tmp_path) == ()
    more = ROW.replace('"A"', '"C"') + "values = { agg = 1 }\nreference = true\n"
    rows = load_reported(
        write(tmp_path, ROW + "values = { agg = 0.5, mem = 0.25 }\nsd = { agg = 0.01 }\n" + more)
    )
    assert [row.title for row in rows] == ["A", "C"]
    assert (rows[0].values, rows[0].sd) == ({"agg": 0.5, "mem": 0.25}, {"agg": 0.01})
    assert rows[1].reference and rows[1].note == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[[rows]", "not valid TOML"),
        (ROW, "row 1, values: Field required"),
        (ROW + "values = {}\n", "row 1, values"),
        (ROW + "values = { agg = nan }\n", "leave out what a paper does not give"),
        (ROW + 'values = { "a-b" = 1.0 }\n', "'a-b' is not a metric id"),
        (ROW + "values = { agg = 0.5 }\nsd = { mem = 0.1 }\n", "mem"),
        (ROW + "values = { agg = 0.5 }\nnot = 1\n", "row 1: unknown key 'not' .*did you mean note"),
        ("rowz = []\n", "unknown key 'rowz' .*did you mean rows"),
        (2 * (ROW + "values = { agg = 0.5 }\n"), "stands there twice"),
        (ROW.replace('"B, Table 1"', '""') + "values = { agg = 0.5 }\n", "row 1, source"),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path, text, shown):
    with pytest.raises(BoardError, match=shown) as caught:
        load_reported(write(tmp_path, text))
    assert "reported.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_every_shipped_file_belongs_to_its_board():
    workspace = Workspace(LEADERBOARDS.parent)
    found = 0
    for path in sorted(LEADERBOARDS.glob("*/reported.toml")):
        board = workspace.board(path.parent.name)
        for row in load_reported(path.parent):
            found += 1
            assert row.split == board.task.split and "Table" in row.source
            known = row.values.keys() & {"mem", "priv", "util", "agg"}
            if known == {"mem", "priv", "util", "agg"}:
                parts = [row.values[k] for k in ("mem", "priv", "util")]
                assert 3 / sum(1 / p for p in parts) == pytest.approx(row.values["agg"], abs=1e-4)
    assert found >= 30
