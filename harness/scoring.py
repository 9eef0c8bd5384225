"""The one forward: everything that runs a model on rows goes through here.

Shapes: B rows, T positions, K positions that predict an answer token (the tail of T), V vocabulary or classes.
An array row (an image, a pair of numbers) is a text with one answer token: K = 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from harness import packing, vision
from harness.errors import InputError
from harness.exact import exact_nll
from harness.types import ArrayRow, Row, TextRow, TokenScores

if TYPE_CHECKING:
    from harness.text import Encoder

BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Padded tokens that go through a model at once; on a processor small batches stay in the cache."""
CHUNK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Float32 elements of [tokens, V] that are alive at once while scores are reduced."""


@dataclass(frozen=True)
class Inputs:
    """Rows as tensors.

    Attributes:
        index: position of each row in the sequence it was taken from [B].
        x: token ids [B, T] padded on the right, or arrays [B, ...].
        attention: [B, T] bool, True on real tokens; None for arrays.
        labels: the token or class that each of the K positions must predict [B, K]; any valid id where masked.
        mask: True where a label counts [B, K] bool.
        answer: True on answer tokens themselves [B, T] bool (for losses on hidden states); None for arrays.
        tokens: number of real input tokens, or rows for arrays.
    """

    index: Tensor
    x: Tensor
    attention: Tensor | None
    labels: Tensor
    mask: Tensor
    answer: Tensor | None
    tokens: int

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Outputs:
    """What one forward gives a loss.

    Attributes:
        logits: [B, K, V]; position k predicts `labels[:, k]`.
        labels: [B, K] int64.
        mask: [B, K] bool; losses ignore positions where it is False.
        hidden: block number -> output of that block [B, T, d] (arrays: [B, 1, d]).
        answer: [B, T] bool, True on answer tokens, to go with `hidden`.
    """

    logits: Tensor
    labels: Tensor
    mask: Tensor
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    answer: Tensor | None = None


def collate(
    rows: Sequence[Row], encoder: Encoder | None, index: Sequence[int] | None = None, device: str = "cpu"
) -> Inputs:
    """Tensors of `rows`; texts are padded on the right, and the mask comes from lengths, never from ids."""
    where = torch.as_tensor(list(range(len(rows)) if index is None else index))
    if isinstance(rows[0], ArrayRow):
        x = torch.as_tensor(np.stack([row.inputs for row in rows]), device=device)
        labels = torch.as_tensor([[row.label] for row in rows], device=device)
        return Inputs(where, x, None, labels, torch.ones_like(labels, dtype=torch.bool), None, len(rows))
    if encoder is None:
        raise InputError(
            "texts need a tokenizer, and the model has none", "", "use a model folder with a tokenizer"
        )
    encoded = [encoder.encode(row) for row in rows if isinstance(row, TextRow)]
    return pad([e.ids for e in encoded], [e.start for e in encoded], encoder.pad_id, where, device)


def pad(
    ids: Sequence[Sequence[int]], starts: Sequence[int], pad_id: int, index: Tensor, device: str
) -> Inputs:
    """Token ids whose answers begin at `starts` (at least 1), as `Inputs` padded on the right."""
    width, first = max(map(len, ids)), max(min(starts), 1) - 1
    x = np.full((len(ids), width), pad_id, dtype=np.int64)
    real = np.zeros((len(ids), width), dtype=bool)
    answer = np.zeros((len(ids), width), dtype=bool)
    for i, (row, start) in enumerate(zip(ids, starts, strict=True)):
        x[i, : len(row)] = row
        real[i, : len(row)] = True
        answer[i, max(start, 1) : len(row)] = True
    arrays = {
        "x": x,
        "real": real,
        "answer": answer,
        "labels": x[:, first + 1 :],
        "mask": answer[:, first + 1 :],
    }
    tensor = {name: torch.as_tensor(value, device=device) for name, value in arrays.items()}
    return Inputs(
        index,
        tensor["x"],
        tensor["real"],
        tensor["labels"],
        tensor["mask"],
        tensor["answer"],
        int(real.sum()),
    )


def forward(model: nn.Module, inputs: Inputs, hidden: Sequence[int] = ()) -> Outputs:
    """One pass of `model` over `inputs`; logits only for the positions that predict answers.

    Args:
        model: a Hugging Face causal LM or image classifier, or a module that maps arrays [B, ...] to logits [B, V].
        inputs: see `collate`.
        hidden: numbers of the blocks whose outputs are wanted (0 is the first block).
    """
    if inputs.attention is None and vision.reads_pixels(model):
        logits, states, _ = vision.forward(model, inputs.x, hidden)
        return Outputs(logits[:, None], inputs.labels, inputs.mask, states)
    if inputs.attention is None:
        result = model(inputs.x, hidden=True) if hidden else model(inputs.x)
        logits, vector = result if hidden else (result, None)
        states = {} if vector is None else {layer: vector[:, None] for layer in hidden}
        return Outputs(logits[:, None], inputs.labels, inputs.mask, states)
    keep = inputs.labels.shape[1] + 1
    extra = {"logits_to_keep": keep} if _takes_logits_to_keep(model) else {}
    result = model(
        input_ids=inputs.x, attention_mask=inputs.attention.long(), use_cache=False,
        output_hidden_states=bool(hidden), **extra,
    )  # fmt: skip
    states = {layer: result.hidden_states[layer + 1] for layer in hidden}
    return Outputs(result.logits[:, -keep:-1], inputs.labels, inputs.mask, states, inputs.answer)


def _takes_logits_to_keep(model: nn.Module) -> bool:
    inner = getattr(model, "get_base_model", lambda: model)()
    return "logits_to_keep" in inspect.signature(inner.forward).parameters


def token_logp(outputs: Outputs) -> Tensor:
    """Log-probability of each label [B, K] float32, 0 where masked; differentiable, exact also when p is near 1.

    Plain float32 cross-entropy loses the gradient of rows that are learnt to 1 - 1e-7; see `harness.exact`.
    """
    return torch.where(outputs.mask, -exact_nll(outputs.logits, outputs.labels), 0.0)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inference mode with dropout off; the model's mode is put back."""
    was = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was)


