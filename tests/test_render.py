import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.charts import interval_mark, line_chart
from harness.errors import InputError, StoreError
from harness.markup import cut, link_of, slug
from harness.rank import rank
from harness.recordtables import rows_table, trajectory_table
from harness.render import BoardPage, MethodPage, Site, budget_text, render_site, stop_text
from harness.site import MARK, read_static, write_site
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
    return {k: v if isinstance(v, str) else v.decode() for k, v in files.items()}


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
            assert tag not in ("script", "iframe", "object", "form", "style", "base"), name
            assert not [key for key in attrs if key == "style" or key.startswith("on")], (name, tag)
        for link in page.values("a", "href") + page.values("link", "href"):
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
            continue
        policy = Page(text).values("meta", "content")[0]
        assert policy.startswith("default-src 'none'; style-src 'self'; img-src 'self' data:")
        assert not re.search(r"\s(src|srcset|action|poster|background)=", text)


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
            assert not {tag for tag, _ in page.tags} & {"script", "img", "b onerror"}
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text), name
            assert not [link for link in page.values("a", "href") if "javascript" in link]
            assert "49" not in re.sub(r"[0-9a-f]{8,}", "", "".join(page.text))
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
    assert {"m", "t", "only.here", "terms", "statuses"} <= set(glossary.ids)
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


@pytest.mark.browser
def test_chromium_shows_the_page_from_a_file_with_its_style(tmp_path: Path) -> None:
    import subprocess

    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    write_site(pages_of(a_site(records())), tmp_path / "site")
    page = tmp_path / "site" / "boards" / f"{slug('b.1')}.html"
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--window-size=400,900",
    ]
    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [
            chromium,
            *flags,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={shot}",
            "--enable-logging=stderr",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert shot.stat().st_size > 5_000
    assert "Content Security Policy" not in done.stderr and "Refused to" not in done.stderr
