"""The built site: incremental, whole at every moment, the same bytes each time; checked, served, published."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Ran, write_board

from harness import deploy, publish, serve, site, siteworker
from harness.errors import InputError, StoreError
from harness.pages.content import Part
from harness.recordcheck import check_records
from harness.recordfiles import record_json, write_files
from harness.recordtables import rows_table, trajectory_table
from harness.site import write_site
from harness.sitecheck import check_site
from harness.siteparts import MARK, read_parts
from harness.specs import RunRecord, ScoreRecord
from harness.store import Store
from harness.types import Score, Trajectory
from harness.workspace import Workspace

Command = Callable[..., Ran]
STRICT = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'self'\">"


def part(name: str, text: str, files: tuple[str, ...] = ("",)) -> Part:
    return Part(name, text, lambda: {f"{name}{end or '.html'}": text for end in files})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def shown(folder: Path) -> dict[str, str]:
    return {name: text.decode() for name, text in contents(folder).items() if name != MARK}


# --- parts and the swap
def test_only_what_changed_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    publish.swap_in([part("a", "1"), part("b/x", "1"), part("c", "1")], folder)
    before = {name: (folder / name).stat().st_ino for name in ("a.html", "b/x.html")}

    def never() -> dict[str, str | bytes]:
        raise AssertionError("this part has not changed")

    built = publish.swap_in([Part("a", "1", never), part("b/x", "2"), part("d", "1")], folder)
    assert shown(folder) == {"a.html": "1", "b/x.html": "2", "d.html": "1"}
    assert (built.made, built.kept, built.gone, built.files, built.size) == (2, 1, 1, 3, 3)
    assert (folder / "a.html").stat().st_ino == before["a.html"]
    assert (folder / "b/x.html").stat().st_ino != before["b/x.html"]
    same = publish.swap_in([Part(n, k, never) for n, k in (("a", "1"), ("b/x", "2"), ("d", "1"))], folder)
    assert (same.made, same.kept, same.gone) == (0, 3, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["site"]


def test_going_on_from_the_site_before_the_last_gives_the_same_as_starting_anew(tmp_path: Path) -> None:
    rng = random.Random(0)
    folder, spare = tmp_path / "site", tmp_path / ".site.before"
    for step in range(12):
        parts = [
            part(f"{'abc'[i % 3]}{rng.choice(['', '/x'])}/p{i}", rng.choice("12"), (".html", ".csv"))
            for i in range(8) if rng.random() < 0.7
        ]  # fmt: skip
        before = contents(folder) if step else {}
        publish.swap_in(parts, folder, spare=True)
        publish.swap_in(parts, tmp_path / "fresh" / str(step))
        assert contents(folder) == contents(tmp_path / "fresh" / str(step))
        folders = [{p.relative_to(f) for p in f.rglob("*")} for f in (folder, tmp_path / "fresh" / str(step))]
        assert folders[0] == folders[1]
        if step and contents(folder) != before:
            assert contents(spare) == before
    (spare / MARK).unlink()
    publish.swap_in([part("z", "1")], folder, spare=True)
    assert shown(folder) == {"z.html": "1"} and not list(tmp_path.glob(".site.*.new"))


def test_the_first_site_leaves_links_that_the_second_goes_on_from(tmp_path: Path) -> None:
    folder, spare = tmp_path / "site", tmp_path / ".site.before"
    publish.swap_in([part("a", "1"), part("b/x", "1")], folder, spare=True)
    assert contents(spare) == contents(folder)
    assert (spare / "a.html").stat().st_ino == (folder / "a.html").stat().st_ino
    number = (spare / MARK).stat().st_ino
    publish.swap_in([part("a", "2"), part("b/x", "1")], folder, spare=True)
    assert shown(folder) == {"a.html": "2", "b/x.html": "1"} and shown(spare)["a.html"] == "1"
    assert (folder / MARK).stat().st_ino != number  # the list is written last, anew


def test_a_disk_with_no_room_for_links_still_has_its_first_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copy2", full)
    publish.swap_in([part("a", "1")], tmp_path / "site", spare=True)
    assert shown(tmp_path / "site") == {"a.html": "1"} and not (tmp_path / ".site.before").exists()


@pytest.mark.parametrize("place", ["site", ".site.before"])
@pytest.mark.parametrize("harm", ["edit", "edit in place", "remove"])
def test_links_that_were_changed_by_hand_are_made_again(tmp_path: Path, harm: str, place: str) -> None:
    folder = tmp_path / "site"
    for third in "123":  # a and b are the same files in both folders, c is not
        publish.swap_in([part("a", "1"), part("b", "2"), part("c", third)], folder, spare=True)
    assert len({(tmp_path / f / "a.html").stat().st_ino for f in ("site", ".site.before")}) == 1
    for name in ("a.html", "c.html"):
        path, later = tmp_path / place / name, time.time_ns() + 10**9
        if harm != "edit in place":
            path.unlink()
        if harm != "remove":
            path.write_text("9")
            os.utime(path, ns=(later, later))
    publish.swap_in([part("a", "1"), part("b", "2"), part("c", "1")], folder, spare=True)
    assert shown(folder) == {"a.html": "1", "b.html": "2", "c.html": "1"}
    publish.swap_in([part("a", "1"), part("b", "2"), part("c", "3")], folder, spare=True)
    assert shown(folder) == {"a.html": "1", "b.html": "2", "c.html": "3"}


@pytest.mark.parametrize("harm", ["edit", "remove", "grow", "break the list"])
def test_what_was_changed_by_hand_is_made_again(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "site"
    parts = [part("a", "1"), part("b", "2")]
    publish.swap_in(parts, folder)
    whole = contents(folder)
    if harm == "edit":
        later = time.time_ns() + 10**9
        (folder / "a.html").write_text("9")
        os.utime(folder / "a.html", ns=(later, later))
    elif harm == "remove":
        (folder / "a.html").unlink()
    elif harm == "grow":
        (folder / "a.html").write_text("12")
    else:
        (folder / MARK).write_text('{"format": 1, "parts": [')
    publish.swap_in(parts, folder)
    assert contents(folder) == whole


def test_a_build_that_fails_leaves_the_old_site(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    publish.swap_in([part("a", "1")], folder)
    whole = contents(folder)

    def broken() -> dict[str, str | bytes]:
        raise StoreError("no luck")

    bad = {
        "no luck": [part("b", "1"), Part("c", "1", broken)],
        "called 'a'": [part("a", "2"), part("a", "3")],
        "make 'x.html'": [part("x", "1"), Part("y", "1", lambda: {"x.html": "2"})],
        "cannot be called '/etc/x'": [Part("y", "1", lambda: {"/etc/x": "2"})],
        "cannot be called 'a/../../x'": [Part("y", "1", lambda: {"a/../../x": "2"})],
        f"cannot be called '{MARK}'": [Part("y", "1", lambda: {MARK: "2"})],
    }
    for text, parts in bad.items():
        with pytest.raises(StoreError, match=text):
            publish.swap_in(parts, folder)
        assert contents(folder) == whole
        assert [p.name for p in tmp_path.iterdir()] == ["site"]


def test_a_new_part_may_take_a_kept_parts_name_only_alone(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    publish.swap_in([part("a", "1")], folder)
    for parts in ([part("a", "1"), Part("b", "1", lambda: {"a.html": "2"})],
                  [Part("b", "1", lambda: {"a.html": "2"}), part("a", "1")]):  # fmt: skip
        with pytest.raises(StoreError, match=r"two parts of the site make .*a\.html"):
            publish.swap_in(parts, folder)
    assert shown(folder) == {"a.html": "1"}


def test_without_an_exchange_a_site_that_was_moved_away_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site"
    monkeypatch.setattr(site, "exchange", lambda one, other: False)
    for text in ("1", "2"):
        publish.swap_in([part("a", text)], folder)
        assert shown(folder) == {"a.html": text}
    folder.rename(tmp_path / ".site.123.0123abcd.old")
    (tmp_path / ".site.123.0123abcd.new").mkdir()
    (tmp_path / ".site.7.x").mkdir()
    publish.swap_in([part("a", "2")], folder)
    assert shown(folder) == {"a.html": "2"}
    assert sorted(p.name for p in tmp_path.iterdir()) == [".site.7.x", "site"]


BUILDS = """
import itertools, sys
from pathlib import Path
from harness.publish import swap_in
from harness.pages.content import Part
print("ready", flush=True)
for i in itertools.count():
    text = f"{i} " * 400
    parts = [Part(f"p{k}", text, lambda k=k: {f"d{k % 7}/p{k}.html": text, f"q{k}.csv": text}) for k in range(60)]
    swap_in(parts, Path(sys.argv[1]), spare=bool(i % 5))
