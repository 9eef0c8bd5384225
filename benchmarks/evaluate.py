"""A full TOFU evaluation: every distinct row once, against one pass per metric, in the same run.

400 forget and 400 retain questions with a paraphrase and five wrong answers each, 100 + 117 questions with three wrong
answers, 80 hold-out rows; a model of about a million parameters. The naive side does what evaluators do that give each
metric its own loop: rows in file order, batches of 16 padded on the right, logits at every position, one pass over the
forget answers for each of probability, ES, EM, LOSS, ZLib, Min-K and Min-K++, and so on for the other sets.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.nn.functional as F

from harness import packing, scoring
from harness.generate.hf import HFGenerator
from harness.mini.authors import authors, rows
from harness.mini.world import cast
from harness.models import LoadedModel, load, resolve
from harness.types import TextRow

ROUNDS = 3
METRICS = {
    "forget": ("probability", "extraction strength", "exact memorization", "loss", "zlib", "min-k", "min-k++"),
    "forget_para": ("truth ratio",), "forget_pert": ("truth ratio",),
    "retain": ("probability", "extraction strength"), "retain_para": ("truth ratio",), "retain_pert": ("truth ratio",),
    "others": ("normalised probability", "truth ratio"), "others_pert": ("truth ratio",),
    "holdout": ("loss", "zlib", "min-k", "min-k++"),
}  # fmt: skip


def probes() -> dict[str, list[TextRow]]:
    full = rows(cast()[0], "tofu")
    sets = {"retain": full[:400], "forget": full[-400:], "others": rows(authors(11, "bench"), "bench")[:217],
            "holdout": rows(cast()[1], "tofu")}  # fmt: skip
    out: dict[str, list[TextRow]] = {}
    for name, records in sets.items():
        out[name] = [TextRow(f"{name}/{i}", r["question"], r["answer"]) for i, r in enumerate(records)]
        if name == "holdout":
            continue
        wrong = 3 if name == "others" else 5
        if name != "others":
            out[f"{name}_para"] = [
                TextRow(f"{name}/{i}", r["question"], r["paraphrased_answer"]) for i, r in enumerate(records)
            ]
        out[f"{name}_pert"] = [
            TextRow(f"{name}/{i}/{j}", r["question"], text)
            for i, r in enumerate(records) for j, text in enumerate(r["perturbed_answer"][:wrong])
        ]  # fmt: skip
    return out


def naive(loaded: LoadedModel, asked: dict[str, list[TextRow]]) -> tuple[int, int]:
    """(rows that went through the model, padded tokens)."""
    assert loaded.encoder is not None
    model, seen, tokens = loaded.model, 0, 0
    with scoring.evaluating(model):
        for name, metrics in METRICS.items():
            for _ in metrics:
                for at in range(0, len(asked[name]), 16):
                    inputs = scoring.collate(asked[name][at : at + 16], loaded.encoder)
                    assert inputs.attention is not None
                    logits = model(
                        input_ids=inputs.x, attention_mask=inputs.attention.long(), use_cache=False
                    ).logits
                    labels = torch.where(inputs.answer[:, 1:], inputs.x[:, 1:], -100)
                    F.cross_entropy(
                        logits[:, :-1].transpose(1, 2), labels, ignore_index=-100, reduction="none"
                    )
                    seen, tokens = seen + len(inputs), tokens + inputs.x.numel()
    return seen, tokens


def ours(loaded: LoadedModel, asked: dict[str, list[TextRow]]) -> tuple[int, int]:
    """Score everything; what went through the model is counted by `counts`, off the clock."""
    scoring.score(loaded.model, [row for probe in asked.values() for row in probe], loaded.encoder)
    return 0, 0


def counts(loaded: LoadedModel, asked: dict[str, list[TextRow]]) -> tuple[int, int]:
    """(distinct rows, padded tokens) of one `ours`."""
    assert loaded.encoder is not None
    keys = {(e.ids, e.start) for probe in asked.values() for e in map(loaded.encoder.encode, probe)}
    groups = packing.batches(
        packing.packs(sorted(keys), packing.longest(loaded.model)), scoring.BATCH_TOKENS["cpu"]
    )
    return len(keys), sum(len(group[0]) * len(group) for group in groups)


def peak(work: Callable[[], tuple[int, int]]) -> tuple[float, float, tuple[int, int]]:
    """Seconds, MiB above the level before, and what the work returned."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")
    before, start = memory(status, "VmRSS"), time.perf_counter()
    result = work()
    return time.perf_counter() - start, memory(status, "VmHWM") - before, result


def memory(status: Path, name: str) -> float:
    if not status.exists():
        return float("nan")
    return next(
        int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith(name)
    )


def show(name: str, seconds: Sequence[float], mib: Sequence[float], through: tuple[int, int]) -> None:
    print(f"{name:8} likelihoods {statistics.median(seconds):7.2f} s   peak +{max(mib):6.0f} MiB   "
          f"{through[0]:6} rows through the model   {through[1]:9} padded tokens")  # fmt: skip


def main() -> None:
    loaded = load(resolve("mini:tofu-full"))
    asked = probes()
    size = sum(p.numel() for p in loaded.model.parameters()) / 1e6
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {size:.2f} M parameters; medians of {ROUNDS}"
    )
    runs = [(peak(lambda: naive(loaded, asked)), peak(lambda: ours(loaded, asked))) for _ in range(ROUNDS)]
    through = (runs[0][0][2], counts(loaded, asked))
    for side, name in enumerate(("naive", "uharness")):
        show(name, [r[side][0] for r in runs], [r[side][1] for r in runs], through[side])
    forget = len(METRICS["forget"])
    ratio = statistics.median(a[0] / b[0] for a, b in runs)
    fewer = through[0][0] / through[1][0]
    print(f"ratio    {ratio:.2f} times less likelihood time (goal: 3); {forget} times fewer passes of the "
          f"forget answers (goal: 7), {fewer:.2f} times fewer over all (goal: 1.5)")  # fmt: skip
    assert loaded.encoder is not None
    questions = [loaded.encoder.prompt(row) for name in ("forget", "retain", "others") for row in asked[name]]
    start = time.perf_counter()
    HFGenerator(loaded.model, loaded.encoder).generate(questions, max_tokens=200)
    print(
        f"generation of {len(questions)} answers, the same on both sides: {time.perf_counter() - start:.2f} s"
    )


if __name__ == "__main__":
    main()
