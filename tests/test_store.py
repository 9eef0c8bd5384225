import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.database import Database
from harness.errors import InputError, StoreError
from harness.recordfiles import parse_record, record_json
from harness.recordtables import rows_table, trajectory_of, trajectory_table
from harness.specs import RunRecord, ScoreRecord
from harness.store import Store
from harness.types import Score, Trajectory

FROZEN = Path(__file__).parent / "data" / "record_format1.json"
FINITE = st.floats(allow_nan=False, allow_infinity=False)
spawn = multiprocessing.get_context("spawn")


def a_record(run_id: str = "r1", **changes: object) -> RunRecord:
    base = {
        "run_id": run_id, "board": "tofu-mini", "board_version": "1-abc", "entry": "npo-1",
        "submission": "npo",
        "case": "forget10", "seed": 0, "status": "ok", "started": "2026-11-30T03:00:00Z",
        "config": {"lr": 1e-5, "layers": [1, 2]}, "env": {"hardware": "cpu"}, "charged_s": 1 / 3,
        "scores": {
            "forget.prob": {"value": 0.1 + 0.2, "n": 3}, "agg": {"value": None, "why": "no retain model"}
        },
    }  # fmt: skip
    return RunRecord.model_validate(base | changes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store([tmp_path / "leaderboards"], tmp_path / "build" / "u.duckdb")


def some_rows() -> pa.Table:
    scores = {
        "forget.prob": Score(0.5, 3, per_row={"f0": 0.25, "f1": 0.75, "f2": None}),
        "forget.es": Score(0.5, 1, per_row={"f1": 0.5}),
    }
    return rows_table(scores, {"forget": {"f0": {"prompt": "Who?", "target": "A", "answer": "B"}}})


def some_trajectory() -> Trajectory:
    return Trajectory(
        np.array([0, 5, 9]), np.array([0.0, 1.5, 3.0]),
        {"forget.p": np.array([0.9, math.nan, 0.1]), "retain.p": np.array([0.9, 0.8, 0.7])},
    )  # fmt: skip


def json_of(store: Store, run_id: str) -> Path:
    return Path(store.leaderboards[0]) / "tofu-mini" / "results" / f"{run_id}.json"


# --- one process
def test_a_record_round_trips_exactly(store: Store) -> None:
    stored = store.write_record(a_record(), some_rows(), trajectory_table(some_trajectory()))
    assert set(stored.rows) == {"rows.parquet", "trajectory.parquet"}
    assert store.load_records() == [stored] == store.load_records("tofu-mini")
    assert store.load_records("other") == []
    assert parse_record(json_of(store, "r1").read_text(), json_of(store, "r1")) == stored
    assert stored.model_copy(update={"rows": {}}) == a_record()
    columns, rows = store.query("select metric, value, why from scores order by metric")
    assert columns == ("metric", "value", "why")
    assert rows == [("agg", None, "no retain model"), ("forget.prob", 0.1 + 0.2, "")]
    sql = "select (config->>'lr')::double, charged_s, case_id from runs"
    assert store.query(sql)[1] == [(1e-5, 1 / 3, "forget10")]
    assert store.query("select trainings, selection from ledgers")[1] == [(1, "none")]
    assert store.query("select record from runs")[1] == [(json_of(store, "r1").read_text(),)]


def test_rows_and_trajectory_come_back(store: Store) -> None:
    trajectory = some_trajectory()
    store.write_record(a_record(), some_rows(), trajectory_table(trajectory))
    rows = store.load_rows("r1")
    assert [(r["metric"], r["row_id"], r["value"], r["answer"]) for r in rows] == [
        ("forget.prob", "f0", 0.25, "B"), ("forget.prob", "f1", 0.75, None),
        ("forget.prob", "f2", None, None),
        ("forget.es", "f1", 0.5, None),
    ]  # fmt: skip
    assert rows[2]["why"] == "no value for this row"
    again = store.load_trajectory("r1")
    assert again is not None
    np.testing.assert_array_equal(again.updates, trajectory.updates)
    np.testing.assert_array_equal(again.charged_s, trajectory.charged_s)
    for metric, values in trajectory.values.items():
        np.testing.assert_array_equal(again.values[metric], values)
    assert store.query("select why from trajectories where value is null")[1] == [
        ("the value came out as nan",)
    ]
    assert store.load_trajectory("nope") is None and store.load_rows("nope") == []
    store.write_record(a_record("r2"), some_rows())
    assert store.load_rows("r2") == rows and set(store.load_all_trajectories()) == {"r1"}
    tables = store.load_rows_of(["r2", "nope", "r1"])
    assert {run: table.to_pylist() for run, table in tables.items()} == {"r1": rows, "r2": rows}
    assert store.load_rows_of(["nope"]) == {}


def test_files_come_back_byte_for_byte(store: Store) -> None:
    for run in ("r1", "r2"):
        store.write_record(a_record(run), some_rows())
    store.write_record(a_record("r3"))
    texts = {run: json_of(store, run).read_text() for run in ("r1", "r2", "r3")}
    tables = {run: json_of(store, run).with_name(f"{run}.rows.parquet") for run in ("r1", "r2")}
    assert store.load_files_of(["r3", "r1", "nope"]) == {
        "r1": (texts["r1"], tables["r1"].read_bytes()), "r3": (texts["r3"], None)
    }  # fmt: skip
    tables["r1"].write_bytes(b"PAR1")
    with pytest.raises(
        StoreError, match=r"r1\.rows\.parquet is not the file .*; `uharness db rebuild` notes it"
    ):
        store.load_files_of(["r1"])
    store.rebuild()
    assert store.load_files_of(["r1", "r2"]) == {
        "r1": (texts["r1"], None), "r2": (texts["r2"], tables["r2"].read_bytes())
    }  # fmt: skip


def test_metrics_that_were_seen_at_different_steps_share_one_curve() -> None:
    told = trajectory_of({"a": [[0, 2], [0, 10], [0.0, 1.0], [0.5, None]], "b": [[1], [5], [0.5], [0.25]]})
    assert told.updates.tolist() == [0, 5, 10] and told.charged_s.tolist() == [0.0, 0.5, 1.0]
    np.testing.assert_array_equal(told.values["a"], [0.5, math.nan, math.nan])
    np.testing.assert_array_equal(told.values["b"], [math.nan, 0.25, math.nan])


def test_writing_twice_is_one_run_and_other_content_is_refused(store: Store) -> None:
    first = store.write_record(a_record(), some_rows())
    assert store.write_record(a_record(), some_rows()) == first
    assert store.query("select (select count(*) from runs), (select count(*) from rows)")[1] == [(1, 4)]
    text = json_of(store, "r1").read_text()
    with pytest.raises(StoreError, match=r"another run \(differs in seed\)"):
        store.write_record(a_record(seed=1), replace=True)
    with pytest.raises(StoreError, match="replace was not set"):
        store.write_record(a_record(scores={}), some_rows())
    assert json_of(store, "r1").read_text() == text
    rescored = store.write_record(
        a_record(scores={"forget.prob": ScoreRecord(value=1.0)}, rows=first.rows), replace=True
    )
    assert store.load_records() == [rescored]
    assert store.query("select value from scores")[1] == [(1.0,)]
    assert store.query("select count(*) from rows")[1] == [(4,)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_bare_nan(store: Store, value: float) -> None:
    with pytest.raises(StoreError, match=r"config.a\[1\].b is not a finite number"):
        store.write_record(a_record(config={"a": [1, {"b": value}]}))
    assert not json_of(store, "r1").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 201])