def score(
    model: nn.Module, rows: Sequence[Row], encoder: Encoder | None = None, *, batch_tokens: int | None = None
) -> TokenScores:
    """Per-token scores of every row's target, in the order of `rows`.

    Identical rows go through the model once; texts are batched by length so that no batch is wider than
    `batch_tokens` padded tokens (but at least one row; default: `BATCH_TOKENS`). The values do not depend on the
    batching (to 1e-4 in float32).
    """
    if not rows:
        return _join([], [])
    if isinstance(rows[0], ArrayRow):
        return scores_from_logits(classify(model, rows), np.array([row.label for row in rows]))
    if encoder is None:
        raise InputError(
            "texts need a tokenizer, and the model has none", "", "use a model folder with a tokenizer"
        )
    encoded = [encoder.encode(row) for row in rows if isinstance(row, TextRow)]
    keys: list[packing.Key] = [(e.ids, max(e.start, 1)) for e in encoded]
    distinct = sorted(set(keys), key=lambda key: (len(key[0]), key))
    results: dict[packing.Key, list[np.ndarray]] = {}
    batch_tokens = batch_tokens or BATCH_TOKENS[next(model.parameters()).device.type]
    with evaluating(model):
        for group, states, labels, head in _passes(model, distinct, encoder.pad_id, batch_tokens):
            columns = reduce_logits(states, labels, head)
            ends = np.cumsum([len(ids) - start for ids, start in group])
            last = np.zeros(len(labels), dtype=bool)
            for end, (ids, start) in zip(ends, group, strict=True):
                if len(ids) > start:
                    last[end - 1] = ids[-1] in encoder.eos_ids
            split = [np.split(c, ends[:-1]) for c in (columns[0], columns[1], last, columns[2], columns[3])]
            results |= {key: [column[i] for column in split] for i, key in enumerate(group)}
    return _join([results[key] for key in keys], [len(ids) - start for ids, start in keys])


Head = Callable[[Tensor], Tensor]


def _passes(
    model: Any, keys: Sequence[packing.Key], pad_id: int, batch_tokens: int
) -> Iterator[tuple[list[packing.Key], Tensor, Tensor, Head | None]]:
    """(rows, states [N, d] or logits [N, V], labels [N], what makes logits of states) of every batch.

    Several answers to one prompt share its pass where the model allows it.
    """

    def plain(group: Sequence[packing.Key]) -> tuple[Tensor, Tensor]:
        device = str(next(model.parameters()).device)
        inputs = pad(
            [ids for ids, _ in group], [start for _, start in group], pad_id, torch.arange(len(group)), device
        )
        out = forward(model, inputs)
        return out.logits[out.mask], out.labels[out.mask]

    if packing.usable(model, keys, pad_id, plain):
        head = model.get_output_embeddings()
        for packed in packing.batches(packing.packs(keys, packing.longest(model)), batch_tokens):
            yield (
                [key for pack in packed for key in pack.keys],
                *packing.hidden_states(model, packed, pad_id),
                head,
            )
    else:
        for group in _groups(keys, batch_tokens):
            yield group, *plain(group), None


def _groups(keys: Sequence[packing.Key], batch_tokens: int) -> Iterator[list[packing.Key]]:
    group: list[packing.Key] = []
    for key in reversed(keys):  # longest first: memory peaks at once, not at the end
        if group and len(group[0][0]) * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(key)
    if group:
        yield group


