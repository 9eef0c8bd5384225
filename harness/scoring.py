"""The one forward: everything that runs a model on rows goes through here.

Shapes: B rows, T positions, K positions that predict an answer token (the tail of T), V vocabulary or classes.
An array row (an image, a pair of numbers) is a text with one answer token: K = 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from harness.errors import InputError
from harness.exact import exact_nll
from harness.types import ArrayRow, Row, TextRow, TokenScores

if TYPE_CHECKING:
    from harness.text import Encoder

BATCH_TOKENS = 8192
CHUNK_ELEMENTS = 1 << 24  # float32 elements of [tokens, V] that are alive at once while scores are reduced


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
        raise InputError("texts need a tokenizer, and the model has none", "", "use a model folder with a tokenizer")
    encoded = [encoder.encode(row) for row in rows if isinstance(row, TextRow)]
    return pad([e.ids for e in encoded], [e.start for e in encoded], encoder.pad_id, where, device)


def pad(ids: Sequence[Sequence[int]], starts: Sequence[int], pad_id: int, index: Tensor, device: str) -> Inputs:
    """Token ids whose answers begin at `starts` (at least 1), as `Inputs` padded on the right."""
    width, first = max(map(len, ids)), max(min(starts), 1) - 1
    x = np.full((len(ids), width), pad_id, dtype=np.int64)
    real = np.zeros((len(ids), width), dtype=bool)
    answer = np.zeros((len(ids), width), dtype=bool)
    for i, (row, start) in enumerate(zip(ids, starts, strict=True)):
        x[i, : len(row)] = row
        real[i, : len(row)] = True
        answer[i, max(start, 1) : len(row)] = True
    tensor = {name: torch.as_tensor(value, device=device) for name, value in
              {"x": x, "real": real, "answer": answer, "labels": x[:, first + 1 :], "mask": answer[:, first + 1 :]}.items()}  # fmt: skip
    return Inputs(
        index, tensor["x"], tensor["real"], tensor["labels"], tensor["mask"], tensor["answer"], int(real.sum())
    )


def forward(model: nn.Module, inputs: Inputs, hidden: Sequence[int] = ()) -> Outputs:
    """One pass of `model` over `inputs`; logits only for the positions that predict answers.

    Args:
        model: a Hugging Face causal LM, or a module that maps arrays [B, ...] to logits [B, V].
        inputs: see `collate`.
        hidden: numbers of the blocks whose outputs are wanted (0 is the first block).
    """
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
    model: nn.Module, rows: Sequence[Row], encoder: Encoder | None = None, *, batch_tokens: int = BATCH_TOKENS
) -> TokenScores:
    """Per-token scores of every row's target, in the order of `rows`.

    Identical rows go through the model once; texts are batched by length so that no batch is wider than
    `batch_tokens` padded tokens (but at least one row). The values do not depend on the batching (to 1e-4 in float32).
    """
    if not rows:
        return _join([], [])
    if isinstance(rows[0], ArrayRow):
        return scores_from_logits(classify(model, rows), np.array([row.label for row in rows]))
    if encoder is None:
        raise InputError("texts need a tokenizer, and the model has none", "", "use a model folder with a tokenizer")
    encoded = [encoder.encode(row) for row in rows if isinstance(row, TextRow)]
    keys = [(e.ids, e.start) for e in encoded]
    distinct = sorted(set(keys), key=lambda key: (len(key[0]), key))
    results: dict[tuple[tuple[int, ...], int], list[np.ndarray]] = {}
    with evaluating(model):
        for group in _groups(distinct, batch_tokens):
            for key, parts in zip(group, _score_group(model, group, encoder), strict=True):
                results[key] = parts
    return _join([results[key] for key in keys], [len(key[0]) - max(key[1], 1) for key in keys])


def _groups(
    keys: Sequence[tuple[tuple[int, ...], int]], batch_tokens: int
) -> Iterator[list[tuple[tuple[int, ...], int]]]:
    group: list[tuple[tuple[int, ...], int]] = []
    for key in reversed(keys):  # longest first: memory peaks at once, not at the end
        if group and len(group[0][0]) * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(key)
    if group:
        yield group


def _score_group(
    model: nn.Module, group: Sequence[tuple[tuple[int, ...], int]], encoder: Encoder
) -> list[list[np.ndarray]]:
    device = str(next(model.parameters()).device)
    inputs = pad([k[0] for k in group], [k[1] for k in group], encoder.pad_id, torch.arange(len(group)), device)
    out = forward(model, inputs)
    columns = reduce_logits(out.logits[out.mask], out.labels[out.mask])
    lengths = inputs.mask.sum(1).tolist()
    last = np.zeros(sum(lengths), dtype=bool)
    ends = np.cumsum(lengths)
    for end, key, length in zip(ends, group, lengths, strict=True):
        if length:
            last[end - 1] = key[0][-1] in encoder.eos_ids
    split = [np.split(column, ends[:-1]) for column in (columns[0], columns[1], last, columns[2], columns[3])]
    return [[column[i] for column in split] for i in range(len(group))]


def reduce_logits(logits: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(log p of the label, label is the first choice, mean and variance of log p under p) of [N, V] logits.

    Works through N in chunks, so that no second [N, V] float32 copy is ever alive.
    """
    count, vocab = logits.shape
    step = max(1, CHUNK_ELEMENTS // max(1, vocab))
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for at in range(0, count, step):
        chunk, wanted = logits[at : at + step].float(), labels[at : at + step]
        right = -exact_nll(chunk, wanted)
        logp = torch.log_softmax(chunk, dim=-1)
        p = logp.exp()
        seen = torch.where(p > 0, logp, 0.0)
        mean = (p * seen).sum(-1)
        variance = (p * (seen - mean[:, None]).square()).sum(-1)
        parts.append((right, chunk.argmax(-1) == wanted, mean, variance))
    if not parts:
        empty = np.zeros(0, dtype=np.float32)
        return empty, np.zeros(0, dtype=bool), empty, empty
    right, hit, mean, variance = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    return right, hit, mean, variance


def classify(model: nn.Module, rows: Sequence[ArrayRow] | Sequence[Row], *, batch: int = 4096) -> np.ndarray:
    """Class logits [rows, V] float32 of array rows."""
    parts: list[np.ndarray] = []
    device = str(next(model.parameters()).device)
    with evaluating(model):
        for at in range(0, len(rows), batch):
            out = forward(model, collate(rows[at : at + batch], None, device=device))
            parts.append(out.logits[:, 0].float().cpu().numpy())
    return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)


def scores_from_logits(logits: np.ndarray, labels: np.ndarray) -> TokenScores:
    """One-token scores of class logits [rows, V]."""
    right, hit, mean, variance = reduce_logits(torch.as_tensor(logits), torch.as_tensor(labels))
    return TokenScores(
        right, hit, np.zeros(len(labels), dtype=bool), mean, variance, np.arange(len(labels) + 1, dtype=np.int64)
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
