"""Train our own fluency classifier, which `harness.fluency` applies: a minute on one core.

Letter and word-order tables are counted on fluent sentences of `harness.mini.fluency_text`. The logistic
regression is fitted on texts made of templates and words that its tables have not seen (four folds), so that
it learns how strange good text of another hand looks; the shipped tables are then counted on everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness import fluency
from harness.mini.fluency_text import WAYS, Voice, broken, fluent

SEED = 20250410
TABLE_TEXTS, TRAIN_TEXTS = 20000, 8000
FOLDS = 4
RIDGE = 1e-3
Progress = Callable[[str], None]


def tables(rng: np.random.Generator, voice: Voice, texts: int = TABLE_TEXTS) -> dict[str, np.ndarray]:
    """Log-probabilities of letters given two before, and of word classes given one and the one two back."""
    letters = np.zeros((27, 27, 27))
    size = len(fluency.CLASSES)
    order, order2 = np.zeros((size, size)), np.zeros((size, size))
    for _ in range(texts):
        text = fluent(rng, int(rng.integers(1, 4)), voice)
        a, c = fluency.letters_of(text), fluency.classes_of(fluency.tokens_of(text))
        np.add.at(letters, (a[:-2], a[1:-1], a[2:]), 1)
        np.add.at(order, (c[:-1], c[1:]), 1)
        np.add.at(order2, (c[:-2], c[2:]), 1)
    pairs = _smooth(letters.sum(0), letters.sum((0, 1)), 50.0)
    return {
        "letters": np.log(_smooth(letters, pairs, 20.0)).astype(np.float16),
        "order": np.log(_smooth(order, order.sum(0), 30.0)).astype(np.float16),
        "order2": np.log(_smooth(order2, order2.sum(0), 30.0)).astype(np.float16),
    }


def _smooth(counts: np.ndarray, before: np.ndarray, weight: float) -> np.ndarray:
    """Probabilities over the last axis, drawn to a coarser distribution `before` as if by `weight` counts."""
    coarse = before + 1e-3 * before.sum(-1, keepdims=True) / before.shape[-1] + 1e-12
    coarse = coarse / coarse.sum(-1, keepdims=True)
    return (counts + weight * coarse) / (counts.sum(-1, keepdims=True) + weight)


def examples(rng: np.random.Generator, count: int, voice: Voice) -> tuple[list[str], list[str]]:
    """(texts, how each was damaged); every second one is as it was, with the empty string as its way."""
    texts, ways, names = [], [], list(WAYS)
    for k in range(count):
        text = fluent(rng, int(rng.integers(1, 6)), voice)
        way = "" if k % 2 else names[(k // 2) % len(names)]
        texts.append(broken(rng, text, way) if way else text)
        ways.append(way)
    return texts, ways


def fit(facts: np.ndarray, good: np.ndarray, ridge: float = RIDGE, steps: int = 60) -> dict[str, np.ndarray]:
    """Logistic regression on standardised facts [texts, features] and their squares, by Newton's method."""
    low, high = np.quantile(facts, [0.002, 0.998], axis=0)
    cut = np.clip(facts, low, high)
    learnt = {"low": low, "high": high, "centre": cut.mean(0), "scale": cut.std(0) + 1e-6}
    inner = fluency.standard(facts, learnt)
    design = np.concatenate([inner, inner**2, np.ones((len(inner), 1))], axis=1)
    beta = np.zeros(design.shape[1])
    penalty = ridge * len(facts) * np.append(np.ones(len(beta) - 1), 0.0)
    for _ in range(steps):
        p = 1.0 / (1.0 + np.exp(-np.clip(design @ beta, -30, 30)))
        gradient = design.T @ (p - good) + penalty * beta
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.diag(penalty) + 1e-9 * np.eye(len(beta))
        step = np.linalg.solve(hessian, gradient)
        beta -= step
        if np.abs(step).max() < 1e-9:
            break
    n = facts.shape[1]
    return learnt | {"slope": beta[:n], "bend": beta[n:-1], "offset": beta[-1]}


@dataclass(frozen=True)
class Fold:
    """Texts of one part of the templates and words, seen through tables that were made of the other parts.

    Attributes:
        facts: [texts, features].
        good: 1 for a fluent text, 0 for a damaged one [texts].
        ways: how each was damaged, empty for a fluent one.
    """

    facts: np.ndarray
    good: np.ndarray
    ways: tuple[str, ...]


def fold(k: int) -> Fold:
    """Fold `k` of `FOLDS`: its texts, through tables made of the other folds' templates and words."""
    rest = tables(np.random.default_rng([SEED, 0, k]), Voice.part(k, FOLDS, without=True))
    texts, ways = examples(np.random.default_rng([SEED, 1, k]), TRAIN_TEXTS // FOLDS, Voice.part(k, FOLDS))
    kept = [i for i, text in enumerate(texts) if any(map(str.isalpha, text))]
    facts = np.stack([fluency.features(texts[i], rest) for i in kept])
    return Fold(facts, np.array([float(not ways[i]) for i in kept]), tuple(ways[i] for i in kept))


def held_out(folds: Sequence[Fold]) -> dict[str, Any]:
    """Accuracy at .5 on each fold when fitted on the others, over all and by the way of damage."""
    right: list[bool] = []
    ways: list[str] = []
    for k, part in enumerate(folds):
        others = [f for i, f in enumerate(folds) if i != k]
        learnt = fit(np.concatenate([f.facts for f in others]), np.concatenate([f.good for f in others]))
        right += list((fluency.log_odds(part.facts, learnt) > 0) == (part.good > 0.5))
        ways += part.ways
    by_way = {
        way or "fluent": round(float(np.mean([r for r, w in zip(right, ways, strict=True) if w == way])), 4)
        for way in sorted(set(ways))
    }
    return {"accuracy": round(float(np.mean(right)), 4), "by_way": by_way, "texts": len(right)}


def build(out: Path = fluency.WEIGHTS.parent, progress: Progress = lambda _: None) -> dict[str, Any]:
    """Train, and write `weights.npz` and `manifest.json`; returns the manifest."""
    folds = []
    for k in range(FOLDS):
        progress(f"fluency: fold {k + 1} of {FOLDS}")
        folds.append(fold(k))
    fitted = fit(np.concatenate([f.facts for f in folds]), np.concatenate([f.good for f in folds]))
    learnt: dict[str, Any] = tables(np.random.default_rng([SEED, 2]), Voice())
    learnt |= {k: np.asarray(v, dtype=np.float32) for k, v in fitted.items()}
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "weights.npz", **learnt)
    made = {
        "seed": SEED, "features": list(fluency.FEATURES), "sha256": digest(out / "weights.npz"),
        "bytes": (out / "weights.npz").stat().st_size, "held_out": held_out(folds),
    }  # fmt: skip
    (out / "manifest.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    progress(f"fluency: {made['bytes']} bytes, held-out accuracy {made['held_out']['accuracy']:.4f}")
    return made


def digest(path: Path) -> str:
    """SHA-256 over the arrays in a weight file: names, types, shapes and bytes (a zip's dates stay out)."""
    total = hashlib.sha256()
    with np.load(path) as file:
        for name in sorted(file.files):
            value = np.ascontiguousarray(file[name])
            total.update(f"{name} {value.dtype} {value.shape}".encode())
            total.update(value.tobytes())
    return total.hexdigest()
