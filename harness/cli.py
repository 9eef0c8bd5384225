"""The command line: names to call, no logic. Heavy imports happen inside the commands that need them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness import cli_compare, cli_diagnose
from harness.cli_groups import GROUPS
from harness.errors import InputError, UharnessError
from harness.shell import check_files, find_workspace, open_session, open_store, print_json, print_table, say

app = typer.Typer(
    name="uharness", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="The benchmark and leaderboard for machine unlearning under equal compute.",
)  # fmt: skip
for name, group in GROUPS.items():
    app.add_typer(group, name=name)
cli_compare.register(app)
cli_diagnose.register(app)

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
JudgeOption = Annotated[
    str,
    typer.Option(
        "--judge", help="A language model that grades the answers (lbq): openai:URL#MODEL. Default: none."
    ),
]
INTERRUPTED = 130


# --- the main job ---------------------------------------------------------------------------------------------------
@app.command()
def submit(
    names: Annotated[list[str], typer.Argument(help="Methods: a name, ./file.py, or selector:method.")],
    board: BoardOption = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", min=0, help="Only these seeds; repeatable.")
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option("--case", help="Only these of the task's cases; repeatable. Default: the board's."),
    ] = None,
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
    keep_model: Annotated[
        bool | None,
        typer.Option(
            "--keep-model/--no-keep-model",
            help="Keep the unlearned weights under runs/ or not. Default: kept, but not on boards of many people.",
            show_default=False,
        ),
    ] = None,
    generator: GeneratorOption = "hf",
    judge: JudgeOption = "",
    robustness: Annotated[
        str | None,
        typer.Option(
            "--robustness",
            help="Measured beside the score: relearn,quantise,paraphrase; all; or none. Default: the board's.",
        ),
    ] = None,
) -> None:
    """Run methods on boards, record the results, and print the tables."""
    from harness import earlier, measures, preflight, stages, supervise
    from harness.entries import parse_set, resolve_spec
    from harness.generate import choice
    from harness.judge import ready as judge_ready
    from harness.progress import progress
    from harness.robustness import report
    from harness.sweep import summary

    choice.check(generator, trains=True)
    workspace = find_workspace()
    boards = board or [workspace.default_board()]
    if not board:
        say(f"board: {boards[0]} (the default; change it with `uharness board default NAME`)")
    overrides = parse_set(set_ or [])
    ready = [preflight.board_ready(workspace.board(name), workspace) for name in boards]
    cases = tuple(dict.fromkeys(case or ()))
    for r in ready:
        r.check_cases(cases)
    entries = [
        [resolve_spec(name, workspace.submissions, r.board.settings, overrides) for name in names]
        for r in ready
    ]
    for r, line in zip(ready, entries, strict=True):
        for entry in line:
            preflight.entry_ready(entry, r)
        judge = judge_ready(judge, r.task, r.board.name, workspace.build) if judge else ""
        if report.asked(r.board, robustness).axes and not r.text:
            say(f"board {r.board.name}: robustness axes are for language boards; none is measured here")
    supervise.prepare(text=any(r.text for r in ready), modules=[type(r.task).__module__ for r in ready])
    with progress() as show:
        session = open_session(
            workspace, progress=show, limit=limit, trajectory=trajectory, again=again, keep_model=keep_model,
            generator=generator, judge=judge, robustness=robustness,
        )  # fmt: skip
        plans = [
            (r, spec)
            for r, line in zip(ready, entries, strict=True)
            for entry in line
            for spec in stages.plan_runs(session, r, entry, seed or r.board.seeds, cases)
        ]
        records = []
        for k, (r, spec) in enumerate(plans, 1):
            known = earlier.recorded(session, spec)
            label = f"[{k}/{len(plans)}] {spec.submission} {spec.case} seed {spec.seed}"
            if known is not None:
                show.line(f"{label}: already recorded as {known.run_id} (--again runs it anew)")
                known, did = measures.add_axes(session, r, spec, known)
                if did:
                    show.line(f"{label}: {did}")
                records.append(known)
                continue
            record = stages.execute(session, r, spec)
            show.line(f"{label}: {summary(record, r.board.rank_by)}")
            records.append(record)
    for r in ready:
        print_table(workspace, r.board.name, "table", mark={e.id for line in entries for e in line})
    if any(r.status in ("failed", "timeout", "invalid") for r in records):
        raise typer.Exit(1)


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
    seed: Annotated[int | None, typer.Option(min=0, help="Which forget set, when seeds change it.")] = None,
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
    judge: JudgeOption = "",
) -> None:
    """Score a checkpoint that you already have. Nothing is trained or recorded."""
    from harness import preflight, supervise
    from harness.evaluate import ad_hoc_board
    from harness.evaluate import evaluate as run
    from harness.generate import choice
    from harness.judge import ready as judge_ready
    from harness.progress import progress
    from harness.runs import write_json
    from harness.show import scores_table
    from harness.specs import Template

    if bool(board) == bool(task):
        raise InputError("evaluate needs either --board or --task", "", "give exactly one of them")
    check_files(json)
    choice.check(generator)
    workspace = find_workspace()
    template = Template(system=system or None, date=date)
    made = (
        workspace.board(board)
        if board
        else ad_hoc_board(task, split, data_dir, template, max_length, "float32")
    )
    ready = preflight.board_ready(made, workspace, data_dir=data_dir)
    judge = judge_ready(judge, ready.task, ready.board.name, workspace.build) if judge else ""
    supervise.prepare(text=ready.text, modules=[type(ready.task).__module__])
    with progress() as show:
        session = open_session(workspace, progress=show, limit=limit, generator=generator, judge=judge)
        report = run(session, ready, model, case=case, seed=seed, reference=reference)
    if json == "-":
        print_json(report)
    else:
        if json:
            write_json(Path(json), report)
        scores_table(report["scores"], ready.metrics)
    if report["status"] == "invalid":
        say(f"invalid: {report['error']}")
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

    check_files(json)
    made = importing.import_log(Path(log), Path(reference) if reference else None)
    split = ""
    if board:
        workspace = find_workspace()
        chosen = workspace.board(board)
        data = data_path(chosen.task.data, workspace) if chosen.task.data else ""
        record = importing.record(made, chosen, importing.compare_rows(made, chosen, data))
        rows = rows_table(made.scores, importing.row_texts(made))
        open_store(workspace).write_record(record, rows, replace=True)
        split = record.case
    report = importing.report(made, split)
    if json == "-":
        print_json(report)
    else:
        if json:
            write_json(Path(json), report)
        known = {k: s for k, s in made.scores.items() if s.value is not None}
        for name, score in known.items():
            typer.echo(f"{name:34} {score.value:.7g}  (n = {score.n})")
        say(f"{len(made.scores) - len(known)} more metrics are null; --json FILE has the reasons")
    for note in made.notes:
        say(f"note: {note}")
    if board:
        say(f"stored as {record.run_id} on board {chosen.name}, status imported")


@app.command()
def reference(
    board: Annotated[str, typer.Argument(help="Board name or .toml file.")], generator: GeneratorOption = "hf"
) -> None:
    """Answer a board's questions with its retain model, once; later runs use the cached answers."""
    from harness import preflight, supervise
    from harness.asking import make_references
    from harness.generate import choice
    from harness.progress import progress

    choice.check(generator)
    workspace = find_workspace()
    ready = preflight.board_ready(workspace.board(board), workspace)
    supervise.prepare(text=ready.text, modules=[type(ready.task).__module__])
    with progress() as show:
        lines = make_references(open_session(workspace, progress=show, generator=generator), ready)
    for line in lines:
        typer.echo(line)