def test_a_run_id_must_be_a_file_name(store: Store, name: str) -> None:
    with pytest.raises(StoreError, match="cannot be a file name"):
        store.write_record(a_record(name))


def test_tables_are_checked(store: Store) -> None:
    with pytest.raises(StoreError, match="missing: row_id; unknown: id"):
        store.write_record(a_record(), pa.table({"metric": ["m"], "id": ["a"], "value": [1.0]}))
    with pytest.raises(StoreError, match="wrong type"):
        store.write_record(a_record(), pa.table({"metric": ["m"], "row_id": ["a"], "value": ["x"]}))
    with pytest.raises(StoreError, match="the record names it"):
        store.write_record(a_record(rows={"rows.parquet": "0" * 64}))
    with pytest.raises(StoreError, match="got also x"):
        store.write_record(a_record(rows={"x": "0" * 64}))
    assert not json_of(store, "r1").exists()
    table = pa.table({"metric": ["m", "m"], "row_id": ["a", "b"], "value": [math.inf, 1]})
    store.write_record(a_record(), table)
    assert [(r["value"], r["why"]) for r in store.load_rows("r1")] == [
        (None, "the value came out as inf"),
        (1.0, ""),
    ]


def test_rebuild_lists_what_is_absent_and_goes_on(store: Store) -> None:
    for i in range(6):
        store.write_record(a_record(f"r{i}"), some_rows(), trajectory_table(some_trajectory()))
    json_of(store, "r0").write_text("{half")
    json_of(store, "r1").with_name("r1.rows.parquet").unlink()
    json_of(store, "r2").with_name("r2.trajectory.parquet").write_bytes(b"other")
    newer = json.loads(json_of(store, "r3").read_text()) | {"format": 2}
    json_of(store, "r3").write_text(json.dumps(newer))
    json_of(store, "r4").rename(json_of(store, "moved"))
    json_of(store, "r6").write_text('{"format": 1, "run_id": NaN}')
    json_of(store, "r7").write_bytes(b"\xff\xfe")
    shutil.copy(json_of(store, "r5"), json_of(store, "big"))
    json_of(store, "big").write_text(
        json_of(store, "r5").read_text().replace('"r5"', '"big"').replace('"seed": 0', f'"seed": {2**70}')
    )
    report = store.rebuild()
    assert report.records == 3 and report.added == ("r1", "r2", "r5") and report.removed == ()
    whys = {a.path.name: a.why for a in report.absent}
    assert whys["r0.json"].startswith("is no JSON")
    assert whys["r1.rows.parquet"] == "is missing; the record names it"
    assert whys["r2.trajectory.parquet"].startswith("is not the file that the record names")
    assert "format 2; this version reads up to 1" in whys["r3.json"]
    assert "'r4', which is not its file name" in whys["moved.json"]
    assert "NaN is not allowed" in whys["r6.json"]
    assert "cannot be read" in whys["r7.json"]
    assert "cannot be stored" in whys["big.json"]
    assert len(whys) == 8
    before = store.query("select run_id, file, why from absent order by all")
    again = store.ingest_missing()
    assert (again.records, again.added, again.removed) == (3, (), ()) and again.absent == report.absent
    assert store.query("select run_id, file, why from absent order by all") == before
    assert {r["metric"] for r in store.load_rows("r5")} == {"forget.prob", "forget.es"}
    assert store.load_rows("r1") == [] and store.load_trajectory("r1") is not None


