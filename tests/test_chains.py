from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_muse import build, save_json, world

from harness import chains
from harness.errors import BoardError, InputError, RunError
from harness.models import weights_hash
from harness.preflight import Ready
from harness.runs import RunSpec
from harness.specs import Board, Ledger, RunRecord

BOARD = """
title = "Two requests"
rank_by = "balance@sust_2"
columns = ["balance@sust_2", "memq@sust_1", "cost.updates", "cost.total_s"]
seeds = [0]
cases = {cases}
[task]
name = "muse"
split = "{split}"
data = "mini:muse-{split}"
options = {{ requests = "sust", chunk = 0, examples = 0, blank = false }}
[models]
target = "mini:muse-target"
[batch]
effective = 2
[budget]
updates = 1
"""
BOOM = """
from dataclasses import dataclass
from harness import Submission

@dataclass(frozen=True)
class Boom:
    def unlearn(self, job):
        raise RuntimeError("boom")

submission = Submission(method=Boom(), title="Boom")
"""


def write_board(workspace: Path, cases=("sust_1", "sust_2"), split="news") -> None:
    text = BOARD.format(cases=json.dumps(cases), split=split)
    (workspace / "leaderboards" / "two.toml").write_text(text)


def board(cases=()) -> Board:
    return Board.model_validate({
        "name": "b", "task": {"name": "muse"}, "cases": cases, "models": {"target": "t"}, "budget": {"updates": 1},
        "seeds": (0,), "columns": ("memq",), "rank_by": "memq",
    })  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return build(save_json(tmp_path_factory.mktemp("muse"), world()), requests="sust")


def spec_of(**hashes: str) -> RunSpec:
    return RunSpec(
        run_id="b2", board=board(), entry="e", submission="s", case="sust_2", seed=0, models={"target": "/t"},
        hashes=hashes,
    )  # fmt: skip


def record_of(run_id: str, status: str = "ok", error: str = "") -> RunRecord:
    return RunRecord.model_validate({
        "run_id": run_id, "board": "b", "board_version": "1", "entry": "e", "submission": "s", "case": "sust_1",
        "seed": 0, "status": status, "error": error, "ledger": {"trainings": 2, "charged_s": 3.0},
    })  # fmt: skip