"""


def test_a_reader_and_kill_9_always_find_a_whole_site(tmp_path: Path) -> None:
    """A process builds one site after another and is killed in the middle; what is there is one of them, all of it."""
    folder = tmp_path / "site"
    rng = random.Random(0)
    seen = set()
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", BUILDS, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        end = time.monotonic() + 0.2 + rng.random() / 2
        there = bool(seen)
        while time.monotonic() < end or not there:
            if there := there or folder.exists():
                text = (folder / "q0.csv").read_text()
                assert len(set(text.split())) == 1 and len(text.split()) == 400
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        texts = set(shown(folder).values())
        assert len(texts) == 1 and len(shown(folder)) == 120
        assert len(read_parts(folder)) == 60
        seen |= texts
    assert len(seen) > 1
    publish.swap_in([part("a", "1")], folder)
    assert [p.name for p in tmp_path.iterdir()] == ["site"]


def test_two_builds_at_once_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    with site.replacing(folder) as draft:
        draft.add("a", "1", {"a.html": "1"})
        monkeypatch.setattr(site, "WAIT_S", 0.1)
        with pytest.raises(StoreError, match="another build"):
            publish.swap_in([part("b", "1")], folder)
    assert shown(folder) == {"a.html": "1"}


# --- a workspace with records
def a_record(workspace: Path, run: str, entry: str, value: float, board: str = "tiny", **changes) -> Path:
    """A record of the board with rows and a curve, written as the store does."""
    import numpy as np

    made = Workspace(workspace).board(board)
    scores = {"retain.damage": 0.1 + value, "forget.p": value, "retain.p": 0.9, "bucket.acc": 0.5}
    record = RunRecord(
        run_id=run, board=board, board_version=made.board_version, entry=f"{entry}@1", submission=entry, title=entry,
        case="M4", seed=17, status="ok", charged_s=1.0, env={"hardware": "cpu: x"},
        scores={name: ScoreRecord(value=v, n=2) for name, v in scores.items()},
    ).model_copy(update=changes)  # fmt: skip
    rows = rows_table(
        {"forget.p": Score(value, 2, per_row={"f0": value - 0.01, "f1": value + 0.01})},
        {"forget": {"f0": {"prompt": "Who?", "answer": f"{entry} <b>"}}},
    )
    curve = trajectory_table(
        Trajectory(np.arange(3), np.arange(3.0), {"forget.p": np.array([0.9, 0.5, value])})
    )
    tables = {"rows.parquet": rows, "trajectory.parquet": curve}
    return write_files(workspace / "leaderboards", record, tables)[0]


@pytest.fixture
def small(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with two boards and five records, and none of the package's own boards and methods."""
    monkeypatch.setattr(Workspace, "roots", property(lambda self: (self.root,)))
    write_board(workspace, "other")
    for i, entry in enumerate(("npo", "dpo", "grad_ascent")):
        a_record(workspace, f"{entry}-1", entry, 0.2 + i / 10)
    a_record(workspace, "npo-2", "npo", 0.3, "other")
    a_record(workspace, "dpo-2", "dpo", 0.4, "other")
    return workspace


