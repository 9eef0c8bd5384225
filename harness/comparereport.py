"""What is said of a comparison before it runs, and what is printed and exported of it afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from harness import stages
from harness.compare import Runner
from harness.comparetables import Compared
from harness.comparisons import Comparison
from harness.flat import Flat, format_flat
from harness.store import Store
from harness.sweep import RETRIED, forecast_line
from harness.types import MetricInfo


def dry_run(runner: Runner) -> list[str]:
    """What `run` would do: every rate's run, then what is left to run at the picked rates, and how long."""
    found, ready = runner.found, runner.ready
    step = found.step_s or runner.known_step()
    seconds = found.seconds or (step or 0.0) * (ready.board.budget.reference_steps or 0) or None
    several = Counter((t.loss, t.optimizer) for t in runner.trials)
    lines, todo, total = [f"comparison {found.id} of board {ready.board.name}"], 0, 0
    for trial in runner.trials:
        for spec in trial.specs:
            timed = spec.model_copy(update={"seconds": seconds})
            known = runner.known(timed, judged=several[trial.loss, trial.optimizer] > 1)
            total, todo = total + 1, todo + (known is None)
            what = "would run" if known is None else f"recorded as {known.run_id}"
            lines.append(
                f"{trial.loss} {trial.optimizer} lr {trial.lr:g} {spec.case} seed {spec.seed}: {what}"
            )
    rest = len(several) * len(found.cases) * (len(found.seeds) - 1)
    done = sum(len(p.runs) - len(found.cases) for p in found.pairs if p.runs)
    if rest:
        lines.append(f"at the picked rates with the other seeds: {rest} runs, {done} of them recorded")
    if found.until_slowest:
        extra = len(found.losses) * (len(found.optimizers) - 1) * len(found.cases) * len(found.seeds)
        there = sum(len(p.longer) for p in found.pairs)
        lines.append(f"until the slowest optimizer's end: {extra} runs, {there} of them recorded")
        rest, done = rest + extra, done + there
    lines.append(forecast_line(runner.session, ready, todo + rest - done, total + rest, found.base))
    return lines


def compared(store: Store, metrics: Mapping[str, MetricInfo], comparison: Comparison) -> Compared:
    """A comparison with its records and trajectories, from which its tables are made."""
    records = {r.run_id: r for board in comparison.boards() for r in store.load_records(board)}
    curves = store.load_all_trajectories()
    return Compared(comparison, records, metrics, {k: v for k, v in curves.items() if k in records})


def went_wrong(comparison: Comparison, made: Compared) -> bool:
    """Whether a run failed, a run that is compared is unusable, or no rate could be picked: exit code 1.

    A rate at which training diverged is a result of its curve.
    """

    def status(run: str) -> str:
        return made.records[run].status if run in made.records else "failed"

    final = [run for p in comparison.pairs for run in (*p.runs, *p.longer)]
    tried = [run for p in comparison.pairs for rate in p.rates for run in rate.runs]
    return (
        any(p.picked is None for p in comparison.pairs)
        or any(status(run) in stages.UNUSABLE for run in final)
        or any(status(run) in RETRIED for run in tried)
    )


def export(tables: Mapping[str, Flat], folder: Path) -> list[Path]:
    """Every table as CSV, and all of them as `tables.json` and `tables.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {f"{name}.csv": format_flat([table], "csv") for name, table in tables.items()}
    texts |= {f"tables.{form}": format_flat(list(tables.values()), form) for form in ("json", "md")}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def shown(tables: Mapping[str, Flat], *, with_families: bool, form: str) -> list[Flat]:
    """The tables that are printed: the long ones are left to the export."""
    if form == "csv":
        return [tables["families" if with_families else "comparison"]]
    if form == "json":
        return list(tables.values())
    names = [
        "comparison_before",
        "comparison",
        "cost",
        "ledger",
        "widths",
        *(["families"] if with_families else []),
    ]
    return [tables[name] for name in names if name in tables]
