"""Which sides are preconditioned: read from the module graph of decoders of every make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_text import random_llama
from torch import nn

from harness.modadd import ModularConfig, ModularTransformer
from harness.models import LoadedModel, with_adapters
from harness.optim.sides import Side, sides
from harness.specs import LoraSpec

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
USUAL = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 256, **HEADS}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def skeleton(kind: str, **shape: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **TOKENS, **shape)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def told(model: nn.Module) -> dict[str, str]:
    """Treatment by the last two parts of a weight's name; biases and norms are left out, all blocks must agree."""
    out: dict[str, str] = {}
    for name, side in sides(model).items():
        if side.role in ("norm", "bias"):
            assert side.adamw
            continue
        key = ".".join(name.split(".")[-3:-1])
        assert out.setdefault(key, side.treatment) == side.treatment
    return out


LLAMA = {
    "model.embed_tokens": "adamw", "lm_head": "adamw",
    "self_attn.q_proj": "both", "self_attn.k_proj": "both", "self_attn.v_proj": "both", "self_attn.o_proj": "both",
    "mlp.gate_proj": "right", "mlp.up_proj": "right", "mlp.down_proj": "left",
}  # fmt: skip
TIED = {k: v for k, v in LLAMA.items() if k != "lm_head"}
MOE = {k: v for k, v in LLAMA.items() if not k.startswith("mlp")}


@pytest.mark.parametrize(
    ("kind", "shape", "want"),
    [
        ("llama", USUAL, LLAMA),
        ("llama", {**USUAL, "tie_word_embeddings": True}, TIED),
        ("qwen2", USUAL, LLAMA),
        ("qwen3", {**USUAL, "head_dim": 32}, LLAMA),
        ("mistral", USUAL, LLAMA),
        ("gemma", {**USUAL, "head_dim": 32}, TIED),
        ("gemma3_text", {**USUAL, "head_dim": 32}, TIED),
        ("olmo", USUAL, LLAMA),
        (
            "phi3",
            USUAL,
            {
                "model.embed_tokens": "adamw", "lm_head": "adamw", "self_attn.qkv_proj": "both",
                "self_attn.o_proj": "both", "mlp.gate_up_proj": "right", "mlp.down_proj": "left",
            },
        ),
        (
            "phi",
            USUAL,
            {
                "model.embed_tokens": "adamw", "lm_head": "adamw", "self_attn.q_proj": "both",
                "self_attn.k_proj": "both", "self_attn.v_proj": "both", "self_attn.dense": "both",
                "mlp.fc1": "right", "mlp.fc2": "left",
            },
        ),
        (
            "gpt2",
            {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256},
            {
                "transformer.wte": "adamw", "transformer.wpe": "adamw", "attn.c_attn": "both",
                "attn.c_proj": "both", "mlp.c_fc": "left", "mlp.c_proj": "right",
            },
        ),
        (
            "gpt_neox",
            USUAL,
            {
                "gpt_neox.embed_in": "adamw", "lm_head": "adamw", "attention.query_key_value": "both",
                "attention.dense": "both", "mlp.dense_h_to_4h": "right", "mlp.dense_4h_to_h": "left",
            },
        ),
        (
            "opt",
            {"hidden_size": 64, "ffn_dim": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256,
             "word_embed_proj_dim": 32},
            {
                "decoder.embed_tokens": "adamw", "decoder.embed_positions": "adamw", "decoder.project_in": "adamw",
                "decoder.project_out": "adamw", "self_attn.q_proj": "both", "self_attn.k_proj": "both",
                "self_attn.v_proj": "both", "self_attn.out_proj": "both", "0.fc1": "right", "0.fc2": "left",
                "1.fc1": "right", "1.fc2": "left",
            },
        ),
        ("mixtral", USUAL, {**MOE, "mlp.gate": "adamw", "mlp.experts": "adamw"}),
    ],
)  # fmt: skip
def test_decoders(kind: str, shape: dict[str, Any], want: dict[str, str]) -> None:
    got = {k.removeprefix("."): v for k, v in told(skeleton(kind, **shape)).items()}
    assert got == want