def build(root: Path, name: str = "site", workers: int = 1) -> publish.Built:
    workspace = Workspace(root)
    store = Store(workspace.leaderboards, workspace.database)
    store.ingest_missing()
    return publish.build_site(workspace, store, root / "build" / name, workers)


def test_one_more_record_touches_only_what_depends_on_it(small: Path) -> None:
    first = build(small)
    assert (build(small).made, first.kept) == (0, 0)
    before = contents(small / "build/site")
    a_record(small, "npo-3", "npo", 0.25)
    built = build(small)
    fresh = build(small, "fresh")
    after = contents(small / "build/site")
    assert after == contents(small / "build/fresh")
    assert fresh.kept == 0 and built.made < fresh.made
    assert after["boards/other.html"] == before["boards/other.html"]
    assert after["boards/tiny.html"] != before["boards/tiny.html"]
    assert "runs/npo-3.html" in after and "runs/npo-3.html" not in before
    for path in (small / "leaderboards/tiny/results").glob("npo-3.*"):
        path.unlink()
    assert build(small).gone >= 1
    assert contents(small / "build/site") == before


def test_a_board_a_method_and_a_style_reach_their_pages(small: Path) -> None:
    build(small)
    write_board(small, "tiny", extra="beta = 2.0\n")
    (small / "submissions" / "npo.py").write_text("raise ValueError('no luck')\n")
    shutil.copytree(Workspace(small).site_sources, small / "site")
    (small / "site/static/style.css").write_text("body { color: red }\n")
    build(small)
    build(small, "fresh")
    after = contents(small / "build/site")
    assert after == contents(small / "build/fresh")
    assert after["static/style.css"] == b"body { color: red }\n"
    assert b"no luck" in after["methods/npo.html"] and str(small).encode() not in after["methods/npo.html"]


