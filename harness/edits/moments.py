"""Second moments of what goes into layers, streamed: no activation outlives its pass.

Layers that are fed one and the same tensor (query, key and value; gate and up) share one accumulator.
Shapes: B rows, P positions of a row, d features, G marked groups of rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from harness.edits.layers import Layer
from harness.errors import SubmissionError
from harness.scoring import Inputs

Kind = Literal["forget", "retain"]
Tokens = Literal["all", "answer"]


@dataclass(frozen=True)
class Seen:
    """A micro-batch of forget or of retain rows; `marks` [G, B] bool says which rows are in which marked group."""

    kind: Kind
    inputs: Inputs
    marks: Tensor


@dataclass(frozen=True)
class Gathering:
    """How much is gathered.

    Attributes:
        marks: number of marked groups G, whose means are kept beside the moments.
        tokens: of texts, all positions, or those that predict answer tokens.
        sample: most forget inputs that are kept, drawn evenly over all of them; 0 keeps none.
        positions: most patches of an image that a layer looks at, drawn for every image; 0 is all.
        seed: of both draws.
    """

    marks: int = 0
    tokens: Tokens = "all"
    sample: int = 0
    positions: int = 0
    seed: int = 0


@dataclass
class Moments:
    """Of one layer's inputs, float64.

    Attributes:
        second: sum of x x^T [d, d] over forget and over retain inputs.
        total: sum of x [d].
        count: number of inputs.
        mark_total: sum of x over each marked group [G, d]; mark_count: inputs in it [G].
        sample: some forget inputs [at most `Gathering.sample`, d].
    """

    second: dict[Kind, Tensor]
    total: dict[Kind, Tensor]
    count: dict[Kind, int]
    mark_total: Tensor
    mark_count: Tensor
    sample: Tensor
    _keys: Tensor = field(repr=False, default_factory=lambda: torch.zeros(0))

    @classmethod
    def empty(cls, width: int, marks: int, device: torch.device) -> Moments:
        """Nothing seen."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        kinds: tuple[Kind, Kind] = ("forget", "retain")
        return cls(
            {k: zeros(width, width) for k in kinds}, {k: zeros(width) for k in kinds}, dict.fromkeys(kinds, 0),
            zeros(marks, width), zeros(marks), zeros(0, width), zeros(0),
        )  # fmt: skip

    def mean(self, kind: Kind) -> Tensor:
        """Mean input [d]."""
        return self.total[kind] / max(self.count[kind], 1)

    def average(self, kind: Kind) -> Tensor:
        """Second moment of one input [d, d]: the sum by the count."""
        return self.second[kind] / max(self.count[kind], 1)

    def add(self, kind: Kind, x: Tensor, keep: Tensor, marks: Tensor) -> Tensor:
        """Count inputs x [B, P, d] where `keep` [B, P] is true; returns them as float64 [n, d]."""
        flat = x[keep].double()
        self.second[kind] += flat.T @ flat
        self.total[kind] += flat.sum(0)
        self.count[kind] += len(flat)
        if len(marks):
            rows = keep.nonzero()[:, 0]
            sums = torch.zeros(len(x), x.shape[-1], dtype=torch.float64, device=x.device)
            sums.index_add_(0, rows, flat)
            chosen = marks.to(sums)
            self.mark_total += chosen @ sums
            self.mark_count += chosen @ keep.sum(-1).double()
        return flat

    def draw(self, flat: Tensor, most: int, generator: torch.Generator) -> None:
        """Keep an even sample of everything that was drawn from: the inputs with the largest random keys."""
        keys = torch.rand(len(flat), generator=generator, dtype=torch.float64).to(flat.device)
        keys, both = torch.cat([self._keys, keys]), torch.cat([self.sample, flat])
        kept = keys.topk(min(most, len(keys)), sorted=False).indices.sort().values
        self._keys, self.sample = keys[kept], both[kept]


def gather(
    model: nn.Module,
    layers: Sequence[Layer],
    batches: Iterable[Seen],
    forward: Callable[[Inputs], Any],
    how: Gathering,
) -> dict[str, Moments]:
    """Moments of every layer's inputs by its name, from one pass over `batches`.

    Raises `SubmissionError` when the pass does not call a layer, or calls it with something that is no row of inputs.
    """
    stream = _Stream(layers, how)
    with stream.hooked(), torch.no_grad():
        for seen in batches:
            stream.begin(seen)
            forward(seen.inputs)
    unreached = [layer.name for layer in layers if layer.name not in stream.owner]
    if unreached:
        raise SubmissionError(
            f"the pass of {type(model).__name__} does not go through {unreached[0]}",
            f"{len(unreached)} of {len(layers)} layers are not called as modules",
            "leave them out with `only`, or choose another method",
        )
    return {layer.name: stream.moments[stream.owner[layer.name]] for layer in layers}


class _Stream:
    """Hooks on layers, and what they have added up."""

    def __init__(self, layers: Sequence[Layer], how: Gathering) -> None:
        self.layers, self.how = layers, how
        self.owner: dict[str, str] = {}
        self.moments: dict[str, Moments] = {}
        self._alive: dict[str, weakref.ref[Tensor]] = {}
        self._seen: Seen | None = None
        self._generator = torch.Generator().manual_seed(how.seed)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        handles = [
            layer.module.register_forward_pre_hook(lambda _m, given, at=layer: self._look(at, given[0]))
            for layer in self.layers
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def begin(self, seen: Seen) -> None:
        self._seen = seen
        self._alive.clear()

    def _look(self, layer: Layer, x: Tensor) -> None:
        assert self._seen is not None
        if layer.name not in self.owner:
            shared = not isinstance(layer.module, nn.Conv2d)
            same = [n for n, ref in self._alive.items() if ref() is x] if shared else []
            self.owner[layer.name] = same[0] if same else layer.name
            if not same:
                self.moments[layer.name] = Moments.empty(layer.width, self.how.marks, x.device)
                if shared:
                    self._alive[layer.name] = weakref.ref(x)
        if self.owner[layer.name] != layer.name:
            return
        seen, features = self._seen, layer.features(x)
        if len(features) != len(seen.inputs):
            raise SubmissionError(
                f"{layer.name} is fed {len(features)} rows of a batch of {len(seen.inputs)}",
                "edits need every row's inputs", "leave it out with `only`",
            )  # fmt: skip
        moments = self.moments[layer.name]
        flat = moments.add(seen.kind, features, self._keep(features), seen.marks)
        if seen.kind == "forget" and self.how.sample:
            moments.draw(flat, self.how.sample, self._generator)

    def _keep(self, features: Tensor) -> Tensor:
        """Which positions count [B, P]. A text layer that sees the last positions alone (the head) keeps those."""
        assert self._seen is not None
        inputs = self._seen.inputs
        if inputs.attention is None or inputs.answer is None:
            keep, most = torch.ones(features.shape[:2], dtype=torch.bool), self.how.positions
            if most and keep.shape[1] > most:
                drawn = torch.rand(keep.shape, generator=self._generator)
                keep = drawn <= drawn.kthvalue(most, 1, keepdim=True).values
            return keep.to(features.device)
        keep = inputs.attention
        if self.how.tokens == "answer":
            keep = torch.zeros_like(inputs.answer)
            keep[:, :-1] = inputs.answer[:, 1:]
        return keep[:, -features.shape[1] :]
