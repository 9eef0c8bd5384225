"""Greedy text from a server with OpenAI's completions interface, such as `vllm serve FOLDER`.

Prompts go out as token ids, so the server adds no BOS. A server that returns token ids (vLLM does) has its
answer decoded by our own encoder; from any other the text is taken as it is.

A server is asked which models it has before the first prompt: one that serves other weights would give
numbers that look right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urlsplit

from harness.errors import InputError, ModelError, RunError
from harness.generate.endpoint import TIMEOUT_S, Endpoint
from harness.generate.stops import before_end, configs_of, cut_at_stop, room_for, stop_ids
from harness.text import Encoder

AT_A_TIME = 64
GREEDY = {
    "temperature": 0.0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,  # a server may take its defaults from the checkpoint's generation config
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def parse(address: str, what: str = "generator") -> tuple[str, str]:
    """The base address without `/v1`, and the name under which the server knows the model (after `#`).

    >>> parse("http://localhost:8000/v1/"), parse("http://box:8000#my-model")
    (('http://localhost:8000', ''), ('http://box:8000', 'my-model'))

    Raises:
        InputError: this is no address of a server; `what` was to be found there.
    """
    base, name = urldefrag(address)
    try:
        parts = urlsplit(base)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise InputError(
            f"{what} openai: {address!r} is no address",
            "it begins with http:// or https://, and has a host",
            "write openai:URL, such as openai:http://localhost:8000",
        )
    return base.rstrip("/").removesuffix("/v1").rstrip("/"), name


class OpenAIGenerator:
    """Greedy continuations by a server: the texts of `HFGenerator`, float tolerance aside.

    Args:
        url: base address, with or without `/v1`.
        model: the folder or hub id of the model whose texts are wanted. Its config gives end-of-text ids and
            the number of positions.
        encoder: decodes, and names end-of-text ids.
        served_as: the server's name for the model; without it, the server must have a model whose id or root
            is `model`.
        timeout_s: longest wait for one answer of the server.
        sleep: waits between tries; tests hand in their own.

    Raises:
        ModelError: the server has another model, or one with too few positions.
        RunError: the server cannot be reached, or refuses.
    """

    def __init__(
        self,
        url: str,
        model: str,
        encoder: Encoder,
        *,
        served_as: str = "",
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url, _ = parse(url)
        self.model, self.encoder = model, encoder
        self._endpoint = Endpoint(self.url, timeout_s=timeout_s, sleep=sleep)
        configs = configs_of(model)
        self.stop_ids = stop_ids(encoder, *configs)
        """What the tokenizer, its template, the model's config or its generation config call the end."""
        self._positions: int | None = getattr(configs[0], "max_position_embeddings", None)
        self.name, self._served = self._find(served_as)

    # --- what callers use -----------------------------------------------------------------------------------
    def describe(self) -> dict[str, Any]:
        """What made the texts, for the run record: the server's software, not its address."""
        return {"name": "openai", "server": self._served.get("owned_by"), "engine": self._version()}

    def generate(
        self, token_ids: Sequence[Sequence[int]], *, max_tokens: int, stop: Sequence[str] = ()
    ) -> tuple[tuple[str, bool], ...]:
        """One (text, was cut at the limit) per prompt, in the order of `token_ids`.

        Args:
            token_ids: prompts, each of at least one token.
            max_tokens: most new tokens; less where the model has no position left.
            stop: strings that end a text and are cut off with what follows.

        The texts come without special tokens and surrounding blanks.
        """
        rooms = [room_for(prompt, max_tokens, self._positions) for prompt in token_ids]
        self._check_length([len(p) + r for p, r in zip(token_ids, rooms, strict=True) if r > 0])
        out: list[tuple[str, bool]] = [("", True)] * len(token_ids)
        for room in sorted({room for room in rooms if room > 0}):
            places = [i for i, other in enumerate(rooms) if other == room]
            for at in range(0, len(places), AT_A_TIME):
                group = places[at : at + AT_A_TIME]
                prompts = [list(map(int, token_ids[i])) for i in group]
                for i, answer in zip(group, self._ask(prompts, room, stop), strict=True):
                    out[i] = answer
        return tuple(out)

    def close(self) -> None:
        """Nothing is held open between requests."""

    # --- one request ----------------------------------------------------------------------------------------
    def _ask(self, prompts: list[list[int]], room: int, stop: Sequence[str]) -> list[tuple[str, bool]]:
        words = [word for word in stop if word]
        body = {
            "model": self.name, "prompt": prompts, "max_tokens": room, **GREEDY,
            "stop_token_ids": sorted(self.stop_ids), "return_token_ids": True,
            **({"stop": words} if words else {}),
        }  # fmt: skip
        answer = self._endpoint.call("/v1/completions", body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or sorted(c.get("index", -1) for c in choices) != [
            *range(len(prompts))
        ]:
            raise RunError(
                f"{self.url} answered {len(prompts)} prompts with something else than as many choices"
            )
        ordered = sorted(choices, key=lambda c: c["index"])
        return [self._text(choice, prompt, words) for choice, prompt in zip(ordered, prompts, strict=True)]

    def _text(self, choice: Mapping[str, Any], prompt: list[int], stop: Sequence[str]) -> tuple[str, bool]:
        seen, tokens = choice.get("prompt_token_ids"), choice.get("token_ids")
        if seen is not None and list(seen) != prompt:
            raise RunError(f"{self.url} was given a prompt's ids and worked on others")
        said, ended = str(choice.get("text", "")), False
        if tokens is not None:
            kept, ended = before_end(tokens, self.stop_ids)
            said = self.encoder.decode(kept)
        text, cut = cut_at_stop(said, stop)
        return text.strip(), not (ended or cut or choice.get("finish_reason") == "stop")

    # --- the server's model ---------------------------------------------------------------------------------
    def _find(self, served_as: str) -> tuple[str, dict[str, Any]]:
        """The server's name for the model, and its card."""
        cards = self._endpoint.cards()
        for card in cards:
            known = [str(card["id"]), *([str(card["root"])] if card.get("root") else [])]
            if str(card["id"]) == served_as or (not served_as and any(map(self._same, known))):
                return str(card["id"]), card
        wanted = served_as or self.model
        raise ModelError(
            f"the server at {self.url} does not serve {wanted}",
            f"it serves {', '.join(str(c['id']) for c in cards) or 'nothing'}",
            f"start it with `vllm serve {self.model}` and give the same command again; if it has the model "
            "under another name, add #NAME to the address",
        )

    def _same(self, name: str) -> bool:
        cached = f"models--{name.replace('/', '--')}" in Path(self.model).parts  # a hub id and its snapshot
        here = Path(name).is_dir() and Path(name).resolve() == Path(self.model).resolve()
        return name == self.model or cached or here

    def _check_length(self, lengths: Sequence[int]) -> None:
        most = self._served.get("max_model_len")
        if isinstance(most, int) and lengths and max(lengths) > most:
            raise ModelError(
                f"the server at {self.url} takes {most} tokens of prompt and answer",
                f"{max(lengths)} are needed",
                f"start it with --max-model-len {max(lengths)}",
            )

    def _version(self) -> str | None:
        """Version of a vLLM server; None of another, which has no such page."""
        try:
            found = self._endpoint.call("/version").get("version")
        except RunError:
            return None
        return f"vllm {found}" if found else None