def weights(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(text)
    return folder


# --- order ----------------------------------------------------------------------------------------------------------
def test_a_case_comes_after_the_one_it_builds_on(task):
    back = ("sust_3", "sust_2", "sust_1")
    assert chains.ordered(Ready(board(back), task, {}), 0) == [
        ("sust_1", None), ("sust_2", "sust_1"), ("sust_3", "sust_2")
    ]  # fmt: skip
    assert [before for _, before in chains.ordered(Ready(board(), task, {}), 0)] == [
        None,
        "sust_1",
        "sust_2",
        "sust_3",
    ]


def test_cases_that_are_named_bring_those_before_them(task):
    ready = Ready(board(("sust_1",)), task, {})
    assert [case for case, _ in chains.ordered(ready, 0, ["sust_3"])] == ["sust_1", "sust_2", "sust_3"]
    assert chains.ordered(ready, 0, ["sust_1"]) == [("sust_1", None)]


def test_a_board_without_the_case_before_is_refused(task):
    with pytest.raises(BoardError, match="sust_3 comes after sust_2, which the board does not have"):
        chains.ordered(Ready(board(("sust_1", "sust_3")), task, {}), 0)


def test_who_is_followed(task):
    ready = Ready(board(("sust_1", "sust_2")), task, {})
    one = spec_of().model_copy(update={"case": "sust_1"})
    assert chains.followed(ready, one) and not chains.followed(ready, spec_of())


# --- what a run starts from -----------------------------------------------------------------------------------------
def test_a_run_that_follows_nobody_starts_from_the_target(tmp_path):
    spec = spec_of(data="d")
    assert chains.follow(spec, None, [], [], tmp_path) is spec
    assert spec.start == "/t"
    chains.release(spec, tmp_path)


def test_the_last_usable_run_before_is_gone_on_from_and_decides_the_inputs(tmp_path):
    planned = spec_of(after="a1")
    first, second = (weights(tmp_path / name / "model", name) for name in ("a1", "a1-r2"))
    spec = chains.follow(planned, None, [record_of("a1"), record_of("a1-r2")], [], tmp_path)
    assert spec.start == str(second) and spec.models["target"] == "/t"
    assert spec.hashes == {"after": "a1", "model.start": weights_hash(str(second))}
    shutil.rmtree(second)
    other = chains.follow(planned, spec, [record_of("a1"), record_of("a1-r2")], [], tmp_path)
    assert other.start == str(first)
    assert len({spec.input_hash(), other.input_hash(), planned.input_hash()}) == 3
    chains.release(other, tmp_path / "elsewhere")
    assert first.exists()
    chains.release(other, tmp_path)
    assert not first.exists() and (tmp_path / "a1").exists()


def test_a_trained_run_goes_on_without_the_weights_that_it_started_from(tmp_path):
    old = spec_of(after="a1", **{"model.start": "abc"}).model_copy(
        update={"models": {"target": "/t", "start": "/s"}}
    )
    with pytest.raises(RunError, match="weights of a1, which are not on this machine"):
        chains.follow(spec_of(after="a1"), old, [record_of("a1")], [], tmp_path)
    (tmp_path / "b2").mkdir()
    (tmp_path / "b2" / "unlearn.done").write_text("")
    again = chains.follow(spec_of(after="a1"), old, [record_of("a1")], [], tmp_path)
    assert again.input_hash() == old.input_hash() and again.start == "/s"


def test_a_failure_before_is_told(tmp_path):
    bad = [record_of("a", "failed", "x"), record_of("a-r2", "timeout", "too long")]
    with pytest.raises(RunError, match="case sust_1, which comes before, is timeout: too long"):
        chains.follow(spec_of(after="a"), None, [], bad, tmp_path)
    with pytest.raises(InputError, match="has no record"):
        chains.follow(spec_of(after="a"), None, [], [], tmp_path)


def test_a_ledger_has_the_chain(tmp_path):
    spec = spec_of(after="a1")
    weights(tmp_path / "a1" / "model", "w")
    spec = chains.follow(spec, None, [record_of("a1")], [], tmp_path)
    chains.note_ledger(spec, [record_of("a1")], tmp_path)
    before = Ledger.model_validate_json((tmp_path / chains.NOTE).read_text())
    both = chains.joined(Ledger(charged_s=1.5, proxy_evaluations=4), before)
    assert (both.trainings, both.charged_s, both.proxy_evaluations, both.full_evaluations) == (3, 4.5, 4, 2)


# --- whole chains ---------------------------------------------------------------------------------------------------
def results(workspace: Path) -> dict[str, RunRecord]:
    found = [
        RunRecord.model_validate_json(p.read_text())
        for p in (workspace / "leaderboards/two/results").glob("*.json")
    ]
    return {r.case: r for r in found}


@pytest.mark.slow
def test_a_failed_case_fails_the_one_after_it(uharness, workspace):
    write_board(workspace)
    (workspace / "submissions" / "boom.py").write_text(BOOM)
    ran = uharness("submit", "boom", "--board", "two", "--limit", "2")
    assert ran.code == 1
    found = results(workspace)
    assert "boom" in found["sust_1"].error
    assert found["sust_2"].status == "failed"
    assert found["sust_2"].error.startswith("case sust_1, which comes before, is failed: RuntimeError: boom")


@pytest.mark.slow
def test_a_chain_is_trained_in_order_and_goes_on_after_an_interruption(uharness, workspace):
    write_board(workspace)
    command = ("submit", "grad_diff", "--board", "two", "--limit", "2", "--set", "optimizer.warmup=0.0")
    assert uharness(*command, "--set", "optimizer.lr=1e-3").code == 0
    first, second = (results(workspace)[case] for case in ("sust_1", "sust_2"))
    runs = workspace / "runs" / "two"
    left = [weights_hash(str(runs / r.run_id / "model")) for r in (first, second)]
    assert second.hashes["after"] == first.run_id and second.hashes["model.start"] == left[0]
    assert "after" not in first.hashes and left[0] != left[1]
    assert second.ledger.trainings == 2
    assert second.ledger.charged_s == pytest.approx((first.charged_s or 0) + (second.charged_s or 0))
    assert second.scores["cost.total_s"].value == pytest.approx(second.ledger.charged_s)

    (runs / second.run_id / "record.json").unlink()
    for path in (workspace / "leaderboards/two/results").glob(f"{second.run_id}.*"):
        path.unlink()
    trained = (runs / second.run_id / "unlearn.json").stat().st_mtime_ns
    ran = uharness(*command, "--set", "optimizer.lr=1e-3", "--no-keep-model")
    assert ran.code == 0 and "sust_1 seed 0: already recorded" in ran.out + ran.err
    assert (runs / second.run_id / "unlearn.json").stat().st_mtime_ns == trained
    assert results(workspace)["sust_2"].hashes == second.hashes
    assert not list(runs.glob("*/model"))


# --- texts that stay --------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_texts_of_books_never_leave_the_folder_of_the_run(uharness, workspace):
    """Nothing that is recorded, exported or put into the database (which the site is made from) has a text."""
    import duckdb
    import pyarrow.parquet as pq

    from harness.mini.world import data_folder

    write_board(workspace, cases=("sust_1",), split="books")
    path = workspace / "leaderboards" / "two.toml"
    path.write_text(path.read_text().replace("@sust_2", "@sust_1"))
    assert uharness("submit", "no_op", "--board", "two", "--limit", "2").code == 0
    report = workspace / "out.json"
    assert (
        uharness("evaluate", "mini:muse-target", "--board", "two", "--limit", "2", "--json", str(report)).code
        == 0
    )
    kept = [report.read_text()]
    for file in (workspace / "leaderboards").rglob("*"):
        if file.suffix == ".parquet":
            table = pq.read_table(file)
            kept.append(json.dumps(table.to_pydict(), default=str) + str(table.schema.metadata))
        elif file.is_file():
            kept.append(file.read_text())
    with duckdb.connect(str(next(workspace.rglob("*.duckdb"))), read_only=True) as base:
        for (name,) in base.sql("select table_name from information_schema.tables").fetchall():
            kept.append(json.dumps(base.sql(f'select * from "{name}"').fetchall(), default=str))
    everything = "\n".join(kept)
    assert "verbmem_forget/0" in everything
    lines = [
        line
        for file in data_folder("muse-books").glob("*.json")
        for line in file.read_text().splitlines()[:2]
    ]
    texts = [text for line in lines for text in json.loads(line).values() if len(text) > 30]
    assert len(texts) > 20
    assert [text for text in texts if text[:30] in everything or text[-30:] in everything] == []
