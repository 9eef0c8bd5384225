"""What single pages say: selectors, names, profiles, citations, downloads, and where rows have no text."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sample_site
from hypothesis import given
from hypothesis import strategies as st
from sample_site import METRICS, REPORTED, a_board, a_record, a_trajectory, board_page

from harness.chains import AFTER
from harness.charts import xy_chart
from harness.overall import standings
from harness.pages.boards import trainings_of
from harness.pages.content import BoardPage, MethodPage, Site
from harness.pages.names import names_of
from harness.pages.runs import WORDLESS
from harness.pages.scatter import LETTER, LINE, LONG, Dot, lay_out, scatter_chart, short
from harness.pages.words import board_bibtex, year_of
from harness.rank import rank
from harness.render import render_site
from harness.site import read_static, write_site
from harness.sitecheck import check_site
from harness.specs import Ledger, RunRecord, TaskRef
from harness.types import Trajectory

SOURCES = Path(__file__).parent.parent / "site"
BOARD = a_board()
SOUP = "soup:grad_diff"


def rendered(site: Site) -> dict[str, str]:
    files = render_site(site, SOURCES / "templates", read_static(SOURCES / "static"))
    return {name: text for name, text in files.items() if isinstance(text, str)}


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


def soups() -> list[RunRecord]:
    """Two entries of a selector of one title, and one plain method."""
    made = [a_record(BOARD, "grad_diff", seed, 0.5) for seed in BOARD.seeds]
    for n, mark in ((2, "aaaaaa"), (7, "bbbbbb")):
        made += [
            a_record(
                BOARD, SOUP, seed, 0.3 + n / 10, run_id=f"soup-{n}-{seed}", title="Soup of GradDiff", optimizer=None,
                entry=f"{SOUP}[by=proxy,n={n}]@{mark}", ledger=Ledger(trainings=n),
            )
            for seed in BOARD.seeds
        ]  # fmt: skip
    return made


METHODS = (
    MethodPage("soup", "Soup", "Chefs 2026 (arXiv 2601.00001)", "A. Chef", "suppress", "SOUP = 1\n", selector=True),
    MethodPage("best_of", "Best of n", selector=True),
    MethodPage("grad_diff", "GradDiff", "Someone 2022 (arXiv 2201.00001)", source="DIFF = 1\n"),
)  # fmt: skip


# --- selectors
def test_a_selectors_row_has_its_source_and_paper_and_leads_to_both_methods(tmp_path: Path) -> None:
    page = BoardPage(rank(BOARD, soups(), METRICS), soups())
    site = Site([page], METHODS, METRICS)
    pages = rendered(site)
    both = next(text for name, text in pages.items() if name.startswith("methods/soup-grad-diff-"))
    assert "SOUP = 1" in both and "DIFF = 1" not in both and "https://arxiv.org/abs/2601.00001" in both
    assert "@misc{soup," in both and "title = {Soup}" in both and "eprint = {2601.00001}" in both
    assert '<a href="../methods/soup.html">Soup</a>, <a href="../methods/grad_diff.html">GradDiff</a>' in both
    alone = pages["methods/soup.html"]
    assert "No run on any board yet" not in alone and text_of(alone).count("[by=proxy,n=") == 2
    assert len(list(csv.DictReader(io.StringIO(pages["data/methods/soup.csv"])))) == 2
    assert "uharness submit best_of:grad_diff<" in pages["methods/best_of.html"]
    assert "soup:" not in pages["methods/grad_diff.html"]
    # without the files, both parts have a page all the same
    write_site(
        render_site(Site([page], (), METRICS), SOURCES / "templates", read_static(SOURCES / "static")),
        tmp_path / "s",
    )
    assert check_site(tmp_path / "s")[0] == [] and (tmp_path / "s" / "methods" / "soup.html").exists()


def test_equal_titles_are_told_apart_by_what_differs() -> None:
    table = rank(BOARD, soups(), METRICS)
    names = {entry.partition("@")[2]: name for entry, name in names_of(table).items()}
    assert names == {
        "a1b2c3": "GradDiff",
        "aaaaaa": "Soup of GradDiff [n=2]",
        "bbbbbb": "Soup of GradDiff [n=7]",
    }


def renamed(entries: list[str], optimizers: list[str | None]) -> list[str]:
    given = [
        a_record(BOARD, "npo", seed, 0.5, entry=entry, optimizer=optimizer, run_id=f"{entry}-{seed}")
        for entry, optimizer in zip(entries, optimizers, strict=True) for seed in BOARD.seeds
    ]  # fmt: skip
    names = names_of(rank(BOARD, given, METRICS))
    return [names[entry] for entry in entries]


@pytest.mark.parametrize(
    ("entries", "optimizers", "expected"),
    [
        (["npo@1", "npo@2"], [None, None], ["NPO @1", "NPO @2"]),
        (["npo@1", "npo[a=1]@2"], [None, None], ["NPO", "NPO [a=1]"]),
        (["npo[a=1,b=[1, 2]]@1", "npo[a=1,b=[1, 3]]@2"], [None, None], ["NPO [b=[1, 2]]", "NPO [b=[1, 3]]"]),
        (["npo[a=1]@1", "npo[a=1]@2"], [None, None], ["NPO @1", "NPO @2"]),
        (["npo@1", "npo@2"], ["adamw", "muon"], ["NPO, adamw", "NPO, muon"]),
        (["npo@1"], [None], ["NPO"]),
    ],
)  # fmt: skip
def test_names_have_no_more_than_what_tells_them_apart(
    entries: list[str], optimizers: list[str | None], expected: list[str]
) -> None:
    assert renamed(entries, optimizers) == expected


def test_rows_that_are_shown_apart_lengthen_no_name() -> None:
    old = [a_record(BOARD, "npo", s, 0.5, entry="npo@0", run_id=f"o{s}", board_version="0-0") for s in (0, 1)]
    given = [a_record(BOARD, "npo", seed, 0.5) for seed in BOARD.seeds]
    assert names_of(rank(BOARD, [*given, *old], METRICS)) == {"npo@a1b2c3": "NPO"}


def test_the_trainings_behind_a_row_are_on_the_board_and_a_chain_is_no_selector() -> None:
    pages = rendered(Site([BoardPage(rank(BOARD, soups(), METRICS), soups())], METHODS, METRICS))
    board = pages[f"boards/{BOARD.name}.html"]
    assert re.findall(r">(\d+) trainings<", board) == ["2", "7"]
    assert "not equal to that of a single training" in board
    second = a_record(BOARD, "npo", 0, 0.5, ledger=Ledger(trainings=2), hashes={AFTER: "npo-first"})
    assert trainings_of([second]) == {} and trainings_of(soups()[-1:]) == {"soup-7-2": 7}


# --- charts
@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.text(min_size=1, max_size=60)), min_size=2, max_size=12
    )
)
def test_no_label_lies_on_another(points: list[tuple[float, float, str]]) -> None:
    dots = [Dot(label, x, y, best=True) for x, y, label in points]
    laid = lay_out(dots)
    at = [(d, *sample_place(laid, d), *laid.labels[i]) for i, d in enumerate(dots) if i in laid.labels]
    assert at
    boxes = []
    for _, x, y, text, end in at:
        wide = LETTER * len(text)
        boxes.append((x - wide, x, y) if end else (x, x + wide, y))
        assert len(text) <= LONG
    for i, (left, right, y) in enumerate(boxes):
        for a, b, c in boxes[:i]:
            assert right <= a or b <= left or abs(y - c) >= LINE
    svg = scatter_chart(dots, title="t", x_label="x", y_label="y", name="c")
    assert svg.count('<text class="label" x=') + svg.count('<text class="label end"') == len(at) + 1


def sample_place(laid, dot: Dot) -> tuple[float, float]:
    from harness.charts import place_in

    return place_in(laid.x_ticks, laid.y_ticks)(dot.x, dot.y)


def test_a_long_label_keeps_its_end() -> None:
    assert short("x" * LONG) == "x" * LONG
    text = short("A title that is much too long for a chart [depth=2]")
    assert len(text) == LONG and text.startswith("A title that") and text.endswith("[depth=2]")


def test_a_live_chart_gets_the_labels_and_axes_of_the_picture() -> None:
    pages = rendered(sample_site.a_site())
    board = pages["boards/tofu-sample.html"]
    data = json.loads(re.search(r'id="charts">(.*?)</script>', board)[1])
    for name, chart in data.items():
        svg = re.search(rf'data-chart="{name}">(.*?)</figure>', board, re.DOTALL)[1]
        drawn = re.findall(r'<text class="(label|label end)" x="[^"]*" y="[^"]*">([^<]*)</text>', svg)[1:]
        told = [
            ("label end" if end else "label", html.escape(text)) for *_, text, end in chart["points"] if text
        ]
        assert sorted(told) == sorted(drawn) and told
        best = [point for point in chart["points"] if point[8]]
        assert all(not point[-2] for point in chart["points"] if not point[8]) and len(told) <= len(best)
        (left, right), (low, high) = chart["across"], chart["up"]
        assert all(left <= p[2] <= right and low <= p[3] <= high for p in chart["points"])


def test_a_staircase_keeps_its_height_up_to_the_next_point() -> None:
    points = [(1.0, 0.25), (2.0, 0.5), (4.0, 0.5)]
    svg = xy_chart({"a": points}, title="t", x_label="x", y_label="y", name="c", steps=True)
    path = [tuple(map(float, p.split(","))) for p in re.search(r'points="([^"]*)"', svg)[1].split()]
    assert len(path) == 5 and svg.count("<circle") == 3
    for (x, y), (nx, ny) in itertools.pairwise(path):
        assert x == nx or y == ny
    assert path[1][1] == path[0][1] and path[1][0] == path[2][0] and path[2][1] < path[1][1]
    assert xy_chart({"a": points[:1]}, title="t", x_label="x", y_label="y", name="c", steps=True)


# --- profiles
def timed_site() -> Site:
    """One board with a target where one of two methods has trajectories, and one board without a target."""
    first, second = a_board(), a_board("bma-sample", "BMA sample", target=None)
    given = [a_record(first, name, seed, 0.9) for name in ("npo", "dpo") for seed in first.seeds]
    others = [a_record(second, name, seed, 0.5) for name in ("npo", "rmu") for seed in second.seeds]
    curves = {r.run_id: a_trajectory(r) for r in [*given, *others] if r.submission != "dpo"}
    pages = [board_page(first, given, curves), board_page(second, others, {})]
    by_board = {page.board.name: page.records for page in pages}
    found = standings([page.table for page in pages], by_board, curves)
    return Site(pages, metrics=METRICS, trajectories=curves, standings=found, year="2026")


def test_a_method_without_times_has_no_profile_and_the_boards_that_count_are_named() -> None:
    site = timed_site()
    scores = {s.submission: s.profile.score if s.profile else None for s in site.standings}
    assert scores == {"npo": 1.0, "dpo": None, "rmu": None}
    home = rendered(site)["index.html"]
    assert "of TOFU sample, the one board with a target whose ranked runs have trajectories" in text_of(home)
    assert home.count('title="no ranked row with a trajectory on TOFU sample">–') == 2
    overall = list(csv.DictReader(io.StringIO(rendered(site)["data/overall.csv"])))
    assert {row["submission"]: row["profile"] for row in overall} == {"npo": "1.0", "dpo": "", "rmu": ""}
    drawn = json.loads(re.search(r'id="charts">(.*?)</script>', home)[1])["profiles"]
    assert drawn["steps"] and drawn["lines"] == {"NPO, adamw": [[1.0, 1.0], [4.0, 1.0]]}
    assert 'data-chart="profiles"><svg' in home and "static/charts.js" in home


def test_without_times_the_home_page_has_no_profiles() -> None:
    site = timed_site()
    bare = Site(site.boards, metrics=METRICS, standings=standings([p.table for p in site.boards]))
    home = rendered(bare)["index.html"]
    assert "Performance profiles" not in home and "The profile says" not in home
    assert home.count("no board with a target has a ranked run with a trajectory") == 3


def test_a_run_tells_when_it_reached_the_target() -> None:
    site = timed_site()
    pages = rendered(site)
    curve = site.trajectories["npo-tofu-sample-s0"]
    at = int(np.flatnonzero(curve.values["forget.p"] <= 0.3)[0])
    page = text_of(pages["runs/npo-tofu-sample-s0.html"])
    assert f"update {curve.updates[at]}" in page and "Time to forget.p ≤ 0.3" in page
    assert repr(float(curve.charged_s[at])) in pages["runs/npo-tofu-sample-s0.html"]
    missing = text_of(pages["runs/dpo-tofu-sample-s0.html"])
    assert "Time to forget.p ≤ 0.3 – no trajectory was recorded for this run" in missing
    assert "Time to" not in text_of(pages["runs/npo-bma-sample-s0.html"])


# --- citations
def test_every_citation_names_a_command_that_there_is() -> None:
    from typer.main import get_command

    from harness.cli import app

    groups = get_command(app).commands
    seen = set()
    for name, page in rendered(sample_site.a_site(3)).items():
        for told in re.findall(r"howpublished = \{uharness ([^}]*)\}", page):
            words = told.split()
            assert words[1] in groups[words[0]].commands, (name, told)
            seen.add((name.split("/")[0], *words[:2]))
    assert seen == {
        ("index.html", "board", "overall"), ("boards", "board", "show"), ("runs", "run", "show"),
        ("optimizers", "comparison", "show"),
    }  # fmt: skip


def test_years_are_those_of_the_records() -> None:
    dated = [
        a_record(BOARD, "npo", 0, 0.5, started=text)
        for text in ("2024-01-01T00:00:00", "2025-06-01T00:00:00", "yesterday", "")
    ]
    assert year_of(dated) == "2025" and year_of(dated[2:]) == ""
    assert "year" not in board_bibtex(BOARD, "") and "year = {2025}" in board_bibtex(BOARD, "2025")
    pages = rendered(
        Site([BoardPage(rank(BOARD, dated[:1], METRICS), dated[:1])], metrics=METRICS, year="2024")
    )
    assert "year = {2024}" in pages[f"boards/{BOARD.name}.html"] and "year = {2024}" in pages["index.html"]
    told = json.loads(pages[f"data/compare/{BOARD.name}.js"].partition("(")[2].rpartition(")")[0])
    assert (told["year"], told["version"]) == ("2024" if told["entries"] else "", BOARD.board_version)


# --- downloads
def test_rows_of_papers_can_be_downloaded() -> None:
    page = board_page(BOARD, [], {}, reported=REPORTED, left_out="Its costs contradict each other.")
    files = render_site(Site([page], metrics=METRICS), SOURCES / "templates")
    base = f"data/reported/{BOARD.name}"
    board = files[f"boards/{BOARD.name}.html"]
    assert f'href="../{base}.csv"' in board and "never ranked. Its costs contradict each other." in board
    told = json.loads(files[f"{base}.json"])
    assert told == pq.read_table(pa.BufferReader(files[f"{base}.parquet"])).to_pylist()
    for line, row in zip(told, REPORTED, strict=True):
        assert {m: line[m] for m in row.values} == row.values and line["reference"] == int(row.reference)
        assert {m: line[f"{m} sd"] for m in row.sd} == row.sd
        assert (line["title"], line["source"], line["note"]) == (row.title, row.source, row.note)
    assert told[1]["mem"] is None and told[1]["agg sd"] is None
    bare = render_site(Site([board_page(BOARD, [], {})], metrics=METRICS), SOURCES / "templates")
    assert not [name for name in bare if name.startswith("data/reported/")]


def test_a_trajectory_can_be_downloaded_where_there_is_one() -> None:
    record = a_record(BOARD, "npo", 0, 0.5)
    curve = Trajectory(
        np.array([0, 3]), np.array([0.0, 0.5]), {"b": np.array([np.nan, 1 / 3]), "a": np.array([1.0, 2.0])}
    )
    page = BoardPage(rank(BOARD, [record], METRICS), [record])
    files = render_site(
        Site([page], metrics=METRICS, trajectories={record.run_id: curve}), SOURCES / "templates"
    )
    base = f"data/trajectories/{BOARD.name}"
    lines = json.loads(files[f"{base}.json"])
    assert lines == pq.read_table(pa.BufferReader(files[f"{base}.parquet"])).to_pylist()
    assert [tuple(line.values()) for line in lines] == [
        (record.run_id, *check)
        for check in (
            (0, 0, 0.0, "a", 1.0),
            (0, 0, 0.0, "b", None),
            (1, 3, 0.5, "a", 2.0),
            (1, 3, 0.5, "b", 1 / 3),
        )
    ]
    assert files[f"{base}.csv"].splitlines()[2] == f"{record.run_id},0,0,0.0,b,"
    assert f'href="../{base}.parquet"' in files[f"runs/{record.run_id}.html"]
    empty = Trajectory(np.zeros(0, np.int64), np.zeros(0), {})
    for none in ({}, {record.run_id: empty}):
        bare = render_site(Site([page], metrics=METRICS, trajectories=none), SOURCES / "templates")
        assert not [name for name in bare if name.startswith("data/trajectories/")]
        assert "data/trajectories" not in bare[f"runs/{record.run_id}.html"]


# --- boards without rows, rows without texts
def test_a_board_without_a_row_leads_to_the_command() -> None:
    page = rendered(Site([board_page(BOARD, [], {}, reported=REPORTED)], metrics=METRICS))[
        f"boards/{BOARD.name}.html"
    ]
    assert 'No row yet. <a href="#submit">Be the first</a>' in page and 'id="submit"' in page


@pytest.mark.parametrize(
    ("task", "why"),
    [(task, f"the rows of this task are {kind}") for task, kind in WORDLESS.items()]
    + [("tofu", "no text is kept")],
)
def test_probes_without_texts_say_so(task: str, why: str) -> None:
    board = a_board(task=TaskRef(name=task))
    record = a_record(board, "npo", 0, 0.5)
    bare = [{"probe": "test", "metric": "test.acc", "row_id": f"r{i}", "value": 1.0} for i in range(3)]
    worded = [{"probe": "asked", "metric": "asked.p", "row_id": "q", "value": math.nan, "prompt": "Who?"}]
    page = BoardPage(rank(board, [record], METRICS), [record])

    def shown(rows: list[dict]) -> str:
        return text_of(
            rendered(Site([page], metrics=METRICS, rows={record.run_id: rows}))[f"runs/{record.run_id}.html"]
        )

    assert f"test: ids and scores only, as {why}" in shown([*bare, *worded])
    assert "ids and scores only" not in shown(worded)


def test_a_run_draws_the_boards_columns_and_shares_apart_from_the_rest() -> None:
    record = a_record(BOARD, "npo", 0, 0.5)
    table = rank(BOARD, [record], METRICS)
    shown = [column.metric for column in table.columns]
    wide = next(m for m in shown if m in METRICS and (METRICS[m].low, METRICS[m].high) != (0.0, 1.0))
    share = next(m for m in shown if m in METRICS and (METRICS[m].low, METRICS[m].high) == (0.0, 1.0))
    values = {name: np.array([0.5, 0.25]) for name in (share, wide, "no.column")}
    curve = Trajectory(np.array([1, 3]), np.array([0.1, 0.5]), values)

    def drawn(curve: Trajectory) -> list[str]:
        site = Site([BoardPage(table, [record])], metrics=METRICS, trajectories={record.run_id: curve})
        html = render_site(site, SOURCES / "templates")[f"runs/{record.run_id}.html"]
        return re.findall(r"<title[^>]*>([^<]*) of [^<]* over charged seconds</title>", html)

    assert sorted(drawn(curve)) == sorted([share, wide])
    assert drawn(Trajectory(curve.updates, curve.charged_s, {"no.column": values[wide]})) == ["no.column"]
