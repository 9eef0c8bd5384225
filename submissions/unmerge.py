"""UNMERGE: take the forget part out of the task vector, layer by layer, without a gradient on any row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from harness import Submission
from harness.edits import geometry, onjob, separability, unmerge
from harness.edits.geometry import BasisKind, BasisSpec
from harness.edits.layers import Layer, editable
from harness.edits.moments import Gathering, Moments, Tokens
from harness.edits.task_vectors import check_start
from harness.edits.unmerge import Correction, Terms
from harness.job import Job
from harness.scoring import row_means

SAMPLE = 2048
"""Forget inputs per layer that k-means clusters."""


@dataclass(frozen=True)
class Seen:
    """What one pass gave, and the two states that the task vector is between; `init` None is W_init = 0."""

    layers: Sequence[Layer]
    groups: Sequence[str]
    moments: dict[str, Moments]
    fine: dict[str, Tensor]
    init: dict[str, Tensor] | None

    def weight(self, layer: Layer) -> Tensor:
        """The layer's fine-tuned matrix [m, d]."""
        return layer.as_matrix(self.fine[layer.name])

    def tau(self, layer: Layer) -> Tensor:
        """The layer's task vector [m, d]."""
        return (
            self.weight(layer) - layer.as_matrix(self.init[layer.name]) if self.init else self.weight(layer)
        )


@dataclass(frozen=True)
class Unmerge:
    """W_fine - alpha B Q_F^T per layer; see `harness.edits.unmerge` for the objective and `geometry` for the bases.

    `start` init: the task vector is W_fine - W_init with the board's `init` model, which must be the very checkpoint
    that was fine-tuned; zero: W_init = 0. `solver` adam: `steps` of Adam at rate `lr` from B_0, the paper's choice;
    closed: the exact minimiser, its choice on TOFU (with basis retain_pca). `alpha` None: line search on forget
    accuracy down to `wanted`. A request that does not stand out from random ones of its size is left alone unless
    `inseparable` is edit. `skip` leaves that share of the layers alone, from the input on. The notes give neither
    lam, gam, lr, shrink nor ridge: these are ours; rank 16 is that of its figure 1.
    """

    basis: BasisKind = "pca"
    solver: Literal["adam", "closed"] = "adam"
    start: Literal["init", "zero"] = "init"
    rank: int = 16
    retain_rank: int = 0
    shrink: float = 10.0
    ridge: float = 1.0
    lam: float = 1.0
    gam: float = 0.01
    steps: int = 100
    lr: float = 1e-3
    alpha: float | None = None
    alphas: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    wanted: float = 0.1
    halvings: int = 3
    skip: float = 0.0
    only: str = ""
    tokens: Tokens = "all"
    positions: int = 64
    retain_rows: int = 0
    inseparable: Literal["leave", "edit"] = "leave"

    def __post_init__(self) -> None:
        self._spec(0)
        Terms(self.lam, self.gam)
        if self.steps < 0 or self.lr <= 0:
            raise ValueError(f"steps={self.steps} is 0 or more, lr={self.lr} above 0")

    @property
    def needs(self) -> tuple[str, ...]:
        """The starting model, unless W_init is 0."""
        return ("model.init",) if self.start == "init" else ()

    def unlearn(self, job: Job) -> None:
        """Check the start, look once, say whether the request is separable, solve, and choose the strength."""
        seen = self.look(job)
        found = separability.verdict(
            {n: separability.scores(m)[_scored(seen.groups)] for n, m in seen.moments.items()}
        )
        job.log("separability.deviations", found.layers[found.best].deviations)
        job.log("separable", float(found.separable))
        if found.separable or self.inseparable == "edit":
            self._edit(job, seen)
        else:
            job.seen.stopped = found.text

    def look(self, job: Job) -> Seen:
        """Everything the edit needs, before any weight moves."""
        onjob.refuse_adapters(job, "unmerge")
        layers = editable(job.model, only=self.only, skip=self.skip)
        init = None
        if self.start == "init":
            init = dict(job.resource("model.init").state_dict())
            check_start(dict(job.model.state_dict()), init)
        how = Gathering(
            tokens=self.tokens, positions=self.positions, sample=SAMPLE if self.basis == "cav_kmeans" else 0
        )
        moments, groups = onjob.look(
            job, layers, how, retain_rows=self.retain_rows, classes=self.basis == "cav_class"
        )
        state = job.model.state_dict()
        return Seen(layers, groups, moments, {x.name: state[x.name].clone() for x in layers}, init)

    def _spec(self, seed: int) -> BasisSpec:
        return BasisSpec(self.basis, self.rank, self.retain_rank, self.shrink, self.ridge, seed)

    def corrections(self, seen: Seen, seed: int, terms: Terms | None = None) -> dict[str, Correction]:
        """tau_F of every layer."""
        out, spec = {}, self._spec(seed)
        terms = terms or Terms(self.lam, self.gam)
        for layer in seen.layers:
            moments, tau = seen.moments[layer.name], seen.tau(layer)
            q_f = geometry.forget_basis(moments, seen.groups, spec)
            q_r = geometry.retain_basis(moments, spec)
            if self.solver == "closed":
                factor = unmerge.closed_form(tau, q_f, q_r, terms)
            else:
                factor = unmerge.descent(tau, q_f, q_r, terms, steps=self.steps, lr=self.lr)
            out[layer.name] = Correction(factor, q_f)
        return out

    def _edit(self, job: Job, seen: Seen, terms: Terms | None = None) -> float:
        parts = self.corrections(seen, job.seed, terms)

        def apply(alpha: float) -> None:
            for layer in seen.layers:
                layer.write(seen.weight(layer) - alpha * parts[layer.name].matrix)

        return onjob.settle(job, apply, self.alpha, self.alphas, self.wanted, self.halvings)

    def ablate(self, job: Job, rows: int) -> Iterator[tuple[str, str, float]]:
        """(what, measure, value): each rank, and each term of the objective left out, its strength searched anew.

        Accuracies are on all forget rows and on the first `rows` retain rows. The model is put back.
        """
        seen = self.look(job)
        most = max(layer.width for layer in seen.layers)
        ranks = [2**k for k in range(12) if 2**k <= min(most, 4 * self.rank)]
        trials = {f"rank {rank}": (replace(self, rank=rank), None) for rank in ranks}
        trials |= {name: (self, t) for name, t in Terms(self.lam, self.gam).ablations().items()}
        for name, (method, terms) in trials.items():
            alpha = replace(method, alpha=None)._edit(job, seen, terms)
            yield name, "alpha", alpha
            for kind, part in (("forget", job.forget), ("retain", job.retain[:rows])):
                yield name, f"{kind}.acc", row_means(job.score(part))[1]
        for layer in seen.layers:
            layer.write(seen.weight(layer))


def _scored(groups: Sequence[str]) -> list[int]:
    return [i for i, name in enumerate(groups) if not name.startswith("class ")]


submission = Submission(
    method=Unmerge(), title="UNMERGE", paper="Unmerge: Efficient Machine Unlearning via Task Arithmetic (2026)",
    search_space={"rank": [4, 8, 16, 32], "lam": [0.3, 1, 3, 10], "basis": ["pca", "retain_pca", "cav_kmeans"]},
)  # fmt: skip