def reduce_logits(
    states: Tensor, labels: Tensor, head: Head | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(log p of the label, label is the first choice, mean and variance of log p under p), each [N].

    Args:
        states: logits [N, V], or hidden states [N, d] of which `head` makes logits.
        labels: [N].
        head: the output layer, when `states` are hidden states.

    Works through N in small chunks, so that [N, V] is never in memory at once, and what is stays in the cache. With
    d = z - max z and r = sum of exp(d) over all but the first choice, log p = d_y - log1p(r): exact also where p is
    within 1e-8 of 1; E[log p] and Var[log p] follow from sums of exp(d) d and exp(d) d^2.
    """
    width = CHUNK_ELEMENTS["cuda" if states.is_cuda else "cpu"]
    vocab = states.shape[-1] if head is None else head.weight.shape[0]  # type: ignore[attr-defined]
    step = max(1, width // max(1, vocab))
    parts: list[tuple[Tensor, ...]] = []
    for at in range(0, len(labels), step):
        chunk = states[at : at + step]
        chunk = chunk.float().clone() if head is None else head(chunk).float()
        parts.append(_reduce(chunk, labels[at : at + step]))
    if not parts:
        empty = np.zeros(0, dtype=np.float32)
        return empty, np.zeros(0, dtype=bool), empty, empty
    right, hit, mean, variance = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return right, hit, mean, variance


def _reduce(z: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    top, best = z.max(-1, keepdim=True)
    gap = z.sub_(top)
    weight = gap.exp().scatter_(-1, best, 0.0)
    rest = weight.sum(-1)
    log_sum = torch.log1p(rest)
    weight.mul_(gap)
    total = weight.sum(-1)
    if not torch.isfinite(total).all():  # a logit of -inf: 0 x -inf counts as 0
        weight.nan_to_num_(nan=0.0)
        gap.clamp_(min=-1e4)
        total = torch.where(torch.isfinite(top[:, 0]), weight.sum(-1), float("nan"))
    first = total / (1.0 + rest)
    second = torch.linalg.vecdot(weight, gap) / (1.0 + rest)
    right = gap.gather(-1, labels[:, None])[:, 0] - log_sum
    return right, best[:, 0] == labels, first - log_sum, (second - first.square()).clamp(min=0.0)


def classify(model: nn.Module, rows: Sequence[ArrayRow] | Sequence[Row], *, batch: int = 4096) -> np.ndarray:
    """Class logits [rows, V] float32 of array rows."""
    parts: list[np.ndarray] = []
    device = str(next(model.parameters()).device)
    batch = min(batch, vision.batch(model)) if vision.reads_pixels(model) else batch
    with evaluating(model):
        for at in range(0, len(rows), batch):
            out = forward(model, collate(rows[at : at + batch], None, device=device))
            parts.append(out.logits[:, 0].float().cpu().numpy())
    return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)


def features(model: nn.Module, rows: Sequence[ArrayRow]) -> tuple[np.ndarray, np.ndarray]:
    """Class logits [rows, V] of an image classifier and the features that its head reads [rows, d], both float32."""
    parts: list[tuple[np.ndarray, ...]] = []
    device, batch = str(next(model.parameters()).device), vision.batch(model)
    with evaluating(model):
        for at in range(0, len(rows), batch):
            logits, _, read = vision.forward(model, collate(rows[at : at + batch], None, device=device).x)
            parts.append(tuple(t.float().cpu().numpy() for t in (logits, read)))
    if not parts:
        return np.zeros((0, 0), dtype=np.float32), np.zeros((0, 0), dtype=np.float32)
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def scores_from_logits(logits: np.ndarray, labels: np.ndarray) -> TokenScores:
    """One-token scores of class logits [rows, V]."""
    right, hit, mean, variance = reduce_logits(torch.as_tensor(logits), torch.as_tensor(labels))
    return TokenScores(
        right,
        hit,
        np.zeros(len(labels), dtype=bool),
        mean,
        variance,
        np.arange(len(labels) + 1, dtype=np.int64),
    )


def _join(rows: Sequence[Sequence[np.ndarray]], lengths: Sequence[int]) -> TokenScores:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    types = (np.float32, bool, bool, np.float32, np.float32)
    joined = [
        np.concatenate([row[i] for row in rows]).astype(kind) if rows else np.zeros(0, dtype=kind)
        for i, kind in enumerate(types)
    ]
    return TokenScores(*joined, offsets)


def row_means(scores: TokenScores) -> tuple[float, float]:
    """(mean over rows of the per-row geometric token probability, mean over rows of the share of hits)."""
    lengths = np.diff(scores.offsets)
    if not len(lengths) or lengths.min() == 0:
        scores_rows = [r for r in scores if len(r.logp)]
        p = [float(np.exp(r.logp.astype(np.float64).mean())) for r in scores_rows]
        acc = [float(r.hit.mean()) for r in scores_rows]
        return (float(np.mean(p)), float(np.mean(acc))) if p else (float("nan"), float("nan"))
    starts = scores.offsets[:-1]
    p = np.exp(np.add.reduceat(scores.logp.astype(np.float64), starts) / lengths)
    accuracy = np.add.reduceat(scores.hit.astype(np.float64), starts) / lengths
    return float(p.mean()), float(accuracy.mean())
