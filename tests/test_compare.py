"""Comparing optimizers: curves, families and time as closed forms, then `uharness compare` from end to end."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Ran, write_board
from test_loop import forget_loss, make_job

from harness import comparetables
from harness.comparisons import Comparison, Measured, Pair, Rate
from harness.comparisons import read as read_comparison
from harness.curves import FAMILIES, Spent, families, height, normalised, peak, time_check, width
from harness.flat import format_flat
from harness.loop import fit
from harness.preflight import COST_COLUMNS
from harness.runs import RunSpec
from harness.specs import Batching, Board, Ledger, OptimizerSpec, RunRecord, ScoreRecord
from harness.store import Store
from harness.types import MetricInfo

Command = Callable[..., Ran]
UP, DOWN = (MetricInfo("m", direction, 0, 1, "", "") for direction in ("higher", "lower"))


# --- curves ---------------------------------------------------------------------------------------------------------
def test_a_triangle_has_a_tenth_of_each_side_above_90_percent() -> None:
    w = width([1e-6, 1e-4, 1e-3], [0.0, 0.8, 0.0])
    assert w.decades == pytest.approx(0.1 * 2 + 0.1 * 1)
    assert (w.low, w.high) == (pytest.approx(10**-4.2), pytest.approx(10**-3.9))
    assert not w.open_low and not w.open_high
    assert width([1e-6, 1e-4, 1e-3], [0.0, 0.8, 0.0], share=0.5).decades == pytest.approx(1.5)


def test_only_the_stretch_around_the_peak_counts() -> None:
    w = width([1e-5, 1e-4, 1e-3, 1e-2, 1e-1], [0.95, 0.0, 1.0, 0.0, 0.95])
    assert w.decades == pytest.approx(0.2)


def test_a_flat_curve_is_open_at_both_ends() -> None:
    w = width([1e-5, 1e-3], [0.5, 0.5])
    assert (w.decades, w.open_low, w.open_high) == (pytest.approx(2.0), True, True)


def test_beyond_a_rate_without_a_value_nothing_is_known() -> None:
    w = width([1e-5, 1e-4, 1e-3], [0.0, 1.0, None])
    assert (w.high, w.open_high) == (1e-4, True)
    assert w.decades == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("rates", "heights", "why"),
    [
        ([1e-5], [0.5], "one rate"),
        ([1e-5, 1e-4], [None, None], "no rate has a value"),
        ([1e-5, 1e-4], [0.0, 0.0], "not above the worst"),
        ([], [], "no rate has a value"),
    ],
)
def test_a_width_that_is_none_says_why(rates: list[float], heights: list[float | None], why: str) -> None:
    w = width(rates, heights)
    assert w.decades is None and why in w.why


def test_heights_are_measured_from_the_worst_value_and_shares_from_the_peak() -> None:
    assert (height(UP, 0.3), height(DOWN, 0.3), height(UP, None)) == (0.3, 0.7, None)
    assert height(MetricInfo("m", "higher", None, None, "", ""), 1.0) is None
    assert height(MetricInfo("m", "none", 0, 1, "", ""), 1.0) is None
    assert peak([0.1, None, 0.4, 0.4]) == 2 and peak([None]) is None
    assert normalised([0.1, None, 0.4]) == [0.25, None, 1.0]
    assert normalised([0.0, None]) == [None, None]


# --- families -------------------------------------------------------------------------------------------------------
MEMBERS = {"element-wise": ("adamw", "sophia"), "spectral": ("muon", "soap")}


def cell(*values: float | None) -> dict[str, float | None]:
    return dict(zip(("adamw", "sophia", "muon", "soap"), values, strict=True))


def test_family_means_and_wins() -> None:
    cells = [
        cell(0.1, 0.3, 0.4, 0.6),
        cell(0.5, 0.5, 0.2, 0.4),
        cell(0.2, 0.4, 0.6, 0.2),
        cell(0.9, None, 1.0, 1.0),
    ]
    found = families(UP, cells, MEMBERS)
    assert found.means == {
        "element-wise": pytest.approx((0.2 + 0.5 + 0.3) / 3),
        "spectral": pytest.approx(1.2 / 3),
    }
    assert found.wins == {"element-wise": 1.0, "spectral": 2.0}
    assert (found.cells, found.left_out) == (3, 1)
    assert families(DOWN, cells, MEMBERS).wins == {"element-wise": 2.0, "spectral": 1.0}


def test_ties_are_shared_and_a_target_is_come_close_to() -> None:
    tied = families(UP, [cell(0.2, 0.4, 0.1, 0.5)], MEMBERS)
    assert tied.wins == {"element-wise": 0.5, "spectral": 0.5}
    target = MetricInfo("m", "target", None, None, "", "", target=0.0)
    assert families(target, [cell(-0.1, -0.1, 0.5, 0.5)], MEMBERS).wins["element-wise"] == 1.0
    none = families(MetricInfo("m", "none", 0, 1, "", ""), [cell(0.1, 0.1, 0.5, 0.5)], MEMBERS)
    assert none.wins == {"element-wise": 0.0, "spectral": 0.0} and none.means["spectral"] == 0.5


def test_every_optimizer_of_a_family_is_one() -> None:
    from harness.plugins import optimizer_names

    assert {name for own in FAMILIES.values() for name in own} <= set(optimizer_names())


# --- equal time -----------------------------------------------------------------------------------------------------
def test_two_percent_or_one_step_is_equal_time() -> None:
    spent = {
        "exact": [Spent(10.0, 0.1)],
        "within 2 %": [Spent(9.81, 0.01)],
        "within its step": [Spent(9.2, 0.9)],
        "the mean counts": [Spent(9.6, 0.1), Spent(10.3, 0.1)],
        "short": [Spent(9.0, 0.5)],
        "long": [Spent(11.0, 0.5)],
        "ended by a stop": [Spent(3.0, 0.1, stopped=True)],
    }
    check = time_check(10.0, spent)
    assert set(check.apart) == {"short", "long"}
    assert check.stopped == ("ended by a stop",)
    assert (check.low, check.high) == (9.0, 11.0)
    assert check.spread == pytest.approx(0.2)
    assert time_check(10.0, {"none": []}).spread is None


def compared_runs(
    step_s: dict[str, float], budget_s: float
) -> tuple[comparetables.Compared, dict[str, list[float]]]:
    """Two optimizers under an injected clock, as records of a comparison; and the rates they stepped with."""
    records, rates, pairs = {}, {}, []
    for name, seconds in step_s.items():
        job, _ = make_job(seconds=seconds, budget=budget_s, optimizer=OptimizerSpec(lr=0.1, warmup=0.1))
        optimizer, seen = job.optimizer(), rates.setdefault(name, [])
        step = optimizer.inner.step
        optimizer.inner.step = lambda s=step, o=optimizer, r=seen: (
            r.append(o.inner.param_groups[0]["lr"]),
            s(),
        )  # type: ignore[method-assign]
        with job.clock.lane("train"):
            fit(job, forget_loss(job), optimizer)
        records[name] = RunRecord(
            run_id=name, board="b", board_version="1", entry=name, submission="loss", case="c", seed=0, status="ok",
            optimizer=name, charged_s=job.clock.charged_s, updates=job.clock.updates,
            budget={"longest_step_s": job.seen.longest_step_s},
            scores={"cost.updates": ScoreRecord(value=job.clock.updates, n=1)},
        )  # fmt: skip
        rate = Rate(lr=0.1, entry=name, runs=(name,))
        pairs.append(Pair(loss="loss", optimizer=name, rates=(rate,), picked=0.1, runs=(name,)))
    made = Comparison(
        id="x", base="b", board=board(), board_version="1", hardware="h", losses=("loss",),
        optimizers=tuple(step_s), seeds=(0,), cases=("c",), seconds=budget_s, pairs=tuple(pairs), complete=True,
    )  # fmt: skip
    return comparetables.Compared(made, records, COST_COLUMNS, {}), rates


def board(**more: object) -> Board:
    return Board.model_validate({
        "name": "b", "task": {"name": "bma"}, "models": {"target": "-"}, "budget": {"seconds": 20.0}, "seeds": (0,),
        "columns": ("cost.updates", "cost.charged_s"), "rank_by": "cost.charged_s", **more,
    })  # fmt: skip


def test_an_optimizer_whose_step_costs_twice_as_much_gets_half_the_updates_and_a_whole_schedule() -> None:
    made, rates = two_speeds()
    updates = {name: r.updates or 0 for name, r in made.records.items()}
    assert updates["quick"] == pytest.approx(2 * updates["slow"], abs=1)
    for name, seen in rates.items():
        assert max(seen) == pytest.approx(0.1, rel=0.05)
        assert seen[-1] < 0.1 * 2 / updates[name] + 1e-9  # annealed, whatever a step costs
    check = comparetables.checked(made)
    assert check is not None and not check.apart
    assert check.spread == pytest.approx(0.0, abs=0.02)
    table = comparetables.main(made)
    assert any("within the larger of 2 % and one step" in note for note in table.notes)
    cost = {row["optimizer"]: row for row in comparetables.cost(made).rows}
    assert cost["slow"]["step / first's"] == pytest.approx(2.0, rel=0.02)


def two_speeds() -> tuple[comparetables.Compared, dict[str, list[float]]]:
    return compared_runs({"quick": 0.1, "slow": 0.2}, 20.0)


def test_an_entry_with_another_time_is_flagged() -> None:
    made, _ = two_speeds()
    short = made.records["slow"].model_copy(update={"charged_s": 15.0})
    made = comparetables.Compared(made.comparison, {**made.records, "slow": short}, made.metrics, {})
    assert any(
        "not the same time: loss slow: 15.000 s of 20.000 s" in n for n in comparetables.main(made).notes
    )


# --- tables ---------------------------------------------------------------------------------------------------------
def grid_of(values: dict[str, dict[float, float | None]]) -> comparetables.Compared:
    """A comparison over one loss, three rates and two seeds; the rate 1e-4 is picked. None is a run that diverged."""
    records: dict[str, RunRecord] = {}
    pairs, measured = [], {}

    def run(name: str, optimizer: str, value: float | None, seed: int) -> str:
        status = "ok" if value is not None else "invalid"
        score = ScoreRecord(value=value, n=1, why="" if value is not None else "NaN")
        records[name] = RunRecord(run_id=name, board="b", board_version="1", entry=optimizer, submission="loss",
                                  case="c", seed=seed, status=status, charged_s=20.0 + seed, updates=10,
                                  scores={"m": score})  # fmt: skip
        measured[name] = Measured(
            jsd=0.1 if value is not None else None, jsd_why="" if value is not None else "NaN"
        )
        return name

    for optimizer, by_rate in values.items():
        rates = tuple(
            Rate(lr=lr, entry=optimizer, runs=(run(f"{optimizer}-{lr}", optimizer, value, 0),), proxy=value)
            for lr, value in by_rate.items()
        )
        other = run(f"{optimizer}-1", optimizer, (by_rate[1e-4] or 0.0) + 0.2, 1)
        pairs.append(Pair(loss="loss", optimizer=optimizer, rates=rates, picked=1e-4,
                          runs=(f"{optimizer}-0.0001", other)))  # fmt: skip
    made = Comparison(
        id="x", base="b", board=board(columns=("m",), rank_by="m"), board_version="1", hardware="h", losses=("loss",),
        optimizers=tuple(values), seeds=(0, 1), cases=("c",), seconds=20.0, pairs=tuple(pairs), measured=measured,
    )  # fmt: skip
    return comparetables.Compared(made, records, {"m": UP}, {})


def test_the_tables_say_what_the_records_do() -> None:
    made = grid_of({"adamw": {1e-5: 0.3, 1e-4: 0.6, 1e-3: None}, "soap": {1e-5: 0.45, 1e-4: 0.5, 1e-3: 0.25}})
    tables = comparetables.tables(made)
    adamw, soap = tables["comparison"].rows
    assert adamw["m ↑"].mean == pytest.approx(0.7) and adamw["m ↑"].sd == pytest.approx(0.2 / math.sqrt(2))
    assert adamw["forget.jsd_retain ↓"].mean == pytest.approx(0.1)
    assert soap["runs"] == "2/2"
    assert "incomplete" in tables["comparison"].notes[0]
    curve = {(r["optimizer"], r["lr"]): r for r in tables["rates"].rows if r["metric"] == "m"}
    assert curve["adamw", 1e-3]["value"] is None and curve["adamw", 1e-3]["share"] is None
    assert curve["soap", 1e-5]["share"] == pytest.approx(0.9) and curve["soap", 1e-5]["lr / peak's"] == 0.1
    wide = {r["optimizer"]: r for r in tables["widths"].rows}
    assert wide["adamw"]["decades"] == pytest.approx(0.06 / 0.3)
    assert wide["adamw"]["note"].endswith("does not end at its high side")
    assert wide["soap"]["decades"] == pytest.approx(1.0 + 0.05 / 0.25)
    (won,) = tables["families"].rows
    assert (won["element-wise: wins"], won["spectral: wins"], won["cells"]) == (2.0, 0.0, 2)
    assert won["spectral: mean"] == pytest.approx(0.6)
    ends = [r for r in tables["progress"].rows if r["optimizer"] == "soap"]
    assert [(r["charged_s"], r["updates"], r["value"], r["end"]) for r in ends] == [
        (20.0, 10, 0.5, True), (21.0, 10, 0.7, True)
    ]  # fmt: skip
    assert [row["off"] for row in tables["time"].rows] == pytest.approx([0.0, 0.05] * 2)


def test_a_cell_without_a_value_has_its_reason_in_every_form() -> None:
    made = grid_of({"adamw": {1e-5: 0.3, 1e-4: 0.6, 1e-3: 0.1}, "soap": {1e-5: 0.4, 1e-4: None, 1e-3: 0.2}})
    table = comparetables.main(made)
    assert table.rows[1]["runs"] == "1/2" and "1 invalid" in table.rows[1]["note"]
    assert "NaN" in format_flat([table], "csv")
    assert comparetables.families(made).rows[0]["left_out"] == 1
    assert json.loads(format_flat([table], "json"))[0]["rows"][1]["forget.jsd_retain ↓"]["why"] == "NaN"
    assert format_flat([table], "md").count("| loss |") == 3


@pytest.mark.parametrize("name", ["adamw", "sophia", "soap"])
def test_every_optimizer_sees_the_same_batches_per_seed(name: str) -> None:
    """Also one that estimates curvature from the batches, and draws labels to do so."""

    def rows_seen(optimizer: str) -> list[list[int]]:
        job, _ = make_job(
            updates=9,
            optimizer=OptimizerSpec(name=optimizer, lr=1e-3),
            batching=Batching(effective=4, micro=2),
        )
        loss, seen = forget_loss(job), []

        def noted(batch: object) -> object:
            seen.append([*batch.forget.index.tolist(), *batch.retain.index.tolist()])  # type: ignore[attr-defined]
            return loss(batch)  # type: ignore[operator]

        with job.clock.lane("train"):
            fit(job, noted)  # type: ignore[arg-type]
        return seen

    assert rows_seen(name) == rows_seen("adamw")
    assert len(rows_seen(name)) == 18


# --- boards ---------------------------------------------------------------------------------------------------------
def test_the_most_special_grid_counts_and_none_ages_a_board() -> None:
    grid = {"default": (1e-4, 1e-5), "muon": (1e-2,), "npo": (1e-6,), "npo.soap": (1e-3,)}
    mine = board(lr_grid=grid)
    assert mine.learning_rates("grad_diff", "adamw") == (1e-5, 1e-4)
    assert mine.learning_rates("npo", "muon") == (1e-2,)
    assert mine.learning_rates("npo", "adamw") == (1e-6,)
    assert mine.learning_rates("npo", "soap") == (1e-3,)
    assert board().learning_rates("npo", "soap") == ()
    assert mine.board_version == board().board_version
    spec = RunSpec(run_id="", board=mine, entry="e", submission="s", case="c", seed=0)
    assert spec.input_hash() == spec.model_copy(update={"board": board()}).input_hash()
    with pytest.raises(ValueError, match="names a rate twice"):
        board(lr_grid={"default": (1e-4, 1e-4)})


# --- from end to end ------------------------------------------------------------------------------------------------
TWO = (
    "compare",
    "--loss",
    "random_label",
    "--optimizers",
    "adamw,muon",
    "--board",
    "tiny",
    "--lr",
    "1e-3,1e-4",
)


def results(workspace: Path, name: str = "tiny") -> dict[str, RunRecord]:
    files = sorted((workspace / "leaderboards" / name / "results").glob("*.json"))
    return {p.stem: RunRecord.model_validate_json(p.read_text()) for p in files}


def comparison_of(workspace: Path, name: str = "tiny") -> Comparison:
    (path,) = (workspace / "leaderboards" / name / "comparisons").glob("*.json")
    return read_comparison(path)


def test_a_comparison_from_one_end_to_the_other(uharness: Command, workspace: Path) -> None:
    command = (*TWO, "--seed", "17", "--seed", "26")
    asked = uharness(*command, "--dry-run")
    assert asked.code == 0 and asked.out.count("would run") == 4
    assert "2 runs, 0 of them recorded" in asked.out and not results(workspace)
    ran = uharness(*command, "--format", "json", "--out", "out")
    assert ran.code == 0, ran.err
    found, made = results(workspace), comparison_of(workspace)
    assert len(found) == 6 and made.complete
    for pair in made.pairs:
        proxies = {rate.lr: rate.proxy for rate in pair.rates}
        assert pair.picked == min(proxies, key=lambda lr: (proxies[lr], lr))
        assert [found[run].seed for run in pair.runs] == [17, 26]
        assert {found[run].config["optimizer.lr"] for run in pair.runs} == {pair.picked}
        assert {found[run].optimizer for run in pair.runs} == {pair.optimizer}
        assert (pair.selection.kind, pair.selection.proxy_rows) == ("proxy", 246)
        assert (pair.tuning.trainings, pair.tuning.proxy_evaluations, pair.total.trainings) == (2, 2, 3)
        tried = [found[run] for rate in pair.rates for run in rate.runs]
        assert pair.tuning.charged_s == pytest.approx(sum(r.charged_s or 0 for r in tried))
        assert pair.total.charged_s > pair.tuning.charged_s
        for run in pair.runs:
            jsd = made.measured[run].jsd
            assert jsd is not None and 0 < jsd < math.log(2)
            assert found[run].scores["forget.jsd_retain"].value == jsd
    tables = {t["name"]: t for t in json.loads(ran.out)}
    for row, pair in zip(tables["comparison"]["rows"], made.pairs, strict=True):
        values = [found[run].scores["forget.p"].value for run in pair.runs]
        assert row["forget.p ↓"]["mean"] == pytest.approx(np.mean(values))
        assert row["forget.p ↓"]["sd"] == pytest.approx(np.std(values, ddof=1))
        assert (row["lr"], row["runs"]) == (pair.picked, "2/2")
    assert "not equal time" in tables["comparison"]["title"]
    shown = uharness("comparison", "show", made.id, "--format", "json")
    assert json.loads(shown.out) == json.loads(ran.out)  # rebuilt from the file and the records
    assert made.id in uharness("comparison", "list").out
    assert {p.name for p in (workspace / "out").iterdir()} >= {"comparison.csv", "rates.csv", "tables.md"}
    store = Store((workspace / "leaderboards",), workspace / "build/uharness.duckdb")
    _, lines = store.query(
        "SELECT optimizer, count(*), sum(picked::INT) FROM comparison_runs JOIN runs USING (run_id, optimizer) "
        f"WHERE comparison = '{made.id}' GROUP BY optimizer ORDER BY optimizer"
    )
    assert lines == [("adamw", 3, 2), ("muon", 3, 2)]
    shutil.rmtree(
        workspace / "runs"
    )  # as in a fresh clone: records and comparison are there, weights are not
    again = uharness(*command, "--format", "json")
    assert again.code == 0 and json.loads(again.out) == json.loads(ran.out)
    assert results(workspace) == found


def test_the_store_follows_comparison_files(workspace: Path) -> None:
    store = Store((workspace / "leaderboards",), workspace / "build/uharness.duckdb")
    made, _ = two_speeds()
    from harness import comparisons

    path = comparisons.write(workspace / "leaderboards", made.comparison)
    store.ingest_missing()
    assert store.load_comparisons() == [made.comparison]
    measured = {"quick": Measured(proxy=0.5, jsd=0.25)}
    comparisons.write(workspace / "leaderboards", made.comparison.model_copy(update={"measured": measured}))
    store.ingest_missing()
    assert store.query("SELECT proxy, jsd FROM comparison_runs WHERE run_id = 'quick'")[1] == [(0.5, 0.25)]
    path.write_text("{}")
    (absent,) = store.ingest_missing().absent
    assert absent.path == path and "no comparison" in absent.why
    assert store.load_comparisons() == []
    assert [a.path for a in store.rebuild().absent] == [path]
    path.unlink()
    assert store.ingest_missing().absent == ()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("--loss", "npo"), "needs --loss and --optimizers"),
        (("--loss", "npo", "--optimizers", "adamw,adamw"), "names one twice"),
        (("--loss", "npo", "--optimizers", "adam"), "no optimizer 'adam'"),
        (("--loss", "npo", "--optimizers", "adamw"), "no learning rates for npo with adamw"),
        (("--loss", "npo", "--optimizers", "adamw", "--lr", "1e-4,x"), "no number"),
        (("--loss", "npo", "--optimizers", "adamw", "--lr", "0"), "rates are positive"),
        (("--loss", "best_of:npo", "--optimizers", "adamw", "--lr", "1e-4"), "is a selector"),
        (("--loss", "npo", "--optimizers", "adamw", "--lr", "1e-4", "--set", "optimizer.lr=1"), "sets it itself"),
        (("--loss", "npo", "--optimizers", "adamw", "--lr", "1e-4", "--until-slowest", "--budget-seconds", "3"),
         "budget in updates"),
    ],
)  # fmt: skip
def test_bad_input_is_a_line_before_anything_runs(
    uharness: Command, workspace: Path, command: tuple[str, ...], message: str
) -> None:
    ran = uharness("compare", "--board", "tiny", *command)
    assert ran.code == 2
    assert message in ran.err.splitlines()[-1]
    assert not results(workspace)


def test_another_budget_has_records_of_its_own(uharness: Command, workspace: Path) -> None:
    ran = uharness("compare", "--loss", "random_label", "--optimizers", "adamw", "--board", "tiny", "--lr", "1e-4",
                   "--seed", "17", "--budget-updates", "2")  # fmt: skip
    assert ran.code == 0, ran.err
    assert not results(workspace)
    (record,) = results(workspace, "tiny-at-2-updates").values()
    assert record.updates == 2
    made = comparison_of(workspace)
    assert (made.base, made.board.name) == ("tiny", "tiny-at-2-updates")
    assert made.pairs[0].selection.kind == "none" and made.pairs[0].tuning == Ledger(
        trainings=0, full_evaluations=0
    )


def timed_board(workspace: Path, steps: int) -> None:
    path = write_board(workspace, "tiny", budget=f"reference_steps = {steps}")
    path.write_text(path.read_text().replace('[stop]\nmetric = "forget.p"\nat_most = 0.1\n', ""))


@pytest.mark.slow
def test_the_quicker_go_on_until_the_slowest_ends(uharness: Command, workspace: Path) -> None:
    timed_board(workspace, 12)
    ran = uharness(*TWO[:-2], "--lr", "1e-5", "--seed", "17", "--until-slowest", "--format", "json")
    assert ran.code == 0, ran.err
    made = comparison_of(workspace)
    (loss,) = made.losses
    slowest = made.slowest[loss]
    before, after = results(workspace, "tiny-at-12-updates"), results(workspace, "tiny-until-slowest")
    assert {r.updates for r in before.values()} == {12}
    charged = {r.optimizer: r.charged_s for r in before.values()}
    assert slowest.seconds == max(charged.values()) == charged[slowest.optimizer]
    (other,) = (p for p in made.pairs if p.optimizer != slowest.optimizer)
    assert set(other.longer) == set(after) and set(other.runs) <= set(before)
    assert {r.budget["seconds"] for r in after.values()} == {slowest.seconds}
    assert not results(workspace)
    tables = {t["name"]: t for t in json.loads(ran.out)}
    assert [r["lr"] for r in tables["comparison"]["rows"]] == [1e-5, 1e-5]
    assert "comparison_before" in tables


@pytest.mark.slow
def test_a_killed_comparison_goes_on_with_the_same_time_and_repeats_nothing(workspace: Path) -> None:
    """kill -9 twice, while runs train; all runs of both invocations have one budget in seconds."""
    timed_board(workspace, 12)
    command = [
        sys.executable,
        "-c",
        "from harness.cli import main; main()",
        *TWO,
        "--seed",
        "17",
        "--seed",
        "26",
    ]
    folder = workspace / "leaderboards/tiny/results"
    before: dict[str, int] = {}
    for started in (2, 4):
        process = subprocess.Popen(
            command, cwd=workspace, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 400
        while (
            len(list((workspace / "runs/tiny").glob("*/clock.bin"))) < started and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = {name: (folder / name).stat().st_mtime_ns for name in before}
        assert kept == before
        before = {p.name: p.stat().st_mtime_ns for p in folder.glob("*")}
        assert len(results(workspace)) == started - 1
        assert not comparison_of(workspace).complete
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before
    found, made = results(workspace), comparison_of(workspace)
    assert made.complete and len(found) == 6
    assert not any(name.endswith("-r2") for name in found)
    assert {r.budget["seconds"] for r in found.values()} == {made.seconds}
    # another seed is another comparison, and goes on with the time and the runs of this one
    more = subprocess.run(
        [*command, "--seed", "42"], cwd=workspace, capture_output=True, text=True, check=False
    )
    assert more.returncode == 0, more.stderr
    assert more.stderr.count("already recorded") == 6
    assert {r.budget["seconds"] for r in results(workspace).values()} == {made.seconds}
    assert len(results(workspace)) == 8
