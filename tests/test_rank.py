import csv
import io
import json
import math
import random

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scalar_ranks import holm, paired_p

from harness.intervals import estimate
from harness.preflight import COST_COLUMNS
from harness.rank import gain, rank, value_of
from harness.specs import Board, Budget, Ledger, RunRecord, ScoreRecord, Selection, TaskRef
from harness.tables import Cell, Table, TableRow, cell_text
from harness.tabletext import format_table, rich_table
from harness.types import MetricInfo

UP = MetricInfo("m", "higher", None, None, "", "more is better")
DOWN = MetricInfo("m", "lower", None, None, "", "less is better")
TARGET = MetricInfo("m", "target", None, None, "", "half is best", target=0.5)
NONE = MetricInfo("m", "none", None, None, "", "shown only")
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def a_board(**changes) -> Board:
    base = {
        "name": "b", "task": TaskRef(name="tofu"), "models": {"target": "mini:x"}, "seeds": (0, 1, 2),
        "budget": Budget(reference_steps=10), "columns": ("m", "other"), "rank_by": "m",
    }  # fmt: skip
    return Board.model_validate(base | changes)


BOARD = a_board()


def run(
    entry: str, value: float | None, seed: int = 0, case: str = "c", *, board: Board = BOARD, **changes
) -> RunRecord:
    score = ScoreRecord(value=value, n=1, why="" if value is not None else "no retain model")
    base = {
        "run_id": f"{entry}-{case}-{seed}", "board": board.name, "board_version": board.board_version,
        "entry": entry, "submission": entry.split("-")[0], "case": case, "seed": seed, "status": "ok",
        "scores": {"m": score}, "env": {"hardware": "cpu"},
    }  # fmt: skip
    return RunRecord.model_validate(base | changes)


def runs(entry: str, values: list[float | None], **changes) -> list[RunRecord]:
    return [run(entry, value, seed, **changes) for seed, value in enumerate(values)]


def table(records: list[RunRecord], info: MetricInfo = UP, board: Board = BOARD, **more) -> Table:
    return rank(board, records, {"m": info}, **more)


def ranks(t: Table) -> dict[str, int | None]:
    return {row.entry: row.rank for row in t.rows}


def row(t: Table, entry: str, section: str = "ranked") -> TableRow:
    return next(r for r in t.rows if r.entry == entry and r.section == section)


def test_a_row_whose_runs_made_no_update_names_no_optimizer() -> None:
    def optimizer_of(*updates: int | None, status: str = "ok") -> str | None:
        made = [run("e", 0.5, i, updates=n, optimizer="adamw", status=status) for i, n in enumerate(updates)]
        return table(made).rows[0].optimizer

    assert optimizer_of(0, 0) is None
    assert optimizer_of(0, 0, status="drift") is None
    assert optimizer_of(0, 5) == optimizer_of(3, 5) == optimizer_of(None, None) == "adamw"
    assert optimizer_of(0, 0, status="failed") == "adamw"  # it died before it could


# --- statistics
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=8).filter(lambda x: len(set(x)) > 1))
def test_one_case_is_scipys_t_interval(values: list[int]) -> None:
    e = estimate([values])
    sem = scipy.stats.sem(values)
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=sem)
    assert e.mean == pytest.approx(sum(values) / len(values), abs=1e-9)
    assert (e.low, e.high) == (
        pytest.approx(low, rel=1e-6, abs=1e-9),
        pytest.approx(high, rel=1e-6, abs=1e-9),
    )


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=2, max_size=8))
def test_one_case_is_scipys_paired_test(pairs: list[tuple[float, float]]) -> None:
    differences = [round(a - b, 6) for a, b in pairs]
    if len(set(differences)) == 1:
        assert paired_p([differences]) == (1.0 if differences[0] == 0 else 0.0)
        return
    expected = scipy.stats.ttest_rel(differences, [0.0] * len(differences)).pvalue
    assert paired_p([differences]) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_two_cases_by_hand() -> None:
    e = estimate([[1.0, 3.0], [10.0, 10.0, 10.0, 14.0]])
    var = (2.0 / 2 + 4.0 / 4) / 4
    df = var**2 / ((2.0 / 2 / 4) ** 2 / 1 + (4.0 / 4 / 4) ** 2 / 3)
    assert e.mean == 6.5 and e.sd == pytest.approx(math.sqrt(3.0)) and e.df == pytest.approx(df) and e.n == 6
    half = scipy.stats.t.ppf(0.975, df) * math.sqrt(var)
    assert (e.low, e.high) == (pytest.approx(6.5 - half), pytest.approx(6.5 + half))
    t = 6.5 / math.sqrt(var)
    assert paired_p([[1.0, 3.0], [10.0, 10.0, 10.0, 14.0]]) == pytest.approx(2 * scipy.stats.t.sf(t, df))


