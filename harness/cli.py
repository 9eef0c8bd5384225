"""The command line: names to call, no logic. Heavy imports happen inside the commands that need them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.errors import InputError, UharnessError

if TYPE_CHECKING:
    from harness.stages import Session
    from harness.store import Store
    from harness.workspace import Workspace

app = typer.Typer(
    name="uharness", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="The benchmark and leaderboard for machine unlearning under equal compute.",
)  # fmt: skip
board_app = typer.Typer(no_args_is_help=True, help="Leaderboards: list, show, set the default.")
run_app = typer.Typer(no_args_is_help=True, help="Single runs: list, show.")
db_app = typer.Typer(no_args_is_help=True, help="The DuckDB database made from the records.")
list_app = typer.Typer(no_args_is_help=True, help="What can be named: methods, tasks, optimizers, metrics.")
site_app = typer.Typer(no_args_is_help=True, help="The static website.")
mini_app = typer.Typer(no_args_is_help=True, help="The models that ship with the package: build, check.")
for group, name in ((board_app, "board"), (run_app, "run"), (db_app, "db"), (list_app, "list"), (site_app, "site"),
                    (mini_app, "mini")):  # fmt: skip
    app.add_typer(group, name=name)

BoardOption = Annotated[
    list[str] | None,
    typer.Option("--board", "-b", help="Board name or .toml file; repeatable. Default: see `board default`."),
]
GeneratorOption = Annotated[
    str,
    typer.Option(
        "--generator", help="What writes the texts: hf, vllm, or openai:URL of a server with the model."
    ),
]
INTERRUPTED = 130
FormatOption = Annotated[str, typer.Option("--format", help="table, json, csv or md.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


# --- shared ---------------------------------------------------------------------------------------------------------
def _workspace() -> Workspace:
    from harness.workspace import Workspace

    return Workspace.find()


def _store(workspace: Workspace) -> Store:
    from harness.store import Store

    store = Store(workspace.leaderboards, workspace.database)
    store.ingest_missing()
    return store


def _session(workspace: Workspace, **options: Any) -> Session:
    from harness.stages import Session

    return Session(workspace, _store(workspace), **options)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False))


# --- the main job ---------------------------------------------------------------------------------------------------
@app.command()
def submit(
    names: Annotated[list[str], typer.Argument(help="Methods: a name, ./file.py, or selector:method.")],
    board: BoardOption = None,
    seed: Annotated[list[int] | None, typer.Option("--seed", help="Only these seeds; repeatable.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value; makes another entry. Repeatable.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first N rows of every set; never ranked.")
    ] = None,
    trajectory: Annotated[
        bool, typer.Option("--trajectory", help="Score ten points along the budget too.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Run anew although there is a record.")] = False,
    keep_model: Annotated[bool, typer.Option(help="Keep the unlearned weights under runs/.")] = True,
    generator: GeneratorOption = "hf",
) -> None:
    """Run methods on boards, record the results, and print the tables."""
    from harness import preflight, stages, supervise
    from harness.generate import choice
    from harness.plugins import parse_set, resolve_spec
    from harness.progress import progress

    choice.check(generator, trains=True)
    workspace = _workspace()
    boards = board or [workspace.default_board()]
    if not board:
        _say(f"board: {boards[0]} (the default; change it with `uharness board default NAME`)")
    overrides = parse_set(set_ or [])
    ready = [preflight.board_ready(workspace.board(name), workspace) for name in boards]
    entries = [
        [resolve_spec(name, workspace.submissions, r.board.settings, overrides) for name in names]
        for r in ready
    ]
    for r, line in zip(ready, entries, strict=True):
        for entry in line:
            preflight.entry_ready(entry, r)
    supervise.prepare(text=any(r.text for r in ready), modules=[type(r.task).__module__ for r in ready])
    with progress() as show:
        session = _session(
            workspace, progress=show, limit=limit, trajectory=trajectory, again=again, keep_model=keep_model,
            generator=generator,
        )  # fmt: skip
        plans = [
            (r, spec)
            for r, line in zip(ready, entries, strict=True)
            for entry in line
            for spec in stages.plan_runs(session, r, entry, seed or r.board.seeds)
        ]
        records = []
        for k, (r, spec) in enumerate(plans, 1):
            known = stages.recorded(session, spec)
            label = f"[{k}/{len(plans)}] {spec.submission} {spec.case} seed {spec.seed}"
            if known is not None:
                show.line(f"{label}: already recorded as {known.run_id} (--again runs it anew)")
                records.append(known)
                continue
            record = stages.execute(session, r, spec)
            show.line(f"{label}: {_summary(record, r.board.rank_by)}")
            records.append(record)
    for r in ready:
        _print_table(workspace, r.board.name, "table", mark={e.id for line in entries for e in line})
    if any(r.status in ("failed", "timeout", "invalid") for r in records):
        raise typer.Exit(1)


def _summary(record: Any, metric: str) -> str:
    score = record.scores.get(metric)
    number = f"{metric} = {score.value:.4g}" if score is not None and score.value is not None else ""
    why = f" ({record.error})" if record.error else ""
    spent = f"{record.charged_s:.1f} s, {record.updates} updates" if record.charged_s is not None else ""
    return ", ".join(part for part in (f"{record.status}{why}", number, spent) if part)


def _print_table(workspace: Workspace, name: str, style: str, mark: Sequence[str] | set[str] = ()) -> None:
    from harness.show import board_table

    board_table(workspace, _store(workspace), name, style, frozenset(mark))


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="Folder, hub id, or mini:NAME.")],
    board: Annotated[str, typer.Option("--board", "-b", help="Score it as this board would.")] = "",
    task: Annotated[str, typer.Option(help="Or: the task to ask ...")] = "",
    split: Annotated[str, typer.Option(help="... on this split ...")] = "",
    data_dir: Annotated[str, typer.Option(help="... with rows from this folder (default: the hub).")] = "",
    reference: Annotated[
        str, typer.Option(help="Retain model, or a run id, for metrics that need one.")
    ] = "",
    case: Annotated[str, typer.Option(help="Which case, when the board has several.")] = "",
    seed: Annotated[int | None, typer.Option(help="Which forget set, when seeds change it.")] = None,
    system: Annotated[str, typer.Option(help="System prompt (only with --task).")] = "",
    date: Annotated[
        str, typer.Option(help="Date that chat templates print (only with --task).")
    ] = "10 Apr 2025",
    max_length: Annotated[int, typer.Option(min=8, help="Longest row in tokens (only with --task).")] = 512,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N rows of every set.")] = None,
    json: Annotated[
        str, typer.Option("--json", help="Write scores and rows to this file (- prints them).")
    ] = "",
    generator: GeneratorOption = "hf",
) -> None:
    """Score a checkpoint that you already have. Nothing is trained or recorded."""
    from harness import preflight, supervise
    from harness.evaluate import ad_hoc_board
    from harness.evaluate import evaluate as run
    from harness.generate import choice
    from harness.progress import progress
    from harness.runs import write_json
    from harness.show import scores_table
    from harness.specs import Template

    if bool(board) == bool(task):
        raise InputError("evaluate needs either --board or --task", "", "give exactly one of them")
    choice.check(generator)
    workspace = _workspace()
    template = Template(system=system or None, date=date)
    made = (
        workspace.board(board)
        if board
        else ad_hoc_board(task, split, data_dir, template, max_length, "float32")
    )
    ready = preflight.board_ready(made, workspace, data_dir=data_dir)
    supervise.prepare(text=ready.text, modules=[type(ready.task).__module__])
    with progress() as show:
        session = _session(workspace, progress=show, limit=limit, generator=generator)
        report = run(session, ready, model, case=case, seed=seed, reference=reference)
    if json == "-":
        _print_json(report)
    else:
        if json:
            write_json(Path(json), report)
        scores_table(report["scores"], ready.metrics)
    if report["status"] == "invalid":
        _say(f"invalid: {report['error']}")
        raise typer.Exit(1)


@app.command("import")
def import_(
    log: Annotated[
        str, typer.Argument(help="eval_log_aggregated.json of the first TOFU code, or a TOFU_EVAL.json.")
    ],
    reference: Annotated[
        str, typer.Option(help="The same of the retained model, on the same questions.")
    ] = "",
    board: Annotated[
        str, typer.Option("--board", "-b", help="Store it as a row of this board, marked imported.")
    ] = "",
    json: Annotated[
        str, typer.Option("--json", help="Write scores and rows to this file (- prints them).")
    ] = "",
) -> None:
    """Score an evaluation log that another tool wrote. With --board it becomes a row that is never ranked."""
    from harness import importing
    from harness.preflight import data_path
    from harness.recordtables import rows_table
    from harness.runs import write_json

    made = importing.import_log(Path(log), Path(reference) if reference else None)
    split = ""
    if board:
        workspace = _workspace()
        chosen = workspace.board(board)
        data = data_path(chosen.task.data, workspace) if chosen.task.data else ""
        record = importing.record(made, chosen, importing.compare_rows(made, chosen, data))
        rows = rows_table(made.scores, importing.row_texts(made))
        _store(workspace).write_record(record, rows, replace=True)
        split = record.case
    report = importing.report(made, split)
    if json == "-":
        _print_json(report)
    else:
        if json:
            write_json(Path(json), report)
        known = {k: s for k, s in made.scores.items() if s.value is not None}
        for name, score in known.items():
            typer.echo(f"{name:34} {score.value:.7g}  (n = {score.n})")
        _say(f"{len(made.scores) - len(known)} more metrics are null; --json FILE has the reasons")
    for note in made.notes:
        _say(f"note: {note}")
    if board:
        _say(f"stored as {record.run_id} on board {chosen.name}, status imported")


@app.command()
def reference(
    board: Annotated[str, typer.Argument(help="Board name or .toml file.")], generator: GeneratorOption = "hf"
) -> None:
    """Answer a board's questions with its retain model, once; later runs use the cached answers."""
    from harness import preflight, supervise
    from harness.generate import choice
    from harness.progress import progress
    from harness.stages import make_references

    choice.check(generator)
    workspace = _workspace()
    ready = preflight.board_ready(workspace.board(board), workspace)
    supervise.prepare(text=ready.text, modules=[type(ready.task).__module__])
    with progress() as show:
        lines = make_references(_session(workspace, progress=show, generator=generator), ready)
    for line in lines:
        typer.echo(line)


