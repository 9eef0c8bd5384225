"""The commands that look: boards, runs, the database, lists; and those that build the site and the built-in models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli_site import site_app
from harness.shell import find_workspace, open_store, print_json, print_table

board_app = typer.Typer(no_args_is_help=True, help="Leaderboards: list, show, set the default.")
run_app = typer.Typer(no_args_is_help=True, help="Single runs: list, show.")
db_app = typer.Typer(no_args_is_help=True, help="The DuckDB database made from the records.")
list_app = typer.Typer(no_args_is_help=True, help="What can be named: methods, tasks, optimizers, metrics.")
mini_app = typer.Typer(no_args_is_help=True, help="The models that ship with the package: build, check.")
GROUPS = {
    "board": board_app,
    "run": run_app,
    "db": db_app,
    "list": list_app,
    "site": site_app,
    "mini": mini_app,
}
"""The groups by name, in the order of the help."""

FormatOption = Annotated[str, typer.Option("--format", help="table, json, csv or md.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


# --- board ----------------------------------------------------------------------------------------------------------
@board_app.command("list")
def board_list(json: JsonOption = False) -> None:
    """All boards, with their tasks and budgets."""
    from harness.show import aligned, board_lines

    workspace = find_workspace()
    boards = board_lines(workspace)
    if json:
        print_json(boards)
    else:
        rows = [("*" if b["default"] else " ", b["name"], b["task"], b["budget"], b["title"]) for b in boards]
        for line in aligned(rows):
            typer.echo(line)


@board_app.command("show")
def board_show(
    name: Annotated[str, typer.Argument(help="Board; the default one without.")] = "",
    format: FormatOption = "table",
    all_columns: Annotated[
        bool, typer.Option("--all-columns", help="Also those that do not fit into the terminal.")
    ] = False,
    columns: Annotated[
        str,
        typer.Option("--columns", help="These in place of the board's, with commas between: any metrics."),
    ] = "",
) -> None:
    """A board's table: what fits into the terminal, and the names of what does not."""
    workspace, names = find_workspace(), [c.strip() for c in columns.split(",") if c.strip()]
    print_table(workspace, name or workspace.default_board(), format, all_columns=all_columns, columns=names)


@board_app.command("overall")
def board_overall(
    format: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
) -> None:
    """All boards at once: each method's rank on each, the mean, and its performance profile's score."""
    from harness.leaderboard import overall
    from harness.show import print_rows, standings_data, standings_rows

    workspace = find_workspace()
    found = overall(workspace, open_store(workspace))
    if format == "json":
        print_json(standings_data(found))
    else:
        print_rows(*standings_rows(found), format)


@board_app.command("default")
def board_default(name: Annotated[str, typer.Argument(help="The new default.")] = "") -> None:
    """Print the default board, or set it for this workspace."""
    workspace = find_workspace()
    if name:
        path = workspace.set_default_board(name)
        typer.echo(f"default board: {name} (in {path})")
    else:
        typer.echo(workspace.default_board())


# --- run ------------------------------------------------------------------------------------------------------------
@run_app.command("list")
def run_list(
    board: Annotated[str, typer.Option("--board", "-b", help="Only this board.")] = "",
    json: JsonOption = False,
) -> None:
    """All recorded runs."""
    from harness.show import run_lines

    workspace = find_workspace()
    if board:
        workspace.board(board)
    records = open_store(workspace).load_records(board or None)
    if json:
        print_json([r.model_dump(mode="json") for r in records])
    else:
        for line in run_lines(records):
            typer.echo(line)


@run_app.command("show")
def run_show(run: Annotated[str, typer.Argument(help="Run id.")], json: JsonOption = False) -> None:
    """One run: how it was made, and every score."""
    from harness.show import find_record, run_text

    record = find_record(open_store(find_workspace()), run)
    if json:
        print_json(record.model_dump(mode="json"))
    else:
        typer.echo(run_text(record))


