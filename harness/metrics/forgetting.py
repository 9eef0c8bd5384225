"""Class-level forgetting from logits and features: tug-of-war, membership, divergence, what a probe still finds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.metrics import described

TOW = "Zhao et al. 2024 (arXiv 2406.01257), section 4; Unmerge paper, eq. 8"
ATTACKS = ("correctness", "confidence", "entropy", "modified_entropy")
"""Membership scores of Song and Mittal 2021 (arXiv 2003.10595), section 3.2."""
RIDGE = 1e-2


@described(low=0.0, high=1.0, unit="share", source=TOW)
def tow(own: Mapping[str, float], retrained: Mapping[str, float]) -> float:
    """Tug of war: (1 - |dF|)(1 - |dR|)(1 - |dT|), d = accuracy minus the retrained model's, on forget, retain, test.

    Accuracies are shares 0..1. 1 when the model is as accurate as the retrained one everywhere.

    >>> same = {"forget": 0.1, "retain": 0.99, "test": 0.8}
    >>> round(tow({"forget": 0.15, "retain": 0.98, "test": 0.78}, same), 6)
    0.92169
    """
    gaps = [1.0 - abs(own[name] - retrained[name]) for name in ("forget", "retain", "test")]
    return float(np.prod(gaps))


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Log-softmax over classes [N, C] float64."""
    z = np.asarray(logits, np.float64)
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def membership(logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Attack -> score of each row [N] float64; higher looks more like a member of the training set.

    `correctness`: 1 when the first choice is right. `confidence`: log p of the label. `entropy`: minus the entropy
    of p. `modified_entropy`: minus the paper's Mentr, (1 - p_y) log p_y + sum over the other classes of
    p_c log(1 - p_c); SalUn's public code (Unlearn-Saliency, SVC_MIA.py) has log p_c there.
    """
    logp = log_probabilities(logits)
    p, index = np.exp(logp), np.arange(len(labels))
    with np.errstate(divide="ignore"):
        log_not = np.log1p(-np.minimum(p, 1.0))
    others = np.where(p > 0, p * np.maximum(log_not, np.log(1e-30)), 0.0)
    mentr = others.sum(1) - others[index, labels] + (1.0 - p[index, labels]) * logp[index, labels]
    return {
        "correctness": (logp.argmax(1) == labels).astype(np.float64),
        "confidence": logp[index, labels],
        "entropy": (p * np.maximum(logp, -1e30)).sum(1),
        "modified_entropy": mentr,
    }


def best_threshold(members: np.ndarray, others: np.ndarray) -> float:
    """The score from which a row is called a member, with the highest balanced accuracy; of equals the lowest.

    >>> best_threshold(np.array([2.0, 3.0]), np.array([0.0, 1.0]))
    2.0
    """
    values = np.unique(np.concatenate([members, others]))
    called = [1.0 - np.searchsorted(np.sort(s), values, side="left") / len(s) for s in (members, others)]
    return float(values[np.argmax(called[0] - called[1])])


@described(low=0.0, high=1.0, unit="share of rows", source="Unmerge paper, App. E.6; Song and Mittal 2021")
def called_members(
    forget: tuple[np.ndarray, np.ndarray],
    members: tuple[np.ndarray, np.ndarray],
    others: tuple[np.ndarray, np.ndarray],
) -> dict[str, float]:
    """Attack -> share of the forget rows that it calls members, its threshold set on known members and non-members.

    Args:
        forget: logits [N, C] and labels [N].
        members: of rows the model was trained on, whoever it is: retain rows.
        others: of rows no model was trained on.
    """
    asked, known, unknown = (membership(*rows) for rows in (forget, members, others))
    return {
        name: float((asked[name] >= best_threshold(known[name], unknown[name])).mean()) for name in ATTACKS
    }


@described(low=0.0, high=None, unit="nats", source="Unmerge paper, App. E.8 (which divergence is not given)")
def divergence(own: np.ndarray, retrained: np.ndarray) -> np.ndarray:
    """KL(retrained || own) of the predicted distributions, per row [N].

    Args:
        own: logits of the model [N, C].
        retrained: logits of the retrained model [N, C].
    """
    q, p = log_probabilities(own), log_probabilities(retrained)
    return np.maximum((np.exp(p) * (p - q)).sum(1), 0.0)


@described(low=0.0, high=1.0, unit="share", source="Unmerge paper, App. F (the probe's form is not given)")
def probe_accuracy(
    forget: np.ndarray, retain: np.ndarray, forget_new: np.ndarray, retain_new: np.ndarray
) -> float:
    """Balanced accuracy of a linear probe that tells forgotten classes from the others by frozen features, 0..1.

    Ridge regression on +-1, both sides weighed alike, on features standardised over the rows it is fitted to. .5 is
    chance: nothing is linearly readable.

    Args:
        forget: features of forget rows that it is fitted to [N, d].
        retain: the same of retain rows [M, d].
        forget_new: features of rows of the forgotten classes that no model was trained on.
        retain_new: the same of other classes.
    """
    x = np.concatenate([forget, retain]).astype(np.float64)
    y = np.concatenate([np.ones(len(forget)), -np.ones(len(retain))])
    weight = np.where(y > 0, 0.5 / len(forget), 0.5 / len(retain))
    mean = weight @ x
    scale = np.sqrt(weight @ (x - mean) ** 2)
    scale[scale == 0] = 1.0
    z = (x - mean) / scale
    gram = (z * weight[:, None]).T @ z + RIDGE * np.eye(x.shape[1])
    direction = np.linalg.solve(gram, z.T @ (weight * y))
    said = [((new - mean) / scale) @ direction > 0 for new in (forget_new, retain_new)]
    return float((said[0].mean() + 1.0 - said[1].mean()) / 2.0)