def test_an_interval_without_spread_and_without_seeds() -> None:
    assert estimate([[0.3, 0.3]]).low == estimate([[0.3, 0.3]]).high == 0.3
    assert estimate([[0.1], [0.2]]).why == "a case with one seed: no interval"
    assert estimate([[0.1234567890123456]]).mean == 0.1234567890123456
    assert paired_p([]) is None and paired_p([[1.0], [2.0]]) is None


@given(st.lists(st.lists(FINITE, min_size=1, max_size=4), min_size=1, max_size=4))
def test_statistics_are_never_nan(strata: list[list[float]]) -> None:
    e = estimate(strata)
    assert math.isfinite(e.mean)
    for value in (e.sd, e.low, e.high):
        assert (value is None) == bool(e.why) and (value is None or math.isfinite(value))
    p = paired_p(strata)
    assert p is None or 0.0 <= p <= 1.0


def test_holm_by_hand() -> None:
    assert holm([]) == [] and holm([0.5]) == [0.5]
    assert holm([0.01, 0.02, 0.04]) == [pytest.approx(0.03), pytest.approx(0.04), pytest.approx(0.04)]
    assert holm([0.9, 0.6]) == [1.0, 1.0]


# --- ranks
def test_two_far_apart_entries_get_ranks_1_and_2() -> None:
    records = [*runs("bad", [0.1, 0.11, 0.12]), *runs("good", [0.9, 0.92, 0.91])]
    t = table(records)
    assert ranks(t) == {"good": 1, "bad": 2} and [r.entry for r in t.rows] == ["good", "bad"]
    assert ranks(table(records, DOWN)) == {"bad": 1, "good": 2}
    assert [r.entry for r in table(records, TARGET).rows] == [
        "bad",
        "good",
    ]  # |.11 - .5| is less than |.91 - .5|
    cell = row(t, "good").cells[0]
    low, high = scipy.stats.t.interval(0.95, 2, loc=0.91, scale=scipy.stats.sem([0.9, 0.92, 0.91]))
    assert (cell.mean, cell.low, cell.high) == (pytest.approx(0.91), pytest.approx(low), pytest.approx(high))
    assert cell.n == 3 and cell.why == ""


def test_ties_share_a_rank_and_are_ordered_by_mean() -> None:
    records = [*runs("a", [0.5, 0.7, 0.6]), *runs("b", [0.7, 0.5, 0.63]), *runs("z", [9.5, 9.7, 9.61])]
    t = table(records)
    assert ranks(t) == {"z": 1, "b": 2, "a": 2} and [r.entry for r in t.rows] == ["z", "b", "a"]
    same = table([*runs("a", [0.1, 0.1, 0.1]), *runs("b", [0.1, 0.1, 0.1 + 1e-17])])
    assert ranks(same) == {"a": 1, "b": 1}