def test_every_parameter_is_told_in_order() -> None:
    model = skeleton("llama", **USUAL)
    assert list(sides(model)) == [name for name, _ in model.named_parameters()]


def test_a_transposed_weight_is_known_as_such() -> None:
    gpt2 = sides(skeleton("gpt2", n_embd=64, n_layer=1, n_head=4, vocab_size=256))
    up, down = gpt2["transformer.h.0.mlp.c_fc.weight"], gpt2["transformer.h.0.mlp.c_proj.weight"]
    assert (up.role, up.left, up.right, up.transposed) == ("mlp in", True, False, True)
    assert (down.role, down.left, down.right, down.transposed) == ("mlp out", False, True, True)
    assert not sides(skeleton("llama", **USUAL))["model.layers.0.mlp.up_proj.weight"].transposed


def test_each_tower_has_its_own_width() -> None:
    """Gemma 3's vision tower is 768 wide, its language model 2304."""
    two = sides(skeleton("gemma3"))
    vision = two["model.vision_tower.encoder.layers.0.mlp.fc1.weight"]
    language = two["model.language_model.layers.0.mlp.up_proj.weight"]
    assert (vision.treatment, vision.why) == ("right", "the side of length 768")
    assert (language.treatment, language.why) == ("right", "the side of length 2304")


def test_low_rank_factors_get_both_sides() -> None:
    model = with_adapters(LoadedModel(random_llama(40), None), LoraSpec(rank=4), 0).model
    trained = {n: s for n, s in sides(model).items() if dict(model.named_parameters())[n].requires_grad}
    assert len(trained) == 2 * 7 * 2
    assert {(s.role, s.treatment) for s in trained.values()} == {("lora", "both")}
    frozen = {n: s.treatment for n, s in sides(model).items() if "mlp.up_proj.base_layer" in n}
    assert set(frozen.values()) == {"right"}


def test_the_modular_transformer() -> None:
    model = ModularTransformer(ModularConfig(n=8, classes=4, d_model=16, heads=2, d_mlp=32))
    got = {name: side.treatment for name, side in sides(model).items() if name.endswith("weight")}
    assert got == {
        "embed.weight": "adamw", "position.weight": "adamw", "unembed.weight": "adamw",
        "query.weight": "both", "key.weight": "both", "value.weight": "both", "output.weight": "both",
        "mlp_in.weight": "right", "mlp_out.weight": "left",
    }  # fmt: skip


def test_ends() -> None:
    square = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 256, **HEADS}
    got = sides(skeleton("llama", **square))["model.layers.0.mlp.up_proj.weight"]
    assert (got.treatment, got.why) == ("both", "both lengths are 64")
    assert sides(nn.Module()) == {}
    plain = sides(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert (
        plain["0.weight"]
        == plain["2.weight"]
        == Side("matrix", True, True, False, "no residual stream known")
    )
    assert plain["0.bias"] == Side("bias", False, False, True, "1-d")

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.cube = nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.zeros(2, 3, 3))
            self.nothing = nn.Parameter(torch.zeros(()))

    assert {s.treatment for s in sides(Bare()).values()} == {"adamw"}


def test_explain(uharness: Any, workspace: Path) -> None:
    """`--explain` needs a configuration alone: an 8B model's is enough."""
    folder = workspace / "big"
    folder.mkdir()
    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
             "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **shape}))
    done = uharness("list", "optimizers", "--explain", "big")
    assert done.code == 0, done.err
    lines = {line.split()[0]: line.split()[1:] for line in done.out.splitlines()}
    assert lines["model.layers.*.self_attn.k_proj.weight"][:6] == [
        "1024",
        "x",
        "4096",
        "32",
        "attention",
        "both",
    ]
    assert lines["model.layers.*.mlp.down_proj.weight"][:7] == [
        "4096",
        "x",
        "14336",
        "32",
        "mlp",
        "out",
        "left",
    ]
    assert lines["lm_head.weight"][:6] == ["128256", "x", "4096", "1", "head", "adamw"]
    assert len(lines) == 13
    missing = uharness("list", "optimizers", "--explain", "nothing")
    assert missing.code == 2 and missing.err.startswith("error: model folder 'nothing' does not exist")
    assert "muon" in uharness("list", "optimizers").out
