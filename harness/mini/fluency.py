"""Train our own fluency classifier, which `harness.fluency` applies: a minute on one core, the same weights each time.

Letter and word-order tables are counted on fluent sentences of `harness.mini.fluency_text`; the logistic regression is
fitted on other fluent texts against damaged ones, and judged on texts drawn with yet another seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness import fluency
from harness.mini.fluency_text import WAYS, Voice, broken, fluent

SEED = 20250410
TABLE_TEXTS, TRAIN_TEXTS, HELD_OUT_TEXTS = 20000, 6000, 2000
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
    """Probabilities over the last axis, drawn to a coarser distribution `before` with the strength of `weight` counts."""
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
    inner = np.clip(facts, low, high)
    centre, scale = inner.mean(0), inner.std(0) + 1e-6
    inner = (inner - centre) / scale
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
    return {"low": low, "high": high, "centre": centre, "scale": scale,
            "slope": beta[:n], "bend": beta[n:-1], "offset": beta[-1]}  # fmt: skip


def build(out: Path = fluency.WEIGHTS.parent, progress: Progress = lambda _: None) -> dict[str, Any]:
    """Train, and write `weights.npz` and `manifest.json`; returns the manifest."""
    facts, good = [], []
    for k in range(FOLDS):
        progress(f"fluency: fold {k + 1} of {FOLDS}")
        rest = tables(np.random.default_rng([SEED, 0, k]), Voice.part(k, FOLDS, without=True))
        texts, ways = examples(np.random.default_rng([SEED, 1, k]), TRAIN_TEXTS // FOLDS, Voice.part(k, FOLDS))
        kept = [i for i, t in enumerate(texts) if _has_word(t)]
        facts.append(_facts([texts[i] for i in kept], rest))
        good.append(np.array([float(not ways[i]) for i in kept]))
    learnt: dict[str, Any] = tables(np.random.default_rng([SEED, 2]), Voice())
    fitted = fit(np.concatenate(facts), np.concatenate(good))
    learnt |= {k: v.astype(np.float32) for k, v in fitted.items()}
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "weights.npz", **learnt)
    made = {
        "seed": SEED, "features": list(fluency.FEATURES), "sha256": digest(out / "weights.npz"),
        "bytes": (out / "weights.npz").stat().st_size, "texts": {"train": TRAIN_TEXTS, "held_out": HELD_OUT_TEXTS},
        "held_out": held_out(out / "weights.npz"),
    }  # fmt: skip
    (out / "manifest.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    progress(f"fluency: {made['bytes']} bytes, held-out accuracy {made['held_out']['accuracy']:.4f}")
    return made


def digest(path: Path) -> str:
    """SHA-256 over the arrays in a weight file: their names, types, shapes and bytes (a zip file's dates stay out)."""
    total = hashlib.sha256()
    with np.load(path) as file:
        for name in sorted(file.files):
            value = np.ascontiguousarray(file[name])
            total.update(f"{name} {value.dtype} {value.shape}".encode())
            total.update(value.tobytes())
    return total.hexdigest()


def held_out(path: Path) -> dict[str, Any]:
    """Accuracy at .5 on texts that nothing was fitted on: over all, of fluent ones, and by the way of damage."""
    learnt = fluency.weights(path)
    texts, ways = examples(np.random.default_rng([SEED, 2]), HELD_OUT_TEXTS)
    says = np.array([bool(t.strip()) for t in texts]) & (fluency.log_odds(_facts(texts, learnt), learnt) > 0)
    right = says == np.array([not way for way in ways])
    by_way = {way or "fluent": float(right[[w == way for w in ways]].mean()) for way in sorted(set(ways))}
    return {"accuracy": float(right.mean()), "by_way": {k: round(v, 4) for k, v in by_way.items()}}


def _has_word(text: str) -> bool:
    return any(c.isalpha() for c in text)


def _facts(texts: list[str], learnt: Any) -> np.ndarray:
    """Facts of each text; zeros for one without a word, which is scored 0 by rule."""
    blank = np.zeros(len(fluency.FEATURES))
    return np.stack([fluency.features(t, learnt) if _has_word(t) else blank for t in texts])


def _good(texts: list[str], ways: list[str]) -> np.ndarray:
    return np.array([float(not way) for way in ways])