def test_ingest_missing_adds_refreshes_and_removes(store: Store, tmp_path: Path) -> None:
    assert store.ingest_missing().records == 0
    for i in range(3):
        store.write_record(a_record(f"r{i}"), some_rows())
    (tmp_path / "aside").mkdir()
    table = json_of(store, "r1").with_name("r1.rows.parquet")
    table.rename(tmp_path / "aside" / table.name)
    other = Store(store.leaderboards, tmp_path / "other.duckdb")
    assert [a.path.name for a in other.ingest_missing().absent] == ["r1.rows.parquet"]
    (tmp_path / "aside" / table.name).rename(table)
    report = other.ingest_missing()
    assert report.added == ("r1",) and report.absent == () and len(other.load_rows("r1")) == 4
    assert other.ingest_missing().added == ()
    json_of(store, "r2").unlink()
    json_of(store, "r0").write_text("{")
    report = other.ingest_missing()
    assert (
        report.records == 1
        and report.removed == ("r2",)
        and [a.path.name for a in report.absent] == ["r0.json"]
    )
    assert [r.run_id for r in other.load_records()] == ["r1"]
    assert other.query("select distinct run_id from rows")[1] == [("r1",)]


def test_the_first_folder_wins(tmp_path: Path) -> None:
    mine, bundled = tmp_path / "mine", tmp_path / "bundled"
    Store([bundled], tmp_path / "b.duckdb").write_record(a_record("same", title="bundled"))
    Store([bundled], tmp_path / "b.duckdb").write_record(a_record("only", title="bundled"))
    store = Store([mine, bundled], tmp_path / "u.duckdb")
    assert {(r.run_id, r.title) for r in store.load_records()} == {("same", "bundled"), ("only", "bundled")}
    store.write_record(a_record("same", title="mine"))
    expected = {("same", "mine"), ("only", "bundled")}
    assert {(r.run_id, r.title) for r in store.load_records()} == expected
    store.rebuild()
    assert {(r.run_id, r.title) for r in store.load_records()} == expected
    shutil.rmtree(mine)
    assert store.ingest_missing().added == ("same",)
    assert {r.title for r in store.load_records()} == {"bundled"}


