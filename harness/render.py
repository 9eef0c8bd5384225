"""From tables and records to the files of a static site. Pure: what is shown comes in, files go out; `site` writes.

Pages link by relative paths only, ask for nothing from elsewhere, and can be read without a script, so that they work
from a file, a sub-path or an archive. The same input gives the same bytes: everything is sorted, and no page has a
date of its own making. A site is made of parts; a part whose key is that of an earlier build need not be made again.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment

from harness.comparetables import Compared
from harness.markup import environment
from harness.pages.boards import board_part
from harness.pages.compare import compare_files
from harness.pages.content import BoardPage, Files, MethodPage, Part, Site
from harness.pages.home import glossary_files, home_files, metrics_of, plain_files
from harness.pages.methods import method_files, methods_of, rows_of
from harness.pages.optimizers import comparison_files, overview_files
from harness.pages.runs import curve_files, run_files
from harness.pages.words import budget_text, stop_text
from harness.specs import RunRecord, content_hash

__all__ = [
    "BoardPage",
    "Files",
    "MethodPage",
    "Part",
    "Site",
    "budget_text",
    "parts",
    "render_site",
    "stop_text",
]


def render_site(
    site: Site, templates: Path | Mapping[str, str], static: Mapping[str, bytes] | None = None
) -> Files:
    """All files of the site by relative path, in sorted order.

    Args:
        site: what to show.
        templates: the folder of templates, or their texts by name.
        static: files that are copied to `static/`, such as `style.css`.
    """
    made: Files = {}
    for part in parts(site, templates, static):
        made |= part.make()
    return dict(sorted(made.items()))


def parts(
    site: Site,
    templates: Path | Mapping[str, str],
    static: Mapping[str, bytes] | None = None,
    compiled: Path | None = None,
) -> list[Part]:
    """The parts of a site, each board's together with its runs by id.

    A changed record changes the keys of its run, its board, the methods with rows on that board, and the pages about
    everything, and of nothing else.

    Args:
        site: what to show.
        templates: the folder of templates, or their texts by name.
        static: files that are copied to `static/`.
        compiled: a folder where compiled templates are kept for the next time.
    """
    env = environment(templates, compiled)
    env.globals |= {"site_title": site.title}
    boards = sorted(site.boards, key=lambda page: page.board.name)
    methods = methods_of(site, boards)
    metrics = metrics_of(site, boards)
    code = content_hash([_code(), _texts(templates), site.title])
    infos = content_hash({name: repr(info) for name, info in metrics.items()})
    keys = {b.board.name: content_hash([code, infos, _board_key(site, b)]) for b in boards}
    compared = {c.comparison.id: content_hash(_comparison_key(site, c)) for c in site.comparisons}
    told = [repr(methods), repr(site.standings), site.year, compared]
    everything = content_hash([code, infos, keys, *told])
    seen = replace(site, metrics=metrics)
    found = [
        Part("home", everything, partial(home_files, env, seen, boards, methods)),
        Part("glossary", content_hash([code, infos]), partial(glossary_files, env, metrics)),
        Part("plain", everything, partial(plain_files, env, boards)),
        Part("optimizers", everything, partial(overview_files, env, seen, boards)),
    ]
    for name, content in (static or {}).items():
        found.append(
            Part(f"static/{name}", content_hash(content.hex()), partial(_copy, f"static/{name}", content))
        )
    for board in boards:
        name, runs = board.board.name, _Runs(board)
        key = content_hash([code, name, [_stamp(site, runs, run) for run in runs.ids]])
        found.append(Part(f"curves/{name}", key, partial(curve_files, site, name, runs.ids)))
    for board in boards:
        name, runs = board.board.name, _Runs(board)
        found.append(Part(f"boards/{name}", keys[name], partial(_board, env, board)))
        head = content_hash([code, infos, board.board.model_dump(mode="json")])
        for run in runs.ids:
            key = _hash(f"{head} {_stamp(site, runs, run)}")
            found.append(Part(f"runs/{run}", key, partial(_run, env, seen, board, runs, run)))
    for method in methods:
        rows = rows_of(method, boards)
        key = content_hash([code, repr(method), [keys[b.board.name] for b, _ in rows]])
        found.append(Part(f"methods/{method.name}", key, partial(method_files, env, method, rows)))
    known = {run for board in boards for run in _Runs(board).ids}
    for one in site.comparisons:
        paged = sorted(run for run in one.records if run in known)
        name = one.comparison.id
        key = content_hash([code, infos, compared[name], paged])
        found.append(Part(f"comparisons/{name}", key, partial(comparison_files, env, one, paged)))
    return found


@dataclass(frozen=True)
class _Runs:
    """A board's runs: ids from its table, where every one has a row; records only when one is asked for."""

    board: BoardPage

    @cached_property
    def ids(self) -> list[str]:
        """Sorted."""
        return sorted({run for row in self.board.table.rows for run in row.run_ids})

    @cached_property
    def records(self) -> dict[str, RunRecord]:
        """By id."""
        return {record.run_id: record for record in self.board.records}


def _board(env: Environment, board: BoardPage) -> Files:
    return board_part(env, board) | compare_files(board)


def _run(env: Environment, site: Site, board: BoardPage, runs: _Runs, run: str) -> Files:
    return run_files(env, site, board, runs.records[run])


def _hash(text: str) -> str:
    """As `content_hash` of one text, for many thousand of them."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _copy(path: str, content: bytes) -> Files:
    return {path: content}


def _stamp(site: Site, runs: _Runs, run: str) -> str:
    """What a run's files depend on; its record has the hashes of its tables."""
    if run in site.stamps:
        return f"{run} {site.stamps[run]}"
    there = [run in site.rows, run in site.trajectories]
    return content_hash([runs.records[run].model_dump(mode="json"), there])


def _board_key(site: Site, board: BoardPage) -> list[Any]:
    runs = _Runs(board)
    made = [board.key] if board.key else [board.table, sorted(board.curves.items()), board.trade_offs]
    shown = [repr(board.reported), board.left_out, *map(repr, made)]
    return [board.board.model_dump(mode="json"), [_stamp(site, runs, run) for run in runs.ids], shown]


def _comparison_key(site: Site, compared: Compared) -> list[Any]:
    stamps = site.stamps
    records = [stamps.get(run) or r.model_dump(mode="json") for run, r in sorted(compared.records.items())]
    return [compared.comparison.model_dump(mode="json"), records, sorted(compared.trajectories)]


def _texts(templates: Path | Mapping[str, str]) -> dict[str, str]:
    if isinstance(templates, Path):
        return {path.name: path.read_text(encoding="utf-8") for path in sorted(templates.glob("*.html"))}
    return dict(templates)


@functools.cache
def _code() -> str:
    """Hash of the modules that make pages."""
    here = Path(__file__).parent
    names = (
        "render.py",
        "markup.py",
        "charts.py",
        "tables.py",
        "tabletext.py",
        "sparkline.py",
        "comparetables.py",
        "curves.py",
        "flat.py",
        "profiles.py",
        "targets.py",
    )
    files = [*(here / name for name in names), *sorted((here / "pages").glob("*.py"))]
    return content_hash([path.read_text(encoding="utf-8") for path in files])
