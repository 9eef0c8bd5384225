import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_rank import a_board, run

from harness.pareto import front
from harness.rank import rank
from harness.specs import Ledger, RunRecord, ScoreRecord
from harness.tables import Table
from harness.tradeoffs import TradeOff, pairs_of, trade_offs
from harness.types import MetricInfo

GRID = st.sampled_from([0.0, 0.5, 1.0, 2.0])
DIRECTIONS = st.sampled_from(["higher", "lower"])
POINTS = st.lists(st.tuples(st.none() | GRID, GRID), max_size=8)


def brute(points, directions) -> set[int]:
    """Every point against every other, as the definition says it."""
    signs = [1 if d == "higher" else -1 for d in directions]
    whole = {i: [s * v for s, v in zip(signs, p, strict=True)] for i, p in enumerate(points) if None not in p}

    def beats(a, b) -> bool:
        return all(x >= y for x, y in zip(a, b, strict=True)) and any(
            x > y for x, y in zip(a, b, strict=True)
        )

    return {i for i in whole if not any(beats(whole[j], whole[i]) for j in whole)}


@given(POINTS, st.tuples(DIRECTIONS, DIRECTIONS))
def test_the_front_is_what_the_definition_says(points, directions) -> None:
    found = front(points, directions)
    assert set(found.best) == brute(points, directions)
    parts = [*found.best, *found.dominated, *(i for i, _ in found.left_out)]
    assert sorted(parts) == list(range(len(points)))


@given(st.lists(st.tuples(GRID, GRID, GRID), max_size=6))
def test_three_respects(points) -> None:
    directions = ("higher", "lower", "higher")
    assert set(front(points, directions).best) == brute(points, directions)


@given(st.lists(st.tuples(GRID, GRID), min_size=1, max_size=6), st.randoms())
def test_the_order_of_points_does_not_matter(points, rng) -> None:
    order = list(range(len(points)))
    rng.shuffle(order)
    moved = front([points[i] for i in order], ("higher", "lower"))
    assert {order[i] for i in moved.best} == set(front(points, ("higher", "lower")).best)


def test_equal_points_are_all_on_it_and_one_better_respect_is_enough() -> None:
    assert front([(1.0, 1.0), (1.0, 1.0)], ("higher", "higher")).best == (0, 1)
    assert front([(1.0, 1.0), (1.0, 2.0)], ("higher", "higher")).best == (1,)
    assert front([(1.0, 1.0), (1.0, 2.0)], ("higher", "lower")).best == (0,)
    assert front([(0.1, 5.0), (0.3, 3.0), (0.2, 4.0)], ("higher", "higher")).best == (1, 2, 0)


def test_missing_values_are_left_out_with_why_and_others_refused() -> None:
    found = front([(None, 1.0), (0.5, 0.5), (None, None)], ("higher", "higher"))
    assert found.best == (1,) and found.left_out == (
        (0, "no value in respect 1"),
        (2, "no value in respect 1, 2"),
    )
    assert front([], ("higher",)).best == () == front([(None,)], ("higher",)).best
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="finite or None"):
            front([(bad, 1.0)], ("higher", "lower"))
    with pytest.raises(ValueError, match="one value for each of the 2 directions"):
        front([(1.0,)], ("higher", "lower"))


# --- trade-offs of a board
METRICS = {
    "agg": MetricInfo("agg", "higher", 0, 1, "", ""),
    "mem": MetricInfo("mem", "higher", 0, 1, "", ""),
    "util.own": MetricInfo("util.own", "higher", 0, 1, "", ""),
    "cost.charged_s": MetricInfo("cost.charged_s", "lower", 0, None, "s", ""),
    "cost.peak_gib": MetricInfo("cost.peak_gib", "lower", 0, None, "GiB", ""),
    "cost.total_s": MetricInfo("cost.total_s", "lower", 0, None, "s", ""),
}
BOARD = a_board(columns=("agg", "mem", "util.own"), rank_by="agg")


def scored(
    entry: str, agg: float, mem: float, util: float, seconds: float | None, **changes
) -> list[RunRecord]:
    scores = {"agg": agg, "mem": mem, "util.own": util}
    more = {
        "scores": {m: ScoreRecord(value=v, n=1) for m, v in scores.items()}, "charged_s": seconds, "peak_gib": 2.0,
        "ledger": Ledger(charged_s=7 * (seconds or 0.0)),
    }  # fmt: skip
    return [run(entry, None, seed, board=BOARD, **{**more, **changes}) for seed in range(3)]


def found_in(records: list[RunRecord]) -> tuple[Table, dict[str, TradeOff]]:
    table = rank(BOARD, records, METRICS)
    found = trade_offs(table, records, METRICS)
    return table, {f"{t.x.id} x {t.y.id}": t for t in found}


def test_the_trade_offs_of_a_board() -> None:
    assert pairs_of(BOARD)[0] == ("mem", "util.own")
    assert pairs_of(a_board()) == [("m", "cost.charged_s"), ("m", "cost.peak_gib"), ("m", "cost.total_s")]
    records = [
        *scored("a", 0.9, 0.9, 0.1, 4.0),
        *scored("b", 0.8, 0.5, 0.5, 1.0),
        *scored("c", 0.7, 0.4, 0.4, 2.0),
    ]
    table, found = found_in(records)
    assert [p.entry for p in found["mem x util.own"].front] == ["a", "b"]
    seconds = found["agg x cost.charged_s"]
    assert [p.entry for p in seconds.front] == ["a", "b"]
    assert [(p.entry, p.best, p.y.mean) for p in seconds.points] == [
        ("a", True, 4.0),
        ("b", True, 1.0),
        ("c", False, 2.0),
    ]
    assert [p.entry for p in found["agg x cost.peak_gib"].front] == ["a"]
    assert found["agg x cost.total_s"].points[0].y.mean == 28.0
    assert seconds.points[0].x is table.rows[0].cells[0]  # the table's own number


def test_what_is_not_compared_is_there_with_its_reason() -> None:
    records = [
        *scored("a", 0.5, 0.5, 0.5, 1.0), *scored("blind", 0.9, 0.9, 0.9, None),
        *scored("part", 0.99, 0.9, 0.9, 0.1)[:2], *scored("original", 1.0, 1.0, 1.0, 0.0, reference=True),
    ]  # fmt: skip
    _, found = found_in(records)
    points = {p.entry: p for p in found["agg x cost.charged_s"].points}
    assert set(points) == {"a", "blind", "part"}
    assert points["a"].best is True
    assert (points["blind"].best, points["blind"].why) == (None, "3 of 3 runs: not measured")
    assert (points["part"].best, points["part"].why) == (None, "the row lacks runs")


def test_a_column_without_a_direction_has_no_trade_off() -> None:
    flat = METRICS | {"mem": MetricInfo("mem", "none", None, None, "", "")}
    records = scored("a", 0.5, 0.5, 0.5, 1.0)
    found = trade_offs(rank(BOARD, records, flat), records, flat)
    assert [t.y.id for t in found] == ["cost.charged_s", "cost.peak_gib", "cost.total_s"]
    assert all(len(t.points) == 1 for t in found)
    assert trade_offs(rank(BOARD, [], flat), [], flat)[0].front == ()
