"""How far the hidden states have moved from those of its start, block by block (Spectral Unlearning, Fig. 5).

The notes do not give the paper's formula. Here it is, per answer token with state h [d] of the start and h' of the
run: `relative` = ||h' - h||_2 / ||h||_2 (at least 0) and `cosine` = 1 - cos(h, h') (0 to 2); both are means over all
answer tokens of a set of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor


def token_drift(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """(relative, 1 - cosine) of states [N, d], each [N] float64; a state that is 0 counts as tiny, not as infinite."""
    a, b = start.double(), end.double()
    tiny = torch.finfo(torch.float32).tiny
    relative = (b - a).norm(dim=-1) / a.norm(dim=-1).clamp_min(tiny)
    return relative, (1.0 - F.cosine_similarity(a, b, dim=-1, eps=tiny)).clamp_min(0.0)


@dataclass
class Drift:
    """Running means, one batch after the other: no states are kept."""

    tokens: int = 0
    sums: dict[int, tuple[float, float]] = field(default_factory=dict)

    def add(self, start: Mapping[int, Tensor], end: Mapping[int, Tensor], mask: Tensor) -> None:
        """Block -> states [B, T, d] of both models; `mask` [B, T] bool picks the tokens that count."""
        self.tokens += int(mask.sum())
        for block, states in start.items():
            relative, cosine = token_drift(states[mask], end[block][mask])
            r, c = self.sums.get(block, (0.0, 0.0))
            self.sums[block] = (r + float(relative.sum()), c + float(cosine.sum()))

    def means(self) -> dict[int, dict[str, float]]:
        """Block -> the two means; empty when no token was seen."""
        if not self.tokens:
            return {}
        return {
            block: {"relative": r / self.tokens, "cosine": c / self.tokens}
            for block, (r, c) in sorted(self.sums.items())
        }
