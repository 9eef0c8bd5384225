"""Losses and gradients of a finished run's own method, on its own rows, at any of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from harness import loop as training
from harness import losses, models
from harness.batches import Batch
from harness.clock import Allowance, Clock
from harness.entries import Entry, resolve
from harness.errors import RunError, UharnessError
from harness.generate.hf import HFGenerator
from harness.job import Job, Plan
from harness.plugins import load_source, load_task
from harness.runs import RunSpec, cut_case
from harness.scoring import token_logp
from harness.specs import Batching, OptimizerSpec
from harness.types import Case, Task

Loss = Callable[[Batch], Tensor]
AT_ONCE = 4 << 30
"""Bytes of gradients that are kept at once; more matrices than fit take another pass."""


class _Caught(BaseException):
    """Carries the loss out of the method; no `except Exception` of a method holds it up."""

    def __init__(self, loss: Loss | None) -> None:
        super().__init__()
        self.loss = loss


class OwnRun:
    """A run's method, set up at the start's weights as it was for training, and its micro-batches.

    Args:
        spec: of the run.
        count, rows: so many micro-batches of so many forget rows and as many retain rows; fewer where there are not
            enough rows. They are those of the run's first update, were it that large.
    """

    def __init__(self, spec: RunSpec, count: int, rows: int) -> None:
        torch.manual_seed(spec.train_seed)
        task = load_task(spec.task_ref, spec.board.template)
        case = cut_case(task.case(spec.case, spec.seed), spec.limit)
        self.spec = spec
        self.dtype = (
            "float32" if bool(spec.config.get("optimizer.master_weights", True)) else spec.board.dtype
        )
        loaded = self._load(spec.start)
        least = min(len(case.forget), len(case.retain))
        count = min(count, least)
        rows = max(1, min(rows, least // count))
        self.entry, self.why = entry_of(spec)
        needs = self.entry.needs if self.entry is not None else ()
        optimizer = self.entry.optimizer if self.entry is not None else OptimizerSpec()
        plan = Plan(
            spec.train_seed, Batching(effective=count * rows, micro=rows), optimizer, dtype=spec.board.dtype
        )
        self.job = Job(
            loaded, case.forget, case.retain, Clock(Allowance(updates=1)), plan,
            resources=supplies(spec, task, case, needs, self._load),
            generator=None if loaded.encoder is None else HFGenerator(loaded.model, loaded.encoder),
        )  # fmt: skip
        self.batches: Sequence[Batch] = next(iter(self.job.batches())).micros

    def _load(self, path: str) -> models.LoadedModel:
        board = self.spec.board
        return models.load(path, dtype=self.dtype, template=board.template, max_length=board.max_length)

    def losses(self) -> tuple[dict[str, Loss], str]:
        """`total` (the method's own), `forget` and `retain` (NLL of the answers); why `total` is not among them."""
        forget, retain = (self._nll(kind) for kind in ("forget", "retain"))
        found: dict[str, Loss] = {"forget": forget, "retain": retain}
        if self.entry is None:
            return found, self.why
        try:
            with mock.patch.object(training, "fit", _catch):
                self.entry.method.unlearn(self.job)
        except _Caught as caught:
            if caught.loss is not None:
                return {"total": caught.loss, **found}, ""
            why = "the method trains on data of its own, not on forget and retain rows"
        except Exception as problem:
            why = f"the method raised {type(problem).__name__}: {problem}"
        else:
            why = "the method gives no loss to `fit`"
        self.move_to(Path(self.spec.start))
        return found, why

    def _nll(self, kind: str) -> Loss:
        def loss(batch: Batch) -> Tensor:
            out = self.job.forward(getattr(batch, kind))
            return losses.nll(token_logp(out), out.mask)

        return loss

    def move_to(self, weights: Path) -> None:
        """Put other weights into the model in place; the method's references stay those of the start."""
        self.job.model.load_state_dict(self._load(str(weights)).model.state_dict())


def _catch(job: Job, loss: Loss, *_: Any, updates: Any = None, **__: Any) -> None:
    raise _Caught(None if updates is not None else loss)


def supplies(
    spec: RunSpec, task: Task, case: Case, needs: Sequence[str], load: Callable[[str], models.LoadedModel]
) -> dict[str, Callable[[], Any]]:
    """What gives each resource that a method needs: rows of the task, or a model of the board by its folder."""
    supply: dict[str, Callable[[], Any]] = {
        **{name: (lambda n=name: task.resource(n, case, spec.seed)) for name in task.resources()},
        **{f"model.{r}": (lambda p=p: load(p).model) for r, p in spec.models.items()},
    }
    return {name: give for name, give in supply.items() if name in needs}


def entry_of(spec: RunSpec) -> tuple[Entry | None, str]:
    """The method of a run (a selector's base), or why there is none."""
    source = spec.sources[-1]
    several = len(spec.sources) > 1
    inner = {k.removeprefix("base."): v for k, v in spec.overrides.items() if k.startswith("base.")}
    try:
        with mock.patch.object(training, "fit", _catch):  # the file's `fit` is then the one that catches
            loaded = load_source(source.name, source.source)
        if loaded.code != source.code:
            raise RunError(f"{source.name} has changed since the run was made")
        settings = spec.board.settings.get(source.name, {})
        return resolve(loaded, settings, inner if several else spec.overrides), ""
    except UharnessError as problem:
        return None, str(problem)


def groups(matrices: Mapping[str, nn.Parameter], count: int) -> Iterator[list[str]]:
    """Matrices whose `count` gradients are kept together, in order; one that is too large comes alone."""
    group: list[str] = []
    size = 0
    for name, matrix in matrices.items():
        need = count * matrix.numel() * 4
        if group and size + need > AT_ONCE:
            yield group
            group, size = [], 0
        group.append(name)
        size += need
    if group:
        yield group


def gradients(loss: Loss, batches: Sequence[Batch], matrices: Sequence[nn.Parameter]) -> list[Tensor]:
    """Gradient of each matrix by each micro-batch's loss, [batches, rows, cols] float32 per matrix.

    A matrix that the loss does not depend on has zeros.
    """
    kept = [torch.zeros(len(batches), *m.shape, device=m.device) for m in matrices]
    for i, batch in enumerate(batches):
        found = torch.autograd.grad(loss(batch), matrices, allow_unused=True)
        for into, gradient in zip(kept, found, strict=True):
            if gradient is not None:
                into[i] = gradient
    return kept
