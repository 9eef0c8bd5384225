"""The commands that run many: `sweep` over grids, `compare` of optimizers under equal wall-clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.errors import InputError
from harness.shell import check_files, find_workspace, open_session

BoardsOption = Annotated[
    list[str] | None,
    typer.Option("--board", "-b", help="Board name or .toml file; repeatable. Default: see `board default`."),
]
BoardOption = Annotated[
    str, typer.Option("--board", "-b", help="Board name or .toml file. Default: see `board default`.")
]
SeedOption = Annotated[list[int] | None, typer.Option("--seed", min=0, help="Only these seeds; repeatable.")]
CaseOption = Annotated[list[str] | None, typer.Option("--case", help="Only these cases; repeatable.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="key=value for all runs. Repeatable.")]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="Only the first N rows of every set; never ranked.")
]
TrajectoryOption = Annotated[
    bool, typer.Option("--trajectory", help="Score ten points along the budget too.")
]
KeepOption = Annotated[bool, typer.Option(help="Keep the unlearned weights under runs/.")]
GeneratorOption = Annotated[str, typer.Option("--generator", help="What writes the texts: hf or vllm.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would run and how long; run nothing.")
]
FormatOption = Annotated[str, typer.Option("--format", help="table, json, csv or md.")]


comparison_app = typer.Typer(no_args_is_help=True, help="Comparisons of optimizers: list, show.")


def register(app: typer.Typer) -> None:
    """Add the commands to the main application."""
    app.command()(sweep)
    app.command()(compare)
    app.add_typer(comparison_app, name="comparison")


def sweep(
    names: Annotated[list[str], typer.Argument(help="Methods: a name, ./file.py, or selector:method.")],
    board: BoardsOption = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="key=value,value; repeatable: all combinations are run."),
    ] = None,
    seed: SeedOption = None,
    case: CaseOption = None,
    set_: SetOption = None,
    limit: LimitOption = None,
    trajectory: TrajectoryOption = False,
    keep_model: KeepOption = True,
    generator: GeneratorOption = "hf",
    dry_run: DryRunOption = False,
    format: FormatOption = "table",
    out: Annotated[
        str, typer.Option("--out", help="Write the table to this file instead of printing it.")
    ] = "",
) -> None:
    """Run a grid of settings, resumable, and print one table of it."""
    from harness import preflight, supervise
    from harness import sweep as sweeping
    from harness.entries import parse_set
    from harness.flat import check_format, format_flat
    from harness.generate import choice
    from harness.progress import progress

    check_format(format)
    check_files(out)
    choice.check(generator, trains=True)
    workspace = find_workspace()
    points, overrides = sweeping.parse_grid(grid or []), parse_set(set_ or [])
    boards = board or [workspace.default_board()]
    if format == "csv" and len(boards) > 1:
        raise InputError("--format csv holds one table", f"{len(boards)} boards are given", "name one board")
    ready = [preflight.board_ready(workspace.board(name), workspace) for name in boards]
    supervise.prepare(text=any(r.text for r in ready), modules=[type(r.task).__module__ for r in ready])
    with progress() as show:
        session = open_session(
            workspace, progress=show, limit=limit, trajectory=trajectory, keep_model=keep_model,
            generator=generator,
        )  # fmt: skip
        planned = [
            item
            for r in ready
            for item in sweeping.plan(session, r, names, points, overrides, seed or r.board.seeds, case or ())
        ]
        if dry_run:
            typer.echo("\n".join(sweeping.dry_run(session, planned)))
            return
        records = sweeping.run(session, planned, show.line)
    text = format_flat(sweeping.tables(planned, records), format)
    if out:
        Path(out).write_text(text, encoding="utf-8")
    else:
        typer.echo(text, nl=False)
    if any(r is None or r.status in ("failed", "timeout", "invalid") for r in records):
        raise typer.Exit(1)


def _split(texts: list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts or [] for part in text.split(",") if part.strip())


def _rates(texts: list[str] | None) -> dict[str, tuple[float, ...]]:
    """`1e-5,1e-4` for all, `muon=1e-3,1e-2` for one optimizer, `npo.muon=...` for one pair."""
    out: dict[str, tuple[float, ...]] = {}
    for text in texts or []:
        key, found, values = text.rpartition("=")
        name = key.strip() if found else "default"
        try:
            out[name] = tuple(float(v) for v in values.split(","))
        except ValueError:
            raise InputError(
                f"--lr {text!r} has something that is no number", "", "write --lr 1e-5,1e-4"
            ) from None
        if any(not 0 < v < float("inf") for v in out[name]) or len(set(out[name])) < len(out[name]):
            raise InputError(f"--lr {text!r}", "rates are positive and differ", "write --lr 1e-5,1e-4")
    return out


def compare(
    loss: Annotated[
        list[str] | None, typer.Option("--loss", help="A method; repeatable, or with commas.")
    ] = None,
    optimizers: Annotated[
        list[str] | None, typer.Option("--optimizers", help="Names with commas; see `list optimizers`.")
    ] = None,
    board: BoardOption = "",
    lr: Annotated[
        list[str] | None,
        typer.Option(
            "--lr", help="Rates to pick from, [OPTIMIZER=]1e-5,1e-4; repeatable. Default: the board's."
        ),
    ] = None,
    seed: SeedOption = None,
    set_: SetOption = None,
    until_slowest: Annotated[
        bool, typer.Option("--until-slowest", help="Go on with the quicker ones until the slowest one's end.")
    ] = False,
    budget_seconds: Annotated[
        float | None, typer.Option(min=1e-3, help="Seconds a run, not the board's.")
    ] = None,
    budget_updates: Annotated[
        int | None, typer.Option(min=1, help="Updates a run, not the board's budget.")
    ] = None,
    families: Annotated[
        bool, typer.Option("--families", help="Print family means and win counts too.")
    ] = False,
    trajectory: TrajectoryOption = False,
    limit: LimitOption = None,
    keep_model: KeepOption = True,
    generator: GeneratorOption = "hf",
    dry_run: DryRunOption = False,
    format: FormatOption = "table",
    out: Annotated[str, typer.Option("--out", help="Write all tables to this folder too.")] = "",
) -> None:
    """Compare optimizers under equal wall-clock, their learning rates picked by the proxy."""
    import dataclasses

    from harness import comparereport, preflight, supervise
    from harness.compare import Runner
    from harness.compareplan import Request, with_budget
    from harness.comparetables import tables
    from harness.entries import parse_set
    from harness.flat import check_format, format_flat
    from harness.generate import choice
    from harness.progress import progress
    from harness.shell import say

    check_format(format)
    choice.check(generator, trains=True)
    if not _split(loss) or not _split(optimizers):
        raise InputError(
            "a comparison needs --loss and --optimizers", "", "--loss npo --optimizers adamw,soap"
        )
    workspace = find_workspace()
    request = Request(
        losses=_split(loss), optimizers=_split(optimizers), rates=_rates(lr), overrides=parse_set(set_ or []),
        seeds=tuple(dict.fromkeys(seed or ())), updates=budget_updates, seconds=budget_seconds,
        until_slowest=until_slowest,
    )  # fmt: skip
    ready = preflight.board_ready(workspace.board(board or workspace.default_board()), workspace)
    base = ready.board.name
    ready = dataclasses.replace(ready, board=with_budget(ready.board, request))
    supervise.prepare(text=ready.text, modules=[type(ready.task).__module__])
    with progress() as show:
        session = open_session(
            workspace, progress=show, limit=limit, trajectory=trajectory, keep_model=keep_model,
            generator=generator, robustness="none",
        )  # fmt: skip
        runner = Runner(session, ready, base, request, show.line)
        if dry_run:
            typer.echo("\n".join(comparereport.dry_run(runner)))
            return
        found = runner.run()
    session.store.ingest_missing()
    made = comparereport.compared(session.store, ready.metrics, found)
    every = tables(made)
    typer.echo(format_flat(comparereport.shown(every, with_families=families, form=format), format), nl=False)
    say(f"comparison {found.id}; `uharness comparison show {found.id}` prints it again")
    if out:
        say(f"{len(comparereport.export(every, Path(out)))} files in {out}")
    if comparereport.went_wrong(found, made):
        raise typer.Exit(1)


@comparison_app.command("list")
def comparison_list() -> None:
    """All comparisons."""
    from harness.shell import open_store

    for c in open_store(find_workspace()).load_comparisons():
        state = "complete" if c.complete else "incomplete"
        sizes = f"{', '.join(c.losses)} x {', '.join(c.optimizers)}, {len(c.seeds)} seeds"
        typer.echo(f"{c.id:44} {c.board.name:24} {state:10} {sizes}")


@comparison_app.command("show")
def comparison_show(
    name: Annotated[str, typer.Argument(help="Id, as `uharness comparison list` prints it.")],
    families: Annotated[
        bool, typer.Option("--families", help="Print family means and win counts too.")
    ] = False,
    format: FormatOption = "table",
    out: Annotated[str, typer.Option("--out", help="Write all tables to this folder too.")] = "",
) -> None:
    """The tables of a comparison, made from its file and its records; nothing is run."""
    from harness import comparereport, preflight
    from harness.comparetables import tables
    from harness.errors import near
    from harness.flat import check_format, format_flat
    from harness.shell import open_store, say

    check_format(format)
    workspace = find_workspace()
    store = open_store(workspace)
    known = {c.id: c for c in store.load_comparisons()}
    if name not in known:
        raise InputError(f"no comparison {name!r}", near(name, known), "see `uharness comparison list`")
    metrics = preflight.described(known[name].board, workspace).metrics
    every = tables(comparereport.compared(store, metrics, known[name]))
    typer.echo(format_flat(comparereport.shown(every, with_families=families, form=format), format), nl=False)
    if out:
        say(f"{len(comparereport.export(every, Path(out)))} files in {out}")