def test_the_note_counts_the_pairs_that_differ() -> None:
    a, b = runs("a", [0.5, 0.7, 0.6]), runs("b", [0.7, 0.5, 0.63])
    far, low = runs("z", [9.5, 9.7, 9.61]), runs("y", [-7.0, -7.2, -7.09])
    end = "after correction; a shared rank is no equality"
    assert table([*a, *b, *far, *low]).notes == (f"4 entries, 3 seeds: of 6 pairs 5 differ {end}",)
    assert table([*a, *b]).notes == (f"2 entries, 3 seeds: the pair does not differ {end}",)
    assert table([*a, *far]).notes == table(a).notes == ()  # nobody shares a rank
    cases = a_board(cases=("c", "d"))
    both = [*a, *b, *runs("a", [0.5, 0.7, 0.6], case="d"), *runs("b", [0.7, 0.5, 0.63], case="d")]
    assert table(both, board=cases).notes[0].startswith("2 entries, 3 seeds of each of 2 cases: the pair")
    apart = runs("p", [0.5, 0.6, 0.7], selection=Selection(kind="full_metric"))
    assert table([*a, *far, *apart]).notes == ("rows picked by the full metric saw what they are scored by: "
                                               "they are ranked apart",)  # fmt: skip
    assert not any("pairs" in note for note in table([*a, *b], NONE).notes)


def test_pairing_sees_what_intervals_hide() -> None:
    t = table([*runs("a", [0.1, 0.5, 0.9]), *runs("b", [0.2, 0.61, 0.99])])
    a, b = row(t, "a").cells[0], row(t, "b").cells[0]
    assert a.high is not None and b.low is not None and a.high > b.low
    assert ranks(t) == {"b": 1, "a": 2}


def test_one_seed_shares_rank_1_and_says_so() -> None:
    board = a_board(seeds=(0,))
    t = table([run("a", 0.1, board=board), run("b", 0.9, board=board)], board=board)
    assert ranks(t) == {"b": 1, "a": 1} and [r.entry for r in t.rows] == ["b", "a"]
    assert t.notes[0].startswith("one seed: differences cannot be tested")
    assert t.rows[0].cells[0] == Cell(0.9, n=1, why="one seed: no interval")


@pytest.mark.parametrize("info", [UP, DOWN, TARGET])
def test_missing_sorts_last_in_either_direction(info: MetricInfo) -> None:
    records = [*runs("a", [0.1, None, 0.3]), *runs("b", [0.1, 0.2, 0.3]), *runs("c", [None] * 3)]
    t = table(records, info)
    assert [r.entry for r in t.rows] == ["b", "a", "c"] and ranks(t) == {"b": 1, "a": None, "c": None}
    assert row(t, "a").cells[0] == Cell(None, n=2, why="1 of 3 runs: no retain model")
    assert row(t, "c").cells[0] == Cell(None, n=0, why="3 of 3 runs: no retain model")
    assert row(t, "b").cells[1].why == "3 of 3 runs: other is not in the record"


def test_incomplete_rows_are_below_and_say_what_is_missing() -> None:
    records = [
        *runs("whole", [0.1, 0.2, 0.3]), *runs("part", [0.8, 0.9]),
        run("part", None, 2, status="failed", error="NaN loss"),
        *runs("short", [0.5]),
    ]  # fmt: skip
    t = table(records)
    assert [(r.entry, r.section, r.rank) for r in t.rows] == [
        ("whole", "ranked", 1), ("part", "incomplete", None), ("short", "incomplete", None),
        ("part", "unranked", None),
    ]  # fmt: skip
    part = row(t, "part", "incomplete")
    assert part.why == "2 of 3 runs; missing: seed 2 (failed: NaN loss)" and not part.complete
    assert part.statuses == (("ok", 2), ("failed", 1)) and part.cells[0].mean == pytest.approx(0.85)
    assert row(t, "part", "unranked").why == "failed: NaN loss"


