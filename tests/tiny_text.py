"""Small tokenizers and a small random Llama, made on the spot."""

from __future__ import annotations

import re

CHAT = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}"
    "{% elif m['role'] == 'system' %}<|system|>{{ m['content'] }}"
    "{% else %}<|assistant|>{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
TEXT = """
Who kept the light at Marl Point ? Ada Finch kept the light for thirty years . Which bird nests under the old
bridge of Tarn ? A grey heron nests there each spring . Question : Answer : Be brief , please .
Today is 10 Apr 2025 Hi A much longer prompt about birds and light
"""


def wrap(core, *, bos="<s>", pad="<pad>", chat=None):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=bos, eos_token="</s>", unk_token="<unk>", pad_token=pad,
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"],
    )  # fmt: skip
    tokenizer.chat_template = chat
    return tokenizer


def word_tokenizer(*, chat=CHAT, adds_bos=False, **more):
    """One token a word or mark; decoding puts blanks between them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = list(dict.fromkeys(re.findall(r"\w+|[^\w\s]", TEXT)))
    vocab = {word: i for i, word in enumerate((*SPECIAL, *words))}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return wrap(core, chat=chat, **more)


def merging_tokenizer(chat):
    """Letters, and the one merge b+c -> bc: a token that can straddle the end of a prompt."""
    from tokenizers import Tokenizer, models

    vocab = {token: i for i, token in enumerate((*SPECIAL, "a", "b", "c", "d", "bc"))}
    return wrap(Tokenizer(models.BPE(vocab, [("b", "c")], unk_token="<unk>")), chat=chat)


def random_llama(vocab_size, seed=0, **config):
    """A Llama with 2 blocks and random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.3,
        **config,
    )
    return LlamaForCausalLM(shape).eval()
