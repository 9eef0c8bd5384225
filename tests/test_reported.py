from __future__ import annotations

from pathlib import Path

import pytest

from harness import preflight
from harness.errors import BoardError
from harness.reported import load_reported, note_of, reported_of
from harness.show import reported_lines
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
        ("note = 3\n", "toml: note: Input should be a valid string"),
        ("rows = 3\n", "toml: rows: "),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path, text, shown):
    with pytest.raises(BoardError, match=shown) as caught:
        load_reported(write(tmp_path, text))
    assert "reported.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_a_note_says_what_is_left_out(tmp_path):
    (tmp_path / "b").mkdir()
    write(tmp_path / "b", 'note = "C is left out: D."\n' + ROW + "values = { agg = 0.5 }\n")
    assert note_of([tmp_path], "b") == "C is left out: D." and len(reported_of([tmp_path], "b")) == 1
    assert note_of([tmp_path], "other") == "" and reported_of([tmp_path], "other") == ()
    told = {name: note for name in shipped() if (note := note_of([LEADERBOARDS], name))}
    assert set(told) == {"tofu-3b-forget05-updates", "tofu-3b-forget10-updates", "wmdp-zephyr-7b"}
    assert all("left out: " in note and note.endswith(".") and "\n" not in note for note in told.values())


def shipped():
    """Board name to the rows that papers report on it."""
    return {
        path.parent.name: load_reported(path.parent) for path in sorted(LEADERBOARDS.glob("*/reported.toml"))
    }


def test_every_shipped_row_belongs_to_its_board():
    workspace = Workspace(LEADERBOARDS.parent)
    assert sum(map(len, shipped().values())) >= 100
    for name, rows in shipped().items():
        board = workspace.board(name)
        assert rows, name
        for row in rows:
            assert row.split == board.task.split or not board.task.split, (name, row.title)
            assert "Table" in row.source or "App." in row.source, (name, row.title)


def test_every_shipped_value_is_a_metric_of_its_board_and_in_its_range():
    workspace = Workspace(LEADERBOARDS.parent)
    for name, rows in shipped().items():
        metrics = preflight.described(workspace.board(name), workspace).metrics
        for row in rows:
            for metric, value in row.values.items():
                info = metrics[metric]
                assert info.low is None or value >= info.low, (name, row.title, metric)
                assert info.high is None or value <= info.high, (name, row.title, metric)
            assert all(
                0 <= sd < 0.5 * abs(row.values[metric]) or metric == "forget.acc"
                for metric, sd in row.sd.items()
            )


def test_composites_are_those_of_their_parts():
    found = 0
    for name, rows in shipped().items():
        for row in rows:
            if row.values.keys() >= {"mem", "priv", "util", "agg"}:
                parts = [row.values[k] for k in ("mem", "priv", "util")]
                assert 3 / sum(1 / p for p in parts) == pytest.approx(row.values["agg"], abs=1e-4), (
                    name,
                    row.title,
                )
                found += 1
    assert found == 4


@pytest.mark.parametrize(
    ("board", "one", "other", "original"),
    [
        ("wmdp-zephyr-7b", "wmdp_bio.acc", "wmdp_cyber.acc", 0.4777),
        ("rwku-llama3-8b", "forget.rougeL_recall.rwku", "neighbor.rougeL_recall.rwku", -0.757),
    ],
)
def test_gains_of_one_table_share_one_original_model(board, one, other, original):
    """3 gain + what is left of the parts is a constant of the model before unlearning."""
    rows = [row.values for row in shipped()[board] if "gain" in row.values]
    sign = 1 if board.startswith("wmdp") else -1
    assert len(rows) == 4
    for v in rows:
        assert 3 * v["gain"] + v[one] + sign * v[other] - v["mmlu.acc"] == pytest.approx(original, abs=5e-4)
    assert [v["gain"] for v in rows] == sorted((v["gain"] for v in rows), reverse=True)


def test_values_are_those_of_the_papers():
    told = {
        (name, row.title, row.source.split(", ")[-1]): row.values
        for name, rows in shipped().items()
        for row in rows
    }
    assert told["images-cifar100-resnet50-scratch", "Unmerge, CAV-Class", "Table 1"] == {"tow": 0.9909}
    assert told["images-tinyimagenet-resnet50-scratch", "Unmerge, PCA", "Table 2"] == {"tow": 0.6736}
    assert told["images-tinyimagenet-resnet50-scratch", "Kodge et al.", "Table 2"] == {"tow": 0.735}
    assert told["images-cifar100-resnet50", "SalUn", "Table 3"] == {"features.gap": 1.014}
    assert told["tofu-1b-forget10-updates", "NPO, AdamW or Sophia", "Table 12"] == {"agg": 0.6876}
    assert told["tofu-8b-forget10-updates", "LUNAR, EfficientSoup", "Tables 2 and 4"] == {
        "sbq": 7.565,
        "lbq": 7.354,
    }
    assert told["muse-news-7b", "SimNPO, UnlearningSoup", "Table 5"]["memq"] == 0.30725
    assert told["bma-full-forget01", "GradDiff, M = 64", "Table 11"] == {"retain.damage": 0.643}


def test_a_search_of_more_depth_is_never_worse():
    depth = {}
    for row in shipped()["tofu-3b-forget10-updates"]:
        if row.title.startswith("GradDiff, EfficientSoup"):
            depth[int(row.title.rpartition(" ")[2]) if "depth" in row.title else 4] = row.values
    scores = [(depth[d]["sbq"], -depth[d]["ds_es"]) for d in sorted(depth)]
    assert sorted(depth) == [2, 3, 4, 5] and scores == sorted(scores)


def test_the_terminal_shows_them_apart():
    row = load_reported(LEADERBOARDS / "tofu-3b-forget05-updates")[1]
    head, line = reported_lines([row])
    assert "never ranked" in head and line.strip().startswith("RMU, SOAP: agg 0.7360 ± 0.0011, mem 0.7160")
    assert row.source in line and reported_lines([]) == []
    assert reported_lines([row], "Left out.")[-1] == "  Left out." and reported_lines([], "Left out.") == []
