"""How far a model's answers are from the retain model's: Jensen-Shannon divergence of next-token distributions.

Shapes: N positions, V vocabulary or classes. Both models are in memory, and one batch of positions at a time; the
distributions of all rows never are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness import scoring
from harness.models import LoadedModel
from harness.runs import RunSpec, write_json
from harness.types import Case, Row, Task, TextRow


def jensen_shannon(p_logits: Tensor, q_logits: Tensor, chunk_elements: int | None = None) -> Tensor:
    """Jensen-Shannon divergence of softmax distributions, in nats, 0 (the same) to ln 2 (disjoint).

    Args:
        p_logits: [N, V], of any floating type; -inf is a probability of 0. At least one logit of a row is finite.
        q_logits: the same of the other model.
        chunk_elements: elements of [n, V] that are worked on at once; the values do not depend on it.

    Returns:
        [N] float64: (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2. Source: Lin 1991, Divergence measures based
        on the Shannon entropy (IEEE Transactions on Information Theory 37), eq. 4.1 with weights 1/2.

    >>> two = torch.tensor([[0.0, -math.inf], [0.0, 0.0]])
    >>> jensen_shannon(two, two.flip(1)).tolist()
    [0.6931471805599453, 0.0]
    """
    if p_logits.shape != q_logits.shape or p_logits.dim() != 2:
        raise ValueError(f"two arrays [N, V] of one shape; got {[*p_logits.shape]} and {[*q_logits.shape]}")
    device = "cuda" if p_logits.is_cuda else "cpu"
    step = max(1, (chunk_elements or scoring.CHUNK_ELEMENTS[device]) // max(1, p_logits.shape[1]))
    parts = [
        _divergence(p_logits[at : at + step], q_logits[at : at + step])
        for at in range(0, len(p_logits), step)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=p_logits.device)


def _divergence(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    p, q = (torch.log_softmax(logits.double(), dim=-1) for logits in (p_logits, q_logits))
    middle = torch.logaddexp(p, q) - math.log(2.0)

    def kl(log_p: Tensor) -> Tensor:
        return torch.where(log_p.isneginf(), 0.0, log_p.exp() * (log_p - middle)).sum(-1)

    return (0.5 * (kl(p) + kl(q))).clamp(0.0, math.log(2.0))


def rows_jsd(
    model: LoadedModel, retain: LoadedModel, rows: Sequence[Row], *, batch_elements: int | None = None
) -> list[float | None]:
    """Per row, the mean divergence over its answer's tokens (the closing EOS is one of them), in nats.

    Args:
        model: its encoder is the one that is used.
        retain: a model with the same vocabulary.
        rows: texts, or arrays, whose class counts as one token.
        batch_elements: logits [positions, V] that are alive at once for each model, but at least one row's.

    Returns:
        One value a row in the order of `rows`; None where the answer has no token.
    """
    found: list[float | None] = [None] * len(rows)
    with scoring.evaluating(model.model), scoring.evaluating(retain.model):
        for index in _batches(model, rows, batch_elements):
            inputs = scoring.collate(
                [rows[i] for i in index], model.encoder, device=str(next(model.model.parameters()).device)
            )
            logits = [scoring.forward(m.model, inputs).logits[inputs.mask] for m in (model, retain)]
            ends = np.cumsum(inputs.mask.sum(-1).tolist())
            values = np.split(jensen_shannon(logits[0], logits[1]).cpu().numpy(), ends[:-1])
            for i, row in zip(index, values, strict=True):
                found[i] = float(row.mean()) if len(row) else None
    return found


def _batches(model: LoadedModel, rows: Sequence[Row], elements: int | None) -> Iterator[list[int]]:
    """Numbers of rows of like length together, longest first."""
    device = next(model.model.parameters()).device.type
    elements = elements or 4 * scoring.CHUNK_ELEMENTS[device]
    if model.encoder is None:
        yield from ([*range(at, min(at + 4096, len(rows)))] for at in range(0, len(rows), 4096))
        return
    lengths = [len(model.encoder.encode(row).ids) for row in rows if isinstance(row, TextRow)]
    most = max(1, elements // _vocabulary(model))
    group: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: (-lengths[i], i)):
        if group and lengths[group[0]] * (len(group) + 1) > most:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _vocabulary(model: LoadedModel) -> int:
    return int(getattr(getattr(model.model, "config", None), "vocab_size", 1))


def mean_jsd(values: Sequence[float | None]) -> tuple[float | None, int, str]:
    """(mean over the rows that have a value, their number, why there is no mean)."""
    there = [v for v in values if v is not None]
    if not there:
        return None, 0, "no forget answer has a token"
    mean = math.fsum(there) / len(there)
    if not math.isfinite(mean):
        return None, 0, "logits of one of the models are not finite"
    return mean, len(there), ""


def run_jsd(
    folder: Path,
    case_of: Callable[[RunSpec], tuple[Task, Case]],
    load: Callable[[RunSpec, str], LoadedModel],
    begin: Callable[[RunSpec], None],
) -> None:
    """The `jsd` stage: a finished run's weights against the board's retain model; leaves jsd.json."""
    spec = RunSpec.read(folder)
    begin(spec)
    if "retain" not in spec.models:
        value, n, why = None, 0, f"board {spec.board.name} names no retain model"
    else:
        _, case = case_of(spec)
        model, retain = load(spec, str(folder / "model")), load(spec, spec.models["retain"])
        value, n, why = mean_jsd(rows_jsd(model, retain, case.forget))
    write_json(folder / "jsd.json", {"value": value, "n": n, "why": why})
