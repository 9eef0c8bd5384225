"""Pictures of the site at two widths, into docs/screenshots/: `make screenshots`.

Takes a built site, or with `--sample` the made-up one of the tests. What is shown is found by itself: the fullest
board, a run of it with questions, its first three entries side by side, and the first comparison of optimizers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

HERE = Path(__file__).parent
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
]  # fmt: skip
WIDTHS = {"wide": (1280, 900), "phone": (390, 844)}
TALLEST = 1900


def sample(folder: Path) -> None:
    """Writes the made-up site."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from sample_site import a_site

    from harness.render import render_site
    from harness.site import read_static, write_site

    sources = HERE.parent / "site"
    write_site(render_site(a_site(), sources / "templates", read_static(sources / "static")), folder)


def chosen(site: Path) -> dict[str, str]:
    """Name of a picture to its page."""
    board = max((site / "data" / "compare").glob("*.js"), key=lambda p: (p.stat().st_size, p.name))
    data = json.loads(board.read_text().removeprefix("uharness.board(").removesuffix(");\n"))
    runs = sorted(p.stem for p in (site / "data" / "rows").glob("*.js"))
    listed = (site / "entries" / f"{board.stem}.html").read_text()
    mine = [run for run in runs if f"runs/{run}.html" in listed] or runs
    drawn = [run for run in mine if "data-chart" in (site / "runs" / f"{run}.html").read_text()]
    run = (drawn or mine or sorted(p.stem for p in (site / "runs").glob("*.html")))[0]
    entries = [("entry", e["entry"]) for e in data["entries"][:3]]
    comparisons = sorted((site / "optimizers").glob("*.html")) if (site / "optimizers").is_dir() else []
    return {
        "home": "index.html",
        "board": f"boards/{board.stem}.html",
        "run": f"runs/{run}.html#?probe=forget" if run in mine else f"runs/{run}.html",
        "compare": "compare.html#?" + urlencode([("board", board.stem), *entries]),
        "optimizers": f"optimizers/{comparisons[0].name}" if comparisons else "optimizers.html",
    }


def shoot(site: Path, out: Path) -> None:
    """Every page at every width, and the board in the dark."""
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    pages = chosen(site)
    shots = [(f"{name}-{kind}", path, kind, "light") for name, path in pages.items() for kind in WIDTHS]
    shots.append(("board-dark", pages["board"], "wide", "dark"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), headless=True, args=FLAGS
        )
        for name, path, kind, scheme in shots:
            width, height = WIDTHS[kind]
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(f"{site.resolve().as_uri()}/{path}")
            page.wait_for_timeout(300)
            tall = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
            page.set_viewport_size({"width": width, "height": tall})
            page.wait_for_timeout(1500)
            page.screenshot(path=out / f"{name}.png")
            page.close()
            print(out / f"{name}.png")
        browser.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=HERE.parent / "build" / "site", help="a built site")
    parser.add_argument("--sample", action="store_true", help="the made-up site of the tests")
    parser.add_argument("--out", type=Path, default=HERE / "screenshots")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if given.sample:
            sample(Path(scratch) / "site")
        shoot(Path(scratch) / "site" if given.sample else given.site, given.out)


if __name__ == "__main__":
    main()
