"""The site in a real Chromium: from a file, from a sub-path, without scripts, by keyboard, on a phone."""

from __future__ import annotations

import functools
import http.server
import importlib.resources
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sample_site import METRICS, a_board, a_record, a_site, board_page, rows_of

from harness.intervals import estimate
from harness.pages.compare import compare_data
from harness.render import Site, render_site
from harness.site import read_static, write_site
from harness.tables import number

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or ""
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SOURCES = Path(__file__).parent.parent / "site"
WATCH = """window.refused = [];
addEventListener("securitypolicyviolation", e => refused.push(e.blockedURI + " " + e.violatedDirective));"""
BOARD, RUN = "boards/tofu-sample.html", "runs/npo-tofu-sample-s0.html"
COMPARED = "compare.html#?board=tofu-sample&entry=npo%40a1b2c3&entry=rmu%40a1b2c3"
Open = Callable[..., object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not CHROMIUM:
        assert os.environ.get("CI") != "true", "CI installs chromium, and these tests have to run there"
        pytest.skip("chromium is not installed")
    target = tmp_path_factory.mktemp("served") / "some" / "path"
    target.parent.mkdir()
    write_site(render_site(a_site(), SOURCES / "templates", read_static(SOURCES / "static")), target)
    return target


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The site below a path of a server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder.parent.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/some/path/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def visit(browser, folder: Path) -> Iterator[Open]:
    """Opens pages; afterwards no page has thrown, broken its policy, or asked for anything from elsewhere."""
    contexts, faults, asked = [], [], []

    def visit(path: str, base: str = "", **options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        context.set_default_timeout(15_000)
        context.add_init_script(WATCH)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("request", lambda request: asked.append(request.url))
        contexts.append((context, page, options))
        page.goto((base or folder.as_uri() + "/") + path)
        return page

    yield visit
    for context, page, options in contexts:
        if options.get("java_script_enabled", True):
            assert page.evaluate("refused") == []
        context.close()
    assert faults == []
    own = ("file://", "http://127.0.0.1", "data:", "blob:")
    assert [url for url in asked if not url.startswith(own)] == []


def entries(page) -> list[str]:
    return page.locator("#board tbody tr.ranked:visible .title").all_inner_texts()


# --- tables
def test_a_table_is_sorted_filtered_and_linked_to(visit: Open, address: str) -> None:
    page = visit(BOARD, address)
    usual = entries(page)
    page.get_by_role("button", name="Sort by mem", exact=True).click()
    head = page.locator("#board th[data-column=mem]")
    assert head.get_attribute("aria-sort") == "descending"
    values = [
        float(v)
        for v in page.locator("#board tr.ranked td:nth-child(5) data").evaluate_all(
            "x => x.map(d => d.value)"
        )
    ]
    assert values == sorted(values, reverse=True) and len(values) == 12 and entries(page) != usual
    assert page.locator("#board tbody.references tr").last.is_visible()
    page.get_by_role("button", name="Sort by mem", exact=True).focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending" and entries(page)[0] == "NPO"
    page.get_by_label("Filter rows").fill("mem>0.6 @a1b2c3")
    assert 0 < len(entries(page)) < 12 and "of 15 rows" in page.locator(".status").first.inner_text()
    link = page.get_by_role("link", name="Link to this view").first.get_attribute("href")
    again = visit(link.removeprefix(address), address)
    assert (
        entries(again) == entries(page)
        and again.get_by_label("Filter rows").input_value() == "mem>0.6 @a1b2c3"
    )
    page.get_by_role("button", name="Reset").click()
    assert entries(page) == usual and "#?" not in page.url
    # a missing value is last in either direction
    page.goto(address + BOARD + "#?board.sort=mem&board.dir=asc")
    page.reload()
    assert entries(page)[0] == "NPO"


def test_columns_are_hidden_and_shown(visit: Open) -> None:
    page = visit(BOARD)
    column = page.locator("#board th[data-column='retain.prob']")
    assert not column.is_visible()
    page.get_by_role("button", name="All columns").click()
    assert column.is_visible()
    page.get_by_text("Columns", exact=True).first.click()
    page.get_by_label("retain.prob", exact=True).uncheck()
    assert not column.is_visible() and page.locator("#board th[data-column=mem]").is_visible()
    assert "board.hide=retain.prob" in page.url


def test_numbers_are_written_as_in_the_terminal(visit: Open) -> None:
    rng = random.Random(0)
    values = [
        0.0,
        -0.0,
        1 / 32,
        3 / 32,
        -5 / 32,
        0.5,
        1.5,
        2.5,
        9.99995,
        0.99995,
        999.995,
        999999.5,
        1e6,
        1e-4,
        1e-5,
        1e300,
        5e-324,
    ]
    values += [rng.uniform(-1, 1) * 10 ** rng.randrange(-8, 9) for _ in range(400)]
    values += [rng.randrange(-10_000, 10_000) / 2 ** rng.randrange(1, 12) for _ in range(400)]
    page = visit("index.html")
    assert page.evaluate("v => v.map(x => uharness.number(x))", values) == [number(v) for v in values]
    likes = [(v, rng.choice(values)) for v in values]
    assert page.evaluate("v => v.map(([x, y]) => uharness.number(x, y))", likes) == [
        number(*pair) for pair in likes
    ]


# --- comparing
def test_entries_are_compared(visit: Open) -> None:
    page = visit(BOARD)
    for entry in ("npo@a1b2c3", "rmu@a1b2c3"):
        page.get_by_label(f"Compare {entry}").check()
    page.get_by_role("link", name="Compare 2 entries").click()
    page.wait_for_selector("#side")
    heads = page.locator("#side thead .title").all_inner_texts()
    assert heads == ["NPO", "RMU"]
    data = compare_data(next(b for b in a_site().boards if b.board.name == "tofu-sample"))
    pair = [next(e for e in data["entries"] if e["entry"] == name) for name in ("npo@a1b2c3", "rmu@a1b2c3")]
    for i, column in enumerate(data["columns"]):
        cells = page.locator("#side tbody tr").nth(i + 2).locator("td")
        assert cells.nth(0).locator("data").inner_text() == pair[0]["cells"][i][0], column["id"]
        told = cells.nth(1).locator(".diff").get_attribute("title").split(", ")
        e = estimate([[b - a for a, b in zip(pair[0]["values"][i], pair[1]["values"][i], strict=True)]])
        assert [float(x) for x in told] == pytest.approx([e.mean, e.low, e.high], rel=1e-11, abs=1e-13)
    cite = page.locator("#bibtex").inner_text()
    assert (
        cite.startswith("@misc{uharness-tofu-sample-compared,")
        and "title = {NPO, RMU on TOFU sample}" in cite
    )
    assert "howpublished = {uharness board show tofu-sample}" in cite and "year = {2026}" in cite
    assert f"board version {data['version']}; entries npo@a1b2c3, rmu@a1b2c3" in cite
    page.get_by_role("button", name="Compare with this").click()
    assert page.locator("#side thead .title").all_inner_texts() == ["RMU", "NPO"]
    again = visit(page.url.rsplit("/", 1)[1])
    again.wait_for_selector("#side")
    assert again.locator("#side").inner_text() == page.locator("#side").inner_text()
    again.get_by_label("DPO").check()
    assert again.locator("#side thead .title").all_inner_texts() == ["RMU", "NPO", "DPO"]


def test_intervals_with_cases_of_several_sizes_are_those_of_the_tables(visit: Open) -> None:
    rng = random.Random(1)
    cases = [
        [[rng.gauss(0, 1) for _ in range(rng.randrange(2, 6))] for _ in range(rng.randrange(1, 5))]
        for _ in range(50)
    ]
    cases += [[[0.25, 0.25], [0.5, 0.75]], [[1.0, 1.0, 1.0]]]
    page = visit("compare.html")
    found = page.evaluate("all => all.map(strata => uharness.stats.estimate(strata))", cases)
    for strata, told in zip(cases, found, strict=True):
        e = estimate(strata)
        assert [told["mean"], told["low"], told["high"]] == pytest.approx([e.mean, e.low, e.high], rel=1e-9)
    assert page.evaluate("uharness.stats.estimate([[1, 2], [3]])")["why"] == "one seed: no interval"


# --- questions
def test_questions_are_searched(visit: Open) -> None:
    page = visit(RUN)
    page.get_by_role("button", name="Search all 80 questions").click()
    page.wait_for_selector("#answers")
    assert page.locator("#answers tbody tr").count() == 40
    page.get_by_label("Search").fill("oakton Polhaven")
    assert {"Lisa Oakton" in text for text in page.locator("#answers tbody tr").all_inner_texts()} == {True}
    page.get_by_label("Search").fill("")
    page.get_by_label("Show", exact=True).select_option("low")
    shown = page.locator("#answers tbody tr").all_inner_texts()
    assert shown and all("I am not sure" in text for text in shown)
    assert f"{len(shown)} of 40 questions" in page.locator("#told").inner_text()
    page.get_by_label("Order").select_option("down")
    values = [float(v) for v in page.locator("#answers td.key data").evaluate_all("x => x.map(d => d.value)")]
    assert values == sorted(values, reverse=True)
    again = visit(page.url.rsplit("/site", 1)[-1].split("/path/")[1])
    again.wait_for_selector("#answers")
    assert (
        again.locator("#answers tbody tr").all_inner_texts()
        == page.locator("#answers tbody tr").all_inner_texts()
    )
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").click()
    saved = json.loads(Path(download.value.path()).read_text())
    assert [line["row"] for line in saved] == page.locator("#answers tbody th").all_inner_texts()


# --- charts, theme, phone, no script
@pytest.mark.parametrize("base", ["file", "http"])
def test_charts_come_alive_in_both_themes(visit: Open, address: str, base: str) -> None:
    page = visit(RUN, address if base == "http" else "", color_scheme="dark")
    page.wait_for_selector("figure.live canvas")
    assert page.locator("figure.live svg.chart").first.is_visible() is False
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch to the light theme").click()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark, light) == ("rgb(20, 23, 26)", "rgb(255, 255, 255)")
    page.wait_for_selector("figure.live canvas")
    page.locator("figure.live canvas").first.scroll_into_view_if_needed()
    box = page.locator("figure.live canvas").first.bounding_box()
    told = set()
    for x in range(20, int(box["width"]) - 10, 12):
        for y in range(30, 200, 12):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if page.locator("#tip").is_visible():
                told.add(page.locator("#tip").inner_text().split()[1])
        if told:
            break
    assert told & {"forget.p", "retain.p"}
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light


@pytest.mark.parametrize("path", [BOARD, "index.html"])
def test_trade_offs_and_profiles_come_alive(visit: Open, path: str) -> None:
    page = visit(path)
    figures = page.locator("figure[data-chart]")
    for i in range(figures.count()):
        figures.nth(i).scroll_into_view_if_needed()
        figures.nth(i).locator(".drawn canvas").wait_for()
    page.wait_for_selector("figure.live")
    assert page.locator("figure.live").count() == figures.count() > 0


def test_without_a_script_everything_is_there(visit: Open) -> None:
    page = visit(BOARD, java_script_enabled=False)
    assert page.locator("#board tbody tr.ranked").count() == 12
    assert page.locator("#board th[data-column='retain.prob']").is_visible()
    assert page.locator("svg.chart").first.is_visible() and not page.locator("#theme").is_visible()
    page.goto(page.url.replace(BOARD, RUN))
    assert page.locator("svg.chart").count() == 2 and page.locator("table.rows tbody tr").count() == 6
    page.goto(page.url.replace(RUN, "compare.html"))
    assert page.locator("noscript p").is_visible()


@pytest.mark.parametrize(
    "path", ["index.html", BOARD, RUN, COMPARED, "optimizers.html", "glossary.html", "submit.html"]
)
def test_a_phone_does_not_scroll_sideways(visit: Open, path: str) -> None:
    page = visit(path, viewport={"width": 360, "height": 740})
    page.wait_for_timeout(150)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_serious_finding(visit: Open, folder: Path, scheme: str) -> None:
    axe = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    comparison = next((folder / "optimizers").iterdir()).name
    pages = [BOARD, RUN + "#?probe=forget", COMPARED]
    if scheme == "light":
        pages += ["index.html", f"optimizers/{comparison}", "entries/bma-sample.html", "methods/npo.html"]
        pages += ["glossary.html", "submit.html", "optimizers.html"]
    page = visit("index.html", color_scheme=scheme)
    for path in pages:
        page.goto(folder.as_uri() + "/" + path)
        page.wait_for_timeout(200)
        page.evaluate(axe)
        found = page.evaluate("axe.run({preload: false, resultTypes: ['violations']})")["violations"]
        serious = [
            (v["id"], [node["html"][:120] for node in v["nodes"][:3]])
            for v in found if v["impact"] in ("serious", "critical")
        ]  # fmt: skip
        assert serious == [], path


def test_what_a_page_prints_is_light_and_has_no_buttons(visit: Open) -> None:
    page = visit(BOARD, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".bar").first.is_visible()
    assert page.locator("#board th[data-column='retain.prob']").is_visible()


def test_hostile_text_is_text(visit: Open, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x00\x1b[31m"
    board = a_board("evil", evil)
    given = [
        a_record(board, name, seed, 0.5, run_id=f"{name}-{seed}", title=title, entry=title)
        for name, title in (("npo", evil), ("dpo", "plain"))
        for seed in board.seeds
    ]
    rows = {"npo-0": [row | {"answer": evil + "x" * 100_000, "probe": evil} for row in rows_of(given[0], 3)]}
    site = Site([board_page(board, given, {})], metrics=METRICS, rows=rows, title=evil)
    write_site(render_site(site, SOURCES / "templates", read_static(SOURCES / "static")), tmp_path / "site")
    page = visit("boards/evil.html", (tmp_path / "site").as_uri() + "/")
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    assert page.locator("#board .title").first.inner_text().startswith("<script>alert(1)</script>")
    for box in page.locator("#board input[type=checkbox]").all():
        box.check()
    page.get_by_role("link", name="Compare 2 entries").click()
    page.wait_for_selector("#side")
    assert "<script>alert(1)</script>" in page.locator("#side").inner_text()
    page.goto((tmp_path / "site" / "runs" / "npo-0.html").as_uri())
    page.get_by_role("button", name="Search all").click()
    page.wait_for_selector("#answers")
    assert "<script>alert(1)" in page.locator("#answers").inner_text()
    assert page.locator("img").count() == 0 and page.title().endswith("<img src=x onerror=alert(1)>��[31m")
