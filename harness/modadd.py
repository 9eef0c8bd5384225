"""The one-layer transformer of the modular-addition papers, fast enough to train on two CPU cores.

It reads the three tokens `a b =` and answers with a class. ReLU MLP, no layer norm, no biases in attention
(Nanda et al. 2023, arXiv:2301.05217). Its mathematics is the textbook one; the engine only leaves out what
cannot matter or is the same for all rows:

- the query at `=` is one constant vector, so keys and values are computed once per (token, position);
- query, MLP and unembedding run at the last position only;
- products of weights are folded, `logits = z (WO WU) + relu(z (WO Win) + c) (Wout WU) + t`, with gradients
  going back through the products to the weights themselves.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.errors import ModelError

MODEL_TYPE = "modular_addition"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class ModularConfig:
    """Shape of a `ModularTransformer`.

    Attributes:
        n: number tokens 0..n-1; token n is `=`.
        classes: answers.
        d_model: width of the residual stream.
        heads: attention heads; divides `d_model`.
        d_mlp: hidden units of the MLP.
    """

    n: int
    classes: int
    d_model: int = 128
    heads: int = 4
    d_mlp: int = 512

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ModelError(f"{name} is {value!r}", "a modular-addition model has whole numbers above 0")
        if self.d_model % self.heads:
            raise ModelError(f"{self.heads} heads do not divide d_model {self.d_model}")


class _Mix(torch.autograd.Function):
    """Attention output at `=`: softmax over three scores, then the weighted sum of three values.

    Legend: N rows, n tokens, H heads, D = H * K width. Scores s0, s1 [n, H], s2 [H]; values v0, v1 [n, D],
    v2 [D].
    """

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, s0: Tensor, s1: Tensor, s2: Tensor, v0: Tensor, v1: Tensor, v2: Tensor
    ) -> Tensor:
        rows, heads = len(a), s2.shape[0]
        scores = torch.stack((s0.index_select(0, a), s1.index_select(0, b), s2.expand(rows, heads)))
        share = scores.softmax(0)  # [3, N, H]
        va, vb = v0.index_select(0, a).view(rows, heads, -1), v1.index_select(0, b).view(rows, heads, -1)
        z = va * share[0].unsqueeze(-1)
        z.addcmul_(vb, share[1].unsqueeze(-1)).addcmul_(v2.view(1, heads, -1), share[2].unsqueeze(-1))
        ctx.save_for_backward(a, b, share, va, vb, v2)
        ctx.tokens = len(v0)
        return z.view(rows, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, share, va, vb, v2 = ctx.saved_tensors
        rows, heads, tokens, width = len(a), share.shape[2], ctx.tokens, v2.shape[0]
        dz = grad.view(rows, heads, -1)
        need = ctx.needs_input_grad
        out: list[Tensor | None] = [None] * 8
        if any(need[2:5]):
            dshare = torch.stack(((dz * va).sum(-1), (dz * vb).sum(-1), (dz * v2.view(1, heads, -1)).sum(-1)))
            ds = share * (dshare - (share * dshare).sum(0))
            out[2] = ds.new_zeros(tokens, heads).index_add_(0, a, ds[0])
            out[3] = ds.new_zeros(tokens, heads).index_add_(0, b, ds[1])
            out[4] = ds[2].sum(0)
        if any(need[5:8]):
            for slot, index, part in ((5, a, share[0]), (6, b, share[1])):
                weighted = (dz * part.unsqueeze(-1)).view(rows, width)
                out[slot] = weighted.new_zeros(tokens, width).index_add_(0, index, weighted)
            out[7] = torch.einsum("nhk,nh->hk", dz, share[2]).reshape(width)
        return tuple(out)


class _Head(torch.autograd.Function):
    """`logits = z S + relu(z G + c) R + t` for z [N, D], G [D, m], S [D, C], R [m, C], c [m], t [C]."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, g: Tensor, c: Tensor, s: Tensor, r: Tensor, t: Tensor) -> Tensor:
        h = torch.addmm(c, z, g).relu_()
        logits = torch.addmm(t, z, s).addmm_(h, r)
        ctx.save_for_backward(z, h, g, s, r)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, h, g, s, r = ctx.saved_tensors
        need = ctx.needs_input_grad
        dz = dg = dc = ds = dr = dt = None
        if any(need[:3]):
            dh = torch.ops.aten.threshold_backward(grad @ r.T, h, 0)
            if need[0]:
                dz = torch.addmm(grad @ s.T, dh, g.T)
            if need[1]:
                dg = z.T @ dh
            if need[2]:
                dc = dh.sum(0)
        if need[3]:
            ds = z.T @ grad
        if need[4]:
            dr = h.T @ grad
        if need[5]:
            dt = grad.sum(0)
        return dz, dg, dc, ds, dr, dt


