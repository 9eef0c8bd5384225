"""Where a text ends: one rule for every generator, so that changing the generator changes no text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.text import Encoder


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text before the first of the stop strings, and whether there was one.

    >>> cut_at_stop("yes. Question: and", ["Question:", "."])
    ('yes', True)
    """
    places = [place for word in stop if word and (place := text.find(word)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def stop_ids(encoder: Encoder, *configs: Any) -> frozenset[int]:
    """What the tokenizer, its template, or any of a model's configs calls the end.

    Args:
        encoder: knows the tokenizer's EOS and its template's end of turn.
        configs: a model's config and generation config; `eos_token_id` of each is an id, a list, or missing.
    """
    found = set(encoder.eos_ids)
    for config in configs:
        value = getattr(config, "eos_token_id", None)
        if value is not None:
            found |= {int(i) for i in value} if isinstance(value, Iterable) else {int(value)}
    return frozenset(found)


def before_end(tokens: Sequence[int], ends: Collection[int]) -> tuple[list[int], bool]:
    """The tokens before the first that is an end, and whether there was one.

    >>> before_end([5, 2, 7], {2})
    ([5], True)
    """
    at = next((i for i, token in enumerate(tokens) if token in ends), None)
    return list(tokens[:at]), at is not None


def room_for(prompt: Sequence[int], max_tokens: int, positions: int | None) -> int:
    """How many tokens may follow a prompt: `max_tokens`, or less where the model has no position left.

    >>> room_for([1, 2, 3], 10, 8), room_for([1, 2, 3], 10, None)
    (5, 10)
    """
    return max_tokens if positions is None else min(max_tokens, positions - len(prompt))


def configs_of(model_path: str) -> tuple[Any, ...]:
    """A model's config and, where it has one, its generation config: read from files, without its weights."""
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(model_path)
    try:
        return config, GenerationConfig.from_pretrained(model_path)
    except OSError:  # optional: then there is nothing more to know
        return (config,)
