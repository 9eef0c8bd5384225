import csv
import gzip
import hashlib
import io
import json
import math
import random
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sample_site
from hypothesis import given
from hypothesis import strategies as st

from harness.charts import interval_mark, line_chart
from harness.comparetables import tables
from harness.entries import parse_set
from harness.errors import InputError, StoreError
from harness.markup import cut, link_of, slug
from harness.pages.scatter import Dot, scatter_chart
from harness.pages.words import bibtex, command, paper_bibtex
from harness.rank import rank
from harness.recordtables import rows_table, trajectory_table
from harness.render import BoardPage, MethodPage, Site, budget_text, parts, render_site, stop_text
from harness.site import read_static, write_site
from harness.siteparts import MARK
from harness.specs import Board, Budget, RunRecord, ScoreRecord, Stop, TaskRef
from harness.store import Store
from harness.types import MetricInfo, Score, Trajectory

SOURCES = Path(__file__).parent.parent / "site"
TEMPLATES = SOURCES / "templates"
METRICS = {
    "m": MetricInfo(
        "m", "higher", 0.0, 1.0, "probability", "Mean of something.", source="A 2024 (arXiv 2401.06121)"
    ),
    "t": MetricInfo("t", "target", None, None, "%", "Close to five.", target=5.0, roles=("retain",)),
}
EVIL = "<script>alert('x')</script>\"'><img src=x onerror=y>\x00\x1b[31m\u202e{{ 7 * 7 }}"
VOID = {"meta", "link", "img", "br", "wbr", "hr", "input"}


def a_board(**changes) -> Board:
    base = {
        "name": "b.1",
        "title": "Board one",
        "task": TaskRef(name="tofu", split="forget10"),
        "seeds": (0, 1),
        "models": {"target": "mini:x"},
        "budget": Budget(reference_steps=10),
        "columns": ("m", "t", "m@c2"),
        "rank_by": "m",
        "settings": {"npo": {"alpha": 1.5}},
    }
    return Board.model_validate(base | changes)


BOARD = a_board()


def run(entry: str, case: str, seed: int, value: float | None, **changes) -> RunRecord:
    scores = {
        "m": ScoreRecord(value=value, n=4, why="" if value is not None else "no answer was given"),
        "t": ScoreRecord(value=None, why="no retain model"),
        "only.here": ScoreRecord(value=1e-9, n=1),
    }
    base = {
        "run_id": f"{entry}-{case}-{seed}",
        "board": BOARD.name,
        "board_version": BOARD.board_version,
        "entry": entry,
        "submission": entry,
        "title": f"Title of {entry}",
        "case": case,
        "seed": seed,
        "status": "ok",
        "scores": scores,
        "env": {"hardware": "cpu"},
        "charged_s": 1 / 3,
        "lanes_s": {"train": 1 / 3},
        "config": {"a": [1, {"b": 2}]},
    }
    return RunRecord.model_validate(base | changes)


def records() -> list[RunRecord]:
    out = []
    for base, entry in ((0.1, "npo"), (0.7, "dpo")):
        out += [run(entry, case, seed, base + seed / 30) for case in ("c1", "c2") for seed in (0, 1)]
    out += [run("original", case, seed, 1.0, reference=True) for case in ("c1", "c2") for seed in (0, 1)]
    out += [run("ga", "c1", 0, 0.5), run("ga", "c1", 1, None, status="failed", error="NaN loss", scores={})]
    out += [run("old", "c1", 0, 0.5, board_version="0-x"), run("Lim", "c1", 0, None, status="limited")]
    return out


def a_site(given: list[RunRecord], **changes) -> Site:
    page = BoardPage(rank(BOARD, given, METRICS), given)
    source = "def f():\n    return '<b>' & 1\n"
    methods = [
        MethodPage("npo", "NPO", "Zhang (arXiv 2404.05868)", "R. Zhang", "suppress", source),
        MethodPage("new"),
    ]
    return Site(**({"boards": [page], "methods": methods, "metrics": METRICS} | changes))


