"""Likelihoods of several answers to one prompt in one pass.

The prompt and its answers are laid into one sequence, `[prompt][answer 1][answer 2]...`; every answer sees the prompt
and itself, not the others, and its positions count on from the prompt. So the prompt's computation is shared (a TOFU
question has seven answers), and logits are computed only where an answer token is predicted.

Not every model allows this (sliding windows, scaled or capped logits, recurrent layers). `usable` tries it on the first
rows and compares with the plain pass; where the values differ the plain pass is used for everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Key = tuple[tuple[int, ...], int]
"""Token ids of a row, and where its answer starts (at least 1)."""


@dataclass(frozen=True)
class Pack:
    """One prompt with some of its answers."""

    prompt: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.prompt) + sum(map(len, self.answers))

    @property
    def keys(self) -> list[Key]:
        """The rows in here, in order."""
        return [((*self.prompt, *answer), len(self.prompt)) for answer in self.answers]


def packs(keys: Sequence[Key], limit: int) -> list[Pack]:
    """All rows, grouped by prompt; no pack is longer than `limit` tokens unless it holds a single answer."""
    by_prompt: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for ids, start in keys:
        at = max(start, 1)
        by_prompt.setdefault(ids[:at], []).append(ids[at:])
    out = []
    for prompt, answers in by_prompt.items():
        group: list[tuple[int, ...]] = []
        size = len(prompt)
        for answer in answers:
            if group and size + len(answer) > limit:
                out.append(Pack(prompt, tuple(group)))
                group, size = [], len(prompt)
            group.append(answer)
            size += len(answer)
        out.append(Pack(prompt, tuple(group)))
    return out


def batches(items: Sequence[Pack], tokens: int) -> Iterator[list[Pack]]:
    """Packs of like length together, longest first, at most `tokens` padded tokens a batch (at least one pack)."""
    group: list[Pack] = []
    for pack in sorted(items, key=lambda p: (-len(p), p.prompt, p.answers)):
        if group and len(group[0]) * (len(group) + 1) > tokens:
            yield group
            group = []
        group.append(pack)
    if group:
        yield group


def hidden_states(model: Any, group: Sequence[Pack], pad_id: int) -> tuple[Tensor, Tensor]:
    """For every answer token of a batch of packs, pack by pack: the state [N, d] before it, and its label [N]."""
    device = next(model.parameters()).device
    width = max(map(len, group))
    x = np.full((len(group), width), pad_id, dtype=np.int64)
    position = np.zeros((len(group), width), dtype=np.int64)
    sees = np.zeros((len(group), width, width), dtype=bool)
    rows: list[int] = []
    columns: list[int] = []
    labels: list[int] = []
    for i, pack in enumerate(group):
        p = len(pack.prompt)
        x[i, :p], position[i, :p] = pack.prompt, np.arange(p)
        sees[i, :p, :p] = np.tri(p, dtype=bool)
        at = p
        for answer in pack.answers:
            end = at + len(answer)
            x[i, at:end], position[i, at:end] = answer, np.arange(p, p + len(answer))
            sees[i, at:end, :p] = True
            sees[i, at:end, at:end] = np.tri(len(answer), dtype=bool)
            rows += [i] * len(answer)
            columns += [p - 1, *range(at, end - 1)][: len(answer)]
            labels += answer
            at = end
        sees[i, np.arange(at, width), np.arange(at, width)] = True  # padding sees itself: no empty softmax
    mask = torch.zeros(sees.shape, dtype=next(model.parameters()).dtype, device=device)
    mask.masked_fill_(~torch.as_tensor(sees, device=device), torch.finfo(mask.dtype).min)
    hidden = model.base_model(
        input_ids=torch.as_tensor(x, device=device), position_ids=torch.as_tensor(position, device=device),
        attention_mask=mask[:, None], use_cache=False,
    ).last_hidden_state  # fmt: skip
    picked = hidden[torch.as_tensor(rows, device=device), torch.as_tensor(columns, device=device)]
    return picked, torch.as_tensor(labels, device=device)


def longest(model: Any) -> int:
    """Most tokens of one pack: attention grows with the pack, the prompt's repetition with its inverse."""
    return int(min(1024, max(128, 2 * getattr(model.config, "hidden_size", 512))))


def usable(model: nn.Module, keys: Sequence[Key], pad_id: int, plain: Any) -> bool:
    """Whether packing gives this model's own values, tried on the first rows that share a prompt.

    Args:
        model: a Hugging Face causal LM; other modules are never packed.
        keys: all rows.
        pad_id: fills batches up.
        plain: keys -> (logits [N, V], labels [N]) by the plain pass, in the same order.
    """
    if (
        not (hasattr(model, "base_model") and hasattr(model, "get_output_embeddings"))
        or model.base_model is model
    ):
        return False
    several = [p for p in packs(keys, longest(model)) if len(p.answers) > 1 and len(p) > len(p.prompt)]
    trial = sorted(several, key=lambda p: (len(p), p.prompt))[:: max(1, len(several) - 1)][:2]
    if not trial:
        return False
    try:
        states, labels = hidden_states(model, trial, pad_id)
        mine = model.get_output_embeddings()(states)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
        return False  # a model that takes no positions or no such mask: the plain pass answers
    theirs, same = plain([key for pack in trial for key in pack.keys])
    tolerance = 1e-4 if mine.dtype == torch.float32 else 0.1
    close = (torch.log_softmax(mine.float(), -1) - torch.log_softmax(theirs.float(), -1)).abs()
    return bool(torch.equal(labels, same)) and float(close.gather(-1, labels[:, None]).max()) < tolerance