def test_one_run_id_on_two_boards_is_reported(store: Store) -> None:
    store.write_record(a_record("r1"))
    text = json_of(store, "r1").read_text().replace("tofu-mini", "z")
    twin = Path(store.leaderboards[0]) / "z" / "results" / "r1.json"
    twin.parent.mkdir(parents=True)
    twin.write_text(text)
    assert "already used by" in store.ingest_missing().absent[0].why
    assert [r.board for r in store.load_records()] == ["tofu-mini"]


@pytest.mark.parametrize(
    "sql",
    ["delete from runs", "select 1; drop table runs", "copy runs to 'stolen.csv'",
     "select * from read_csv('/etc/passwd')",
     "attach 'x.duckdb'", "set enable_external_access = true", "selekt", "", "-- nothing"],
)  # fmt: skip
def test_queries_only_read(store: Store, sql: str) -> None:
    store.write_record(a_record())
    with pytest.raises(InputError, match="tables: runs, scores"):
        store.query(sql)
    assert store.query("select count(*) from runs")[1] == [(1,)]


@pytest.mark.parametrize("broken", [b"", b"hello" * 10_000])
def test_a_broken_database_is_built_again(store: Store, broken: bytes) -> None:
    store.write_record(a_record("r1"))
    Path(store.database).write_bytes(broken)
    store.write_record(a_record("r2"))
    assert len(store.load_records()) == 2
    Path(store.database).write_bytes(broken)
    assert len(store.load_records()) == 2
    Path(store.database).write_bytes(broken)
    assert store.ingest_missing().records == 2


def test_another_layout_is_built_again(store: Store) -> None:
    store.write_record(a_record("r1"))
    with duckdb.connect(store.database) as connection:
        connection.execute("update meta set schema = 99")
    assert store.query("select count(*) from runs")[1] == [(1,)]
    Path(store.database).unlink()
    with duckdb.connect(store.database) as connection:
        connection.execute("create table somebody_elses (x int)")
    store.write_record(a_record("r2"))
    assert len(store.load_records()) == 2


def test_a_record_that_cannot_be_ingested_is_safe(store: Store) -> None:
    with pytest.raises(StoreError, match=r"the record is safe in .*r1\.json, but it is not in the database"):
        store.write_record(a_record(seed=2**70))
    assert json_of(store, "r1").exists() and store.load_records() == []


def test_the_frozen_record_of_format_1_reads_and_writes_as_it_did(store: Store) -> None:
    text = FROZEN.read_text()
    record = parse_record(text, FROZEN)
    want = json.loads(text) | {"optimizer_failures": {}}  # optional fields that the format has gained since
    want["ledger"] |= {"judge_calls": 0, "judge_tokens": 0}
    want["selection"] |= {"dropped": 0}
    assert json.loads(record_json(record)) == want
    assert record.scores["forget.prob"].value == 0.1234567890123456 and record.scores["agg"].why
    stored = store.write_record(record)
    assert stored == record == store.load_records()[0]


@settings(max_examples=30, deadline=None)
@given(
    title=st.text(),
    config=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | FINITE | st.text(),
            lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3),
            max_leaves=8,
        ),
        max_size=3,
    ),
    value=st.none() | FINITE,
)  # fmt: skip
def test_any_record_round_trips(tmp_path_factory: pytest.TempPathFactory, title, config, value) -> None:
    folder = tmp_path_factory.mktemp("any")
    store = Store([folder / "l"], folder / "u.duckdb")
    score = ScoreRecord(value=value, why="" if value is not None else title)
    record = a_record(title=title, config=config, scores={"m": score})
    assert store.write_record(record) == record == store.load_records()[0]
    assert repr(store.query("select value from scores")[1][0][0]) == repr(value)


# --- several processes
def write_many(folder: Path, name: str, count: int) -> None:
    store = Store([folder / "leaderboards"], folder / "u.duckdb")
    for i in range(count):
        store.write_record(a_record(f"{name}-{i:05}", seed=i), some_rows())