class ModularTransformer(nn.Module):
    """`a b =` to class logits; one layer, ReLU, no layer norm.

    `embed`, `position`, `query` ... `unembed` hold the weights in the usual layouts (`nn.Linear` is [out,
    in]) so that optimizers and weight edits find them by type and name; the forward pass reads the weights
    and does not call these modules, so hooks on them do not fire. Differentiable once.

    Args:
        config: the shape.
        seed: of the initial weights, independent normals with variance 1/d_model (1/classes for `unembed`),
            biases 0, as Nanda et al. (2023) start. The global random state is left alone.
    """

    def __init__(self, config: ModularConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        d, m = config.d_model, config.d_mlp
        with torch.device("meta"):
            self.embed = nn.Embedding(config.n + 1, d)
            self.position = nn.Embedding(3, d)
            self.query = nn.Linear(d, d, bias=False)
            self.key = nn.Linear(d, d, bias=False)
            self.value = nn.Linear(d, d, bias=False)
            self.output = nn.Linear(d, d, bias=False)
            self.mlp_in = nn.Linear(d, m)
            self.mlp_out = nn.Linear(m, d)
            self.unembed = nn.Linear(d, config.classes, bias=False)
        self.to_empty(device="cpu")
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.ndim == 1:
                    weight.zero_()
                else:
                    scale = config.classes if name.startswith("unembed") else d
                    weight.normal_(0.0, scale**-0.5, generator=generator)

    def forward(self, inputs: Tensor, hidden: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Class logits [N, C] of number pairs [N, 2] int64 in 0..n-1.

        With `hidden`, also the residual vector at `=` before unembedding, [N, d_model]; `logits = hidden WU`.
        """
        z, end = self._attend(inputs)
        w_o, w_in, w_out, w_u = (
            self.output.weight,
            self.mlp_in.weight,
            self.mlp_out.weight,
            self.unembed.weight,
        )
        first = w_in @ end + self.mlp_in.bias
        rest = end + self.mlp_out.bias
        if hidden:
            activation = torch.addmm(first, z, (w_in @ w_o).T).relu()
            residual = rest + z @ w_o.T + activation @ w_out.T
            return residual @ w_u.T, residual
        return _Head.apply(z, (w_in @ w_o).T, first, (w_u @ w_o).T, (w_u @ w_out).T, w_u @ rest)

    def _attend(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Attention output at `=` before WO [N, D], and the embedding of `=` [D]."""
        n, heads = self.config.n, self.config.heads
        tokens, place = self.embed.weight, self.position.weight
        left, right, end = tokens[:n] + place[0], tokens[:n] + place[1], tokens[n] + place[2]
        query = (self.query.weight @ end).view(heads, -1)  # [H, K]
        folded = torch.einsum("hk,hkd->dh", query, self.key.weight.view(heads, query.shape[1], -1))
        folded = folded * query.shape[1] ** -0.5  # scores are x @ folded
        value = self.value.weight.T
        a, b = inputs[:, 0].contiguous(), inputs[:, 1].contiguous()
        z = _Mix.apply(
            a, b, left @ folded, right @ folded, end @ folded, left @ value, right @ value, end @ value
        )
        return z, end

    def save(self, folder: Path | str, *, dtype: str = "float32") -> None:
        """Write `config.json` and `model.safetensors` (weights rounded to `dtype`: float32 or bfloat16)."""
        if dtype not in DTYPES:
            raise ModelError(f"dtype {dtype!r} is not a storage type", f"known: {', '.join(DTYPES)}")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {k: v.detach().to("cpu", DTYPES[dtype]).contiguous() for k, v in self.state_dict().items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config = {"model_type": MODEL_TYPE, **asdict(self.config), "dtype": dtype}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path | str) -> ModularTransformer:
        """Read what `save` wrote; the weights are float32 in memory.

        Raises:
            ModelError: no such folder, another kind of model, or weights that do not fit the configuration.
        """
        folder = Path(folder)
        model = cls(read_config(folder))
        path = folder / "model.safetensors"
        if not path.is_file():
            raise ModelError(
                f"{folder} has no model.safetensors", "the folder is incomplete", "make it again"
            )
        try:
            weights = load_file(path)
            model.load_state_dict({name: weight.float() for name, weight in weights.items()})
        except (SafetensorError, RuntimeError) as error:
            raise ModelError(
                f"{path} does not fit its config.json", str(error)[:300], "make it again"
            ) from error
        return model


def read_config(folder: Path) -> ModularConfig:
    """The shape in a model folder's `config.json`; `ModelError` if it is not a modular-addition model."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} has no config.json", "a model folder has config.json and model.safetensors"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read", str(error)) from error
    kind = raw.pop("model_type", None) if isinstance(raw, dict) else None
    if kind != MODEL_TYPE:
        raise ModelError(f"{path} describes a model of type {kind!r}", f"wanted {MODEL_TYPE!r}")
    raw.pop("dtype", None)
    try:
        return ModularConfig(**raw)
    except TypeError as error:
        raise ModelError(f"{path} has missing or unknown fields", str(error)) from error