@app.command()
def rescore(run: Annotated[str, typer.Argument(help="Run id, as `uharness run list` shows it.")]) -> None:
    """Compute a run's metrics again from its stored answers, and update its record."""
    from harness import preflight
    from harness.stages import rescore_run

    workspace = _workspace()
    record = rescore_run(_session(workspace), run, lambda board: preflight.board_ready(board, workspace))
    typer.echo(
        f"{record.run_id}: {record.status}, {sum(s.value is not None for s in record.scores.values())} scores"
    )


@app.command()
def doctor() -> None:
    """Check the environment, the boards, the submissions and the database, and say what is wrong."""
    from harness.doctor import examine

    workspace = _workspace()
    findings = examine(workspace)
    for finding in findings:
        typer.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}: {finding.text}")
    if not all(f.ok for f in findings):
        raise typer.Exit(1)


# --- board ----------------------------------------------------------------------------------------------------------
@board_app.command("list")
def board_list(json: JsonOption = False) -> None:
    """All boards, with their tasks and budgets."""
    from harness.show import board_lines

    workspace = _workspace()
    boards = board_lines(workspace)
    if json:
        _print_json(boards)
    else:
        for b in boards:
            typer.echo(
                f"{'*' if b['default'] else ' '} {b['name']:24} {b['task']:8} {b['budget']:24} {b['title']}"
            )


