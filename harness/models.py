"""Model references: what the strings of a board's `models` mean, and how they become modules.

A reference is a folder, a Hugging Face id, or `mini:NAME` for a model that ships with the package. A folder's
`config.json` says what is in it: `model_type = "modular_addition"` is our own small transformer, everything else is
Hugging Face's: a causal language model, or an image classifier when its architecture ends in `ForImageClassification`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ModelError, near

if TYPE_CHECKING:
    from torch import nn

    from harness.specs import LoraSpec, Template
    from harness.text import Encoder

MINI = Path(__file__).parent / "mini" / "weights"
OWN_TYPE = "modular_addition"
INSTRUCTION = "uharness_instruction.txt"
"""Beside a model's weights: what is said before every question (`Encoder.instruction`)."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, with its encoder when it reads text."""

    model: nn.Module
    encoder: Encoder | None

    @property
    def adapters(self) -> bool:
        """Whether `model` carries low-rank adapters that are not merged."""
        return hasattr(self.model, "merge_and_unload")


def resolve(reference: str, roots: tuple[Path, ...] = (), *, fetch: bool = True) -> str:
    """The local folder that `reference` means.

    Relative folders are looked for under `roots`, in order. A hub id becomes its snapshot in the local cache, which is
    filled first when `fetch` is true and the hub may be used; so what is hashed and loaded later is always a folder.
    Raises `ModelError` when nothing is found.
    """
    if reference.startswith("mini:"):
        name = reference.removeprefix("mini:")
        places = (MINI, *(root / "build" / "mini" for root in roots))
        for place in places:
            if (place / name / "config.json").exists():
                return str((place / name).resolve())
        known = [str(p.parent.relative_to(place)) for place in places for p in place.glob("**/config.json")]
        family = name.split("/")[0]
        todo = (
            f"run `uharness mini build --family {family}`" if family in _on_request() else "name one of these"
        )
        raise ModelError(f"no built-in model {name!r}", near(name, known), todo)
    given = Path(reference).expanduser()
    candidates = [given] if given.is_absolute() else [root / given for root in (*roots, Path.cwd())]
    for candidate in candidates:
        if candidate.is_dir():
            return str(candidate.resolve())
    if is_hub_id(reference):
        return _snapshot(reference, fetch)
    raise ModelError(
        f"model folder {reference!r} does not exist",
        f"looked for {', '.join(str(c) for c in candidates)}",
        "give an existing folder, a hub id such as owner/name, or mini:NAME",
    )


def _on_request() -> set[str]:
    from harness.mini.families import FAMILIES, SHIPPED

    return set(FAMILIES) - set(SHIPPED)


def is_hub_id(reference: str) -> bool:
    """Whether a reference that is no folder here can only mean a model on the hub: `owner/name`."""
    return reference.count("/") == 1 and not reference.startswith((".", "/", "~", "mini:"))


def _snapshot(name: str, fetch: bool) -> str:
    """The newest cached snapshot of a hub model, downloaded where that is allowed."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    offline = os.environ.get("HF_HUB_OFFLINE") == "1"
    patterns = ["*.json", "*.safetensors", "tokenizer*", "*.jinja", "*.model", "*.txt"]
    try:
        return snapshot_download(name, local_files_only=offline or not fetch, allow_patterns=patterns)
    except LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE=1 forbids fetching it" if offline else "the hub cannot be reached"
        raise ModelError(
            f"model {name!r} is not in the local cache",
            why,
            "fetch it with a network, or give a local folder",
        ) from None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelError(
            f"model {name!r} cannot be fetched: {first}", "", "check the id and your access to it"
        ) from None


def check(path: str, *, needs_tokenizer: bool) -> None:
    """Refuse a folder that cannot be a model, before anything is loaded."""
    folder = Path(path)
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder} has no config.json", f"it has {_listing(folder)}", "give a model folder")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise ModelError(
            f"{folder} has no weights", f"it has {_listing(folder)}", "save the model with safetensors"
        )
    files = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
    if needs_tokenizer and not any((folder / name).exists() for name in files):
        raise ModelError(
            f"{folder} has no tokenizer",
            f"it has {_listing(folder)}; looked for {', '.join(files)}",
            "save the tokenizer into the same folder (tokenizer.save_pretrained)",
        )


def _listing(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "") or "nothing"


def model_type(path: str) -> str:
    """`model_type` of a folder's config, empty when there is none."""
    config = Path(path) / "config.json"
    if not config.exists():
        return ""
    try:
        return str(json.loads(config.read_text()).get("model_type", ""))
    except (json.JSONDecodeError, AttributeError) as error:
        raise ModelError(
            f"{config} is not a JSON object", str(error), "repair or replace the model folder"
        ) from None


def reads_images(path: str) -> bool:
    """Whether a folder holds a Hugging Face image classifier."""
    config = Path(path) / "config.json"
    if not config.exists() or not model_type(path):
        return False
    names = json.loads(config.read_text()).get("architectures") or []
    return any(str(name).endswith("ForImageClassification") for name in names)


