"""The command that looks into finished runs: `diagnose`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.errors import InputError
from harness.shell import check_files, find_workspace, open_session, print_json, say


def register(app: typer.Typer) -> None:
    """Add the command to the main application."""
    app.command()(diagnose)


def diagnose(
    runs: Annotated[list[str] | None, typer.Argument(help="Run ids; several are compared by `pca`.")] = None,
    what: Annotated[
        str,
        typer.Option(
            help="Comma-separated: norms, drift, covariance, losses, path (the default), pca, request, ablation, "
            "ds, mixes, slice."
        ),
    ] = "",
    gradients: Annotated[int, typer.Option(min=1, help="Gradients behind a covariance.")] = 32,
    rows: Annotated[int, typer.Option(min=1, help="Forget (and retain) rows of each gradient.")] = 1,
    matrices: Annotated[
        str, typer.Option(help="Regular expression: which parameters' covariances. Default: see the docs.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Most rows of each set for drift and losses.")] = 256,
    texts: Annotated[
        bool,
        typer.Option("--texts", help="Let the points along the run write texts, so that `util` is known."),
    ] = False,
    x: Annotated[str, typer.Option(help="Metric across the path's figure. Default: mem.")] = "",
    y: Annotated[str, typer.Option(help="Metric upwards. Default: util.")] = "",
    power_sweep: Annotated[
        bool, typer.Option("--power-sweep", help="Instead: the spectral power sweep in a board's records.")
    ] = False,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Of a run of UNMERGE: every rank, and every term left out.")
    ] = False,
    request: Annotated[
        bool, typer.Option("--request", help="Instead: a board's requests, before anything is unlearned.")
    ] = False,
    grid: Annotated[int, typer.Option(min=2, help="Points on a side of a slice.")] = 7,
    rank: Annotated[int, typer.Option(min=1, help="Directions whose overlap a request is told by.")] = 16,
    case: Annotated[str, typer.Option(help="One request of --request. Default: all of the board.")] = "",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of --request. Default: the board's first.")
    ] = None,
    board: Annotated[str, typer.Option("--board", "-b", help="Board of --power-sweep or --request.")] = "",
    metric: Annotated[str, typer.Option(help="Metric of the power sweep. Default: the board's own.")] = "",
    json: Annotated[str, typer.Option("--json", help="Write the lines to this file (- prints them).")] = "",
    csv: Annotated[str, typer.Option("--csv", help="Write the lines to this file (- prints them).")] = "",
) -> None:
    """Measure what finished runs did to their models: norms, drift, covariances, losses, paths. Draws figures."""
    from harness import diagnose as work
    from harness import preflight
    from harness.progress import progress

    if [power_sweep, request, bool(runs)].count(True) != 1:
        raise InputError("diagnose needs runs, or --power-sweep, or --request", "", "give one of them")
    if (board and runs) or (metric and not power_sweep):
        raise InputError(
            "--board and --metric belong to --power-sweep (--board to --request too)", "", "leave them out"
        )
    if (case or seed is not None) and not request:
        raise InputError("--case and --seed belong to --request", "", "leave them out")
    kinds = [w.strip() for w in what.split(",") if w.strip()] + ["ablation"] * ablate
    if kinds and not runs:
        raise InputError("--what and --ablate are about runs", "", "leave them out, or name runs")
    check_files(json, csv)
    workspace = find_workspace()
    with progress() as show:
        session = open_session(workspace, progress=show)
        if power_sweep:
            report = work.power_sweep(session, workspace.board(board or workspace.default_board()), metric)
        elif request:
            ready = preflight.board_ready(workspace.board(board or workspace.default_board()), workspace)
            report = work.diagnose_request(session, ready, work.Asked(rank=rank), case, seed)
        else:
            asked = work.Asked(
                tuple(dict.fromkeys(kinds)), gradients, rows, matrices, limit, texts, x, y, rank, grid
            )
            report = work.diagnose(session, runs or [], asked, lambda b: preflight.board_ready(b, workspace))
    if json:
        _json(json, report.lines)
    if csv:
        _csv(csv, report.lines)
    if "-" not in (json, csv):
        from harness.diagnostics.summary import summary

        for line in summary(report.lines):
            typer.echo(line)
    for note in report.notes:
        say(f"note: {note}")
    for path in report.files:
        say(f"figure: {path}")
    for problem in report.failed:
        say(f"failed: {problem}")
    if report.failed:
        raise typer.Exit(1)


def _json(where: str, lines: list[dict[str, Any]]) -> None:
    from harness.runs import write_json

    value = {"format": 1, "lines": lines}
    if where == "-":
        print_json(value)
    else:
        write_json(Path(where), value)


def _csv(where: str, lines: list[dict[str, Any]]) -> None:
    names = list(lines[0]) if lines else []
    if where == "-":
        _write_csv(sys.stdout, names, lines)
    else:
        with Path(where).open("w", encoding="utf-8", newline="") as file:
            _write_csv(file, names, lines)


def _write_csv(file: Any, names: list[str], lines: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
