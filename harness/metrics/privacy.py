"""Can an outsider tell that a row was trained on: membership scores, their AUC, PrivLeak, forget quality.

Row scores follow one convention: the higher, the less the row looks like a member (like a loss).
"""

from __future__ import annotations

import math
import warnings
import zlib as _zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.metrics import OPEN_UNLEARNING, described
from harness.metrics.memorization import Values, loss, without_end
from harness.types import Score, TokenScores

K = 0.4
"""Share of tokens that Min-K and Min-K++ look at (open-unlearning's TOFU and MUSE setting)."""

__all__ = [
    "KSResult", "auc", "forget_quality", "loss", "min_k", "min_k_pp", "privleak", "zlib",
]  # fmt: skip


@described(
    low=0.0, high=None, unit="nats per byte", source=f"Carlini et al. 2021; {OPEN_UNLEARNING}, mia/zlib"
)
def zlib(scores: TokenScores, texts: Sequence[str]) -> Values:
    """Loss over the compressed size of the answer's text.

    Args:
        scores: one row per text.
        texts: the answers, without special tokens.

    Returns:
        Per row, at least 0; None for a row without tokens. EOS counts in the loss.
    """
    sizes = [len(_zlib.compress(text.encode())) for text in texts]
    return [None if x is None else x / size for x, size in zip(loss(scores), sizes, strict=True)]


def _lowest(values: np.ndarray, k: float) -> float:
    """Mean of the lowest max(1, int(k n)) of n values; NaN if one is NaN, which a sort would hide."""
    if np.isnan(values).any():
        return float("nan")
    count = max(1, int(len(values) * k))
    return float(np.mean(np.sort(values.astype(np.float64))[:count]))


@described(low=0.0, high=None, unit="nats", source=f"Shi et al. 2024; {OPEN_UNLEARNING}, mia/min_k")
def min_k(scores: TokenScores, k: float = K, published: bool = False) -> Values:
    """Mean -log p of the answer's least likely tokens.

    Args:
        scores: the rows.
        k: share of tokens, at least one token.
        published: leave the last token out whatever it is; default: only if it is EOS.

    Returns:
        Per row, at least 0; None when no token is left (the public code stores 0).
    """
    kept = [row.logp[without_end(row, published)] for row in scores]
    return [-_lowest(logp, k) + 0.0 if len(logp) else None for logp in kept]


@described(low=None, high=None, unit="standard deviations", source=f"Zhang et al. 2024; {OPEN_UNLEARNING}")
def min_k_pp(scores: TokenScores, k: float = K, published: bool = False) -> Values:
    """Min-K of log p standardised by its mean and variance over the vocabulary under p.

    Args:
        scores: the rows.
        k: share of tokens, at least one token.
        published: leave the last token out whatever it is; default: only if it is EOS.

    Returns:
        Per row, of either sign; None when no token is left. Variances below 1e-6 count as 1e-6: for a model
        that is uniform over its vocabulary every score is 0.
    """
    out: Values = []
    for row in scores:
        part = without_end(row, published)
        if part.stop == 0:
            out.append(None)
            continue
        spread = np.sqrt(np.maximum(row.var_logp[part].astype(np.float64), 1e-6))
        out.append(-_lowest((row.logp[part].astype(np.float64) - row.mean_logp[part]) / spread, k) + 0.0)
    return out


