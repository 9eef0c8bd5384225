"""What the command line prints: boards, tables, runs, methods, metrics."""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import entries, plugins, preflight
from harness.errors import InputError, UharnessError, near
from harness.leaderboard import load
from harness.overall import Standing
from harness.reported import ReportedRow, note_of, reported_of
from harness.specs import Board, RunRecord
from harness.store import Store
from harness.tables import heading, number
from harness.tabletext import format_table, rich_table
from harness.tradeoffs import TradeOff
from harness.types import MetricInfo
from harness.workspace import Workspace

STYLES = ("table", "json", "csv", "md")


def metrics_of(workspace: Workspace, board: Board) -> dict[str, MetricInfo]:
    """What a board's columns mean."""
    return dict(preflight.described(board, workspace).metrics)


def board_table(
    workspace: Workspace,
    store: Store,
    name: str,
    style: str,
    mark: frozenset[str] = frozenset(),
    all_columns: bool = False,
    columns: Sequence[str] = (),
) -> None:
    """Print a board's table: in colours on a terminal, else as plain text; what does not fit is named.

    `columns` take the place of the board's, beside what it ranks by.
    """
    if style not in STYLES:
        raise InputError(f"no format {style!r}", near(style, STYLES), "")
    board = workspace.board(name)
    if columns:
        board = board.model_copy(update={"columns": tuple(dict.fromkeys([board.rank_by, *columns]))})
    known = preflight.described(board, workspace)
    shown = load(store, known.board, known.metrics, known.cases)
    if style != "table":
        sys.stdout.write(format_table(shown.table, style, curves=shown.curves))
        return
    width = None if all_columns else shutil.get_terminal_size((120, 24)).columns
    if sys.stdout.isatty() and not all_columns:
        from rich.console import Console

        Console(width=width).print(rich_table(shown.table, width, shown.curves))
    else:
        sys.stdout.write(format_table(shown.table, "table", width=width, curves=shown.curves))
    for line in front_lines(shown.trade_offs):
        print(line)
    told = reported_of(workspace.leaderboards, board.name), note_of(workspace.leaderboards, board.name)
    for line in reported_lines(*told):
        print(line)
    if mark:
        mine = [
            f"{row.rank if row.rank is not None else '-'}: {row.entry}"
            for row in shown.table.rows
            if row.entry in mark
        ]
        print("just run: " + "; ".join(mine))


def front_lines(found: Sequence[TradeOff]) -> list[str]:
    """Who is on the Pareto front of each trade-off in which at least two rows are compared."""
    lines = []
    for trade in found:
        if sum(point.best is not None for point in trade.points) > 1:
            best = ", ".join(
                f"{point.entry} ({number(point.x.mean)}, {number(point.y.mean)})" for point in trade.front
            )
            lines.append(f"Best of {heading(trade.x)} and {heading(trade.y)} (Pareto): {best}")
    return lines


def reported_lines(rows: Sequence[ReportedRow], note: str = "") -> list[str]:
    """What papers report at this board's setting, a row a line, below a heading; and what these rows leave out."""
    lines = ["Reported by papers, not measured here and never ranked:"] if rows else []
    for row in rows:
        spread = {name: f" ± {number(sd, row.values[name])}" for name, sd in row.sd.items()}
        told = ", ".join(
            f"{name} {number(value)}{spread.get(name, '')}" for name, value in row.values.items()
        )
        where = "; ".join(filter(None, [row.source, f"{row.model}, {row.split}", row.note]))
        lines.append(f"  {row.title}: {told} ({where})")
    return [*lines, f"  {note}"] if rows and note else lines


def standings_data(found: Sequence[Standing]) -> list[dict[str, Any]]:
    """Methods over all boards, all digits kept."""
    return [
        {"submission": s.submission, "optimizer": s.optimizer, "title": s.title, "mean_rank": s.mean_rank,
         "boards": s.boards, "places": [asdict(place) for place in s.places],
         "profile": None if s.profile is None else asdict(s.profile)}
        for s in found
    ]  # fmt: skip


