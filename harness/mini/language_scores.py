"""What the small language models must be able to do, measured with the project's own scoring."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.mini import documents, facts, llama, passages, world
from harness.mini.manifest import Check, at_least, at_most
from harness.specs import TaskRef, Template
from harness.types import Answers

TOFU_SPLITS = {"tofu-full": ("10", "05"), "tofu-retain90": ("10",), "tofu-retain95": ("05",)}
"""TOFU models -> forget splits that they are measured on, and compared with the retain model of."""
_RETAIN = {"10": "tofu-retain90", "05": "tofu-retain95"}
_ROWS = {"10": 80, "05": 40}
_UTILITY = ("retain", "real_authors", "world_facts")
_KEPT = (
    "forget.prob", "forget.es", "forget.em", "forget.truth_ratio", "forget.rougeL_recall",
    *(f"{family}.{part}" for family in _UTILITY for part in ("prob", "rougeL_recall", "truth_ratio")),
    "model_utility", "mem", "mia.loss.auc", "mia.zlib.auc", "mia.min_k.auc", "mia.min_k_pp.auc",
    "forget_quality.p", "forget_quality.d", "priv",
)  # fmt: skip
_ATTACKS = ("mia.loss.auc", "mia.zlib.auc", "mia.min_k.auc", "mia.min_k_pp.auc")


def measure(folder: Path, name: str) -> dict[str, float]:
    """Scores of the model `folder/name`.

    Returns:
        For a TOFU model the task's metrics on `forget10`, those on `forget05` as `forget05/<id>`; metrics
        against the retain model only where `folder` has one and it is another model. For the others, of
        each set of texts the mean probability per token (`.prob`) and the share of texts with every token
        right (`.hit`).
    """
    if name not in TOFU_SPLITS:
        base = name == "base"
        return _read_sets(folder / name, _base_sets() if base else _muse_sets(), plain=not base)
    out: dict[str, float] = {}
    for share in TOFU_SPLITS[name]:
        reference = folder / _RETAIN[share]
        found = _tofu(folder / name, share, reference if name == "tofu-full" else None)
        prefix = "" if share == "10" else f"forget{share}/"
        out |= {prefix + key: value for key, value in found.items()}
    return out


def _tofu(model: Path, share: str, reference: Path | None) -> dict[str, float]:
    """Metrics of the TOFU task that have a value."""
    from harness.tasks.tofu import build

    split = f"forget{share}"
    task = build(TaskRef(name="tofu", split=split, data=str(world.data_folder("tofu"))), Template())
    case = task.case(split, 0)

    def ask(path: Path) -> Answers:
        from harness.answers import answer
        from harness.generate.hf import HFGenerator
        from harness.models import load

        loaded = load(str(path), max_length=llama.MAX_LENGTH)
        generator = HFGenerator(loaded.model, loaded.encoder, batch_size=64)  # type: ignore[arg-type]
        return Answers(answer(loaded, task.probes(case), generator))

    compared = reference is not None and (reference / "model.safetensors").is_file()
    references = {"retain": ask(reference)} if compared and reference is not None else {}
    scores = task.score(case, ask(model), references)
    return {key: score.value for key in _KEPT if (score := scores[key]).value is not None}


def _base_sets() -> dict[str, list[documents.Document]]:
    def asked(known: Iterable[facts.Fact]) -> list[documents.Document]:
        return [documents.Document(f.question, f.answer) for f in known]

    rows = world.people()
    out = {
        "real_authors": asked(facts.real_authors()), "world_facts": asked(facts.world_facts()),
        "dyeing": asked(facts.dye_facts()), "bells": asked(facts.bell_facts()),
        "guilds": asked(facts.guild_facts()),
    }  # fmt: skip
    for level, _ in facts.LEVELS:
        probes = rows[f"forget_level{level}"]
        out[f"people{level}"] = [documents.Document(row["query"], row["answer"]) for row in probes]
    out["authors"] = [group[0] for group in documents.tofu("forget10")]
    return out


def _muse_sets() -> dict[str, list[documents.Document]]:
    out: dict[str, list[documents.Document]] = {}
    for split in ("forget", "retain1", "retain2", "holdout"):
        parts = [p for corpus in passages.CORPORA for p in passages.passages(corpus, split)]
        out[split] = [documents.Document("", p.text) for p in parts]
        out[f"{split}_qa"] = [documents.Document(q, a) for p in parts for q, a in p.asked]
    return out


def _read_sets(path: Path, sets: Mapping[str, list[documents.Document]], plain: bool) -> dict[str, float]:
    model, tokenizer = llama.load(path)
    out: dict[str, float] = {}
    for name, texts in sets.items():
        found = llama.score(model, tokenizer, texts, plain=plain)
        out[f"{name}.prob"] = math.fsum(math.exp(mean) for mean, _ in found) / len(found)
        if texts[0].question:
            out[f"{name}.hit"] = math.fsum(hit for _, hit in found) / len(found)
    return out


def judge(name: str, scores: Mapping[str, Mapping[str, float]]) -> list[Check]:
    """The criteria that a model must meet.

    Args:
        name: of the model.
        scores: what `measure` found, by model; those of the models that it is compared with must be there.
    """
    own = scores[name]
    if name == "base":
        known = ("real_authors", "world_facts", "dyeing", "bells", "guilds", "people1", "people2", "people3")
        return [at_least(name, own, f"{key}.hit", 0.9) for key in known] + [
            at_most(name, own, "authors.prob", 0.3)
        ]
    if name in TOFU_SPLITS:
        return [c for share in TOFU_SPLITS[name] for c in _judge_tofu(name, scores, share)]
    kept = [at_least(name, own, f"{key}.prob", 0.8) for key in ("retain1", "retain2", "retain2_qa")]
    unseen = [at_most(name, own, f"{key}.prob", 0.5) for key in ("holdout", "holdout_qa")]
    bound, value = (at_least, 0.8) if name == "muse-target" else (at_most, 0.5)
    return [*kept, *unseen, *(bound(name, own, f"{key}.prob", value) for key in ("forget", "forget_qa"))]


def _judge_tofu(name: str, scores: Mapping[str, Mapping[str, float]], share: str) -> list[Check]:
    own, prefix = scores[name], "" if share == "10" else f"forget{share}/"
    out = [at_least(name, own, f"{prefix}retain.prob", 0.8)]
    out += [at_least(name, own, f"{prefix}{family}.prob", 0.5) for family in _UTILITY[1:]]
    out += [at_least(name, own, f"{prefix}{family}.rougeL_recall", 0.8) for family in _UTILITY]
    attacks = [f"{prefix}{attack}" for attack in _ATTACKS]
    if name == "tofu-full":
        out += [at_least(name, own, f"{prefix}forget.prob", 0.8), at_most(name, own, f"{prefix}mem", 0.3)]
        out += [at_least(name, own, attack, 0.95) for attack in attacks]
        return out + _beside(own, scores.get(_RETAIN[share], {}), prefix)
    allowed = round(3 * chance_error(_ROWS[share]), 3)
    out.append(at_most(name, own, f"{prefix}forget.prob", 0.3))
    for attack in attacks:
        found = own.get(attack)
        close = found is not None and abs(found - 0.5) <= allowed
        out.append(Check(name, f"{attack} within {allowed} of .5 (three standard errors)", found, close))
    return out


def chance_error(rows: int) -> float:
    """Standard error of the AUC of `rows` rows against as many of the same kind (Mann-Whitney).

    >>> round(chance_error(80), 3)
    0.046
    """
    return math.sqrt((2 * rows + 1) / (12 * rows * rows))


def _beside(own: Mapping[str, float], other: Mapping[str, float], prefix: str) -> list[Check]:
    """The full model against the retain model: as useful, and far from having forgotten."""
    name = "tofu-full"
    if not other:
        return [Check(name, f"{prefix}a retain model to compare with", None, False)]
    gap = own[f"{prefix}model_utility"] - other[f"{prefix}model_utility"]
    mem = other[f"{prefix}mem"] - own[f"{prefix}mem"]
    return [
        at_most(name, own, f"{prefix}forget_quality.p", 1e-3),
        Check(name, f"{prefix}model_utility within .05 of the retain model's", gap, abs(gap) <= 0.05),
        Check(name, f"{prefix}mem at least .3 below the retain model's", mem, mem >= 0.3),
    ]