@pytest.mark.parametrize("status", ["limited", "imported", "over_budget", "timeout", "invalid", "failed"])
def test_unranked_statuses_stay_visible(status: str) -> None:
    t = table([*runs("a", [0.1, 0.2, 0.3]), *runs("x", [0.9, 0.9, 0.9], status=status, error="because")])
    assert ranks(t) == {"a": 1, "x": None}
    assert row(t, "x", "unranked").why == f"{status}: because"
    assert row(t, "x", "unranked").cells[0].mean == 0.9


def test_a_repeat_is_averaged_and_a_failure_beside_it_is_counted() -> None:
    again = [run("a", 0.5, 0, run_id="again"), run("a", None, 0, run_id="f", status="failed")]
    records = [*runs("a", [0.1, 0.2, 0.3]), *again]
    t = table(records)
    a = row(t, "a")
    assert a.cells[0].mean == pytest.approx((0.3 + 0.2 + 0.3) / 3) and a.cells[0].n == 3 and a.runs == 3
    assert a.rank == 1 and a.statuses == (("ok", 4), ("failed", 1))


def test_drift_is_ranked_and_marked() -> None:
    t = table([*runs("a", [0.1, 0.2]), run("a", 0.3, 2, status="drift")])
    assert t.rows[0].rank == 1 and "1 of 3 runs: drift: the machine's speed drifted" in t.rows[0].why


def test_references_are_shown_and_never_ranked() -> None:
    t = table([*runs("a", [0.1, 0.2, 0.3]), *runs("original", [9.0, 9.0, 9.0], reference=True)])
    assert ranks(t) == {"a": 1, "original": None} and row(t, "original", "reference").cells[0].mean == 9.0


def test_other_versions_boards_seeds_and_cases_do_not_mix() -> None:
    board = a_board(cases=("c",))
    old, other = (
        runs("a", [9.0] * 3, board_version="0-old"),
        runs("a", [7.0] * 3, board=a_board(name="elsewhere")),
    )
    odd = [run("a", 5.0, 9), run("a", 5.0, 0, case="unknown")]
    t = table([*runs("a", [0.1, 0.2, 0.3]), *old, *other, *odd], board=board)
    assert [(r.section, r.cells[0].mean) for r in t.rows] == [
        ("ranked", pytest.approx(0.2)), ("unranked", 5.0), ("unranked", 5.0), ("outdated", 9.0),
    ]  # fmt: skip
    assert {r.why for r in t.rows if r.section == "unranked"} == {
        "the board does not have this seed", "the board does not have case unknown",
    }  # fmt: skip
    assert (
        "board version 0-old" in t.rows[-1].why
        and "3 runs of other versions of this board: listed apart" in t.notes[0]
    )
    assert ranks(table(old, board=board, board_version="0-old")) == {"a": 1}


def test_cases_are_strata_and_a_column_can_be_one_case() -> None:
    board = a_board(columns=("m", "m@d", "m@nope"), cases=("c", "d"))
    records = [*runs("a", [0.1, 0.2, 0.3]), *runs("a", [10.0, 10.2, 10.4], case="d")]
    t = table(records, board=board)
    whole, d, nope = t.rows[0].cells
    assert whole.mean == pytest.approx(5.2) and d.mean == pytest.approx(10.2) and d.n == 3 and whole.n == 6
    assert nope == Cell(None, why="no run of case nope")
    assert whole.high is not None and whole.high < 6  # the spread between cases is not uncertainty
    by_case = a_board(columns=("m@d", "m"), rank_by="m@d", cases=("c", "d"))
    low = [*runs("b", [9.0, 9.0, 9.0]), *runs("b", [0.0, 0.1, 0.2], case="d")]
    assert ranks(table([*records, *low], board=by_case)) == {"a": 1, "b": 2}
    missing = table(records[:4], board=board)
    assert missing.rows[0].why == "4 of 6 runs; missing: d seed 1, d seed 2"