def standings_rows(found: Sequence[Standing]) -> tuple[list[str], list[list[str]]]:
    """Methods over all boards as a table of texts: a column per board with the rank there, or a dash."""
    boards = [place.board for place in found[0].places] if found else []
    rows = [
        [
            f"{s.mean_rank:.2f}", s.title or s.submission, s.submission, s.optimizer,
            number(s.profile.score) if s.profile is not None else "–",
            *(str(place.rank) if place.ranked else "–" for place in s.places),
        ]
        for s in found
    ]  # fmt: skip
    return ["mean rank", "method", "submission", "optimizer", "profile", *boards], rows


def budget_text(board: Board) -> str:
    """A budget in words."""
    budget = board.budget
    return {
        "seconds": f"{budget.seconds} s", "updates": f"{budget.updates} updates",
        "reference_steps": f"{budget.reference_steps} reference steps",
    }[budget.kind]  # fmt: skip


def board_lines(workspace: Workspace) -> list[dict[str, Any]]:
    """All boards; one whose file is broken is listed with its fault."""
    default = workspace.default_board()
    lines = []
    for name in workspace.board_names():
        line: dict[str, Any] = {
            "name": name,
            "default": name == default,
            "task": "",
            "budget": "",
            "title": "",
        }
        try:
            board = workspace.board(name)
            line |= {"task": board.task.name, "budget": budget_text(board), "title": board.title,
                     "version": board.board_version}  # fmt: skip
        except UharnessError as error:
            line["title"] = f"broken: {error}"
        lines.append(line)
    return lines


def scores_table(scores: Mapping[str, Mapping[str, Any]], metrics: Mapping[str, MetricInfo]) -> None:
    """Print scores with their direction, or the reason why there is none."""
    for name, score in scores.items():
        info = metrics.get(name)
        arrow = {"higher": "↑", "lower": "↓", "target": "→"}.get(info.direction, " ") if info else " "
        value = number(score["value"]) if score["value"] is not None else f"null: {score['why']}"
        print(f"{name:34} {arrow} {value}  (n = {score['n']})")


def run_lines(records: Sequence[RunRecord]) -> list[str]:
    """One line a run."""
    lines = []
    for r in records:
        spent = f"{r.charged_s:8.2f} s" if r.charged_s is not None else f"{'':10}"
        lines.append(
            f"{r.run_id:44} {r.board:12} {r.case:10} {r.seed:4} {r.status:11} {spent}  {r.error}".rstrip()
        )
    return lines or ["no runs yet; start with `uharness submit grad_diff`"]


def find_record(store: Store, run: str) -> RunRecord:
    """A record by its run id."""
    records = {r.run_id: r for r in store.load_records()}
    if run not in records:
        raise InputError(f"no run {run!r}", near(run, records), "see `uharness run list`")
    return records[run]


def run_text(record: RunRecord) -> str:
    """One run for a terminal."""
    lines = [
        f"run        {record.run_id}", f"entry      {record.entry}  ({record.title})",
        f"board      {record.board}, version {record.board_version}", f"case       {record.case}, seed {record.seed}",
        f"status     {record.status}{': ' + record.error if record.error else ''}",
        f"charged    {number(record.charged_s)} s, over by {number(record.overshoot_s)} s",
        f"updates    {record.updates}, {record.examples} examples, {record.tokens} tokens",
        f"memory     {number(record.peak_gib)} GiB", f"stopped    {record.stopped or '-'}",
        f"lanes      {', '.join(f'{k} {v:.2f} s' for k, v in sorted(record.lanes_s.items()))}",
        f"config     {json.dumps(record.config, sort_keys=True)}",
        f"hashes     {json.dumps(record.hashes, sort_keys=True)}",
        f"made on    {record.env.get('hardware')}, {record.started}", "",
    ]  # fmt: skip
    for name, score in sorted(record.scores.items()):
        lines.append(
            f"{name:34} {score.value!r}" if score.value is not None else f"{name:34} null: {score.why}"
        )
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts as lines whose columns stand under each other.

    >>> aligned([("a", "b"), ("long", "")])
    ['a     b', 'long']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], style: str) -> None:
    """The result of a query."""
    if style == "json":
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=1, default=str))
    elif style == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    elif style == "table":
        cells = [list(columns), *[["NULL" if v is None else str(v) for v in row] for row in rows]]
        print(*aligned(cells), sep="\n")
    else:
        raise InputError(f"no format {style!r}", "table, json or csv", "")