@board_app.command("show")
def board_show(
    name: Annotated[str, typer.Argument(help="Board; the default one without.")] = "",
    format: FormatOption = "table",
) -> None:
    """A board's table."""
    workspace = _workspace()
    _print_table(workspace, name or workspace.default_board(), format)


@board_app.command("default")
def board_default(name: Annotated[str, typer.Argument(help="The new default.")] = "") -> None:
    """Print the default board, or set it for this workspace."""
    workspace = _workspace()
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

    workspace = _workspace()
    if board:
        workspace.board(board)
    records = _store(workspace).load_records(board or None)
    if json:
        _print_json([r.model_dump(mode="json") for r in records])
    else:
        for line in run_lines(records):
            typer.echo(line)


@run_app.command("show")
def run_show(run: Annotated[str, typer.Argument(help="Run id.")], json: JsonOption = False) -> None:
    """One run: how it was made, and every score."""
    from harness.show import find_record, run_text

    record = find_record(_store(_workspace()), run)
    if json:
        _print_json(record.model_dump(mode="json"))
    else:
        typer.echo(run_text(record))


# --- db -------------------------------------------------------------------------------------------------------------
@db_app.command("query")
def db_query(
    sql: Annotated[str, typer.Argument(help="A statement that reads.")],
    format: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
) -> None:
    """Ask the database: tables runs, scores, rows, trajectories, ledgers, absent."""
    from harness.show import print_rows

    columns, rows = _store(_workspace()).query(sql)
    print_rows(columns, rows, format)


