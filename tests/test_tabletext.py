import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from test_rank import UP, a_board, run, runs

from harness.bootstrap import PerRow
from harness.leaderboard import curve_metrics, load, meanings
from harness.publish import collect
from harness.rank import rank
from harness.recordtables import rows_table, trajectory_table
from harness.render import BoardPage, Site, render_site
from harness.sparkline import BLOCKS, Curve, span, sparkline
from harness.specs import Board, RunRecord, ScoreRecord, Stop
from harness.store import Store
from harness.tables import Table, number
from harness.tabletext import format_table, layout, rich_table
from harness.types import MetricInfo, Score, Trajectory
from harness.workspace import Workspace

TEMPLATES = Path(__file__).parent.parent / "site" / "templates"
INFO = {name: MetricInfo(name, "higher", None, None, "", "") for name in "mnopq"}
WIDE = a_board(columns=("n", "o", "m", "p", "q"), rank_by="m")


def wide(entry: str, values: list[float], **changes) -> list[RunRecord]:
    return [
        run(
            entry, None, seed, board=WIDE,
            **({"scores": {name: ScoreRecord(value=v + i, n=1) for i, name in enumerate("mnopq")}} | changes),
        )
        for seed, v in enumerate(values)
    ]  # fmt: skip


def a_table(**changes) -> Table:
    return rank(WIDE, [*wide("first", [0.8, 0.9, 0.85], **changes), *wide("second", [0.1, 0.2, 0.15])], INFO)


# --- what fits
def test_what_the_board_ranks_by_stays_and_what_is_hidden_is_named() -> None:
    text = format_table(a_table(), "table", width=60)
    head = text.splitlines()[0]
    assert re.split(r"\s{2,}", head) == ["rank", "entry", "n ↑", "m ↑", "runs"]
    assert "3 columns that do not fit: o, p, q. --all-columns shows them" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 60
    narrow = layout(a_table(), 10)
    assert narrow.hidden == ("n", "o", "p", "q") and narrow.head == ("rank", "entry", "m ↑", "runs")
    everything = layout(a_table(), None)
    assert everything.hidden == () and len(everything.head) == 8
    assert "do not fit" not in format_table(a_table(), "table")


@given(st.integers(1, 200))
def test_a_narrower_terminal_shows_no_more_and_never_too_wide(width: int) -> None:
    table = a_table()
    shown = layout(table, width)
    assert set(layout(table, width + 1).hidden) <= set(shown.hidden)
    if width >= 42:
        assert max(map(len, format_table(table, "table", width=width).splitlines())) <= width


def test_reasons_are_footnotes_and_equal_ranks_are_explained() -> None:
    board = a_board()
    records = [*runs("a", [0.5, 0.6, 0.7]), *runs("b", [0.6, 0.7, 0.5]), *runs("part", [0.5]),
               *runs("x", [0.1] * 3, status="failed", error="NaN loss"),
               *runs("y", [0.1] * 3, status="failed", error="NaN loss")]  # fmt: skip
    text = format_table(rank(board, records, {"m": UP}), "table", width=100)
    assert "incomplete [1]" in text and "[1] 1 of 3 runs; missing: seed 1, seed 2" in text
    assert text.count("unranked [2]") == 2 and text.count("failed: NaN loss") == 1
    assert "Equal ranks: no significant difference." in text
    assert "Equal ranks" not in format_table(a_table(), "table")