def method_lines(workspace: Workspace) -> list[dict[str, Any]]:
    """All submissions; one that does not load is listed with its fault."""
    lines = []
    for name, source in plugins.submission_names(workspace.submissions).items():
        try:
            s = plugins.load_submission(name, workspace.submissions).submission
            kind = source.partition(":")[0] if ":" in source else "file"
            lines.append({"name": name, "title": s.title, "paper": s.paper, "goal": s.goal,
                          "needs": list(entries.needs_of(s, s.method)), "reference": s.reference,
                          "source": kind})  # fmt: skip
        except UharnessError as error:
            lines.append({"name": name, "title": "broken", "paper": str(error), "goal": "", "needs": [],
                          "reference": False, "source": source})  # fmt: skip
    return lines


def method_text(workspace: Workspace, name: str) -> str:
    """One submission: what it is, and its settings with their defaults."""
    loaded = plugins.load_submission(name, workspace.submissions)
    s = loaded.submission
    about, needs = inspect.getdoc(type(s.method)) or "", entries.needs_of(s, s.method)
    lines = [f"{name}: {s.title}", about, f"paper: {s.paper or '-'}", f"needs: {', '.join(needs) or '-'}",
             f"goal: {s.goal}", "settings (--set KEY=VALUE):"]  # fmt: skip
    lines += [f"  {key} = {json.dumps(value, default=str)}" for key, value in entries.settings_of(s).items()]
    lines += [f"  try {key} = {json.dumps(list(values))}" for key, values in s.search_space.items()]
    return "\n".join(lines)


def optimizer_lines() -> list[str]:
    """All optimizers, with the first line of their module's description."""
    lines = []
    for name in plugins.optimizer_names():
        about = inspect.getdoc(importlib.import_module(f"harness.optim.{name}")) or ""
        lines.append(f"{name:16} {about.splitlines()[0] if about else ''}")
    return lines


def treatment_lines(reference: str, roots: tuple[Path, ...]) -> list[str]:
    """How matrix optimizers treat a model's parameters, one line a kind; blocks are collapsed to `*`."""
    from harness.models import skeleton
    from harness.optim.sides import sides

    model = skeleton(reference, roots)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    kinds: dict[tuple[str, ...], int] = {}
    for name, side in sides(model).items():
        pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
        shape = " x ".join(map(str, shapes[name]))
        kind = (pattern, shape, side.role, side.treatment, side.why)
        kinds[kind] = kinds.get(kind, 0) + 1
    cells = [("parameter", "shape", "count", "role", "sides", "because")]
    cells += [(kind[0], kind[1], str(count), *kind[2:]) for kind, count in kinds.items()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(v.ljust(w) for v, w in zip(line, widths, strict=True)).rstrip() for line in cells]


def metric_lines(workspace: Workspace, board: str) -> list[dict[str, Any]]:
    """Metrics of one board, or of all boards that can tell them (most can without their data)."""
    found: dict[str, MetricInfo] = {}
    for name in [board] if board else workspace.board_names():
        try:
            found |= metrics_of(workspace, workspace.board(name))
        except UharnessError:
            if board:
                raise
    return [
        {"id": m.id, "direction": m.direction if m.target is None else f"-> {m.target:g}", "unit": m.unit,
         "range": f"{'' if m.low is None else f'{m.low:g}'}..{'' if m.high is None else f'{m.high:g}'}",
         "text": m.text, "source": m.source, "roles": list(m.roles)}
        for m in sorted(found.values(), key=lambda m: m.id)
    ]  # fmt: skip