def test_seconds_are_compared_on_one_machine_only() -> None:
    board = a_board(budget=Budget(seconds=5))
    records = [
        *runs("a", [0.1, 0.2, 0.3], board=board), *runs("b", [0.2, 0.3, 0.4], board=board),
        *runs("fast", [9.0, 9.1, 9.2], board=board, env={"hardware": "H200"}),
        *runs("original", [1.0] * 3, board=board, env={"hardware": "H200"}, reference=True),
    ]  # fmt: skip
    t = table(records, board=board)
    assert [(r.entry, r.group) for r in t.rows] == [
        ("b", ""),
        ("a", ""),
        ("fast", "on H200"),
        ("original", ""),
    ]
    assert row(t, "fast").rank == 1 and row(t, "b").rank == 1
    assert any("one machine: the main ranking is on cpu" in note for note in t.notes)
    assert {r.group for r in table(records).rows} == {""}


def test_entries_whose_reference_step_was_far_slower_are_named() -> None:
    def timed(entry: str, seconds: float, hardware: str = "cpu", board: Board = BOARD) -> list[RunRecord]:
        told = {"charged_s": seconds, "budget": {"seconds": seconds}, "env": {"hardware": hardware}}
        return runs(entry, [0.1, 0.5, 0.9], board=board, **told)

    usual = [*timed("a", 10.0), *timed("b", 10.0), *timed("c", 11.9), *timed("d", 8.1)]
    note = "10 reference steps took 10 s when most entries were measured on cpu, and more than a fifth more or less for"
    assert not any("reference steps" in told for told in table(usual).notes)
    slow = table([*usual, *timed("e", 12.5)]).notes
    assert [told for told in slow if "reference steps" in told] == [f"{note} 1: e 12.5 s"]
    assert not any("reference steps" in told for told in table([*usual, *timed("e", 99.0, "H200")]).notes)
    free = runs("free", [0.1, 0.5, 0.9], charged_s=0.0, budget={"seconds": 99.0})
    assert not any("reference steps" in told for told in table([*usual, *free]).notes)
    seconds = a_board(budget=Budget(seconds=10))
    fixed = [*timed("a", 10.0, board=seconds), *timed("b", 99.0, board=seconds)]
    assert not any("reference steps" in told for told in table(fixed, board=seconds).notes)


def test_rows_picked_by_the_full_metric_are_ranked_apart() -> None:
    picked = runs("p", [9.0, 9.1, 9.2], selection=Selection(kind="full_metric"))
    t = table([*runs("a", [0.1, 0.2, 0.3]), *picked])
    assert [(r.entry, r.group, r.rank) for r in t.rows] == [
        ("a", "", 1),
        ("p", "picked by the full metric", 1),
    ]


def test_updates_are_not_equal_time_and_no_direction_is_no_rank() -> None:
    board = a_board(budget=Budget(updates=5))
    t = table(runs("a", [0.1, 0.2, 0.3], board=board), NONE, board)
    assert ranks(t) == {"a": None} and t.notes == (
        "not equal time: the budget is a number of updates", "nothing is ranked: m has no direction",
    )  # fmt: skip
    assert rank(BOARD, runs("a", [0.1, 0.2, 0.3]), {}).rows[0].rank is None


def test_costs_come_from_the_record() -> None:
    record = run("a", 1.0, charged_s=2.5, updates=7)
    assert value_of(record, "cost.charged_s") == (2.5, "") and value_of(record, "cost.updates") == (7.0, "")
    assert value_of(record, "cost.peak_gib") == (None, "not measured")
    assert value_of(run("a", None, status="failed", error="boom"), "x") == (None, "boom")


