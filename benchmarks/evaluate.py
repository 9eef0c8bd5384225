"""A full TOFU evaluation: every distinct row once, against one pass per metric, in the same run.

400 forget and 400 retain questions with a paraphrase and five wrong answers each, 100 + 117 questions with three wrong
answers, 80 hold-out rows; a model of about a million parameters. The naive side does what evaluators do that give each
metric its own loop: rows in file order, batches of 16 padded on the right, logits at every position, one pass over the
forget answers for each of probability, ES, EM, LOSS, ZLib, Min-K and Min-K++, and so on for the other sets.

With `--open-unlearning`, a second figure: 100 rows a set on a tiny model, evaluated by us and by open-unlearning.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.nn.functional as F

from harness import packing, scoring
from harness.answers import answer
from harness.generate.hf import HFGenerator
from harness.mini.authors import authors, rows
from harness.mini.world import cast
from harness.models import LoadedModel, load, resolve
from harness.specs import TaskRef, Template
from harness.tasks.tofu import build
from harness.types import Answers, Likelihood, TextRow

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


SHARED = Path(__file__).resolve().parents[2] / "shared"
KINDS = ("likelihoods", "generation")
DRIVER = Path(__file__).with_name("open_unlearning.py")
SAME = {
    "forget_Q_A_Prob": "forget.prob", "forget_Q_A_ROUGE": "forget.rougeL_recall",
    "forget_truth_ratio": "forget.truth_ratio", "extraction_strength": "forget.es.published",
    "exact_memorization": "forget.em.published", "mia_loss": "mia.loss.auc", "mia_zlib": "mia.zlib.auc",
    "mia_min_k": "mia.min_k.auc", "mia_min_k_plus_plus": "mia.min_k_pp.auc", "model_utility": "model_utility",
}  # fmt: skip
"""What open-unlearning calls a number, and what we do."""


def write_rows(source: Path, folder: Path, count: int) -> None:
    """The first `count` rows of every set, as the local data set that both sides read.

    Hold-out rows are retain rows that no other set has, where the source has no `holdout10`.
    """
    perturbed = ("forget10", "retain", "real_authors", "world_facts")
    lines = {name: records(source, name) for name in ("forget10", *(f"{x}_perturbed" for x in perturbed))}
    retain = records(source, "retain90")
    own = (source / "holdout10.json").exists()
    lines |= {"retain90": retain, "holdout10": records(source, "holdout10") if own else retain[-count:]}
    folder.mkdir(parents=True)
    for name, found in lines.items():
        (folder / f"{name}.json").write_text("\n".join(found[:count]) + "\n", encoding="utf-8")
    listed = "".join(f"- config_name: {name}\n  data_files: {name}.json\n" for name in lines)
    (folder / "README.md").write_text(f"---\nconfigs:\n{listed}---\n")


def records(source: Path, name: str) -> list[str]:
    return [x for x in (source / f"{name}.json").read_text(encoding="utf-8").split("\n") if x]


def theirs(asked: argparse.Namespace, work: Path) -> dict[str, Any]:
    command = (asked.python, DRIVER, asked.open_unlearning.resolve(), "--model", asked.model.resolve(),
               "--output", work / "logs", "--threads", torch.get_num_threads())  # fmt: skip
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(work / "cache")}
    done = subprocess.run(list(map(str, command)), cwd=work, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"open-unlearning ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def same_work(asked: argparse.Namespace, data: Path) -> dict[str, Any]:
    """Seconds from probes to scores, of a model that was just loaded, and the scores."""
    loaded = load(str(asked.model), template=Template())
    task = build(TaskRef(name="tofu", split="forget10", data=str(data)), Template())
    case = task.case("forget10", 0)
    seconds, said = {}, {}
    for kind in KINDS:
        wanted = [p for p in task.probes(case) if isinstance(p, Likelihood) == (kind == KINDS[0])]
        start = time.perf_counter()
        found = answer(loaded, wanted, HFGenerator(loaded.model, loaded.encoder))
        task.score(case, Answers(found), {})
        seconds[kind] = time.perf_counter() - start
        said |= found
    scores = task.score(case, Answers(said), {})
    values = {name: scores[name].value for name in SAME.values()}
    asked_for = {name: list(part) for name, part in task.rows.sets.items()}
    return {"seconds": seconds, "values": values, "through": counts(loaded, asked_for)}


def against_open_unlearning(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        work, data = Path(name), Path(name) / "locuslab" / "TOFU"
        write_rows(asked.data, data, asked.rows)
        runs = [(theirs(asked, work), same_work(asked, data)) for _ in range(ROUNDS)]
    first = runs[0][0]
    print(f"open-unlearning: {asked.rows} rows a set, {first['versions']}, batches of {first['batch']}")
    for side, label in enumerate(("open-unlearning", "uharness")):
        medians = [statistics.median(r[side]["seconds"][kind] for r in runs) for kind in KINDS]
        spent = [f"{kind} {seconds:6.2f} s" for kind, seconds in zip(KINDS, medians, strict=True)]
        through = runs[0][side]["through"]
        print(f"{label:15} {'   '.join(spent)}   {through[0]:6} rows through the model for likelihoods   "
              f"{through[1]:9} padded tokens")  # fmt: skip
    for kinds in (*((kind,) for kind in KINDS), KINDS):
        a, b = ([sum(r[side]["seconds"][kind] for kind in kinds) for r in runs] for side in (0, 1))
        each = sorted(x / y for x, y in zip(a, b, strict=True))
        middle = statistics.median(each)
        print(f"ratio    {middle:.2f} ({each[0]:.2f} to {each[-1]:.2f}) for {' and '.join(kinds)}")
    for name, own in SAME.items():
        x, y = runs[0][0]["values"][name], runs[0][1]["values"][own]
        print(f"{own:22} open-unlearning {x:.6f}   uharness {y:.6f}   difference {abs(x - y):.0e}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--open-unlearning", type=Path, help="a checkout of locuslab/open-unlearning d3d7cf9")
    parser.add_argument("--python", help="of an environment that has what it imports")
    parser.add_argument("--model", type=Path, default=SHARED / "reference" / "tofu_tiny")
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "tofu", help="folder of TOFU's splits")
    parser.add_argument("--rows", type=int, default=100, help="of each set")
    asked = parser.parse_args()
    if asked.open_unlearning is None:
        return asked
    found = shutil.which(asked.python or "")
    if found is None:
        parser.error(f"--open-unlearning needs --python, its environment's interpreter; got {asked.python!r}")
    asked.python = Path(found).absolute()
    needed = (asked.open_unlearning / "src/evals", asked.model / "config.json", asked.data / "retain90.json")
    missing = [str(path) for path in needed if not path.exists()]
    if missing:
        parser.error(f"{missing[0]} does not exist; see --help for what the folders are")
    return asked


def main() -> None:
    asked = arguments()
    one_pass_against_many()
    if asked.open_unlearning is None:
        print("open-unlearning: left out; give --open-unlearning FOLDER --python PYTHON")
    else:
        against_open_unlearning(asked)


def one_pass_against_many() -> None:
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
