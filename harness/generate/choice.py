"""What `--generator` means: `hf`, `vllm`, or `openai:URL`; checked early, made late.

`hf` needs the model in memory and is made by the stage that has it. The others read the model's folder and go
into a stage of their own, before any model of ours is loaded, so that two models never share the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from harness.errors import InputError, near
from harness.generate import openai, vllm

if TYPE_CHECKING:
    from harness.text import Encoder

KINDS = ("hf", "vllm", "openai:URL")


def check(choice: str, *, trains: bool = False) -> None:
    """Refuse a choice that cannot work here, before anything expensive.

    Args:
        choice: as typed.
        trains: whether the models that will be asked do not exist yet, so that no server can have them.

    Raises:
        InputError: an unknown name or address, or a server where a model is still to be trained.
        ModelError: vLLM is not installed.
    """
    name, colon, rest = choice.partition(":")
    if name == "openai" and colon:
        openai.parse(rest)
        if trains:
            raise InputError(
                f"generator {choice} cannot answer for weights that are yet to be trained",
                "a server has the model that it was started with",
                "use vllm; or submit with hf, serve the run's model folder, and `uharness evaluate` it",
            )
    elif name == "openai":
        raise InputError(
            f"generator {choice!r} names no server",
            "",
            "write openai:URL, such as openai:http://localhost:8000",
        )
    elif choice == "vllm":
        vllm.check_installed()
    elif choice != "hf":
        raise InputError(f"no generator {choice!r}", near(choice, KINDS), "give --generator one of these")


def check_models(choice: str, paths: Iterable[str]) -> None:
    """Refuse models that the generator cannot run, as far as their folders tell."""
    if choice == "vllm":
        for path in sorted(set(paths)):
            vllm.check_model(path)


def make(choice: str, model_path: str, encoder: Encoder, *, dtype: str, max_tokens: int) -> Any:
    """The generator of a checked choice other than `hf`, with a `describe()` for the run record."""
    if choice == "vllm":
        return vllm.VLLMGenerator(model_path, encoder, dtype=dtype, max_tokens=max_tokens)
    url, name = openai.parse(choice.partition(":")[2])
    return openai.OpenAIGenerator(url, model_path, encoder, served_as=name)
