"""What pages say in words: budgets, commands, citations."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from harness.comparisons import Comparison
from harness.markup import as_text, cut, link_of
from harness.specs import Board, RunRecord

_ARXIV = re.compile(r"arxiv\.org/abs/(\d{4}\.\d{4,5})")
_DATE = re.compile(r"\d{4}-")


def budget_text(board: Board) -> str:
    """The budget in words."""
    budget = board.budget
    if budget.seconds is not None:
        text = f"{budget.seconds:g} s of wall-clock time"
    elif budget.reference_steps is not None:
        text = (
            f"wall-clock time of {budget.reference_steps} reference steps (GradDiff with AdamW, same batch, "
            "timed on the machine at hand)"
        )
    else:
        text = f"{budget.updates} updates: not equal time"
    return text + (f"; at most {budget.max_peak_gib:g} GiB at the peak" if budget.max_peak_gib else "")


def stop_text(board: Board) -> str:
    """The early stop in words."""
    stop = board.stop
    if stop is None:
        return "none: every run uses its whole budget"
    bound = f"≤ {stop.at_most:g}" if stop.at_most is not None else f"≥ {stop.at_least:g}"
    every = "every update" if stop.check_every == 1 else f"every {stop.check_every} updates"
    return f"when {stop.metric} {bound}, checked off the clock at {every}"


def hardware_of(records: Iterable[RunRecord]) -> list[str]:
    """The distinct machines of runs that were made here."""
    return sorted(
        {str(r.env.get("hardware") or "unknown hardware") for r in records if r.status != "imported"}
    )


def command(record: RunRecord, *, seed: bool = True) -> str:
    """What makes a run again, whatever the defaults are by then: every setting is spelt out.

    >>> run = {"run_id": "r", "board": "b", "board_version": "1", "entry": "npo", "submission": "npo", "case": "c"}
    >>> command(RunRecord(**run, seed=0, status="ok", config={"beta": 0.1, "form": "a b"}))
    "uharness submit npo --board b --seed 0 --set beta=0.1 --set 'form=a b'"
    """
    parts = ["uharness", "submit", record.submission, "--board", record.board]
    parts += ["--seed", str(record.seed)] if seed else []
    for key, value in sorted(record.config.items()):
        parts += ["--set", f"{key}={as_text(value)}"]
    return " ".join(shlex.quote(part) for part in parts)


def bibtex(key: str, title: str, **fields: str) -> str:
    r"""A BibTeX entry; what is empty is left out, and what TeX would obey is escaped.

    >>> print(bibtex("a b", "50 % of {x}", year="2024"))
    @misc{a-b,
      title = {50 \% of x},
      year = {2024}
    }
    """
    lines = [f"  {name} = {{{_tex(text)}}}" for name, text in {"title": title, **fields}.items() if text]
    name = re.sub(r"[^A-Za-z0-9]+", "-", key).strip("-") or "x"
    return f"@misc{{{name},\n" + ",\n".join(lines) + "\n}"


def paper_bibtex(name: str, title: str, paper: str, authors: str) -> str:
    """The paper of a method, as far as its submission names it; empty where it names none."""
    if not paper:
        return ""
    url = link_of(paper) or ""
    found = _ARXIV.search(url)
    eprint = {"eprint": found[1], "archiveprefix": "arXiv"} if found else {}
    return bibtex(name, title or name, author=authors, note=paper, url=url, **eprint)


def year_of(records: Iterable[RunRecord]) -> str:
    """The year in which the latest of these was started; empty where none tells.

    >>> year_of([])
    ''
    """
    return max((r.started[:4] for r in records if _DATE.match(r.started)), default="")


def site_bibtex(title: str, year: str) -> str:
    """All boards together."""
    return bibtex(
        title, f"{title}: leaderboards of machine unlearning under equal compute",
        howpublished="uharness board overall", year=year,
    )  # fmt: skip


def board_bibtex(board: Board, year: str) -> str:
    """A board, with the version that its numbers belong to."""
    return bibtex(
        f"uharness-{board.name}", f"uharness leaderboard: {board.title or board.name}",
        howpublished=f"uharness board show {board.name}", note=f"board version {board.board_version}", year=year,
    )  # fmt: skip


def comparison_bibtex(comparison: Comparison, year: str) -> str:
    """A comparison of optimizers."""
    c = comparison
    return bibtex(
        f"uharness-{c.id}", f"{', '.join(c.losses)} with {', '.join(c.optimizers)} on {c.base}",
        howpublished=f"uharness comparison show {c.id}", note=f"board version {c.board_version}", year=year,
    )  # fmt: skip


def run_bibtex(record: RunRecord) -> str:
    """A single run."""
    return bibtex(
        f"uharness-{record.run_id}", f"{record.title or record.submission} on {record.board}",
        howpublished=f"uharness run show {record.run_id}", note=f"board version {record.board_version}",
        year=year_of([record]),
    )  # fmt: skip


def _tex(text: str) -> str:
    plain = " ".join(re.sub(r"[\\{}]", "", cut(text, 600)).split())
    return re.sub(r"([%&#$_])", r"\\\1", plain)
