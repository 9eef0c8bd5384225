"""How long the site takes with many records: a synthetic workspace of 10,000, made the same each time.

    python benchmarks/site.py [--records 10000] [--entries 100] [--folder DIR]

Prints the time of reading the records into a new database, of a full build, of a build with nothing new, and of one
after one more record; then the size of a board's page. Each build is a process of its own, as a user starts it. The
processor time of all its processes stands beside the time that passed: on a machine that others use, it tells more.
The records that ship with the package are left out: each build runs on a copy of the package without them.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.preflight import hardware
from harness.recordfiles import _parquet, record_json
from harness.recordtables import rows_table, trajectory_table
from harness.specs import RunRecord, ScoreRecord
from harness.types import Score, Trajectory
from harness.workspace import bundled, load_board

SEEDS, TABLES, QUESTIONS = 5, 20, 50
METHODS = (
    "npo",
    "dpo",
    "grad_diff",
    "grad_ascent",
    "max_entropy",
    "random_label",
    "idk",
    "rmu",
    "flat",
    "undial",
)
SHOWN = ("forget.prob", "forget.rougeL_recall", "retain.prob", "retain.rougeL_recall")
WORDS = (
    "the",
    "author",
    "was",
    "born",
    "in",
    "a",
    "town",
    "by",
    "sea",
    "and",
    "wrote",
    "about",
    "its",
    "people",
)
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def make_workspace(root: Path, records: int, entries: int) -> None:
    """Boards of `entries` entries with five seeds each, as many as `records` need; the same files each time."""
    text = (bundled() / "leaderboards" / "tofu-mini.toml").read_text()
    text = text.replace("seeds = [0, 1, 2]", f"seeds = {list(range(SEEDS))}")
    (root / "leaderboards").mkdir(parents=True)
    (root / "submissions").mkdir()
    tables = [_tables(random.Random(i)) for i in range(TABLES)]
    for i in range(records):
        board = f"synthetic-{i // (entries * SEEDS):02d}"
        path = root / "leaderboards" / f"{board}.toml"
        if not path.exists():
            path.write_text(text)
            spec = load_board(path)
        write_run(root, spec, i % (entries * SEEDS), tables[i % TABLES])


def write_run(root: Path, board, number: int, tables: dict[str, bytes]) -> Path:
    """The record of a board's run `number`, with its tables beside it."""
    entry, seed = divmod(number, SEEDS)
    rng = random.Random(f"{board.name} {number}")
    method = METHODS[entry % len(METHODS)]
    lr = round(1e-5 * (1 + entry // len(METHODS)), 8)
    level = random.Random(entry).random()
    name = f"{method}[optimizer.lr={lr}]@{hashlib.sha256(f'{entry}'.encode()).hexdigest()[:6]}"
    record = RunRecord(
        run_id=f"{method}-{hashlib.sha256(f'{board.name} {number}'.encode()).hexdigest()[:10]}",
        board=board.name, board_version=board.board_version, entry=name, submission=method, title=method.upper(),
        optimizer="adamw", config={"optimizer.lr": lr, "alpha": 5.0, "beta": 0.1, "optimizer.warmup": 0.1},
        case="forget10", seed=seed, status="ok", started=(START + datetime.timedelta(seconds=number)).isoformat(),
        env={"hardware": "cpu: synthetic x 2", "threads": 2, "torch": "2.13.0", "python": "3.11"},
        budget={"reference_steps": 50, "seconds": 12.5}, lanes_s={"train": 12.0 + rng.random(), "free": 3.0},
        charged_s=12.0 + rng.random(), updates=50, examples=800, tokens=40_000, peak_gib=1.5,
        hashes={"code": hashlib.sha256(name.encode()).hexdigest()},
        scores={m: ScoreRecord(value=_value(m, level, rng), n=40) for m in _metrics(board)},
        rows={kind: hashlib.sha256(content).hexdigest() for kind, content in tables.items()},
    )  # fmt: skip
    folder = root / "leaderboards" / board.name / "results"
    folder.mkdir(parents=True, exist_ok=True)
    for kind, content in tables.items():
        (folder / f"{record.run_id}.{kind}").write_bytes(content)
    path = folder / f"{record.run_id}.json"
    path.write_text(record_json(record))
    return path


def _value(metric: str, level: float, rng: random.Random) -> float:
    value = round(min(max(level + rng.gauss(0, 0.05), 0.0), 1.0), 9)
    return -value if "log10" in metric else value


def _metrics(board) -> list[str]:
    return sorted({c.partition("@")[0] for c in board.columns if not c.startswith("cost.")})


def _tables(rng: random.Random) -> dict[str, bytes]:
    import numpy as np

    ids = {m: [f"{m.partition('.')[0]}/{i}" for i in range(QUESTIONS)] for m in SHOWN}
    scores = {
        m: Score(0.5, QUESTIONS, per_row={row: rng.random() for row in rows}) for m, rows in ids.items()
    }

    def text(n: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(n))

    texts = {
        m.partition(".")[0]: {
            row: {"prompt": text(12), "target": text(20), "answer": text(20)} for row in rows
        }
        for m, rows in ids.items()
    }
    at = np.arange(26)
    curve = {"forget.p": np.exp(-at / (5 + 10 * rng.random())), "retain.p": 1 - 0.01 * at * rng.random()}
    trajectory = Trajectory(at * 2, at * 0.5, curve)
    return {
        "rows.parquet": _parquet(rows_table(scores, texts)),
        "trajectory.parquet": _parquet(trajectory_table(trajectory)),
    }


def make_package(folder: Path) -> None:
    """The package without its records, boards and models."""
    for name in ("harness", "site", "submissions"):
        shutil.copytree(
            bundled() / name, folder / name, ignore=shutil.ignore_patterns("weights", "__pycache__")
        )
    (folder / "leaderboards").mkdir()


def timed(root: Path, package: Path, *arguments: str) -> tuple[float, float, str]:
    """Seconds and processor seconds of one command in the workspace `root`, and its last line."""
    start, spent = time.perf_counter(), _processor_s()
    command = [sys.executable, "-c", "from harness.cli import main; main()", *arguments]
    environ = {**os.environ, "UHARNESS_WORKSPACE": str(root), "PYTHONPATH": str(package)}
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, check=True)
    told = done.stdout.strip().splitlines()[-1]
    return time.perf_counter() - start, _processor_s() - spent, told


def _processor_s() -> float:
    """Of all processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--entries", type=int, default=100)
    parser.add_argument("--folder", help="a workspace to keep; a temporary one without")
    given = parser.parse_args()
    root = Path(given.folder or tempfile.mkdtemp(prefix="uharness-site-"))
    if not (root / "leaderboards").exists():
        make_workspace(root, given.records, given.entries)
    print(
        f"{datetime.date.today()}, {hardware()}, {given.records} records, boards of {given.entries} entries"
    )
    try:
        with tempfile.TemporaryDirectory(prefix="uharness-package-") as package:
            make_package(Path(package))
            measure(root, Path(package))
    finally:
        if not given.folder:
            shutil.rmtree(root)


def measure(root: Path, package: Path) -> None:
    """Prints the table."""
    shutil.rmtree(root / "build", ignore_errors=True)
    lines = [("records into a new database", *timed(root, package, "db", "rebuild"))]
    lines.append(("full build", *timed(root, package, "site", "build")))
    lines.append(("build with nothing new", *timed(root, package, "site", "build")))
    boards = sorted((root / "leaderboards").glob("*.toml"))
    extra = write_run(root, load_board(boards[0]), 1_000_003, _tables(random.Random(0)))
    try:
        lines.append(("build after one more record", *timed(root, package, "site", "build")))
    finally:
        for left in extra.parent.glob(f"{extra.stem}.*"):
            left.unlink()
    print(f"{'':30} {'seconds':>9} {'processor':>9}")
    for what, seconds, spent, told in lines:
        print(f"{what:30} {seconds:7.2f} s {spent:7.2f} s   {told}")
    page = root / "build" / "site" / "boards" / f"{boards[-1].stem}.html"
    size = len(gzip.compress(page.read_bytes(), mtime=0))
    print(f"{'a board page, gzipped':30} {size / 1000:7.1f} kB  {page.stat().st_size / 1000:.0f} kB as it is")


if __name__ == "__main__":
    main()
