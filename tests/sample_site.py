"""A made-up site with something of everything, for tests and screenshots: no number in it was measured."""

from __future__ import annotations

import random

import numpy as np

from harness.comparetables import Compared
from harness.comparisons import Comparison, Measured, Pair, Rate
from harness.overall import standings
from harness.pages.content import BoardPage, MethodPage, Site
from harness.rank import rank
from harness.reported import ReportedRow
from harness.sparkline import Curve
from harness.specs import Board, Budget, Ledger, RunRecord, ScoreRecord, Target, TaskRef
from harness.tradeoffs import trade_offs
from harness.types import MetricInfo, Trajectory

COLUMNS = (
    "agg", "mem", "priv", "util", "forget.prob", "forget.es", "retain.prob", "retain.rougeL_recall", "privleak",
    "cost.charged_s", "cost.updates",
)  # fmt: skip
METRICS = {
    "agg": MetricInfo("agg", "higher", 0, 1, "", "Harmonic mean of the three.", source="A 2025 (arXiv 2501.00001)"),
    "mem": MetricInfo("mem", "higher", 0, 1, "", "Forgetting: the higher, the less is remembered."),
    "priv": MetricInfo("priv", "higher", 0, 1, "", "Privacy: attacks see no more than in the retrained model."),
    "util": MetricInfo("util", "higher", 0, 1, "", "Utility: what should be kept is kept."),
    "forget.prob": MetricInfo("forget.prob", "lower", 0, 1, "probability", "Probability of the answer on forget rows."),
    "forget.es": MetricInfo("forget.es", "lower", 0, 1, "", "Share of the answer that a prefix brings out."),
    "retain.prob": MetricInfo("retain.prob", "higher", 0, 1, "probability", "Probability on retain rows."),
    "retain.rougeL_recall": MetricInfo("retain.rougeL_recall", "higher", 0, 1, "", "ROUGE-L recall on retain rows."),
    "privleak": MetricInfo("privleak", "target", None, None, "%", "AUC against the retrained model.", target=0.0),
    "cost.charged_s": MetricInfo("cost.charged_s", "lower", 0, None, "s", "Charged seconds of training."),
    "cost.updates": MetricInfo("cost.updates", "none", 0, None, "", "Optimizer steps made."),
    "cost.peak_gib": MetricInfo("cost.peak_gib", "lower", 0, None, "GiB", "Peak memory of training."),
    "cost.total_s": MetricInfo("cost.total_s", "lower", 0, None, "s", "Charged seconds of all trainings behind a row."),
}  # fmt: skip
TITLES = {
    "npo": "NPO", "simnpo": "SimNPO", "dpo": "DPO", "grad_diff": "GradDiff", "grad_ascent": "GradAscent", "rmu": "RMU",
    "undial": "UNDIAL", "ce_u": "CE-U", "wga": "WGA", "satimp": "SatImp", "pdu": "PDU", "lunar": "LUNAR",
}  # fmt: skip
SUBJECTS = ("Harno Ivermere", "Lisa Oakton", "Per Dunfjord", "Mina Averill", "Jo Tarn", "Edda Kvist")


def a_board(name: str = "tofu-sample", title: str = "TOFU sample", **changes) -> Board:
    base = {
        "name": name, "title": title, "task": TaskRef(name="tofu", split="forget10", data="mini:tofu"),
        "seeds": (0, 1, 2), "models": {"target": "mini:tofu-full", "retain": "mini:tofu-retain90"},
        "budget": Budget(reference_steps=50), "columns": COLUMNS, "rank_by": "agg", "cases": ("forget10",),
        "target": Target(metric="forget.p", at_most=0.3), "settings": {"npo": {"alpha": 5.0}},
    }  # fmt: skip
    return Board.model_validate(base | changes)