# --- db -------------------------------------------------------------------------------------------------------------
@db_app.command("query")
def db_query(
    sql: Annotated[str, typer.Argument(help="A statement that reads.")],
    format: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
) -> None:
    """Ask the database: tables runs, scores, rows, trajectories, diagnostics, ledgers, absent, comparisons, ..."""
    from harness.show import print_rows

    columns, rows = open_store(find_workspace()).query(sql)
    print_rows(columns, rows, format)


@db_app.command("rebuild")
def db_rebuild() -> None:
    """Make the database anew from the records, and say what is absent."""
    from harness.store import Store

    workspace = find_workspace()
    report = Store(workspace.leaderboards, workspace.database).rebuild()
    typer.echo(f"{report.records} runs in {workspace.database}")
    for absent in report.absent:
        typer.echo(f"absent: {absent}")


# --- list -----------------------------------------------------------------------------------------------------------
@list_app.command("methods")
def list_methods(
    name: Annotated[str, typer.Argument(help="One method, with its settings.")] = "", json: JsonOption = False
) -> None:
    """Submissions, with their papers; with a NAME, its settings and defaults."""
    from harness.show import aligned, method_lines, method_text

    workspace = find_workspace()
    if name:
        typer.echo(method_text(workspace, name))
        return
    lines = method_lines(workspace)
    if json:
        print_json(lines)
    else:
        for line in aligned([(m["name"], m["title"], m["paper"]) for m in lines]):
            typer.echo(line)


@list_app.command("tasks")
def list_tasks() -> None:
    """Tasks, own and installed."""
    from harness.plugins import task_names

    for name in task_names():
        typer.echo(name)


@list_app.command("optimizers")
def list_optimizers(
    explain: Annotated[
        str, typer.Option("--explain", help="A model: how matrix optimizers treat its parameters.")
    ] = "",
) -> None:
    """Optimizers, with the first line of their description; with a model, which sides are preconditioned."""
    from harness.show import optimizer_lines, treatment_lines

    lines = treatment_lines(explain, find_workspace().roots) if explain else optimizer_lines()
    for line in lines:
        typer.echo(line)


@list_app.command("metrics")
def list_metrics(
    board: Annotated[str, typer.Option("--board", "-b", help="Of this board; all boards' without.")] = "",
    json: JsonOption = False,
) -> None:
    """Metrics with direction, range, unit and meaning."""
    from harness.show import aligned, metric_lines

    lines = metric_lines(find_workspace(), board)
    if json:
        print_json(lines)
    else:
        for line in aligned(
            [[m[key] for key in ("id", "direction", "range", "unit", "text")] for m in lines]
        ):
            typer.echo(line)


# --- mini -----------------------------------------------------------------------------------------------------------
def _weights(given: str, family: str) -> Path:
    from harness.mini.families import SHIPPED
    from harness.models import MINI

    if given:
        return Path(given)
    return MINI if family in ("", *SHIPPED) else find_workspace().build / "mini"


@mini_app.command("build")
def mini_build(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these models of the family; all without.")
    ] = None,
    family: Annotated[
        str, typer.Option("--family", help="bma, language, digits (all three without), or an unshipped one.")
    ] = "",
    out: Annotated[
        str,
        typer.Option(
            "--out", help="Weights folder to write; default: the package's, for unshipped ones build/mini."
        ),
    ] = "",
) -> None:
    """Train the built-in models anew; those that are there and unchanged are skipped."""
    from harness.mini import families
    from harness.progress import progress

    with progress() as show:
        families.build(
            _weights(out, family), family, progress=lambda text: show(text, None), names=names or ()
        )


@mini_app.command("check")
def mini_check(
    family: Annotated[
        str, typer.Option("--family", help="bma, language, digits (all three without), or an unshipped one.")
    ] = "",
    folder: Annotated[str, typer.Option("--folder", help="Weights folder; default: the package's.")] = "",
) -> None:
    """Check the built-in models: whether each has learnt what it should, and nothing else."""
    from harness.mini import families

    checks = families.check(_weights(folder, family), family)
    for c in checks:
        measured = "" if c.value is None else f": {c.value:.6g}"
        typer.echo(f"{'ok  ' if c.ok else 'FAIL'}  {c.name:14} {c.criterion}{measured}")
    if not all(c.ok for c in checks):
        raise typer.Exit(1)