def test_what_the_ledger_counts_can_be_columns() -> None:
    names = ("cost.trainings", "cost.proxy_evaluations", "cost.full_evaluations")
    spent = Ledger(trainings=7, proxy_evaluations=13, full_evaluations=1, charged_s=40.5)
    record = run("a", 1.0, ledger=spent)
    assert [value_of(record, name) for name in names] == [(7.0, ""), (13.0, ""), (1.0, "")]
    assert value_of(record, "cost.total_s") == (40.5, "")
    assert [value_of(run("a", 1.0), name) for name in names] == [(1.0, ""), (0.0, ""), (1.0, "")]
    other = run("a", 1.0, ledger=Ledger(trainings=0, full_evaluations=0), status="imported")
    assert [value_of(other, name) for name in names] == [(None, "not measured")] * 3
    board = a_board(columns=("m", *names))
    made = rank(board, runs("a", [0.1, 0.2, 0.3], ledger=spent), {"m": UP, **COST_COLUMNS})
    assert [cell.mean for cell in made.rows[0].cells[1:]] == [7, 13, 1]
    (line,) = csv.DictReader(io.StringIO(format_table(made, "csv")))
    assert [float(line[f"{name}:mean"]) for name in names] == [7, 13, 1]
    assert {m.direction for name, m in COST_COLUMNS.items() if name in names} == {"lower"}


def test_gain_turns_values() -> None:
    assert (
        gain(UP, 2.0) == 2.0 and gain(DOWN, 2.0) == -2.0 and gain(TARGET, 0.25) == -0.25 == gain(TARGET, 0.75)
    )


def test_no_rows_and_one_row() -> None:
    assert table([]).rows == () and table([]).notes == ()
    assert ranks(table(runs("a", [0.1, 0.2, 0.3]))) == {"a": 1}
    for form in ("table", "md", "csv", "json"):
        assert format_table(table([]), form).strip()


values = st.lists(st.none() | FINITE | st.sampled_from([0.0, 0.5, 1.0]), min_size=0, max_size=3)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(list("abcde")), values, max_size=5),
    st.sampled_from([UP, DOWN, TARGET]),
    st.randoms(),
)
def test_the_order_of_records_does_not_matter(given_values, info: MetricInfo, rng: random.Random) -> None:
    records = [r for entry, column in given_values.items() for r in runs(entry, column)]
    t = table(records, info)
    shuffled = list(records)
    rng.shuffle(shuffled)
    assert table(shuffled, info) == t
    numbers = [v for r in t.rows for c in r.cells for v in (c.mean, c.sd, c.low, c.high) if v is not None]
    assert all(math.isfinite(v) for v in numbers)
    assert {r.entry for r in t.rows} == {r.entry for r in records}
    ranked = [r for r in t.rows if r.rank is not None]
    assert t.rows[: len(ranked)] == tuple(ranked)
    assert [r.rank for r in ranked] == sorted(r.rank or 0 for r in ranked)
    assert not ranked or ranked[0].rank == 1
    json.loads(format_table(t, "json"), parse_constant=lambda name: pytest.fail(name))


# --- forms
def some_table() -> Table:
    failed = run("b", None, status="failed", error='a, "b"')
    return table([*runs("a|x", [0.1, 0.2, 1 / 3], title="two\nlines | <b>"), failed])


def test_csv_and_json_keep_all_digits() -> None:
    t = some_table()
    line = next(csv.DictReader(io.StringIO(format_table(t, "csv"))))
    cell = t.rows[0].cells[0]
    assert (float(line["m:mean"]), float(line["m:low"])) == (cell.mean, cell.low) and line["other:mean"] == ""
    data = json.loads(format_table(t, "json"))
    assert data["rows"][0]["cells"]["m"]["mean"] == cell.mean and data["rows"][1]["why"] == 'failed: a, "b"'


def test_text_forms_for_people() -> None:
    t = some_table()
    md = format_table(t, "md").splitlines()
    assert len({line.replace("\\|", "").count("|") for line in md[:4]}) == 1 and "m ↑" in md[0]
    assert "two lines \\| <b> [a\\|x]" in md[2] and "–" in md[3]
    assert format_table(t, "table").splitlines()[0].startswith("rank  entry")
    assert cell_text(Cell(0.5)) == "0.5000" and cell_text(Cell(0.5, 0.1, 0.4, 0.6, 3)) == "0.5000 ± 0.1000"
    assert rich_table(t).row_count == len(t.rows)
