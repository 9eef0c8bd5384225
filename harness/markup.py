"""Turning anything a record holds into safe text on a page.

Everything a template prints goes through `shown`: control characters are replaced, long text is cut with a
note, and the environment escapes the rest.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import (
    BaseLoader,
    DictLoader,
    Environment,
    FileSystemBytecodeCache,
    FileSystemLoader,
    StrictUndefined,
)
from markupsafe import Markup, escape

from harness.tables import number

LIMIT, SOURCE_LIMIT = 2_000, 60_000
"""Characters of a text, and of a source file, that a page shows."""
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_LINKS = (
    (re.compile(r"https?://[^\s<>\"')]+"), "{0}"),
    (re.compile(r"\barXiv[:\s]\s?(\d{4}\.\d{4,5})", re.IGNORECASE), "https://arxiv.org/abs/{1}"),
    (re.compile(r"\b(10\.\d{4,9}/[^\s<>\"')]+)"), "https://doi.org/{1}"),
)


class _Cut(str):
    """Text that is as long as it should be."""

    __slots__ = ()


def cut(value: object, limit: int = LIMIT) -> str:
    r"""`value` as text without control characters: `limit` characters, and a note of how many were left out.

    >>> cut("abc\x00def", 5)
    'abc�d … [2 more characters]'
    """
    text = str(value)
    if not text.isprintable():
        text = _UNSAFE.sub("�", text.replace("\r\n", "\n"))
    left = len(text) - limit
    return _Cut(f"{text[:limit]} … [{left:,} more characters]" if left > 0 else text)


def clean(text: str, limit: int = LIMIT) -> str:
    """As `cut`, for data that no template prints."""
    return text if len(text) <= limit and text.isprintable() else str(cut(text, limit))


def shown(value: object) -> object:
    """What a template prints for `value`: a dash for None; markup as it is; all else cleaned and cut."""
    if value is None:
        return "–"
    return value if isinstance(value, Markup | _Cut) else cut(value)


def slug(name: str) -> str:
    """A file name for any name: itself where that is safe, else its safe characters and a hash.

    >>> slug("npo-1f2e"), slug("../A b")
    ('npo-1f2e', 'a-b-e3f8e011')
    """
    if _SLUG.fullmatch(name):
        return name
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')[:60] or 'x'}-{mark}"


def num(value: float | None, like: float | None = None) -> Markup:
    """A number in four digits that carries all of them: hover, or read its `value` attribute.

    >>> num(1 / 3)
    Markup('<data value="0.3333333333333333" title="0.3333333333333333">0.3333</data>')
    """
    if value is None:
        return Markup('<span class="none">–</span>')
    exact = repr(value)
    return Markup(f'<data value="{exact}" title="{exact}">{number(value, like)}</data>')


@functools.lru_cache(4096)
def breakable(name: str) -> Markup:
    """A metric id that may break after its dots."""
    return Markup(".<wbr>").join(escape(part) for part in cut(name, 200).split("."))


def link_of(text: str) -> str | None:
    """The first address in a citation: a link, an arXiv number, or a DOI.

    >>> link_of("Zhang et al. 2024 (arXiv 2404.05868)"), link_of("javascript:alert(1)")
    ('https://arxiv.org/abs/2404.05868', None)
    """
    for pattern, form in _LINKS:
        if found := pattern.search(text):
            return form.format(found[0], *found.groups()).rstrip(".,;")
    return None


def as_text(value: Any) -> str:
    """A setting or a fact as one line: text as it is, everything else as JSON with sorted keys."""
    return (
        value
        if isinstance(value, str)
        else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    )


def environment(templates: Path | Mapping[str, str], compiled: Path | None = None) -> Environment:
    """The template environment: everything is escaped, cleaned and cut, and a missing name is an error.

    Args:
        templates: the folder of templates, or their texts by name.
        compiled: a folder where they are kept compiled, each as good as its own text is the same.
    """
    texts = None if isinstance(templates, Path) else dict(templates)
    loader: BaseLoader = DictLoader(texts) if texts is not None else FileSystemLoader(str(templates))
    env = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=shown, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, bytecode_cache=_kept_in(compiled),
    )  # fmt: skip
    env.filters |= {
        "num": num, "number": number, "slug": slug, "cut": cut, "breakable": breakable, "link_of": link_of,
        "as_text": as_text, "source": lambda text: cut(text, SOURCE_LIMIT),
    }  # fmt: skip
    return env


def _kept_in(folder: Path | None) -> FileSystemBytecodeCache | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return FileSystemBytecodeCache(str(folder), "%s.compiled")


def page(env: Environment, template: str, root: str, **values: Any) -> str:
    """A page from its template; `root` is the relative path to the site's first page."""
    return env.get_template(template).render(root=root, **values)


def data_block(name: str, value: Any) -> Markup:
    r"""Data for a page's script, as an element that is never run: nothing in it can end the element.

    >>> data_block("x", {"a": "</script>"})
    Markup('<script type="application/json" id="x">{"a":"\\u003c/script>"}</script>')
    """
    return Markup(f'<script type="application/json" id="{escape(name)}">{script_json(value)}</script>')


def script_json(value: Any) -> str:
    """JSON in which nothing can end the script or the element that it stands in; refuses NaN."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
