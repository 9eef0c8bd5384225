"""From streamed moments to a layer's bases: which subspace is forgotten, and which one is to be spared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from harness.edits import bases
from harness.edits.moments import Moments

BasisKind = Literal["pca", "retain_pca", "cav_kmeans", "cav_class"]


@dataclass(frozen=True)
class BasisSpec:
    """How the two bases of a layer are made.

    Attributes:
        kind: `pca`; `retain_pca` (shrunk along retain directions); `cav_kmeans`, `cav_class` (ridge probes of clusters
            of forget inputs, or of the forget classes).
        rank: most directions of the forget basis; the number of clusters.
        retain_rank: directions of the retain basis, the leading ones of a PCA whatever `kind` is; 0 is `rank`.
        shrink: strength of `retain_pca`.
        ridge: of the probes, relative to the mean eigenvalue of the inputs' covariance.
        seed: of k-means.
    """

    kind: BasisKind = "pca"
    rank: int = 16
    retain_rank: int = 0
    shrink: float = 10.0
    ridge: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1 or self.retain_rank < 0:
            raise ValueError(f"rank={self.rank} is at least 1, retain_rank={self.retain_rank} at least 0")
        if not (self.shrink >= 0 and self.ridge > 0):
            raise ValueError(f"shrink={self.shrink} is 0 or more, ridge={self.ridge} above 0")


def forget_basis(moments: Moments, groups: Sequence[str], spec: BasisSpec) -> Tensor:
    """Q_F [d, k], k at most `spec.rank`. `groups` names the marked groups of `moments` (for `cav_class`)."""
    if spec.kind == "pca":
        return bases.pca(moments.second["forget"], spec.rank)
    forget, retain = moments.average("forget"), moments.average("retain")
    if spec.kind == "retain_pca":
        return bases.retain_shrunk(forget, retain, spec.rank, spec.shrink)
    if spec.kind == "cav_class":
        mine = [i for i, name in enumerate(groups) if name.startswith("class ")]
        concepts = moments.mark_total[mine] / moments.mark_count[mine, None].clamp(min=1)
    else:
        concepts = bases.cluster_means(moments.sample, spec.rank, spec.seed)
    probes = bases.cav(concepts, moments.mean("retain"), moments.mean("forget"), forget, retain, spec.ridge)
    return probes[:, : spec.rank]


def retain_basis(moments: Moments, spec: BasisSpec) -> Tensor:
    """Q_R [d, r]: leading eigenvectors of the retain inputs' second moment."""
    return bases.pca(moments.second["retain"], spec.retain_rank or spec.rank)
