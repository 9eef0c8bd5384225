"""The small Llama models: their tokenizer, their shape, and how they are trained on a CPU.

Shapes: B rows, T positions, d hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from harness.errors import InvalidRun
from harness.mini.documents import Document, Group
from harness.scoring import evaluating, forward, pad, token_logp
from harness.specs import Template
from harness.text import Encoder
from harness.types import TextRow

SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
CHAT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}{{ eos_token }}"
    "{% elif m['role'] == 'system' %}<|system|>{{ m['content'] }}"
    "{% else %}<|user|>{{ m['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MAX_LENGTH = 512


@dataclass(frozen=True)
class Shape:
    """Size of a model; heads have 32 dimensions each, and the two embeddings are one."""

    vocab: int = 1800
    hidden: int = 128
    mlp: int = 352
    layers: int = 4
    positions: int = MAX_LENGTH


@dataclass(frozen=True)
class Training:
    """How a model is trained: AdamW, linear warm-up, then a cosine to zero.

    Attributes:
        epochs: times that the own documents are read.
        lr: highest learning rate.
        replay: documents of the base model read along, as a share of the own ones.
        batch_tokens: most tokens of a batch, padding included.
        warmup: share of the steps.
        weight_decay: on every weight.
        seed: of weights, order and choice of wordings.
    """

    epochs: int
    lr: float
    replay: float = 0.0
    batch_tokens: int = 2048
    warmup: float = 0.05
    weight_decay: float = 0.01
    seed: int = 0


def make_tokenizer(texts: Sequence[str], vocab: int) -> Any:
    """A byte-level BPE tokenizer of `vocab` tokens, BOS before plain text, with our chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(SPECIAL), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        additional_special_tokens=list(SPECIAL[3:]), model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = CHAT
    return tokenizer


def new_model(shape: Shape, seed: int) -> Any:
    """A Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers, num_attention_heads=shape.hidden // 32,
        num_key_value_heads=shape.hidden // 32, tie_word_embeddings=True,
        max_position_embeddings=shape.positions, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


Ids = tuple[tuple[int, ...], int]
"""Token ids of a document, and where the part begins that is learnt."""


def encode(document: Document, encoder: Encoder) -> Ids:
    """A question and its answer as the project's encoder has it, or a plain text between BOS and EOS."""
    if document.question:
        found = encoder.encode(TextRow("", document.question, document.text))
        return found.ids, found.start
    tokenizer = encoder.tokenizer
    return (*tokenizer(document.text)["input_ids"], tokenizer.eos_token_id), 1


def train(
    model: Any,
    tokenizer: Any,
    own: Sequence[Group],
    replayed: Sequence[Group],
    training: Training,
    progress: Callable[[int, float], None],
) -> float:
    """Train `model` in place; returns the mean loss of the last epoch in nats a token.

    Args:
        model: a Hugging Face causal LM.
        tokenizer: its tokenizer.
        own: groups that every epoch reads one document of.
        replayed: groups that an epoch reads `training.replay` times as many documents of, drawn anew.
        training: the recipe.
        progress: told (epoch, mean loss) after every epoch.

    Raises:
        InvalidRun: the loss is not finite.
    """
    encoder = Encoder(tokenizer, Template(), MAX_LENGTH)
    ids = [[encode(d, encoder) for d in group] for group in own]
    more = [[encode(d, encoder) for d in group] for group in replayed]
    rng = np.random.default_rng(training.seed)
    epochs = [_batches(ids, more, training, rng) for _ in range(training.epochs)]
    total = sum(map(len, epochs))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training.lr, weight_decay=training.weight_decay, betas=(0.9, 0.98)
    )
    model.train()
    step, mean = 0, math.nan
    for epoch, batches in enumerate(epochs, 1):
        losses, weights = [], []
        for batch in batches:
            for group in optimizer.param_groups:
                group["lr"] = training.lr * _schedule(step / total, training.warmup)
            loss, tokens = _loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            losses.append(loss.item())
            weights.append(tokens)
        mean = float(np.average(losses, weights=weights))
        if not math.isfinite(mean):
            raise InvalidRun(f"the loss is {mean} in epoch {epoch}")
        progress(epoch, mean)
    model.eval()
    return mean