@db_app.command("rebuild")
def db_rebuild() -> None:
    """Make the database anew from the records, and say what is absent."""
    from harness.store import Store

    workspace = _workspace()
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
    from harness.show import method_lines, method_text

    workspace = _workspace()
    if name:
        typer.echo(method_text(workspace, name))
        return
    lines = method_lines(workspace)
    if json:
        _print_json(lines)
    else:
        for m in lines:
            typer.echo(f"{m['name']:16} {m['title']:14} {m['paper']}")


@list_app.command("tasks")
def list_tasks() -> None:
    """Tasks, own and installed."""
    from harness.plugins import task_names

    for name in task_names():
        typer.echo(name)


@list_app.command("optimizers")
def list_optimizers() -> None:
    """Optimizers, with the first line of their description."""
    from harness.show import optimizer_lines

    for line in optimizer_lines():
        typer.echo(line)


@list_app.command("metrics")
def list_metrics(
    board: Annotated[str, typer.Option("--board", "-b", help="Of this board; all boards' without.")] = "",
    json: JsonOption = False,
) -> None:
    """Metrics with direction, range, unit and meaning."""
    from harness.show import metric_lines

    lines = metric_lines(_workspace(), board)
    if json:
        _print_json(lines)
    else:
        for m in lines:
            typer.echo(f"{m['id']:34} {m['direction']:7} {m['range']:10} {m['unit']:12} {m['text']}")


# --- site -----------------------------------------------------------------------------------------------------------
@site_app.command("build")
def site_build(
    out: Annotated[str, typer.Option("--out", help="Folder to write; default build/site.")] = "",
) -> None:
    """Render every board, run and method to static pages."""
    from harness.publish import build_site

    workspace = _workspace()
    folder = Path(out) if out else workspace.build / "site"
    pages = build_site(workspace, _store(workspace), folder)
    typer.echo(f"{pages} files in {folder}; open {folder / 'index.html'}")


# --- mini -----------------------------------------------------------------------------------------------------------
def _weights(given: str, family: str) -> Path:
    from harness.models import MINI

    if given:
        return Path(given)
    return MINI if family != "bma-full" else _workspace().build / "mini"


@mini_app.command("build")
def mini_build(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these models of the family; all without.")
    ] = None,
    family: Annotated[
        str, typer.Option("--family", help="bma, language, or bma-full; the first two without.")
    ] = "",
    out: Annotated[
        str,
        typer.Option(
            "--out", help="Weights folder to write; default: the package's, for bma-full build/mini."
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
        str, typer.Option("--family", help="bma, language, or bma-full; the first two without.")
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


def main() -> None:
    """Entry point. Exit codes: 0 done; 1 a run failed or is invalid; 2 bad input, nothing was run; 130 interrupted."""
    usage_error = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        code = app(standalone_mode=False)
    except UharnessError as error:
        _say(f"error: {error}")
        sys.exit(error.exit_code)
    except usage_error as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            _say(error.format_message())
        else:
            _say(f"error: {' '.join(error.format_message().split())}")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        with contextlib.suppress(OSError):
            _say("interrupted; the same command goes on where it stopped")
    sys.exit(code if isinstance(code, int) else 0)
