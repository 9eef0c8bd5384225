"""Projection away from the forget rows' activations (Kodge et al.): no gradients, one pass, one edit per layer."""

from __future__ import annotations

from dataclasses import dataclass

from harness import Submission
from harness.edits.layers import editable
from harness.edits.moments import Gathering, Tokens
from harness.edits.onjob import look, refuse_adapters
from harness.edits.projection import projected
from harness.job import Job


@dataclass(frozen=True)
class SubspaceProjection:
    """W (I - (M_f - M_f M_r))^T in every linear map; biases and embeddings stay.

    Defaults by sangamesh-kodge/class_forgetting for CIFAR-100: alpha_r 1000, alpha_f 30. It looks at 990 retain rows,
    and at patches drawn from them; here at `retain_rows` (0: all) and `positions` patches of an image (0: all). `only`,
    `skip` and `tokens` as in UNMERGE; the public code edits all layers.
    """

    alpha_f: float = 30.0
    alpha_r: float = 1000.0
    retain_rows: int = 0
    positions: int = 64
    tokens: Tokens = "all"
    only: str = ""
    skip: float = 0.0

    def __post_init__(self) -> None:
        if not (self.alpha_f > 0 and self.alpha_r > 0):
            raise ValueError("alpha_f and alpha_r are above 0")

    def unlearn(self, job: Job) -> None:
        """Look once, edit every layer."""
        refuse_adapters(job, "subspace_projection")
        layers = editable(job.model, only=self.only, skip=self.skip)
        how = Gathering(tokens=self.tokens, positions=self.positions)
        seen, _ = look(job, layers, how, retain_rows=self.retain_rows, controls=0)
        for layer in layers:
            second = seen[layer.name].second
            layer.write(
                projected(layer.matrix, second["forget"], second["retain"], self.alpha_f, self.alpha_r)
            )


submission = Submission(
    method=SubspaceProjection(), title="Kodge et al.",
    paper="Kodge et al. 2024, Deep Unlearning: Fast and Efficient Gradient-free Class Forgetting (arXiv 2312.00761)",
    search_space={"alpha_f": [0.25, 1, 3, 10, 30, 100, 300, 1000], "alpha_r": [1, 10, 100, 1000]},
)  # fmt: skip