def hold(database: Path, seconds: float, started: Path) -> None:
    with duckdb.connect(database):
        started.touch()
        time.sleep(seconds)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_writers_at_once_both_land(tmp_path: Path) -> None:
    writers = [spawn.Process(target=write_many, args=(tmp_path, name, 20)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    store = Store([tmp_path / "leaderboards"], tmp_path / "u.duckdb")
    while any(writer.is_alive() for writer in writers):
        store.query("select count(*) from runs")  # a reader in between is served too
        store.rebuild()  # and a rebuild in between loses nothing
    assert [writer.exitcode for writer in writers] == [0, 0]
    expected = {f"{name}-{i:05}" for name in ("a", "b") for i in range(20)}
    assert {r.run_id for r in store.load_records()} == expected
    assert {p.stem for p in (tmp_path / "leaderboards").glob("*/results/*.json")} == expected
    assert store.query("select count(*), count(distinct run_id) from rows")[1] == [(160, 40)]
    assert store.ingest_missing().added == ()


def test_a_writer_waits_for_a_database_held_elsewhere(store: Store, tmp_path: Path) -> None:
    store.write_record(a_record("r1"))
    holder = spawn.Process(target=hold, args=(store.database, 2.0, tmp_path / "started"))
    holder.start()
    wait_for(tmp_path / "started")
    impatient = Store(store.leaderboards, store.database, wait_s=0.2)
    with pytest.raises(
        StoreError, match=rf"record is safe .* PID {holder.pid}\b.*waited|waited 0.2 s .* PID {holder.pid}\b"
    ):
        impatient.write_record(a_record("r2"))
    with pytest.raises(StoreError, match=rf"PID {holder.pid}\b"):
        impatient.load_records()
    with pytest.raises(StoreError, match=rf"PID {holder.pid}\b"):
        impatient.rebuild()
    assert json_of(store, "r2").exists()
    store.write_record(a_record("r3"))  # waits for the holder to leave
    holder.join()
    assert [r.run_id for r in store.load_records()] == ["r1", "r3"]
    assert store.ingest_missing().added == ("r2",)


def test_a_log_left_by_a_killed_writer_is_read(store: Store) -> None:
    store.write_record(a_record("r1"))
    code = (
        "import duckdb, os, sys; c = duckdb.connect(sys.argv[1]); "
        "c.execute('PRAGMA disable_checkpoint_on_shutdown'); "
        "c.execute(\"update runs set title = 'from the log'\"); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(store.database)], check=True)
    assert list(Path(store.database).parent.glob("*.wal"))
    assert store.query("select title from runs")[1] == [("from the log",)]
    scratch = Path(store.database).with_name(f".{Path(store.database).name}.1.aa.tmp")
    scratch.touch()
    store.rebuild()
    assert store.query("select title from runs")[1] == [("",)]
    assert not list(Path(store.database).parent.glob("*.wal")) and not scratch.exists()


def test_waiting_on_the_lock_file_names_its_holder(tmp_path: Path) -> None:
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    first = Database(tmp_path / "u.duckdb")
    second = Database(tmp_path / "u.duckdb", 60.0, sleep, lambda: now[0])
    with (
        first.exclusive(),
        pytest.raises(StoreError, match=rf"waited 60 s .* PID {os.getpid()}\b"),
        second.exclusive(),
    ):
        pass
    assert sum(slept) == pytest.approx(60.0) and max(slept) <= 0.075 and slept[0] < 0.02


def test_a_writer_killed_at_any_moment_leaves_no_half_file(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_store; from pathlib import Path; "
    folder = tmp_path / "leaderboards" / "tofu-mini" / "results"
    rng = random.Random(0)
    for attempt in range(4):
        call = f"test_store.write_many(Path({str(tmp_path)!r}), 'k{attempt}', 100000)"
        writer = subprocess.Popen([sys.executable, "-c", code + call])
        wait_for(folder / f"k{attempt}-00001.json")
        time.sleep(rng.uniform(0.0, 0.4))
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        records = list(folder.glob("*.json"))
        assert all(parse_record(p.read_bytes(), p).run_id == p.stem for p in records)
        store = Store([tmp_path / "leaderboards"], tmp_path / "u.duckdb")
        caught_up = store.ingest_missing()
        assert caught_up.absent == () and caught_up.records == len(records)
    report = store.rebuild()
    assert report.absent == () and report.records == len(records)
    assert store.query("select count(*) from rows")[1] == [(4 * len(records),)]
    names = {p.name for p in folder.iterdir() if not re.fullmatch(r"\..*\.tmp", p.name)}
    assert all(re.fullmatch(r"k\d-\d{5}\.(json|rows\.parquet)", name) for name in names)
    for left in folder.glob(".*.tmp"):
        os.utime(left, (0, 0))
    store.rebuild()
    assert not list(folder.glob(".*.tmp")) and not list(tmp_path.glob("*.tmp*"))