def reads_text(path: str) -> bool:
    """Whether a folder holds a model of texts, which has a tokenizer."""
    return model_type(path) != OWN_TYPE and not reads_images(path)


def load(
    path: str, *, dtype: str = "float32", template: Template | None = None, max_length: int = 512
) -> LoadedModel:
    """Load a resolved reference; the encoder is None for models that read arrays."""
    if model_type(path) == OWN_TYPE:
        from harness.modadd import ModularTransformer

        return LoadedModel(ModularTransformer.load(Path(path)), None)
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    if reads_images(path):
        return LoadedModel(_image_classifier(path, dtype), None)
    encoder = load_encoder(path, template=template, max_length=max_length)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise _unloadable(path, error) from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return LoadedModel(model.to(device).eval(), encoder)


def _image_classifier(path: str, dtype: str) -> nn.Module:
    import torch
    from transformers import AutoModelForImageClassification

    from harness import vision

    try:
        model: Any = AutoModelForImageClassification.from_pretrained(path, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        raise _unloadable(path, error) from None
    model.config.pixels = vision.read(Path(path), model.config)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def skeleton(reference: str, roots: tuple[Path, ...] = ()) -> nn.Module:
    """The modules that `reference` means, without its weights; of a hub model only the configuration is fetched."""
    try:
        path = resolve(reference, roots, fetch=False)
    except ModelError:
        if not is_hub_id(reference):
            raise
        path = reference
    if model_type(path) == OWN_TYPE:
        from harness.modadd import ModularTransformer, read_config

        return ModularTransformer(read_config(Path(path)))
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification

    try:
        config = AutoConfig.from_pretrained(path)
        kind = AutoModelForImageClassification if reads_images(path) else AutoModelForCausalLM
        with torch.device("meta"):
            return kind.from_config(config)
    except (OSError, ValueError) as error:
        raise _unloadable(path, error) from None


def load_encoder(path: str, *, template: Template | None = None, max_length: int = 512) -> Encoder | None:
    """The encoder of a resolved reference, without its weights; None for models that read arrays.

    Its instruction is the one that was saved with the model, if any.
    """
    if not reads_text(path):
        return None
    from transformers import AutoTokenizer

    from harness.specs import Template as DefaultTemplate
    from harness.text import Encoder

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise _unloadable(path, error) from None
    note = Path(path) / INSTRUCTION
    instruction = note.read_text(encoding="utf-8") if note.is_file() else ""
    return Encoder(tokenizer, template or DefaultTemplate(), max_length, instruction)


def _unloadable(path: str, error: Exception) -> ModelError:
    first = str(error).strip().splitlines()[0]
    return ModelError(f"model {path!r} cannot be loaded", first, "repair or replace the model folder")


def save(loaded: LoadedModel, folder: Path) -> None:
    """Write weights as safetensors, with tokenizer and instruction, so that `load` gives the same model back.

    Adapters are merged in a copy; the model in memory stays as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model: Any = loaded.model
    if loaded.adapters:
        model = copy.deepcopy(model).merge_and_unload()
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
        if loaded.encoder is not None:
            loaded.encoder.tokenizer.save_pretrained(folder)
            note = folder / INSTRUCTION
            note.unlink(missing_ok=True)
            if loaded.encoder.instruction:
                note.write_text(loaded.encoder.instruction, encoding="utf-8")
    else:
        model.save(folder)


def with_adapters(loaded: LoadedModel, lora: LoraSpec, seed: int) -> LoadedModel:
    """The model with low-rank adapters (peft), which alone are trained; rank 0 gives the model itself.

    B starts at 0, so the model's outputs are unchanged at first. Raises `ModelError` when no module fits `targets`.
    """
    if not lora.rank:
        return loaded
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,
        target_modules=lora.targets,
        task_type="CAUSAL_LM",
    )  # type: ignore[call-arg]
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model: Any = get_peft_model(loaded.model, config)
    except ValueError as error:
        first = str(error).strip().splitlines()[0]
        raise ModelError(f"no module fits lora.targets={lora.targets!r}", first, "set lora.targets") from None
    return LoadedModel(model, loaded.encoder)


def weights_hash(path: str) -> str:
    """SHA-256 over names and bytes of a folder's weight, tokenizer and config files, and of an instruction.

    Returns 16 hex digits.
    """
    folder = Path(path)
    digest = hashlib.sha256()
    names = (
        "*.safetensors",
        "pytorch_model*.bin",
        "tokenizer.json",
        "tokenizer.model",
        "config.json",
        "*.jinja",
        INSTRUCTION,
    )
    for file in sorted({f for pattern in names for f in folder.glob(pattern)}):
        digest.update(file.name.encode())
        with file.open("rb") as handle:
            while block := handle.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()[:16]