@pytest.fixture
def lean(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of their own see the package without its records, boards, methods and models."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("harness", "site"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("weights", "__pycache__"))
    for name in ("leaderboards", "submissions"):
        (folder / name).mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.slow
@pytest.mark.usefixtures("lean")
def test_several_processes_make_the_same_site(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(small)
    monkeypatch.setattr(publish, "MANY", 1)
    monkeypatch.setattr(siteworker, "BOARDS", 1)
    monkeypatch.setattr(siteworker, "LEAST", 1)
    tasks: list[dict] = []
    tell = siteworker.Crew._tell
    monkeypatch.setattr(
        siteworker.Crew, "_tell", lambda self, worker, task: tasks.append(task) or tell(self, worker, task)
    )
    build(small, "two", workers=2)
    assert len(tasks[0]["keys"]) > 1  # the other process has the first share
    assert contents(small / "build/site") == contents(small / "build/two")
    tasks.clear()
    shutil.rmtree(small / "build/tables")
    build(small, "three", workers=2)
    assert [list(task) for task in tasks[:3]] == [["boards"], ["boards"], ["keys", "folder"]]
    assert contents(small / "build/site") == contents(small / "build/three")


@pytest.mark.slow
@pytest.mark.usefixtures("lean")
def test_the_same_records_give_the_same_bytes(small: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Another folder, another order of files in it, other times of files, another time zone and language."""
    other = tmp_path_factory.mktemp("elsewhere") / "x"
    files = [p for p in small.rglob("*") if p.is_file() and "build" not in p.parts]
    random.Random(1).shuffle(files)
    for i, path in enumerate(files):
        target = other / path.relative_to(small)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        os.utime(target, (1_000_000_000 + i, 1_000_000_000 + i))
    made = []
    for root, zone, language, seed in (
        (small, "UTC", "C", "1"),
        (other, "Asia/Kathmandu", "tr_TR.UTF-8", "2"),
    ):
        environ = {
            **os.environ,
            "TZ": zone,
            "LC_ALL": language,
            "PYTHONHASHSEED": seed,
            "UHARNESS_WORKSPACE": str(root),
        }
        command = [
            sys.executable,
            "-c",
            "from harness.cli import main; main()",
            "site",
            "build",
            "--out",
            str(root / "o"),
        ]
        done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        made.append(contents(root / "o"))
    assert made[0] == made[1]


# --- check
def test_good_records_have_no_finding(small: Path, uharness: Command) -> None:
    assert check_records(Workspace(small)) == ([], 5)
    build(small)
    ran = uharness("site", "check")
    assert (ran.code, ran.out) == (0, "")
    assert "checked 5 records and" in ran.err and "no findings" in ran.err


def rewritten(path: Path, change: Callable[[dict], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(record_json(RunRecord.model_validate(data)))


def scores(**values: float) -> Callable[[dict], object]:
    return lambda d: [d["scores"][name.replace("_", ".", 1)].update(value=v) for name, v in values.items()]


BAD = {
    "no JSON": (lambda p: p.write_text(p.read_text().replace('"case": "M4",', '"case" "M4",')),
                r"tiny/results/npo-1\.json:\d+: is no JSON: Expecting ':' delimiter"),
    "NaN": (lambda p: p.write_text(p.read_text().replace('"charged_s": 1.0', '"charged_s": NaN')), "NaN is not"),
    "not UTF-8": (lambda p: p.write_bytes(b"\xff"), "cannot be read"),
    "unknown field": (lambda p: p.write_text(p.read_text().replace('"case"', '"casee"', 1)), "casee|case: Field"),
    "newer format": (lambda p: p.write_text(p.read_text().replace('"format": 1', '"format": 9')), "has format 9"),
    "other name": (lambda p: rewritten(p, lambda d: d.update(run_id="x")), "not its file name"),
    "another version": (lambda p: rewritten(p, lambda d: d.update(board_version="1-0")),
                        r":\d+: made with another version of board tiny: 1-0"),
    "unknown metric": (lambda p: rewritten(p, lambda d: d["scores"].update(forget_q={"value": 1.0})),
                       r":\d+: score of an unknown metric 'forget_q'; did you mean"),
    "out of range": (lambda p: rewritten(p, scores(retain_p=1.5)),
                     r":\d+: retain\.p is 1\.5, and cannot be outside 0 to 1"),
    "edited by hand": (lambda p: rewritten(p, scores(forget_p=0.05)),
                       r":\d+: forget\.p is 0\.05, but the mean of its rows is 0\.2"),
    "table of another run": (lambda p: p.with_name("npo-1.rows.parquet").write_bytes(b"x"), "sha256"),
    "no table": (lambda p: p.with_name("npo-1.rows.parquet").unlink(), "npo-1.rows.parquet is missing"),
    "table not named": (lambda p: rewritten(p, lambda d: d["rows"].pop("rows.parquet")), "does not name it"),
    "rows of no score": (lambda p: rewritten(p, lambda d: d["scores"].pop("forget.p")), "not among its scores"),
    "value without reason": (lambda p: rewritten(p, lambda d: d["scores"]["retain.p"].update(value=None)),
                             "does not say why"),
    "stray table": (lambda p: shutil.copy(p.with_name("npo-1.rows.parquet"), p.with_name("gone-1.rows.parquet")),
                    r"gone-1\.rows\.parquet: no record names this file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_each_kind_of_bad_record_is_one_finding(small: Path, kind: str) -> None:
    import re

    path = small / "leaderboards/tiny/results/npo-1.json"
    harm, text = BAD[kind]
    harm(path)
    findings, count = check_records(Workspace(small))
    assert count == 5
    assert len(findings) == 1, findings
    assert re.search(text, str(findings[0])), findings[0]
    assert "\n" not in str(findings[0])
    others = [small / "leaderboards/tiny/results/dpo-1.json"]
    assert check_records(Workspace(small), others)[0] == []


def test_boards_that_do_not_exist_and_run_ids_that_do_twice(small: Path) -> None:
    shutil.copytree(small / "leaderboards/other", small / "leaderboards/third")
    path = small / "leaderboards/third/results/npo-2.json"
    rewritten(path, lambda d: d.update(board="third"))
    (small / "leaderboards/third/results/dpo-2.json").rename(small / "leaderboards/third/results/zz-9.json")
    rewritten(
        small / "leaderboards/third/results/zz-9.json",
        lambda d: d.update(board="third", run_id="zz-9", rows={}),
    )
    for left in (small / "leaderboards/third/results").glob("*.parquet"):
        left.unlink()
    found = [str(f) for f in check_records(Workspace(small))[0]]
    assert len(found) == 2
    assert "run_id 'npo-2' is already used by leaderboards/other/results/npo-2.json" in found[0]
    assert "third/results/zz-9.json" in found[1] and "no board 'third'" in found[1]


def test_rows_of_an_older_version_are_fine_unless_they_are_new(small: Path, uharness: Command) -> None:
    board = small / "leaderboards/tiny.toml"
    board.write_text("version = 2\n" + board.read_text())
    assert check_records(Workspace(small))[0] == []
    path = small / "leaderboards/tiny/results/npo-1.json"
    ran = uharness("site", "check", str(path))
    assert (
        ran.code == 1
        and "made with an older version of board tiny" in ran.out
        and len(ran.out.splitlines()) == 1
    )
    assert "is no record" in uharness("site", "check", str(small / "x.json")).out


SITES = {
    "is not there": {"a.html": f'{STRICT}<a href="b.html">b</a>'},
    "has no such place": {"a.html": f'{STRICT}<a href="#x">b</a><p id="y">'},
    "links to ../a.html, which is not there": {
        "a.html": STRICT,
        "d/b.html": f'{STRICT}<a href="../../a.html">',
    },
    "loads https://x.example/s.css from elsewhere": {
        "a.html": f'{STRICT}<link href="https://x.example/s.css">'
    },
    "loads //x.example/s.js": {"a.html": f'{STRICT}<script src="//x.example/s.js"></script>'},
    "loads https://x.example/f.woff": {"a.html": STRICT, "s.css": "a{src:url('https://x.example/f.woff')}"},
    "loads https://x.example/t.css": {"a.html": STRICT, "s.css": '@import "https://x.example/t.css";'},
    "no reader can follow": {"a.html": f'{STRICT}<a href="javascript:alert(1)">'},
    "no relative path": {"a.html": f'{STRICT}<a href="/a.html">'},
    "has no Content-Security-Policy": {"a.html": "<p>"},
    "is not strict": {"a.html": STRICT.replace("'self'", "'self' 'unsafe-inline'")},
    "kB gzipped": {"boards/a.html": f'{STRICT}<script src="../d.js"></script>', "d.js": os.urandom(310_000)},
}


@pytest.mark.parametrize("text", SITES)
def test_each_kind_of_bad_page_is_one_finding(tmp_path: Path, text: str) -> None:
    write_site(SITES[text], tmp_path / "s")
    if text.startswith("links to ../a.html"):
        (tmp_path / "a.html").write_text("outside of the site")
        text = "which is not there"
    findings, count = check_site(tmp_path / "s")
    assert count == len(list(shown_names(tmp_path / "s")))
    assert len(findings) == 1 and text in str(findings[0]), findings


def shown_names(folder: Path) -> list[str]:
    return [name for name in contents(folder) if name != MARK]


def test_a_good_site_has_no_finding_and_no_site_is_told(tmp_path: Path) -> None:
    page = f'{STRICT}<link rel="icon" href="data:,"><a href="https://arxiv.org">x</a><a href="d/#p">p</a>'
    write_site(
        {"a.html": page + '<a href="a.html#sort=x&amp;q=1">', "d/index.html": f'{STRICT}<p id="p">'},
        tmp_path / "s",
    )
    assert check_site(tmp_path / "s") == ([], 2)
    with pytest.raises(InputError, match="not a site"):
        check_site(tmp_path)


# --- serve
def test_a_served_page_has_the_script_and_its_policy_lets_only_that_in() -> None:
    page = serve.with_reload(f"<head>{STRICT}</head><p>".encode()).decode()
    assert "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'" in page
    assert page.count(serve.SCRIPT) == 1 and "unsafe" not in page
    assert serve.with_reload(b"<p>").endswith(b"defer></script>")


def get(address: str) -> tuple[int, bytes, str]:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.status, answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b"", ""


def test_the_server_answers_notices_a_change_and_tells_the_browser(tmp_path: Path) -> None:
    folder, sources = tmp_path / "site", tmp_path / "sources"
    sources.mkdir()
    (tmp_path / "secret.html").write_text("secret")
    write_site({"index.html": f"<head>{STRICT}</head>one", "d/x.csv": "1"}, folder)
    looks = itertools.count()

    def wait(_: float) -> None:
        if next(looks) == 1:
            (sources / "new.json").write_text("{}")

    def rebuild() -> None:
        write_site({"index.html": f"<head>{STRICT}</head>two"}, folder)

    with serve.running(folder, 0) as server:
        status, page, kind = get(server.address)
        assert (status, kind) == (200, "text/html; charset=utf-8") and b"one" in page and b"reload.js" in page
        assert get(f"{server.address}d/x.csv")[:2] == (200, b"1")
        assert get(f"{server.address}-/reload.js")[2] == "text/javascript"
        assert [
            get(f"{server.address}{path}")[0]
            for path in ("d/", "no.html", "../secret.html", "%2e%2e/secret.html")
        ] == [404] * 4
        with urllib.request.urlopen(f"{server.address}-/events", timeout=10) as events:
            assert events.readline() == b"data: 0\n"
            serve.watch([sources], rebuild, server, wait=wait, ended=lambda: server.version > 0)
            assert [events.readline(), events.readline()] == [b"\n", b"data: 1\n"]
        assert b"two" in get(server.address)[1]
        with pytest.raises(InputError, match="give another --port"):
            serve.Server(folder, server.server_port)
    assert threading.active_count() < 20


@pytest.mark.slow
def hear_ctrl_c() -> None:
    """A job in the background of a shell is started with SIGINT ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_the_server_cleanly(small: Path) -> None:
    environ = {**os.environ, "UHARNESS_WORKSPACE": str(small)}
    command = [sys.executable, "-c", "from harness.cli import main; main()", "site", "serve", "--port", "0"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=small, env=environ, stdout=pipe, stderr=pipe, text=True, preexec_fn=hear_ctrl_c
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("http://127.0.0.1:"), process.communicate()
    assert get(line.split()[0])[0] == 200
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err.endswith("stopped\n") and "Traceback" not in err


# --- publish
def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, an identity, and a bare one called origin."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Tester")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "tester@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "checkout"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "origin.git")], check=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / ".gitattributes").write_text("* text=auto eol=crlf\n*.html filter=none\n")
    (folder / ".gitignore").write_text("*.csv\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "first")
    git(folder, "remote", "add", "origin", str(tmp_path / "origin.git"))
    (folder / "staged.txt").write_text("staged")
    git(folder, "add", "staged.txt")
    (folder / "loose.txt").write_text("not added")
    return folder


def state(folder: Path) -> tuple[str, str, str, bytes]:
    index = (folder / ".git/index").read_bytes()
    return (
        git(folder, "status", "--porcelain"),
        git(folder, "rev-parse", "HEAD"),
        git(folder, "branch"),
        index,
    )


def tree(folder: Path, name: str) -> dict[str, bytes]:
    names = git(folder, "ls-tree", "-r", "--name-only", "-z", name).split("\0")
    show = ["git", "-C", str(folder), "cat-file", "blob"]
    return {
        n: subprocess.run([*show, f"{name}:{n}"], capture_output=True, check=True).stdout for n in names if n
    }


def test_a_branch_gets_the_site_byte_for_byte_and_nothing_else_is_touched(
    tmp_path: Path, checkout: Path
) -> None:
    first = {"index.html": "a\r\nb\n", "data/x y.csv": "1", 'q"\\.txt': b"\xff\x00", "_under/z.js": ""}
    write_site(first, tmp_path / "site")
    there = deploy.repository(checkout)
    before = state(checkout)
    made = deploy.to_branch(tmp_path / "site", there, "gh-pages", "Build the site: 1 board", new=True)
    assert (
        made.changed
        and git(checkout, "log", "--format=%s|%an|%p", "gh-pages") == "Build the site: 1 board|Tester|"
    )
    expected = {n: c.encode() if isinstance(c, str) else c for n, c in first.items()} | {".nojekyll": b""}
    assert {n: c for n, c in tree(checkout, "gh-pages").items() if "q" not in n} == {
        n: c for n, c in expected.items() if "q" not in n
    }
    assert len(git(checkout, "ls-tree", "-r", "--name-only", "gh-pages").splitlines()) == 5
    after = state(checkout)
    assert (after[0], after[1], after[3]) == (before[0], before[1], before[3])
    again = deploy.to_branch(tmp_path / "site", there, "gh-pages", "again")
    assert (again.changed, again.commit) == (False, made.commit)
    write_site({"index.html": "two"}, tmp_path / "site")
    third = deploy.to_branch(tmp_path / "site", there, "gh-pages", "third")
    assert git(checkout, "rev-parse", "gh-pages~1") == made.commit and third.commit == git(
        checkout, "rev-parse", "gh-pages"
    )
    assert set(tree(checkout, "gh-pages")) == {"index.html", ".nojekyll"}
    assert git(checkout, "for-each-ref", "refs/uharness") == ""


def test_pushing_to_a_bare_repository_goes_on_from_what_is_there(tmp_path: Path, checkout: Path) -> None:
    origin = tmp_path / "origin.git"
    there = deploy.repository(checkout)
    write_site({"index.html": "one"}, tmp_path / "site")
    deploy.to_branch(tmp_path / "site", there, "pages", "one", new=True, push=True)
    assert tree(origin, "pages")["index.html"] == b"one"
    git(checkout, "branch", "-D", "pages")
    write_site({"index.html": "two"}, tmp_path / "site")
    deploy.to_branch(tmp_path / "site", there, "pages", "two", push=True)
    assert git(origin, "log", "--format=%s", "pages").splitlines() == ["two", "one"]
    hook = origin / "hooks/pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    before = git(checkout, "rev-parse", "pages"), git(origin, "rev-parse", "pages")
    write_site({"index.html": "three"}, tmp_path / "site")
    with pytest.raises(StoreError, match=r"git push .* failed"):
        deploy.to_branch(tmp_path / "site", there, "pages", "three", push=True)
    assert (git(checkout, "rev-parse", "pages"), git(origin, "rev-parse", "pages")) == before


def test_a_bare_repository_itself_can_be_the_target(tmp_path: Path, checkout: Path) -> None:
    write_site({"index.html": "one"}, tmp_path / "site")
    deploy.to_branch(tmp_path / "site", deploy.repository(tmp_path / "origin.git"), "pages", "one", new=True)
    assert tree(tmp_path / "origin.git", "pages")["index.html"] == b"one"


def test_branches_that_are_refused(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_site({"index.html": "one"}, tmp_path / "site")
    there = deploy.repository(checkout)
    git(checkout, "branch", "code")

    def refused(text: str, branch: str, **options) -> None:
        with pytest.raises(InputError, match=text):
            deploy.to_branch(tmp_path / "site", there, branch, "x", **options)

    refused("no branch 'gh-pages'; known: code, main; add --new", "gh-pages")
    refused("is checked out in", "main")
    refused("files that are no site", "code")
    refused("is there already", "code", new=True)
    refused("no remote 'nowhere'; known: origin", "code", push=True, remote="nowhere")
    refused("cannot be the name of a branch", "a..b", new=True)
    with pytest.raises(InputError, match="not a built site"):
        deploy.to_branch(checkout, there, "gh-pages", "x", new=True)
    with pytest.raises(InputError, match="not in a git repository"):
        deploy.repository(tmp_path)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.delenv(f"GIT_{role}_NAME")
        monkeypatch.delenv(f"GIT_{role}_EMAIL")
    monkeypatch.setenv("EMAIL", "")
    git(checkout, "config", "user.useConfigOnly", "true")
    refused("git does not know who commits", "gh-pages", new=True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="git is not installed"):
        deploy.repository(checkout)


def test_a_folder_is_replaced_whole_and_only_if_it_is_a_site(tmp_path: Path) -> None:
    source, target = tmp_path / "site", tmp_path / "public" / "html"
    publish.swap_in([part("a", "1"), part("b", "1")], source)
    assert deploy.to_folder(source, target).changed
    assert contents(target) == contents(source)
    assert not deploy.to_folder(source, target).changed
    publish.swap_in([part("a", "1"), part("c", "2")], source)
    deploy.to_folder(source, target)
    assert contents(target) == contents(source)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    for folder, text in ((precious, "left alone"), (source, "itself"), (source / "x", "or in it")):
        with pytest.raises(InputError, match=text):
            deploy.to_folder(source, folder)
    assert shown(precious) == {"thesis.tex": "x"}
    (source / "a.html").write_text("edited")
    with pytest.raises(InputError, match="changed after it was built"):
        deploy.to_folder(source, target)


def test_publishing_by_the_command_line(small: Path, checkout: Path, uharness: Command) -> None:
    ran = uharness("site", "publish", "--folder", str(small / "public"))
    assert ran.code == 0, ran.err
    assert (small / "public/index.html").is_file()
    git(small, "init", "--quiet", "--initial-branch", "main")
    refused = uharness("site", "publish", "--branch", "gh-pages", "--new")
    assert refused.code == 2 and "no commit has this" in refused.err and len(refused.err.splitlines()) == 1
    (small / ".gitignore").write_text("/build/\n/public/\n/checkout/\n/origin.git/\n")
    git(small, "add", "--all")
    git(small, "commit", "--quiet", "-m", "records")
    ran = uharness("site", "publish", "--branch", "gh-pages", "--new")
    assert ran.code == 0, ran.err
    head = git(small, "rev-parse", "HEAD")[:12]
    assert f"from {head}." in git(small, "log", "--format=%B", "gh-pages")
    assert "2 boards, 3 methods, 5 runs" in git(small, "log", "--format=%s", "gh-pages")
    assert uharness("site", "publish").err.startswith("error: give --branch or --folder, one of them")