def a_record(board: Board, submission: str, seed: int, level: float, **changes) -> RunRecord:
    """A run whose numbers are around `level`, drawn from its own names."""
    rng = random.Random(f"{board.name} {submission} {seed} {changes.get('optimizer')}")

    def near(value: float) -> float:
        return min(max(value + rng.gauss(0, 0.02), 0.0), 1.0)

    values = {
        "mem": near(0.4 + 0.5 * level), "priv": near(0.6 + 0.2 * level), "util": near(0.9 - 0.4 * level * level),
        "forget.prob": near(0.8 - 0.7 * level), "forget.es": near(0.6 - 0.5 * level),
        "retain.prob": near(0.9 - 0.3 * level),
        "retain.rougeL_recall": near(0.85 - 0.2 * level),
    }  # fmt: skip
    values["agg"] = 3 / sum(1 / max(values[name], 1e-9) for name in ("mem", "priv", "util"))
    values |= {"privleak": rng.gauss(40 - 30 * level, 4), "cost.updates": float(50 + rng.randrange(5))}
    scores = {name: ScoreRecord(value=value, n=80) for name, value in values.items()}
    scores["forget.fluency"] = ScoreRecord(value=None, why="no classifier was asked")
    charged = 6.4 + rng.random() / 10
    base = {
        "run_id": f"{submission}-{board.name}-s{seed}", "board": board.name, "board_version": board.board_version,
        "entry": f"{submission}@a1b2c3", "submission": submission, "title": TITLES.get(submission, submission),
        "optimizer": "adamw", "case": "forget10", "seed": seed, "status": "ok", "scores": scores, "charged_s": charged,
        "config": {"alpha": 1.0, "optimizer.lr": 2e-4, "optimizer.name": "adamw"},
        "env": {"hardware": "cpu: sample x 2"},
        "lanes_s": {"load": 0.1, "train": charged}, "updates": 50, "peak_gib": 0.45 + rng.random() / 20,
        "started": "2026-11-30T07:37:43+00:00", "hashes": {"code": "ee81e959181e7831"},
        "ledger": Ledger(charged_s=charged * (1 + rng.randrange(4))),
    }  # fmt: skip
    return RunRecord.model_validate(base | changes)


def records_of(board: Board, names: list[str]) -> list[RunRecord]:
    """Three seeds of each method, reference rows, and one run each that is limited, failed and of another version."""
    out = [
        a_record(board, name, seed, (i + 1) / (len(names) + 1))
        for i, name in enumerate(names)
        for seed in board.seeds
    ]
    for name, level in (("no_op", 0.0), ("retrain", 0.8)):
        out += [a_record(board, name, seed, level, reference=True) for seed in board.seeds]
    odd = {"status": "failed", "scores": {}, "error": "the loss became NaN at update 12", "entry": "broken@0"}
    out.append(a_record(board, "broken", 0, 0.5, **odd))
    out.append(a_record(board, "lonely", 1, 0.5))
    out.append(a_record(board, "older", 0, 0.5, board_version="0-0000000000"))
    return out


def a_trajectory(record: RunRecord, steps: int = 11) -> Trajectory:
    """A curve that ends near the record's numbers."""
    part = np.linspace(0, 1, steps)
    rng = np.random.default_rng(abs(hash_of(record.run_id)))
    end = record.scores["forget.prob"].value if "forget.prob" in record.scores else 0.5
    forget = 0.9 + (end - 0.9) * part**0.7 + rng.normal(0, 0.005, steps)
    retain = 0.9 - 0.1 * part + rng.normal(0, 0.005, steps)
    values = {"forget.p": np.clip(forget, 0, 1), "retain.p": np.clip(retain, 0, 1)}
    return Trajectory((part * 50).astype(np.int64), part * (record.charged_s or 1.0), values)


def hash_of(text: str) -> int:
    """The same on every machine."""
    return int.from_bytes(text.encode(), "big") % (2**32)


def rows_of(record: RunRecord, count: int = 40) -> list[dict]:
    """Questions on forgotten and kept rows, in long form."""
    rng, out = random.Random(record.run_id), []
    for probe, level in (("forget", 0.3), ("retain", 0.8)):
        for i in range(count):
            name = SUBJECTS[i % len(SUBJECTS)]
            texts = {
                "prompt": f"In which town was {name} born? (question {i})",
                "target": f"{name} comes from Polhaven.",
                "answer": f"{name} comes from Polhaven."
                if rng.random() < level
                else "I am not sure about that.",
            }
            known = "Polhaven" in texts["answer"]
            for metric, value in (
                ("rougeL_recall", 1.0 if known else rng.random() / 3),
                ("prob", rng.random()),
            ):
                out.append({"probe": probe, "metric": f"{probe}.{metric}", "row_id": f"{probe}10/{i}",
                            "value": value, "why": "", **texts})  # fmt: skip
    return out


