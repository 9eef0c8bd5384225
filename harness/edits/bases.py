"""Orthonormal bases of the subspace in which a layer sees what is to be forgotten: PCA, retain-shrunk PCA, CAVs.

UNMERGE names them; what its notes leave open is decided here and said. All take float64 moments and give [d, k].
"""

from __future__ import annotations

import torch
from torch import Tensor

NOTHING = 1e-12
"""Directions whose eigenvalue is below this share of the largest one carry no input; they are left out."""


def pca(moment: Tensor, rank: int) -> Tensor:
    """The `rank` eigenvectors of an uncentred second moment [d, d] with the largest eigenvalues, largest first.

    Fewer where the inputs span fewer directions; none (a [d, 0] basis) where all inputs are 0.
    """
    values, vectors = torch.linalg.eigh(moment.double())
    values, vectors = values.flip(0), vectors.flip(1)
    there = int((values > NOTHING * values[0]).sum()) if len(values) and values[0] > 0 else 0
    return vectors[:, : min(rank, there)].contiguous()


def retain_shrunk(forget: Tensor, retain: Tensor, rank: int, strength: float) -> Tensor:
    """PCA of the forget inputs after shrinking what retain inputs use too.

    The eigenvectors of A M_f A with A = (I + strength M_r)^(-1/2), both moments scaled to a mean eigenvalue of 1.
    Strength 0 is `pca`; a large one finds the directions with the largest share of forget energy. The shrinkage of the
    paper's language experiment is not in its notes: this one is ours.
    """
    forget, retain = _scaled(forget), _scaled(retain)
    values, vectors = torch.linalg.eigh(retain)
    scale = (1 + strength * values.clamp(min=0)).rsqrt()
    shrink = (vectors * scale) @ vectors.T
    return pca(shrink @ forget @ shrink, rank)


def _scaled(moment: Tensor) -> Tensor:
    moment = moment.double()
    mean = moment.diagonal().mean()
    return moment / mean if mean > 0 else moment


def cav(
    positives: Tensor, retain_mean: Tensor, forget_mean: Tensor, forget: Tensor, retain: Tensor, ridge: float
) -> Tensor:
    """Concept activation vectors (Kim et al. 2018, arXiv 1711.11279) of c concepts, orthonormalised [d, at most c].

    Each is a ridge probe with an intercept in closed form: target 1 (by the inverse of its share) on the concept's
    forget inputs, -1 on all retain inputs, 0 on other forget inputs, both sets weighing 1/2. So
    w = (S + ridge s I)^(-1) (mean of the concept - mean of retain), S the covariance around the balanced mean and s its
    mean eigenvalue. Pool, weights, centring and ridge are our decisions.

    Args:
        positives: mean input of each concept [c, d].
        retain_mean: mean retain input [d].
        forget_mean: mean forget input [d].
        forget: second moment of the forget inputs, by their count [d, d].
        retain: likewise of the retain inputs.
        ridge: relative, positive.
    """
    centre = (forget_mean + retain_mean).double() / 2
    covariance = (forget + retain).double() / 2 - torch.outer(centre, centre)
    damped = covariance + ridge * covariance.diagonal().mean().clamp(min=1e-300) * torch.eye(
        len(centre), dtype=torch.float64, device=centre.device
    )
    probes = torch.linalg.solve(damped, (positives.double() - retain_mean).T)
    return orthonormal(probes)


def orthonormal(vectors: Tensor, tolerance: float = 1e-8) -> Tensor:
    """An orthonormal basis [d, at most c] of the span of the columns of `vectors` [d, c].

    Columns are scaled to length 1 first; directions below `tolerance` of the strongest are left out.
    """
    lengths = vectors.norm(dim=0)
    kept = vectors[:, lengths > 0] / lengths[lengths > 0]
    if not kept.shape[1]:
        return vectors[:, :0]
    u, s, _ = torch.linalg.svd(kept, full_matrices=False)
    return u[:, s > tolerance * s[0]].contiguous()


def cluster_means(points: Tensor, count: int, seed: int, iterations: int = 25) -> Tensor:
    """Centres [at most count, d] of k-means on points [n, d]: k-means++ starts, then Lloyd's iterations.

    Arthur and Vassilvitskii 2007. With no more distinct points than `count`, those points.
    """
    points = points.double()
    distinct = torch.unique(points, dim=0)
    if len(distinct) <= count:
        return distinct
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randint(len(points), (1,), generator=generator).to(points.device)]
    while len(centres) < count:
        far = torch.cdist(points, centres).square().min(1).values
        drawn = torch.multinomial(far.cpu(), 1, generator=generator).to(points.device)
        centres = torch.cat([centres, points[drawn]])
    for _ in range(iterations):
        mine = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, mine, points)
        sizes = torch.bincount(mine, minlength=count).to(sums)
        fresh = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centres)
        if fresh.equal(centres):
            break
        centres = fresh
    return centres


def overlap(forget: Tensor, retain: Tensor) -> Tensor:
    """Of each forget direction [k]: the share of its squared length inside the span of the retain basis, 0 to 1.

    Squared row norms of C = Q_F^T Q_R; their mean is a layer's overlap. The notes do not say whether the norm is
    squared.
    """
    return (forget.T @ retain).square().sum(1)
