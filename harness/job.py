"""The job that a method sees: the model, the rows to forget and to keep, the clock, and nothing else."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness import blocks, scoring
from harness.batches import Batch, Update, deal
from harness.blocks import Frozen
from harness.clock import Clock
from harness.errors import SubmissionError, near
from harness.models import LoadedModel, load, save
from harness.parallel import Parallel, SingleProcess
from harness.plugins import optimizer_names
from harness.schedule import Scheduled
from harness.scoring import Inputs, Outputs
from harness.specs import Batching, OptimizerSpec, Stop
from harness.text import Encoder
from harness.types import Row, Sampler, TextRow, TokenScores

CHECKPOINT_EVERY_S = 30.0


@dataclass(frozen=True)
class Plan:
    """What a board fixes about training, and where a job may write.

    `dtype` is that of the passes; where the weights have a higher one, they run under autocast.
    """

    seed: int
    batching: Batching
    optimizer: OptimizerSpec
    stop: Stop | None = None
    points: Sequence[float] = ()
    folder: Path | None = None
    dtype: str = "float32"


@dataclass
class Seen:
    """What was counted and noted while a method ran."""

    examples: int = 0
    tokens: int = 0
    longest_step_s: float = 0.0
    stopped: str = ""
    failures: dict[str, int] = field(default_factory=dict)
    checks: list[dict[str, float]] = field(default_factory=list)
    points: list[dict[str, float]] = field(default_factory=list)
    log: list[dict[str, float | str]] = field(default_factory=list)


class Job:
    """Everything a method may use.

    Attributes:
        model: the module to change in place; dropout is off, gradients are on.
        tokenizer: of a text model, else None.
        forget, retain: the rows.
        seed: of this run.
        clock: lane `train` is charged; `clock.remaining_s` is what is left.
        parallel: the other processes, if any.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        forget: Sequence[Row],
        retain: Sequence[Row],
        clock: Clock,
        plan: Plan,
        *,
        resources: Mapping[str, Callable[[], Any]] | None = None,
        generator: Sampler | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        self.loaded, self.encoder = loaded, loaded.encoder
        self.model: nn.Module = (parallel or SingleProcess()).wrap(loaded.model.eval())
        self.tokenizer = loaded.encoder.tokenizer if loaded.encoder is not None else None
        self.forget, self.retain = forget, retain
        self.seed, self.clock, self.plan = plan.seed, clock, plan
        self.parallel = parallel or SingleProcess()
        self.seen = Seen()
        self.device = str(next(self.model.parameters()).device)
        self._resources, self._generator = resources or {}, generator
        self._collated: dict[tuple[str, tuple[int, ...]], Inputs] = {}
        self._got: dict[str, Any] = {}
        self._fits = 0
        self._checkpointed_s = 0.0

    # rows and batches -----------------------------------------------------------------------------------------------
    def collate(self, rows: Sequence[Row], index: Sequence[int] | None = None) -> Inputs:
        """Rows as tensors on the model's device; `index` defaults to 0..len(rows)."""
        return scoring.collate(rows, self.encoder, index, self.device)

    def _take(self, name: str, rows: Sequence[Row], index: Sequence[int]) -> Inputs:
        key = (name, tuple(index))
        if key not in self._collated:
            if len(self._collated) > 64:
                self._collated.clear()
            self._collated[key] = self.collate([rows[i] for i in index], index)
        return self._collated[key]

    def batches(self, size: int | None = None) -> Iterator[Update]:
        """Endless updates; which rows update k sees is a function of (seed, k) alone.

        Both sets are gone through in orders that are drawn anew per epoch. `size` forget rows (default: the board's)
        come with as many retain rows; a full batch holds all rows of both sets.
        """
        effective = size or self.plan.batching.effective
        whole = effective == "full"
        n_forget = len(self.forget) if whole else min(int(effective), len(self.forget))
        n_retain = len(self.retain) if whole else min(int(effective), len(self.retain))
        micro = self.plan.batching.micro or max(n_forget, n_retain)
        parts = min(-(-max(n_forget, n_retain) // micro), n_forget, n_retain)  # each has rows of both sets
        for k in range(self.clock.updates, 1 << 62):
            if whole:
                f, r = np.arange(n_forget), np.arange(n_retain)
            else:
                f = deal(self.seed, 0, len(self.forget), k * n_forget, n_forget)
                r = deal(self.seed, 1, len(self.retain), k * n_retain, n_retain)
            pieces = list(zip(np.array_split(f, parts), np.array_split(r, parts), strict=True))
            micros = [
                Batch(self._take("forget", self.forget, fi.tolist()), self._take("retain", self.retain, ri.tolist()),
                      (len(fi) + len(ri)) / (n_forget + n_retain))
                for fi, ri in self.parallel.share(pieces)
            ]  # fmt: skip
            yield Update(k, micros, n_forget + n_retain)

    def aligned(self, name: str, inputs: Inputs) -> Inputs:
        """The rows of resource `name` that belong to the forget rows in `inputs`, in the same order."""
        return self._take(name, self.resource(name), inputs.index.tolist())

    def draw(self, inputs: Inputs, count: int) -> list[int]:
        """A number below `count` for each row in `inputs`: a function of (seed, update, row)."""
        keys = ([self.seed, 3, self.clock.updates, i] for i in inputs.index.tolist())
        return [int(np.random.default_rng(key).integers(count)) for key in keys]

    # model work -----------------------------------------------------------------------------------------------------
    def forward(self, inputs: Inputs, hidden: Sequence[int] = ()) -> Outputs:
        """One differentiable pass; see `harness.scoring.forward`."""
        with self._precision():
            return scoring.forward(self.model, inputs, hidden)

    def hidden(self, inputs: Inputs, layer: int) -> Tensor:
        """Output of block `layer` (0 is the first) [B, T, d], differentiable; the pass ends there: no logits.

        Arrays give [B, 1, d]. Raises `SubmissionError` for a block that the model does not have.
        """
        blocks.check_layer(self.model, layer)
        with self._precision():
            return blocks.hidden_states(self.model, inputs, layer)

    def layer_at(self, fraction: float) -> int:
        """The block at a fraction of the depth; see `harness.blocks.layer_at`."""
        return blocks.layer_at(fraction, max(blocks.depth(self.model), 1))

    def down_projection(self, layer: int) -> nn.Module:
        """The linear map that ends the MLP of block `layer`."""
        return blocks.down_projection(self.model, layer)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        dtype = getattr(torch, self.plan.dtype)
        if next(self.model.parameters()).dtype == dtype:
            return contextlib.nullcontext()
        return torch.autocast(torch.device(self.device).type, dtype)

    def sequence_logp(self, rows: Sequence[Row]) -> Tensor:
        """Log p of each row's answer under the model as it is now, summed over tokens [rows], without gradient.

        Called at the start it is the frozen reference of NPO and DPO, computed once and kept: no second model.
        """
        micro = self.plan.batching.micro or (32 if self.encoder is not None else 4096)
        parts: list[Tensor] = []
        with torch.no_grad():
            for at in range(0, len(rows), micro):
                parts.append(scoring.token_logp(self.forward(self.collate(rows[at : at + micro]))).sum(-1))
        return torch.cat(parts)

    def frozen_reference(self) -> Frozen:
        """A frozen copy of the model as it is now, to be called like `forward` and asked like `hidden`."""
        return Frozen(copy.deepcopy(self.model), self._precision)

    def score(self, rows: Sequence[Row]) -> TokenScores:
        """Per-token scores of rows the method may see; charged like everything a method does."""
        with self._precision():
            return scoring.score(self.model, rows, self.encoder)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int = 200,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> tuple[str, ...]:
        """Answers of the model to questions, greedy at `temperature` 0; charged.

        Above 0 they are drawn from p^(1 / temperature). What is drawn for the i-th prompt is a function of
        (seed, i); `seed` defaults to the run's.
        """  # fmt: skip
        encoder, generator = self._texts()
        if generator is None:
            raise SubmissionError("this job has no generator", "", "give the job one")
        ids = [encoder.prompt(TextRow(str(i), prompt, "")) for i, prompt in enumerate(prompts)]
        with self._precision():
            said = generator.generate(
                ids, max_tokens=max_tokens, stop=stop, temperature=temperature,
                seed=self.seed if seed is None else seed,
            )  # fmt: skip
        return tuple(text for text, _ in said)

    def instruct(self, text: str) -> None:
        """Put `text` before every question from now on, in training and when the model is asked; no weight changes.

        It is saved with the model and goes into the run's record.
        """
        self._texts()[0].instruct(text)
        self._collated.clear()

    def _texts(self) -> tuple[Encoder, Sampler | None]:
        if self.encoder is None:
            raise SubmissionError("this model reads arrays, not text", "", "use a text board")
        return self.encoder, self._generator

    def resource(self, name: str) -> Any:
        """Something the task or the board supplies by name; a submission lists what it needs in `needs`."""
        if name not in self._resources:
            raise SubmissionError(
                f"no resource {name!r} here",
                near(name, self._resources),
                "list it in the submission's `needs`",
            )
        if name not in self._got:
            self._got[name] = self._resources[name]()
        return self._got[name]

    def optimizer(self) -> Scheduled:
        """The submission's optimizer over the model's trainable parameters, its schedule on the clock."""
        name = self.plan.optimizer.name
        if name not in optimizer_names():
            raise SubmissionError(
                f"no optimizer {name!r}", near(name, optimizer_names()), "set optimizer.name"
            )
        module = importlib.import_module(f"harness.optim.{name}")
        inner = module.build(self.plan.optimizer, self.model)
        self.seen.failures = getattr(inner, "failures", {})
        return Scheduled(inner, self.plan.optimizer, self.clock, self.parallel)

    # bookkeeping ----------------------------------------------------------------------------------------------------
    def log(self, name: str, value: float) -> None:
        """Note a number with the clock's reading; kept with the run."""
        self.seen.log.append({"name": name, "value": float(value), "updates": self.clock.updates,
                              "charged_s": self.clock.charged_s})  # fmt: skip

    def checkpoint(self, state: Mapping[str, Any] | None = None) -> None:
        """Save the weights, off the clock. Should the run be ended late, the last one made in time is scored.

        Of several processes, the first one saves.
        """
        if self.plan.folder is None or self.parallel.rank:
            return
        with self.clock.lane("save"):
            folder = self.plan.folder / "checkpoint"
            fresh = self.plan.folder / "checkpoint.new"
            save(self.loaded, fresh / "model")
            torch.save(dict(state or {}), fresh / "state.pt")
            note = {"charged_s": self.clock.lanes_s.get("train", 0.0), "updates": self.clock.updates}
            (fresh / "checkpoint.json").write_text(json.dumps(note))
            _swap(fresh, folder)
            self._checkpointed_s = note["charged_s"]

    def check(self) -> bool:
        """Look at forget and retain rows off the clock, note it, and say whether the board's stop is reached."""
        with self.clock.lane("check"):
            found: dict[str, float] = {}
            for name, rows in (("forget", self.forget), ("retain", self.retain)):
                p, accuracy = scoring.row_means(self.score(rows))
                found[f"{name}.p"], found[f"{name}.acc"] = p, accuracy
        self.seen.checks.append(
            {"updates": float(self.clock.updates), "charged_s": self.clock.lanes_s.get("train", 0.0), **found}
        )
        stop = self.plan.stop
        if stop is not None and stop.reached(found[stop.metric]):
            self.seen.stopped = f"{stop.metric} = {found[stop.metric]:.6g} at update {self.clock.updates}"
            return True
        return False

    def end_update(self, update: Update) -> bool:
        """Count one update; True when the board's stop says that training is over."""
        self.clock.tick()
        self.seen.examples += update.examples
        tokens = torch.tensor([update.tokens], dtype=torch.int64, device=self.device)
        self.parallel.reduce([tokens])
        self.seen.tokens += int(tokens)
        done = len(self.seen.points)
        while done < len(self.plan.points) and self.clock.fraction >= self.plan.points[done]:
            self._save_point(done)
            done += 1
        stop = self.plan.stop
        if stop is None or self.clock.updates % stop.check_every:
            return False
        return bool(self.parallel.agree(self.check()))

    def _save_point(self, k: int) -> None:
        if self.plan.folder is not None and not self.parallel.rank:
            with self.clock.lane("save"):
                save(self.loaded, self.plan.folder / "points" / str(k))
        self.seen.points.append(
            {"updates": self.clock.updates, "charged_s": self.clock.lanes_s.get("train", 0.0)}
        )

    # resuming -------------------------------------------------------------------------------------------------------
    def resume_fit(self, optimizer: Scheduled, own: MutableMapping[str, Any] | None = None) -> bool:
        """Put an interrupted `fit` back where its last checkpoint was; False when this fit was already complete."""
        number, self._fits = self._fits, self._fits + 1
        folder = self.plan.folder / "checkpoint" if self.plan.folder is not None else None
        if folder is None or not (folder / "state.pt").exists():
            return True
        state = torch.load(folder / "state.pt", weights_only=True)
        if state.get("fit", -1) < number:
            return True
        if state["fit"] > number:
            return False
        with self.clock.lane("load"):
            if "adapters" in state:
                self.model.load_state_dict(state["adapters"], strict=False)
            else:
                dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
                self.model.load_state_dict(load(str(folder / "model"), dtype=dtype).model.state_dict())
            optimizer.inner.load_state_dict(state["optimizer"])
            if own is not None:
                own.update(state["own"])
            self.seen.examples, self.seen.tokens = state["examples"], state["tokens"]
            self.seen.checks, self.seen.points = state["checks"], state["points"]
            self.clock.updates = state["updates"]
            self._checkpointed_s = self.clock.lanes_s.get("train", 0.0)
        return True

    def checkpoint_fit(self, optimizer: Scheduled, own: Mapping[str, Any] | None = None) -> None:
        """A checkpoint from which `fit` can go on, when the last one is half a minute of budget old."""
        if self.plan.folder is None or self.clock.charged_s - self._checkpointed_s < CHECKPOINT_EVERY_S:
            return
        state = {
            "fit": self._fits - 1,
            "optimizer": optimizer.inner.state_dict(),
            "updates": self.clock.updates,
            "own": dict(own or {}),
        }
        if self.loaded.adapters:
            state["adapters"] = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        counted = {"examples": self.seen.examples, "tokens": self.seen.tokens}
        self.checkpoint({**state, **counted, "checks": self.seen.checks, "points": self.seen.points})


def _swap(fresh: Path, folder: Path) -> None:
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