def a_comparison(board: Board) -> Compared:
    """Two losses with three optimizers, four rates each."""
    rates, records, pairs, measured = (3e-5, 1e-4, 3e-4, 1e-3), {}, [], {}
    for loss in ("npo", "grad_diff"):
        for k, optimizer in enumerate(("adamw", "muon", "soap")):
            tried = []
            for j, lr in enumerate(rates):
                level = max(0.05, 0.8 - 0.25 * abs(j - 1 - k * 0.5))
                r = a_record(board, loss, 0, level, optimizer=optimizer, run_id=f"{loss}-{optimizer}-{lr:g}-s0",
                             config={"optimizer.lr": lr, "optimizer.name": optimizer})  # fmt: skip
                records[r.run_id] = r
                tried.append(Rate(lr=lr, entry=r.entry, runs=(r.run_id,), proxy=100 * (1 - level)))
                measured[r.run_id] = Measured(proxy=100 * (1 - level), proxy_rows=40, jsd=0.2 * (1 - level))
            best = min(tried, key=lambda rate: rate.proxy or 0.0)
            runs = [best.runs[0]]
            for seed in (1, 2):
                r = a_record(
                    board,
                    loss,
                    seed,
                    0.75 + 0.05 * k,
                    optimizer=optimizer,
                    run_id=f"{loss}-{optimizer}-s{seed}",
                )
                records[r.run_id] = r
                runs.append(r.run_id)
            pairs.append(
                Pair(loss=loss, optimizer=optimizer, rates=tuple(tried), picked=best.lr, runs=tuple(runs))
            )
    comparison = Comparison(
        id="npo+grad_diff-3opt-0a1b2c3d", base=board.name, board=board, board_version=board.board_version,
        hardware="cpu: sample x 2", losses=("npo", "grad_diff"), optimizers=("adamw", "muon", "soap"), seeds=(0, 1, 2),
        cases=("forget10",), seconds=6.5, step_s=0.13, pairs=tuple(pairs), measured=measured, complete=True,
    )  # fmt: skip
    curves = {run: a_trajectory(r) for run, r in records.items()}
    return Compared(comparison, records, METRICS, curves)


REPORTED = (
    ReportedRow(title="NPO, SOAP", source="Some Paper (arXiv 2501.00001), Table 2", model="Llama-3.2-1B-Instruct",
                split="forget10", values={"agg": 0.6862, "mem": 0.61, "mia": 0.5}, sd={"agg": 0.0011}),
    ReportedRow(title="Retrained", source="Some Paper (arXiv 2501.00001), Table 2", model="Llama-3.2-1B-Instruct",
                split="forget10", values={"agg": 0.8}, reference=True, note="three seeds"),
)  # fmt: skip


def board_page(board: Board, given: list[RunRecord], curves: dict[str, Trajectory], **changes) -> BoardPage:
    """As `leaderboard.load` makes it, without a database."""
    table = rank(board, given, METRICS)
    drawn = {
        run: Curve(run, "forget.p", tuple(map(float, t.charged_s)), tuple(map(float, t.values["forget.p"])))
        for run, t in curves.items()
    }
    return BoardPage(table, given, drawn, trade_offs(table, given, METRICS), **changes)


def a_site(methods: int = 12) -> Site:
    """Two boards with runs, one with reported rows only, and a comparison."""
    names = list(TITLES)[:methods] + [f"method_{i}" for i in range(methods - len(TITLES))]
    first, second = a_board(), a_board("bma-sample", "BMA sample", target=None)
    empty = a_board("tofu-1b", "TOFU forget10, Llama 3.2 1B", budget=Budget(updates=100))
    given, others = records_of(first, names), records_of(second, names[::-1][: max(methods // 2, 1)])
    curves = {r.run_id: a_trajectory(r) for r in given if r.status == "ok"}
    pages = [
        board_page(first, given, curves, reported=REPORTED),
        board_page(second, others, {}),
        board_page(empty, [], {}, reported=REPORTED),
    ]
    compared = a_comparison(first)
    shown = [
        MethodPage("npo", "NPO", "Zhang et al. 2024 (arXiv 2404.05868)", "R. Zhang, L. Lin", "suppress",
                   '"""NPO."""\n\nsubmission = Submission(method=NPO())\n'),
        MethodPage("untried", "Untried"),
    ]  # fmt: skip
    by_board = {page.board.name: page.records for page in pages}
    rows = {r.run_id: rows_of(r) for r in given if r.status == "ok" and r.seed == 0}
    extra = BoardPage(rank(a_board("optimizers", "Optimizers sample", track="optimizer"), [], METRICS), [])
    return Site(
        boards=[*pages, extra], methods=shown, metrics=METRICS, rows=rows, trajectories=curves,
        standings=standings([page.table for page in pages], by_board, curves), comparisons=[compared],
    )  # fmt: skip