@app.command()
def rescore(
    run: Annotated[str, typer.Argument(help="Run id, as `uharness run list` shows it.")],
    judge: JudgeOption = "",
) -> None:
    """Compute a run's metrics again from its stored answers, and update its record."""
    from harness import preflight
    from harness.stages import rescore_run

    workspace = find_workspace()
    session = open_session(workspace, judge=judge)
    record = rescore_run(session, run, lambda board: preflight.board_ready(board, workspace))
    typer.echo(
        f"{record.run_id}: {record.status}, {sum(s.value is not None for s in record.scores.values())} scores"
    )


@app.command()
def doctor() -> None:
    """Check the environment, the boards, the submissions and the database, and say what is wrong."""
    from harness.doctor import examine

    workspace = find_workspace()
    findings = examine(workspace)
    for finding in findings:
        typer.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}: {finding.text}")
    if not all(f.ok for f in findings):
        raise typer.Exit(1)


def main() -> None:
    """Entry point. Exit codes: 0 done; 1 a run failed or is invalid; 2 bad input, nothing was run; 130 interrupted."""
    usage_error = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        code = app(standalone_mode=False)
    except UharnessError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except usage_error as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            say(error.format_message())
        else:
            say(f"error: {' '.join(error.format_message().split())}")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        with contextlib.suppress(OSError):
            say("interrupted; the same command goes on where it stopped")
    sys.exit(code if isinstance(code, int) else 0)