@described(low=0.0, high=1.0, unit="AUC", source=f"{OPEN_UNLEARNING}, mia_auc")
def auc(members: Sequence[float | None], others: Sequence[float | None]) -> Score:
    """Chance that a member looks more like one than another row does: 1 when members look more likely.

    Args:
        members: scores of rows that were trained on (the forget rows), higher = less likely a member.
        others: scores of rows that never were (the hold-out).

    Returns:
        In 0..1, ties count half; 0.5 for identical lists. MUSE's tables print 1 minus this. Null when a
        side is empty or a score is not finite. Rows without a value are left out.

    >>> auc([0.1, 0.2], [0.9, 0.8]).value, auc([1.0, 2.0], [1.0, 2.0]).value
    (1.0, 0.5)
    """
    ins, outs = (np.array([v for v in side if v is not None], dtype=np.float64) for side in (members, others))
    if not len(ins) or not len(outs):
        return Score(None, why=f"{'no member' if not len(ins) else 'no hold-out'} row has a score")
    bad = int((~np.isfinite(ins)).sum() + (~np.isfinite(outs)).sum())
    if bad:
        return Score(
            None, n=len(ins), why=f"{bad} of {len(ins) + len(outs)} membership scores are not finite"
        )
    ins.sort()
    below = np.searchsorted(ins, outs, side="left").sum() + np.searchsorted(ins, outs, side="right").sum()
    return Score(float(below / (2.0 * len(ins) * len(outs))), n=len(ins))


@described(low=-100.0, high=None, unit="percent", source=f"MUSE sec. 3; {OPEN_UNLEARNING}, privleak")
def privleak(own_auc: float | None, reference_auc: float | None, least: float = 1e-3) -> Score:
    """Membership AUC relative to the retrained model's: ((1-AUC) - (1-AUC_ref)) / (1-AUC_ref) x 100.

    Args:
        own_auc: `auc` of the model.
        reference_auc: `auc` of the model that never saw the forget rows.
        least: smallest 1-AUC_ref that is divided by.

    Returns:
        0 is right; -100 when members are told perfectly; positive when they look *less* likely than
        strangers. Null without a reference (there is no default one), and null when 1-AUC_ref is below
        `least`: such a reference tells its members apart and was hardly retrained without them.

    >>> round(privleak(0.00002, 0.5).value, 3)
    99.996
    """
    if own_auc is None or reference_auc is None:
        return Score(
            None, why="no AUC of the model itself" if own_auc is None else "no AUC of a retrained model"
        )
    base = 1.0 - reference_auc
    if base < least:
        why = f"the reference AUC is {reference_auc:.6g}: 1 - AUC is below {least:g}, too small to divide by"
        return Score(None, why=f"{why}; is it the retrained model's?")
    return Score((reference_auc - own_auc) * 100.0 / base, n=1)


@dataclass(frozen=True)
class KSResult:
    """A two-sample Kolmogorov-Smirnov test.

    Attributes:
        p: chance of a distance at least this large between two samples of one distribution, 0..1.
        log10p: its logarithm, never below that of two fully separated samples of these sizes.
        d: largest distance of the two empirical distribution functions, 0..1.
        n, m: sizes of the two samples. p depends on them: no average over splits, no comparison between them.
    """

    p: float
    log10p: float
    d: float
    n: int
    m: int


def forget_quality(own: Sequence[float | None], reference: Sequence[float | None]) -> KSResult | str:
    """Two-sample KS test between the truth ratios of a model and of the retrained one (TOFU sec. 2.2).

    Args:
        own: R per forget row, from `memorization.truth_ratio`.
        reference: the same of the retrained model.

    Returns:
        The exact test, or the reason for which there is none. Taking 1/R or log R on both sides changes
        nothing. Two fully separated samples of sizes n and m give the floor 2 / C(n + m, n): .1 for 3
        against 3, so small samples cannot tell models apart.
    """
    from scipy.stats import ks_2samp

    a, b = (np.array([v for v in side if v is not None], dtype=np.float64) for side in (own, reference))
    if not len(a) or not len(b):
        return f"{'the model' if not len(a) else 'the reference'} has no truth ratio"
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return "a truth ratio is not finite"
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # scipy falls back to the limit law where p is all but 1
        result: Any = ks_2samp(a, b, method="exact" if max(len(a), len(b)) <= 5000 else "asymp")
    n, m = len(a), len(b)
    lowest = (math.log(2.0) + math.lgamma(n + 1) + math.lgamma(m + 1) - math.lgamma(n + m + 1)) / math.log(
        10.0
    )
    p = min(max(float(result.pvalue), 0.0), 1.0)
    log10p = min(max(math.log10(p), lowest), 0.0) if p > 0 else lowest
    return KSResult(p, log10p, float(result.statistic), n, m)
