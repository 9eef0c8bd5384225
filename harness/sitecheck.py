"""What is wrong with a built site: links that lead nowhere, requests to elsewhere, files that are too large."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from harness.errors import InputError
from harness.recordcheck import Finding
from harness.siteparts import MARK, is_site

PAGE_KB = 300
"""What a board's page may weigh with its style and what it loads at once, gzipped, in kB (1000 bytes)."""
FILE_MB, SITE_MB = 95, 1000
"""What a host of static pages takes: a file of GitHub's repositories, and a site of GitHub Pages."""
_TAG = re.compile(
    r"<([a-zA-Z][a-zA-Z0-9]*)((?:\s+[^\s=>/\"']+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s>\"']+))?)*)\s*/?>"
)
_ATTRIBUTE = re.compile(r"([^\s=>/\"']+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))")
_LOADS = {"src", "srcset", "poster", "data", "background", "action", "formaction", "xlink:href"}
_CSS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+(?:url\()?['\"]?([^'\")\s;]+)")


def check_site(folder: Path) -> tuple[list[Finding], int]:
    """All findings in a built site, sorted, and how many files were looked at. Paths are relative to the site."""
    if not is_site(folder):
        raise InputError(f"{folder} is not a site that was built here", "", "run `uharness site build` first")
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    files.pop(MARK, None)
    found: list[Finding] = []
    ids: dict[str, set[str]] = {}
    links: list[tuple[str, int, str, str]] = []
    size = 0
    for name, path in files.items():
        weight = path.stat().st_size
        size += weight
        if weight > FILE_MB * 1_000_000:
            found.append(Finding(name, 0, f"is {weight / 1e6:.0f} MB; a file may have {FILE_MB} MB"))
        if name.endswith(".html"):
            page = path.read_text(encoding="utf-8")
            ids[name] = set()
            found += _page(name, page, ids[name], links)
        elif name.endswith(".css"):
            found += _style(name, path.read_text(encoding="utf-8"))
    found += [f for name, line, link, kind in links for f in _link(name, line, link, kind, files, ids)]
    found += _weights(files, links)
    if size > SITE_MB * 1_000_000:
        found.append(Finding(".", 0, f"the site is {size / 1e6:.0f} MB; it may have {SITE_MB} MB"))
    return sorted(set(found)), len(files)


def _page(name: str, page: str, ids: set[str], links: list[tuple[str, int, str, str]]) -> Iterator[Finding]:
    """Gathers ids and links of a page, and tells what it must not have."""
    policy = None
    for tag in _TAG.finditer(page):
        attributes = {a[0].lower(): unescape(a[1] or a[2] or a[3]) for a in _ATTRIBUTE.findall(tag[2])}
        element = tag[1].lower()
        if "id" in attributes:
            ids.add(attributes["id"])
        if element == "meta" and attributes.get("http-equiv", "").lower() == "content-security-policy":
            policy = attributes.get("content", "")
        used = [(key, value) for key, value in attributes.items() if key == "href" or key in _LOADS]
        for key, value in used:
            loads = key != "href" or element in ("link", "image", "use")
            if key == "data" and element != "object":
                continue
            links.append(
                (name, page.count("\n", 0, tag.start()) + 1, value, "loads" if loads else "links to")
            )
    if policy is None:
        yield Finding(name, 0, "has no Content-Security-Policy")
    elif "unsafe-inline" in policy or "unsafe-eval" in policy or "default-src 'none'" not in policy:
        yield Finding(name, 0, f"its Content-Security-Policy is not strict: {policy}")


def _style(name: str, text: str) -> Iterator[Finding]:
    for match in _CSS.finditer(text):
        target = match[1] or match[2]
        if urlsplit(target).scheme not in ("", "data") or target.startswith("//"):
            yield Finding(name, text.count("\n", 0, match.start()) + 1, f"loads {target} from elsewhere")


def _link(
    name: str, line: int, link: str, kind: str, files: Mapping[str, Path], ids: Mapping[str, set[str]]
) -> Iterator[Finding]:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        if kind == "loads" and parts.scheme != "data":
            yield Finding(name, line, f"loads {link} from elsewhere")
        elif parts.scheme not in ("http", "https", "mailto", "data"):
            yield Finding(name, line, f"links to {link}, which no reader can follow")
        return
    if parts.path.startswith("/"):
        yield Finding(name, line, f"{kind} {link}: no relative path, so it works at the root of a host only")
        return
    target = _joined(name, unquote(parts.path)) if parts.path else name
    if target not in files:
        target = f"{target}/index.html".lstrip("/")
    if target not in files:
        yield Finding(name, line, f"{kind} {link}, which is not there")
    elif parts.fragment and target in ids and not _has(ids[target], unquote(parts.fragment)):
        yield Finding(name, line, f"{kind} {link}: the page is there, and has no such place")


def _has(ids: set[str], fragment: str) -> bool:
    """Whether a page has this place; a fragment with `=` or `&` is the state of a script."""
    return fragment in ids or "=" in fragment or "&" in fragment


def _joined(name: str, path: str) -> str:
    steps = name.split("/")[:-1]
    for step in path.split("/"):
        if step == "..":
            steps = steps[:-1] if steps else ["..", *steps]
        elif step not in ("", "."):
            steps.append(step)
    return "/".join(steps)


def _weights(files: Mapping[str, Path], links: list[tuple[str, int, str, str]]) -> Iterator[Finding]:
    """Pages of boards that weigh too much, with everything that they load at once."""
    packed: dict[str, int] = {}

    def weight(name: str) -> int:
        if name not in packed:
            packed[name] = len(gzip.compress(files[name].read_bytes(), 6, mtime=0))
        return packed[name]

    pages = {name: {name} for name in sorted(files) if re.fullmatch(r"boards/[^/]+\.html", name)}
    for name, _, link, kind in links:
        if name in pages and kind == "loads" and not urlsplit(link).scheme:
            pages[name].add(_joined(name, unquote(urlsplit(link).path)))
    for page, loaded in pages.items():
        total = sum(weight(name) for name in loaded if name in files)
        if total > PAGE_KB * 1000:
            yield Finding(
                page, 0, f"weighs {total / 1000:.0f} kB gzipped with what it loads; it may have {PAGE_KB} kB"
            )