def test_nothing_in_a_record_reaches_the_terminal_as_a_command() -> None:
    evil = "\x1b[31mred\x07 [bold]x[/bold]\n\u202e"
    table = a_table(title=evil)
    for text in (format_table(table, "table", width=200), format_table(table, "md")):
        assert not {c for c in text if not c.isprintable()} - {"\n"} and "[bold]x[/bold]" in text
    console = Console(width=200, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(rich_table(table, 200))
    assert "[bold]x[/bold]" in console.file.getvalue() and "\x07" not in console.file.getvalue()


def test_the_terminal_shows_the_lines_of_the_plain_text() -> None:
    table = a_table()
    console = Console(width=80, file=io.StringIO())
    console.print(rich_table(table, 80))
    lines = console.file.getvalue().splitlines()
    plain = format_table(table, "table", width=80).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    for line in plain[2:4]:
        assert any(line.split() == other.split() for other in lines), line


# --- curves
def test_a_sparkline_by_hand() -> None:
    assert sparkline([0.0, 1.0], 0.0, 1.0) == BLOCKS[0] + BLOCKS[-1]
    assert sparkline([None, float("nan"), 0.5], 0.0, 1.0) == "  ▅"
    assert sparkline([], 0.0, 1.0) == "" and sparkline([3.0], 3.0, 3.0) == "▅"
    long = sparkline([i / 99 for i in range(100)], 0.0, 1.0)
    assert len(long) == 12 and (long[0], long[-1]) == ("▁", "█") and list(long) == sorted(long)
    assert sparkline([-1e308, 1e308], -1e308, 1e308) == "▁█"


def test_curves_share_one_scale() -> None:
    assert span([Curve("r", "p", (0.0,), (0.3,)), Curve("s", "p", (0.0,), (None,))]) == (0.0, 1.0)
    assert span([Curve("r", "p", (0.0, 1.0), (-2.0, 3.0))]) == (-2.0, 3.0)


def test_a_row_has_the_curve_of_its_first_run_that_has_one() -> None:
    table = a_table()
    curves = {"first-c-1": Curve("first-c-1", "forget.p", (0.0, 1.0), (1.0, 0.0))}
    text = format_table(table, "table", curves=curves).splitlines()
    assert "forget.p over time" in text[0] and text[2].endswith("█▁") and "█" not in text[3]
    assert "over time" not in format_table(table, "table")
    rows = json.loads(format_table(table, "json", curves=curves))["rows"]
    assert rows[0]["curve"]["values"] == [1.0, 0.0] and "curve" not in rows[1]


# --- the same numbers everywhere
BOARD = a_board(
    name="same",
    columns=("m", "forget.prob"),
    rank_by="m",
    stop=Stop(metric="forget.p", at_most=0.1),
    seeds=(0, 1, 2),
)
METRICS = {"m": UP, "forget.prob": MetricInfo("forget.prob", "lower", 0, 1, "", "")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store([tmp_path / "leaderboards"], tmp_path / "u.duckdb")
    rng = np.random.default_rng(0)
    for entry, base in (("a", 1 / 3), ("b", 0.7)):
        for seed in range(3):
            rows = rng.uniform(0, 1, 9)
            record = run(entry, base + seed / 70, seed, board=BOARD, run_id=f"{entry}-{seed}")
            scores = record.scores | {"forget.prob": ScoreRecord(value=float(rows.mean()), n=9)}
            per_row = Score(float(rows.mean()), 9, per_row={f"r{i}": float(v) for i, v in enumerate(rows)})
            curve = Trajectory(
                np.array([0, 5]), np.array([0.0, 1.5]), {"forget.p": np.array([0.9, 0.1 * base])}
            )
            store.write_record(
                record.model_copy(update={"scores": scores}), rows_table({"forget.prob": per_row}),
                trajectory_table(curve),
            )  # fmt: skip
    return store


def test_terminal_files_database_and_page_show_the_same_digits(store: Store) -> None:
    shown = load(store, BOARD, METRICS)
    table = shown.table
    page = render_site(Site(boards=[BoardPage(table, shown.records)], metrics=METRICS), TEMPLATES)[
        "boards/same.html"
    ]
    assert isinstance(page, str)
    lines = format_table(table, "table", width=200, curves=shown.curves).splitlines()
    marks = format_table(table, "md").splitlines()
    cells = list(csv.DictReader(io.StringIO(format_table(table, "csv"))))
    data = json.loads(format_table(table, "json"))["rows"]
    assert [row.entry for row in table.rows] == ["b", "a"] == [row["entry"] for row in data]
    for i, row in enumerate(table.rows):
        assert lines[2 + i].split()[0] == str(row.rank) == cells[i]["rank"] == str(data[i]["rank"])
        for column, cell in zip(table.columns, row.cells, strict=True):
            mean, half = number(cell.mean), number((cell.high - cell.low) / 2, cell.mean)
            assert f"{mean} ± {half}" in lines[2 + i] and f"{mean} ± {half}" in marks[2 + i]
            assert cell.mean == float(cells[i][f"{column.id}:mean"]) == data[i]["cells"][column.id]["mean"]
            assert cell.low == float(cells[i][f"{column.id}:low"]) == data[i]["cells"][column.id]["low"]
            assert f'<data value="{cell.mean!r}" title="{cell.mean!r}">{mean}</data>' in page
            ask = f"SELECT avg(value) FROM scores JOIN runs USING (run_id) WHERE entry = '{row.entry}' AND metric = "
            stored = store.query(f"{ask}'{column.id}'")[1][0][0]
            assert number(stored) == mean and stored == pytest.approx(cell.mean, rel=1e-15)
        assert lines[2 + i].endswith("█▁")


def test_the_rows_of_the_records_widen_their_metrics_interval_only(store: Store) -> None:
    with_rows = load(store, BOARD, METRICS).table
    without = rank(BOARD, store.load_records(), METRICS)
    for a, b in zip(with_rows.rows, without.rows, strict=True):
        assert (
            a.cells[0] == b.cells[0] and a.cells[1].mean == b.cells[1].mean and a.cells[1].sd == b.cells[1].sd
        )
        assert a.cells[1].high >= b.cells[1].high
    assert any(a.cells[1].high > b.cells[1].high for a, b in zip(with_rows.rows, without.rows, strict=True))


def test_ranks_by_a_mean_over_rows_take_the_rows_into_account(store: Store) -> None:
    board: Board = BOARD.model_copy(update={"rank_by": "forget.prob"})
    rows = store.load_row_values("same", ["forget.prob"])
    assert len(rows) == 6 and rows["a-0"]["forget.prob"].ids == tuple(f"r{i}" for i in range(9))
    records = [
        r.model_copy(update={"scores": {"forget.prob": ScoreRecord(value=v, n=2)}})
        for r, v in zip(store.load_records(), [0.30, 0.31, 0.32, 0.40, 0.41, 0.42], strict=True)
    ]
    values = {r.run_id: r.scores["forget.prob"].value or 0.0 for r in records}
    swing = {"a": 0.25, "b": -0.35}
    per_row = {
        i: {"forget.prob": PerRow(("x", "y"), np.array([v + swing[i[0]], v - swing[i[0]]]))}
        for i, v in values.items()
    }
    assert [r.rank for r in rank(board, records, METRICS).rows] == [1, 2]
    assert [r.rank for r in rank(board, records, METRICS, rows=per_row).rows] == [1, 1]


def test_the_site_is_built_from_the_same_table(store: Store, tmp_path: Path) -> None:
    (tmp_path / "leaderboards" / "same.toml").write_text(
        'rank_by = "m"\ncolumns = ["m"]\nseeds = [0]\n[task]\nname = "tofu"\ndata = "nowhere"\n'
        '[models]\ntarget = "x"\n[budget]\nupdates = 1\n'
    )
    (tmp_path / "submissions").mkdir()
    workspace = Workspace(tmp_path)
    board = workspace.board("same")
    page = next(p for p in collect(workspace, store).boards if p.board.name == "same")
    assert page.table == load(store, board, *meanings(workspace, board)).table
    assert {r.section for r in page.table.rows} == {"outdated"}


def test_which_curve_stands_beside_a_row(store: Store) -> None:
    assert curve_metrics(BOARD) == ["forget.p", "m", "forget.prob"]
    assert curve_metrics(a_board()) == ["m", "forget.p", "forget.prob"]
    assert store.load_curves("same", ["nothing", "forget.p"])["a-0"].values == (0.9, pytest.approx(0.1 / 3))
    assert store.load_curves("same", []) == {} == store.load_curves("other", ["forget.p"])


# --- the commands
def fill(workspace: Path) -> None:
    board = Workspace(workspace).board("tiny")
    store = Store([workspace / "leaderboards"], workspace / "build" / "uharness.duckdb")
    for entry, damage, slow in (("gentle", 0.2, 2.0), ("quick", 0.9, 1.0)):
        record = run(
            entry, None, 17, "M4", board=board, run_id=f"{entry}-17", title=entry, charged_s=slow, peak_gib=1.0,
            scores={"retain.damage": ScoreRecord(value=damage, n=9), "forget.p": ScoreRecord(value=0.05, n=9)},
        )  # fmt: skip
        curve = Trajectory(np.array([0, 3]), np.array([0.0, slow]), {"forget.p": np.array([1.0, 0.05])})
        store.write_record(record, None, trajectory_table(curve))


def test_board_show_and_overall(uharness, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(workspace)
    monkeypatch.setenv("COLUMNS", "90")
    text = uharness("board", "show", "tiny").out
    assert (
        "retain.damage ↓" in text
        and "█▁" in text
        and "cost.charged_s. --all-columns" in " ".join(text.split())
    )
    assert (
        "Best of retain.damage ↓ and cost.charged_s ↓ (Pareto): gentle (0.2000, 2.0000), "
        "quick (0.9000, 1.0000)" in text
    )
    everything = uharness("board", "show", "tiny", "--all-columns").out
    assert "bucket.acc" in everything.splitlines()[0] and "do not fit" not in everything
    numbers = json.loads(uharness("board", "show", "tiny", "--format", "json").out)
    assert numbers["rows"][0]["curve"]["charged_s"] == [0.0, 2.0]
    standings = json.loads(uharness("board", "overall", "--format", "json").out)
    here = {
        s["submission"]: (p["rank"], s["profile"]["ratios"], s["profile"]["score"] * s["profile"]["workloads"])
        for s in standings for p in s["places"] if p["board"] == "tiny" and p["ranked"]
    }  # fmt: skip
    # the checkout's own boards may have records too, which add workloads that these two do not reach
    assert here == {"quick": (1, [1.0], pytest.approx(1.0)), "gentle": (1, [2.0], pytest.approx(2 / 3))}
    assert "tiny" in uharness("board", "overall").out.splitlines()[0].split()