def _schedule(fraction: float, warmup: float) -> float:
    if fraction < warmup:
        return (fraction + 1e-3) / warmup
    return 0.5 * (1 + math.cos(math.pi * (fraction - warmup) / (1 - warmup)))


def _batches(
    own: Sequence[Sequence[Ids]], more: Sequence[Sequence[Ids]], training: Training, rng: np.random.Generator
) -> list[list[Ids]]:
    """One epoch's documents, cut into batches of like lengths in random order."""
    picked = [group[rng.integers(len(group))] for group in own]
    extra = round(training.replay * len(own)) if more else 0
    for index in rng.choice(len(more), size=extra, replace=extra > len(more)) if extra else ():
        group = more[int(index)]
        picked.append(group[rng.integers(len(group))])
    order = sorted(rng.permutation(len(picked)).tolist(), key=lambda i: len(picked[i][0]) // 4)
    batches: list[list[Ids]] = [[]]
    for i in order:
        width = max([len(picked[i][0]), *(len(ids) for ids, _ in batches[-1])])
        if batches[-1] and width * (len(batches[-1]) + 1) > training.batch_tokens:
            batches.append([])
        batches[-1].append(picked[i])
    return [batches[i] for i in rng.permutation(len(batches))]


def _loss(model: Any, batch: Sequence[Ids]) -> tuple[torch.Tensor, int]:
    """Mean cross-entropy of the tokens to learn, and their number.

    Rows are padded on the right, so that no position sees padding before its own token: attention needs no
    mask.
    """
    width = max(len(ids) for ids, _ in batch)
    x = np.zeros((len(batch), width), dtype=np.int64)
    learnt = np.zeros((len(batch), width), dtype=bool)
    for i, (ids, start) in enumerate(batch):
        x[i, : len(ids)] = ids
        learnt[i, start : len(ids)] = True
    tokens, mask = torch.from_numpy(x), torch.from_numpy(learnt[:, 1:])
    hidden = model.model(tokens, use_cache=False).last_hidden_state[:, :-1][mask]
    labels = tokens[:, 1:][mask]
    return F.cross_entropy(model.lm_head(hidden), labels), len(labels)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Weights as bfloat16 safetensors, with config and tokenizer."""
    model.to(torch.bfloat16).save_pretrained(folder)
    model.float()
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors makes files that only their owner can read


def load(folder: Path) -> tuple[Any, Any]:
    """(model in float32, tokenizer) as `save` left them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def score(
    model: Any, tokenizer: Any, documents: Sequence[Document], *, plain: bool = False
) -> list[tuple[float, bool]]:
    """(mean log-probability in nats, every token is the first choice) of what is learnt of each document.

    With `plain`, questions are printed as `Question: ...` and `Answer: ...` lines and not as turns of a chat.
    """
    encoder = Encoder(tokenizer, Template(plain=plain), MAX_LENGTH)
    ids = [encode(document, encoder) for document in documents]
    out: list[tuple[float, bool]] = [(0.0, False)] * len(ids)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i][0]))
    with evaluating(model):
        for at in range(0, len(order), 64):
            part = order[at : at + 64]
            inputs = pad(
                [ids[i][0] for i in part], [ids[i][1] for i in part], 0, torch.arange(len(part)), "cpu"
            )
            found = forward(model, inputs)
            logp = token_logp(found)
            hits = (found.logits.argmax(-1) == found.labels) | ~found.mask
            means = logp.sum(-1) / found.mask.sum(-1)
            for i, mean, hit in zip(part, means.tolist(), hits.all(-1).tolist(), strict=True):
                out[i] = (mean, hit)
    return out
