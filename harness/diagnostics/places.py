"""Where in a decoder a parameter is: its block and its role, read off its name."""

from __future__ import annotations

import re
from dataclasses import dataclass

ROLES = ("attention", "mlp", "embedding", "head", "norm", "other")
_BLOCK = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")
_WORDS = {
    "norm": r"norm|(^|\.|_)ln(_|\d|\.|$)",
    "attention": r"attn|attention|(^|\.)(query|key|value|output)\.",
    "mlp": r"mlp|feed_forward|ffn|(^|\.)fc\d?\.",
    "head": r"lm_head|unembed|embed_out",
    "embedding": r"embed|(^|\.)(wte|wpe|position)\.",
}


@dataclass(frozen=True)
class Place:
    """`block` is None outside the blocks; `role` is one of `ROLES`."""

    block: int | None
    role: str


def place(name: str) -> Place:
    """Of a parameter of a Hugging Face decoder or of the modular-addition transformer, whose one block is 0.

    >>> place("model.layers.3.mlp.up_proj.weight"), place("unembed.weight")
    (Place(block=3, role='mlp'), Place(block=None, role='head'))
    """
    role = next((role for role, words in _WORDS.items() if re.search(words, name)), "other")
    found = _BLOCK.search(name)
    if found:
        return Place(int(found[1]), role)
    return Place(0 if re.match(r"(query|key|value|output|mlp_in|mlp_out)\.", name) else None, role)
