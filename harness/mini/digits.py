"""The built-in images: 1,797 handwritten digits of 8 x 8 pixels in 17 shades, real ones.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository 1998,
doi 10.24432/C50P49, CC BY 4.0; the copy that scikit-learn bundles (`sklearn.datasets.load_digits`). Half of every
class is for training, half for testing, as drawn by the generator of seed 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def halves(labels: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two halves that have as many rows of every class, up to one; both ascending."""
    draw = np.random.default_rng(seed)
    first, second = [], []
    for k in np.unique(labels):
        order = draw.permutation(np.flatnonzero(labels == k))
        first.append(order[: (len(order) + 1) // 2])
        second.append(order[(len(order) + 1) // 2 :])
    return np.sort(np.concatenate(first)), np.sort(np.concatenate(second))


def write(folder: Path) -> Path:
    """Make `images.npz` from scikit-learn's copy."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.int64)
    train, test = halves(labels)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "images.npz"
    np.savez_compressed(
        path, train_images=images[train], train_labels=labels[train].astype(np.uint8), test_images=images[test],
        test_labels=labels[test].astype(np.uint8), names=np.array([str(k) for k in range(10)]),
    )  # fmt: skip
    return path