def pages_of(site: Site) -> dict[str, str]:
    files = render_site(site, TEMPLATES, read_static(SOURCES / "static"))
    return {k: v if isinstance(v, str) else v.decode("utf-8", "replace") for k, v in files.items()}


class Page(HTMLParser):
    """Collects tags, links, ids and `data` values, and checks that every tag is closed where it must be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data):
        self.text.append(data)

    def values(self, name: str, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for tag, attrs in self.tags if tag == name and attribute in attrs]

    @property
    def ids(self) -> list[str]:
        return [attrs["id"] or "" for _, attrs in self.tags if "id" in attrs]


def test_every_page_is_well_formed_and_every_link_leads_somewhere() -> None:
    pages = pages_of(a_site(records()))
    assert {
        "index.html",
        "glossary.html",
        "boards/b.1.html",
        "methods/npo.html",
        "methods/new.html",
        "methods/original.html",
        "runs/npo-c1-0.html",
        "static/style.css",
    } <= set(pages)
    parsed = {name: Page(text) for name, text in pages.items() if name.endswith(".html")}
    assert len([name for name in pages if name.startswith("runs/")]) == len(records())
    for name, page in parsed.items():
        assert len(page.ids) == len(set(page.ids)), name
        for tag, attrs in page.tags:
            assert tag not in ("iframe", "object", "style", "base"), name
            assert tag != "form" or name == "compare.html"
            assert tag != "script" or attrs.get("src") or attrs.get("type") == "application/json", name
            assert not [key for key in attrs if key == "style" or key.startswith("on")], (name, tag)
        links = page.values("a", "href") + page.values("link", "href") + page.values("script", "src")
        for link in [*links, *page.values("div", "data-questions")]:
            parts = urlsplit(link)
            if parts.scheme:
                assert link == "data:," or (parts.scheme == "https" and link in page.values("a", "href"))
                continue
            assert not parts.path.startswith("/")
            target = PurePosixPath(name).parent / unquote(parts.path) if parts.path else PurePosixPath(name)
            steps: list[str] = []
            for step in target.parts:
                steps = steps[:-1] if step == ".." else [*steps, step]
            found = "/".join(steps)
            assert found in pages, (name, link)
            assert not parts.fragment or unquote(parts.fragment) in parsed[found].ids, (name, link)


def test_pages_ask_for_nothing_from_elsewhere() -> None:
    for name, text in pages_of(a_site(records())).items():
        if name.endswith(".css"):
            assert "url(" not in text and "@import" not in text
        if not name.endswith(".html"):
            continue
        policy = Page(text).values("meta", "content")[0]
        assert policy == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; "
            "form-action 'none'"
        )
        assert not re.search(r"\s(srcset|action|poster|background)=", text)
        assert all(
            re.fullmatch(r"(\.\./)?static/[a-z]+\.js", src) for src in Page(text).values("script", "src")
        )


def test_the_same_input_gives_the_same_bytes() -> None:
    rng = random.Random(0)
    shuffled = records()
    rng.shuffle(shuffled)
    one, two = pages_of(a_site(records())), pages_of(a_site(shuffled))
    assert list(one) == sorted(one) == list(two) and one == two


def test_nothing_in_a_record_becomes_markup() -> None:
    bad = [
        run(
            EVIL,
            case,
            seed,
            0.5,
            run_id=f"evil-{case}-{seed}",
            title=EVIL,
            error=EVIL,
            stopped=EVIL,
            optimizer=EVIL,
            config={EVIL: EVIL},
            env={"hardware": EVIL},
            lanes_s={EVIL: 1.0},
            hashes={EVIL: EVIL},
        )
        for case in ("c1", "c2")
        for seed in (0, 1)
    ]
    bad.append(run("e", EVIL, 0, None, status="failed", error=EVIL, run_id=EVIL))
    rows = {
        bad[0].run_id: [
            dict.fromkeys(("probe", "metric", "row_id", "prompt", "answer", "why"), EVIL) | {"value": 1.0}
        ]
    }
    lines = {bad[0].run_id: Trajectory(np.array([0, 1]), np.array([0.0, 1.0]), {EVIL: np.array([0.1, 0.2])})}
    methods = [MethodPage(EVIL, EVIL, EVIL + " javascript:alert(1)", EVIL, EVIL, EVIL)]
    pages = pages_of(a_site(bad, rows=rows, trajectories=lines, methods=methods, title=EVIL))
    for name, text in pages.items():
        assert re.fullmatch(r"[a-z0-9._/-]+", name)
        if name.endswith(".html"):
            page = Page(text)
            assert not {tag for tag, _ in page.tags} & {"img", "b onerror"}
            plain = [a for tag, a in page.tags if tag == "script" and not a.get("src")]
            assert all(a == {"type": "application/json", "id": "charts"} for a in plain), name
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text), name
            assert not [link for link in page.values("a", "href") if "javascript" in link]
            assert "49" not in re.sub(r"[0-9a-f]{8,}", "", "".join(page.text))
        if name.startswith("data/") and name.endswith(".js"):
            assert "<" not in text and not re.search("[\x00-\x09\x0b-\x1f]", text)
    assert [name for name in pages if name.startswith("data/rows/") and name.endswith(".js")]
    run_page = pages[f"runs/{slug(bad[0].run_id)}.html"]
    assert "&lt;script&gt;alert(" in run_page and "{{ 7 * 7 }}" in run_page and "�" in run_page


def test_long_texts_are_cut_with_a_note() -> None:
    long = "x" * 100_000
    given = [run("a", "c1", 0, None, status="failed", error=long, title=long, config={"k": long})]
    site = a_site(given, methods=[MethodPage("a", source="y" * 100_000)])
    pages = pages_of(site)
    text = pages["runs/a-c1-0.html"]
    Page(text)
    assert "[92,000 more characters]" in text and "[98,000 more characters]" in text and len(text) < 60_000
    assert "[40,000 more characters]" in pages["methods/a.html"]
    assert len(pages["index.html"]) < 20_000


def test_pages_records_and_database_hold_the_same_numbers(tmp_path: Path) -> None:
    store = Store([tmp_path / "l"], tmp_path / "u.duckdb")
    rows = rows_table(
        {"m": Score(0.5, 2, per_row={"r0": 1 / 7, "r1": None})},
        {"m": {"r0": {"prompt": "Who?", "target": "A", "answer": "<i>B</i>"}}},
    )
    curve = Trajectory(
        np.array([0, 3, 9]), np.array([0.0, 0.5, 1.0]), {"forget.p": np.array([0.9, np.nan, 0.2])}
    )
    for record in records():
        first = record.run_id == "npo-c1-0"
        store.write_record(record, rows if first else None, trajectory_table(curve) if first else None)
    given = store.load_records("b.1")
    lines = {r.run_id: store.load_rows(r.run_id) for r in given}
    curves = {r.run_id: t for r in given if (t := store.load_trajectory(r.run_id)) is not None}
    site = a_site(given, rows=lines, trajectories=curves)
    pages = pages_of(site)
    for record in records():
        shown = Page(pages[f"runs/{slug(record.run_id)}.html"]).values("data", "value")
        stored = dict(store.query(f"select metric, value from scores where run_id = '{record.run_id}'")[1])
        assert stored == {name: score.value for name, score in record.scores.items()}
        for score in record.scores.values():
            assert score.value is None or repr(score.value) in shown
        assert repr(record.charged_s) in shown
    board = Page(pages[f"boards/{slug('b.1')}.html"]).values("data", "value")
    for row in site.boards[0].table.section("ranked", "incomplete", "reference"):
        assert all(repr(cell.mean) in board for cell in row.cells if cell.mean is not None)
    text = pages["runs/npo-c1-0.html"]
    assert repr(1 / 7) in text and "&lt;i&gt;B&lt;/i&gt;" in text and "no value for this row" in text
    assert text.count("<svg") == 2 and "forget.p goes from 0.9 to 0.2" in text


def test_a_board_page_tells_what_a_reader_needs() -> None:
    page = Page(pages_of(a_site(records()))[f"boards/{slug('b.1')}.html"])
    text = " ".join(" ".join(page.text).split())
    for needed in (
        "10 reference steps",
        "0, 1; a seed changes the order of the rows",
        "c1, c2",
        "cpu",
        BOARD.board_version,
        "For orientation, not ranked",
        "incomplete",
        "failed: NaN loss",
        "Not ranked",
        "Other versions of this board",
        "uharness submit my_method --board b.1",
        "4 of 4 runs: no retain model",
        "limited: only some rows were used",
        "alpha = 1.5",
        "none: every run uses its whole budget",
        "→ 5",
    ):
        assert needed in text, needed
    rank_cells = re.findall(
        r'<td class="rank">(.*?)</td>', pages_of(a_site(records()))[f"boards/{slug('b.1')}.html"]
    )
    assert rank_cells == ["1", "2", "–", "–"]
    assert "nan" not in text.lower().replace("nan loss", "")


def test_the_glossary_and_method_pages() -> None:
    pages = pages_of(a_site(records()))
    glossary = Page(pages["glossary.html"])
    assert {"m", "t", "terms", "statuses"} <= set(glossary.ids)
    assert "https://arxiv.org/abs/2401.06121" in glossary.values("a", "href")
    method = pages["methods/npo.html"]
    assert "return &#39;&lt;b&gt;&#39; &amp; 1" in method and "https://arxiv.org/abs/2404.05868" in method
    assert "No run on any board yet" in pages["methods/new.html"]


def test_an_empty_site_and_templates_from_texts() -> None:
    pages = pages_of(Site([]))
    assert "There is no board yet" in pages["index.html"] and Page(pages["glossary.html"])
    board = a_board()
    empty = pages_of(Site([BoardPage(rank(board, [], METRICS), [])]))
    assert "No row yet" in empty[f"boards/{slug('b.1')}.html"]
    texts = {path.name: path.read_text() for path in TEMPLATES.glob("*.html")}
    assert render_site(Site([]), texts) == render_site(Site([]), TEMPLATES)


def test_budgets_and_stops_in_words() -> None:
    assert (
        budget_text(a_board(budget=Budget(updates=3, max_peak_gib=2)))
        == "3 updates: not equal time; at most 2 GiB at the peak"
    )
    assert budget_text(a_board(budget=Budget(seconds=1.5))) == "1.5 s of wall-clock time"
    stop = Stop(metric="forget.p", at_most=0.1, check_every=5)
    assert stop_text(a_board(stop=stop)) == "when forget.p ≤ 0.1, checked off the clock at every 5 updates"


@given(st.text())
def test_slugs_are_safe_and_distinct(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,79}", slug(name))
    assert slug(name) == name or slug(name) != slug(name + "x")
    assert slug("Aa") != slug("aA") and slug("a/b") != slug("a.b")


@given(st.text(), st.integers(0, 50))
def test_cut_text_is_clean_and_short(text: str, limit: int) -> None:
    assert len(cut(text, limit)) <= limit + 40
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", cut(text, limit))
    assert cut(cut(text, limit), 1000) == cut(text, limit)


def test_only_web_addresses_become_links() -> None:
    assert link_of("see https://example.org/a_(b).") == "https://example.org/a_(b"
    assert link_of("doi 10.1000/xyz") == "https://doi.org/10.1000/xyz"
    assert link_of("javascript:alert(1) data:text/html,x") is None


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=6).map(sorted),
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=6, max_size=6),
)
def test_charts_never_show_nan(x: list[float], values: list[float]) -> None:
    svg = line_chart(x, {"a<b": values[: len(x)]}, title="t & u", x_label="s", name="c")
    assert not re.search(r"nan|inf\b", svg.replace("finite", ""))
    if svg:
        Page(svg)
        assert "<title" in svg and "<desc" in svg and "a&lt;b" in svg


def test_interval_marks_stay_in_their_frame() -> None:
    assert interval_mark(0.5, None, None, (0.5, 0.5)).count("<circle") == 1
    svg = interval_mark(5.0, -9.0, 9.0, (0.0, 1.0))
    assert 'x1="4.0"' in svg and 'x2="92.0"' in svg and 'cx="92.0"' in svg


# --- writing
def test_a_site_is_swapped_in_whole(tmp_path: Path) -> None:
    folder = tmp_path / "build" / "site"
    write_site({"a/x.html": "old", "b.css": b"\xff"}, folder)
    assert (folder / "a/x.html").read_text() == "old" and (folder / MARK).exists()
    write_site({"y.html": "new"}, folder)
    assert sorted(p.name for p in folder.iterdir()) == [MARK, "y.html"]
    with pytest.raises(StoreError, match="cannot be called"):
        write_site({"../z": "bad"}, folder)
    assert (folder / "y.html").read_text() == "new" and [p.name for p in folder.parent.iterdir()] == ["site"]


def test_a_folder_that_is_not_a_site_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="left alone"):
        write_site({"y.html": "new"}, tmp_path / "precious")
    assert (tmp_path / "precious" / "thesis.tex").exists()
    (tmp_path / "empty").mkdir()
    write_site({"y.html": "new"}, tmp_path / "empty")
    assert (tmp_path / "empty" / "y.html").exists()


# --- parts, data, size
def test_a_changed_record_changes_its_own_pages_and_no_other_runs() -> None:
    def keys(given: list[RunRecord]) -> dict[str, str]:
        static = {"style.css": b"a{}"}
        return {part.name: part.key for part in parts(a_site(given), TEMPLATES, static)}

    old = keys(records())
    assert keys(records()) == old
    changed = [r.model_copy(update={"charged_s": 9.0}) if r.run_id == "npo-c1-0" else r for r in records()]
    new = keys(changed)
    assert {name for name in old if old[name] != new[name]} == {
        "runs/npo-c1-0", "boards/b.1", "curves/b.1", "home", "plain", "optimizers",
        *(f"methods/{name}" for name in ("npo", "dpo", "original", "ga", "old", "Lim")),
    }  # fmt: skip
    assert set(old) == set(new)


def test_a_stamp_stands_for_a_record_that_is_not_loaded() -> None:
    class Unread(list):
        def __iter__(self):
            raise AssertionError("a record was read for a key")

    table = rank(BOARD, records(), METRICS)
    stamps = {r.run_id: "1" for r in records()}
    site = Site([BoardPage(table, Unread(records()))], metrics=METRICS, stamps=stamps)
    before = {part.name: part.key for part in parts(site, TEMPLATES)}
    after = {
        part.name: part.key for part in parts(replace(site, stamps=stamps | {"npo-c1-0": "2"}), TEMPLATES)
    }
    assert (
        before["runs/npo-c1-0"] != after["runs/npo-c1-0"]
        and before["runs/npo-c1-1"] == after["runs/npo-c1-1"]
    )
    assert before["boards/b.1"] != after["boards/b.1"]


def test_parts_do_not_share_files() -> None:
    made = [part.make() for part in parts(sample_site.a_site(3), TEMPLATES, {"x.css": b""})]
    names = [name for files in made for name in files]
    assert len(names) == len(set(names))


def test_downloads_hold_the_numbers_of_the_table() -> None:
    site = a_site(records())
    files = render_site(site, TEMPLATES)
    table = site.boards[0].table
    rows = list(csv.DictReader(io.StringIO(files["data/boards/b.1.csv"])))
    binary = pq.read_table(pa.BufferReader(files["data/boards/b.1.parquet"])).to_pylist()
    told = json.loads(files["data/boards/b.1.json"])["rows"]
    assert len(rows) == len(binary) == len(told) == len(table.rows)
    for row, line, stored, data in zip(table.rows, rows, binary, told, strict=True):
        for column, cell in zip(table.columns, row.cells, strict=True):
            mean = line[f"{column.id}:mean"]
            assert (float(mean) if mean else None) == cell.mean == stored[f"{column.id}:mean"]
            assert data["cells"][column.id]["mean"] == cell.mean
    scores = pq.read_table(pa.BufferReader(files["data/scores/b.1.parquet"])).to_pylist()
    listed = json.loads(files["data/scores/b.1.json"])
    assert scores == listed and len(scores) == sum(len(r.scores) for r in records())
    mine = [line for line in scores if line["run_id"] == "npo-c1-0"]
    run = list(csv.DictReader(io.StringIO(str(files["data/runs/npo-c1-0.csv"]))))
    assert (
        [line["value"] for line in mine]
        == [0.1, 1e-9, None]
        == [float(r["value"]) if r["value"] else None for r in run]
    )
    assert [line["metric"] for line in mine] == ["m", "only.here", "t"] == [r["metric"] for r in run]
    assert RunRecord.model_validate_json(files["data/runs/npo-c1-0.json"]) == records()[0]


def test_every_question_is_in_the_data_that_a_page_loads() -> None:
    record = records()[0]
    lines = [
        {"probe": "p", "metric": "p.a", "row_id": f"r{i}", "value": math.nan if i == 1 else i / 7, "why": "",
         "prompt": "Who?\x00", "target": "</script><b>", "answer": "x" * 100_000}
        for i in range(20)
    ]  # fmt: skip
    files = render_site(a_site(records(), rows={record.run_id: lines}), TEMPLATES)
    text = files[f"data/rows/{slug(record.run_id)}.js"]
    assert text.startswith("uharness.questions(") and "<" not in text and len(text) < 100_000
    run, probes = json.loads(f"[{text.removeprefix('uharness.questions(').removesuffix(');' + chr(10))}]")
    assert run == record.run_id and probes[0]["texts"] == ["prompt", "target", "answer"]
    assert [values for _, _, values in probes[0]["rows"]] == [
        [i / 7] if i != 1 else ["no value"] for i in range(20)
    ]
    stored = pq.read_table(pa.BufferReader(files[f"data/rows/{slug(record.run_id)}.parquet"])).to_pydict()
    assert (
        stored["value"] == [i / 7 if i != 1 else None for i in range(20)]
        and len(stored["answer"][0]) == 100_000
    )
    assert files[f"runs/{slug(record.run_id)}.html"].count('<td class="text">') == 3 * 3


def test_lines_and_an_arrow_table_make_the_same_files() -> None:
    record = records()[0]
    lines = [
        {"probe": "p", "metric": f"p.{m}", "row_id": f"r{i}", "value": None if i == 1 else i / 7, "why": "",
         "prompt": "Who?\r\nAnd\x07", "target": None, "answer": f"\u202e{i} é" if i else None}
        for i in range(3) for m in ("a", "b")[: 1 + i]
    ]  # fmt: skip
    order = ("metric", "row_id", "value", "probe", "why", "prompt", "target", "answer")
    table = pa.table({name: [line[name] for line in lines] for name in order})
    table = table.set_column(6, "target", pa.nulls(len(lines), pa.string()))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    given = sink.getvalue().to_pybytes()
    one = render_site(a_site(records(), rows={record.run_id: lines}), TEMPLATES)
    assert one == render_site(a_site(records(), rows={record.run_id: table}), TEMPLATES)
    kept = {"rows": {record.run_id: table}, "files": {record.run_id: ('{"as": "it is"}', given)}}
    other = render_site(a_site(records(), **kept), TEMPLATES)
    changed = {path for path in one | other if one.get(path) != other.get(path)}
    name = slug(record.run_id)
    assert changed == {f"data/rows/{name}.parquet", f"data/runs/{name}.json"}
    assert (
        other[f"data/rows/{name}.parquet"] == given and other[f"data/runs/{name}.json"] == '{"as": "it is"}'
    )
    text = one[f"data/rows/{slug(record.run_id)}.js"]
    assert (
        text.count("not asked of this row") == 1
        and "\\ufffd1 \\u00e9" in text
        and "Who?\\nAnd\\ufffd" in text
    )
    assert '"texts":["prompt","answer"]' in text and '["r0",["Who?\\nAnd\\ufffd","\\u2013"]' in text


def test_a_command_makes_exactly_this_run_again() -> None:
    made = run(
        "npo", "c1", 1, 0.5, config={"alpha": 1.0, "betas": [0.9, 0.999], "limit": None, "form": "a 'b'"}
    )
    words = shlex.split(command(made))
    assert words[:7] == ["uharness", "submit", "npo", "--board", "b.1", "--seed", "1"]
    assert parse_set(words[8::2]) == made.config and words[7::2] == ["--set"] * 4
    assert "--seed" not in command(made, seed=False)


def test_citations_are_escaped() -> None:
    text = bibtex("a/b", "x} \\input{y} 50%", author="A & B\n}", url="")
    assert text == "@misc{a-b,\n  title = {x inputy 50\\%},\n  author = {A \\& B}\n}"
    assert "eprint = {2404.05868}" in paper_bibtex("npo", "NPO", "Zhang (arXiv 2404.05868)", "R. Zhang")
    assert paper_bibtex("npo", "NPO", "", "R. Zhang") == ""


def test_a_board_of_100_entries_is_light() -> None:
    names = [f"m{i}" for i in range(100)]
    board = sample_site.a_board(
        columns=(*sample_site.COLUMNS, *(f"{c}@forget10" for c in sample_site.COLUMNS[:9]))
    )
    given = sample_site.records_of(board, names)
    curves = {r.run_id: sample_site.a_trajectory(r) for r in given if r.status == "ok"}
    page = sample_site.board_page(board, given, curves)
    assert len(page.table.columns) == 20 and len(page.table.rows) > 100
    static = read_static(SOURCES / "static")
    made = next(
        p for p in parts(Site([page], metrics=sample_site.METRICS), TEMPLATES) if p.name.startswith("boards/")
    )
    html = made.make()[f"boards/{board.name}.html"].encode()
    scripts = [
        content for name, content in static.items() if name.endswith((".css", ".js")) and name != "vega.js"
    ]
    assert sum(len(gzip.compress(content)) for content in (html, *scripts)) < 300_000


def test_a_comparison_of_optimizers_has_its_curves_and_tables() -> None:
    site = sample_site.a_site(3)
    files = render_site(site, TEMPLATES)
    name = slug(site.comparisons[0].comparison.id)
    html = files[f"optimizers/{name}.html"]
    assert html.count("<svg") == html.count("data-chart=") == 2 * 2 * 2 + 2 * 2
    assert name in files["optimizers.html"] and "uharness compare --board tofu-sample" in html
    for table in ("comparison", "rates", "progress", "time"):
        rows = list(csv.DictReader(io.StringIO(files[f"data/comparisons/{name}/{table}.csv"])))
        assert len(rows) == len(tables(site.comparisons[0])[table].rows) > 0
    assert "No comparison has been made yet" in pages_of(a_site(records()))["optimizers.html"]


def test_reported_rows_stand_apart() -> None:
    html = render_site(sample_site.a_site(3), TEMPLATES)["boards/tofu-sample.html"]
    table = html[html.index('id="papers"') :]
    assert "0.6862" in table and "± 0.0011" in table and "https://arxiv.org/abs/2501.00001" in table
    assert "Some Paper" not in html[: html.index('id="reported"')]


def test_the_chart_library_is_the_one_that_was_pinned() -> None:
    pinned = (SOURCES / "vendor" / "vega.sha256").read_text().split()[0]
    bundle = (SOURCES / "static" / "vega.js").read_bytes()
    assert hashlib.sha256(bundle).hexdigest() == pinned
    licences = (SOURCES / "static" / "vega-licenses.txt").read_text()
    lock = json.loads((SOURCES / "vendor" / "package-lock.json").read_text())["packages"]
    for name, version in json.loads((SOURCES / "vendor" / "package.json").read_text())[
        "dependencies"
    ].items():
        assert (
            lock[f"node_modules/{name}"]["version"] == version
            and f"{name} {version}".encode() in bundle[:200]
        )
        assert f"{name} {version} (" in licences


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.booleans()), max_size=6))
def test_scatter_charts_are_whole(points: list[tuple[float, float, bool]]) -> None:
    dots = [Dot(f"<{i}>", x, y, best) for i, (x, y, best) in enumerate(points)]
    svg = scatter_chart(dots, title="t", x_label="x", y_label="y & z", name="c")
    assert (svg == "") == (len(points) < 2) and not re.search(r"nan|inf\b", svg)
    if svg:
        assert svg.count("<circle") == len(points) and Page(svg)
