"""A generator that has its answers ready: for tests, and for trying a task without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.generate.stops import cut_at_stop


class CannedGenerator:
    """Answers from a mapping of prompt ids to text.

    Args:
        answers: prompt ids -> what is said after them.
        default: what is said after any other prompt; None makes such a prompt a `KeyError`.

    The limit is counted in words, since there is no tokenizer: a longer text is cut there.

    >>> CannedGenerator({(1, 2): "a river in France"}).generate([[1, 2]], max_tokens=2)
    (('a river', True),)
    """

    def __init__(self, answers: Mapping[tuple[int, ...], str], default: str | None = "") -> None:
        self.answers, self.default = dict(answers), default

    def generate(
        self,
        token_ids: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> tuple[tuple[str, bool], ...]:
        """One (text, was cut at the limit) per prompt, in order; it says the same at every temperature."""
        return tuple(self._one(tuple(ids), max_tokens, stop) for ids in token_ids)

    def _one(self, prompt: tuple[int, ...], max_tokens: int, stop: Sequence[str]) -> tuple[str, bool]:
        said = self.answers.get(prompt, self.default)
        if said is None:
            raise KeyError(f"no canned answer to the prompt {prompt}")
        text, _ = cut_at_stop(said, stop)
        words = text.split(" ")
        return (" ".join(words[:max_tokens]), True) if len(words) > max_tokens else (text, False)
