"""Greedy or drawn text from a Hugging Face model in memory.

The loop is our own: `model.generate` merges the model's `generation_config` into whatever it is given, so
that a repetition penalty or a forced token stored with a checkpoint would change what greedy means.

Shapes: B rows, T positions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.generate.stops import cut_at_stop, room_for, stop_ids
from harness.scoring import evaluating
from harness.text import Encoder


class HFGenerator:
    """Continuations, greedy or drawn; each row's text is that of batch size 1, float tolerance aside.

    Once half of a batch has ended, the rest goes on without it.

    Args:
        model: a causal language model. Nothing of it is changed; its `generation_config` gives end-of-text
            ids and nothing else.
        encoder: decodes, and names pad and end-of-text ids.
        batch_size: most rows at a time.
    """

    def __init__(self, model: nn.Module, encoder: Encoder, batch_size: int = 32) -> None:
        self.model, self.encoder, self.batch_size = model, encoder, max(1, batch_size)
        self.stop_ids = stop_ids(
            encoder, getattr(model, "config", None), getattr(model, "generation_config", None)
        )
        """What the tokenizer, its template, the model's config or its generation config call the end."""
        inner = getattr(model, "get_base_model", lambda: model)()
        self._takes = frozenset(inspect.signature(inner.forward).parameters)
        self._room: int | None = getattr(getattr(model, "config", None), "max_position_embeddings", None)

    def generate(
        self,
        token_ids: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> tuple[tuple[str, bool], ...]:
        """One (text, was cut at the limit) per prompt, in the order of `token_ids`.

        Args:
            token_ids: prompts, each of at least one token.
            max_tokens: most new tokens; less where the model has no position left.
            stop: strings that end a text and are cut off with what follows; looked for in each row's text.
            temperature: 0 is greedy; above, tokens are drawn from p^(1 / temperature).
            seed: with a prompt's place in `token_ids`, decides what is drawn for it; greedy texts do not need it.

        The texts come without special tokens and surrounding blanks.
        """
        order = sorted(range(len(token_ids)), key=lambda i: (-len(token_ids[i]), tuple(token_ids[i])))
        out: list[tuple[str, bool]] = [("", False)] * len(token_ids)
        with evaluating(self.model):
            for at in range(0, len(order), self.batch_size):
                group = order[at : at + self.batch_size]
                draws = [np.random.default_rng([seed, i]) for i in group] if temperature > 0 else None
                choose = _greedy if draws is None else _Draw(temperature, draws)
                found = self._batch([token_ids[i] for i in group], max_tokens, stop, choose)
                for i, answer in zip(group, found, strict=True):
                    out[i] = answer
        return tuple(out)

    def _batch(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        stop: Sequence[str],
        choose: Callable[[Tensor, Sequence[int]], Tensor],
    ) -> list[tuple[str, bool]]:
        device = next(self.model.parameters()).device
        ids, mask = _pad_left(prompts, self.encoder.pad_id)
        ids, mask = ids.to(device), mask.to(device)
        limits = [room_for(p, max_tokens, self._room) for p in prompts]
        said: list[list[int]] = [[] for _ in prompts]
        ended = [False] * len(prompts)
        going = [limit > 0 for limit in limits]
        rows, past = list(range(len(prompts))), None  # rows[k]: which prompt the k-th row of the tensors is
        while any(going):
            logits, past = self._step(ids, mask, past)
            chosen: list[int] = choose(logits, rows).tolist()
            for i, token in zip(rows, chosen, strict=True):
                if not going[i]:
                    continue
                if token in self.stop_ids:
                    ended[i] = True
                else:
                    said[i].append(token)
                    ended[i] = bool(stop) and cut_at_stop(self.encoder.decode(said[i]), stop)[1]
                going[i] = not ended[i] and len(said[i]) < limits[i]
            new = torch.tensor(
                [[t if going[i] else self.encoder.pad_id] for i, t in zip(rows, chosen, strict=True)]
            ).to(device)
            ids = new if past is not None else torch.cat([ids, new], dim=1)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            kept = [k for k, i in enumerate(rows) if going[i]]
            if 0 < len(kept) <= len(rows) // 2 and (past is None or hasattr(past, "batch_select_indices")):
                rows, where = [rows[k] for k in kept], torch.tensor(kept, device=device)
                ids, mask = ids[where], mask[where]
                if past is not None:
                    past.batch_select_indices(where)
        texts = [cut_at_stop(self.encoder.decode(tokens), stop)[0].strip() for tokens in said]
        return [(text, not end) for text, end in zip(texts, ended, strict=True)]

    def _step(self, ids: Tensor, mask: Tensor, past: Any) -> tuple[Tensor, Any]:
        """Logits of the next token [B, V] and the cache; with a cache, `ids` are the new tokens alone."""
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in self._takes:
            inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if "past_key_values" in self._takes:
            inputs |= {"past_key_values": past, "use_cache": True}
        if "logits_to_keep" in self._takes:
            inputs["logits_to_keep"] = 1
        result = self.model(**inputs)
        return result.logits[:, -1].float(), getattr(result, "past_key_values", None)


def _greedy(logits: Tensor, rows: Sequence[int]) -> Tensor:
    return logits.argmax(-1)


class _Draw:
    """Next tokens [B] by the inverse of each row's distribution function, from one uniform number a row and step."""

    def __init__(self, temperature: float, draws: Sequence[np.random.Generator]) -> None:
        self._temperature, self._draws = temperature, draws

    def __call__(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        below = (logits.double() / self._temperature).softmax(-1).cumsum(-1)
        uniform = torch.tensor([[self._draws[i].random()] for i in rows], dtype=below.dtype)
        at = torch.searchsorted(below, uniform.to(below.device) * below[:, -1:], right=True)
        return at[:, 0].clamp(max=logits.shape[-1] - 1)


def _pad_left(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids [B, T] with padding before them, and a mask from the lengths [B, T] int64: never from ids."""
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):
        ids[i, width - len(prompt) :] = torch.as_tensor(list(prompt))
        mask[i, width - len(prompt) :] = 1
    return ids, mask
