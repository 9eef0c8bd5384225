"""Specs: what a person writes in TOML and what is stored as JSON. Frozen pydantic models that refuse unknown keys."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

METRIC_ID = re.compile(r"[a-zA-Z0-9_]+(\.[a-zA-Z0-9_]+)*")
STATUSES = ("ok", "drift", "limited", "imported", "over_budget", "timeout", "invalid", "failed")
"""The closed set of run statuses. `ok` and `drift` are ranked; the others are shown with their reason."""
RANKED_STATUSES = ("ok", "drift")

Status = Literal["ok", "drift", "limited", "imported", "over_budget", "timeout", "invalid", "failed"]


def content_hash(value: Any, length: int = 16) -> str:
    """SHA-256 of a JSON-able value in canonical form (sorted keys, no spaces), cut to `length` hex digits."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str
    )
    return hashlib.sha256(text.encode()).hexdigest()[:length]


# --- specs ----------------------------------------------------------------------------------------------------------
class Spec(BaseModel):
    """Base of everything that is written by hand or stored: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskRef(Spec):
    """Which task a board asks, on which rows.

    `data` is a hub id or a folder (relative paths are taken from the workspace); `options` go to the task,
    which refuses those it does not know.
    """

    name: str
    split: str = ""
    data: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class Batching(Spec):
    """Rows per update: `effective` forget rows with as many retain rows, or `full` for all rows of both sets.

    `micro` rows go through the model at a time; gradients are accumulated over an update.
    """

    effective: PositiveInt | Literal["full"] = 32
    micro: PositiveInt | None = None


class Template(Spec):
    """How a question becomes a prompt: the model's own chat template with a pinned date, or the plain one."""

    system: str | None = None
    date: str = "10 Apr 2025"
    plain: bool = False


class Budget(Spec):
    """What a method may spend: exactly one of wall-clock `seconds`, `reference_steps`, or `updates`.

    `reference_steps = N` is N times the median time of the board's reference step (GradDiff with AdamW, same batch)
    on the machine at hand. `hang_s` ends a run that neither finishes nor makes an update for that long.
    """

    seconds: PositiveFloat | None = None
    reference_steps: PositiveInt | None = None
    updates: PositiveInt | None = None
    max_peak_gib: PositiveFloat | None = None
    hang_s: PositiveFloat = 600.0

    @model_validator(mode="after")
    def _one_kind(self) -> Budget:
        given = [k for k in ("seconds", "reference_steps", "updates") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a budget is exactly one of seconds, reference_steps, updates; got {', '.join(given) or 'none'}"
            )
        return self

    @property
    def kind(self) -> Literal["seconds", "reference_steps", "updates"]:
        """Which of the three this budget is."""
        if self.seconds is not None:
            return "seconds"
        return "reference_steps" if self.reference_steps is not None else "updates"


class _Threshold(Spec):
    """A bound from above (`at_most`) or from below (`at_least`)."""

    at_most: float | None = None
    at_least: float | None = None

    @model_validator(mode="after")
    def _one_side(self) -> _Threshold:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"a {type(self).__name__.lower()} has exactly one of at_most, at_least")
        return self

    @property
    def level(self) -> float:
        """The bound itself."""
        return self.at_most if self.at_most is not None else (self.at_least or 0.0)

    def reached(self, value: float) -> bool:
        """Whether `value` is on the far side of the threshold; NaN never is."""
        return value <= self.level if self.at_most is not None else value >= self.level


class Target(_Threshold):
    """A value of a metric to reach, from above (`at_most`) or from below (`at_least`)."""

    metric: str = Field(pattern=f"^{METRIC_ID.pattern}$")

    @property
    def text(self) -> str:
        """In words, such as `forget.p ≤ 0.1`."""
        return f"{self.metric} {'≤' if self.at_most is not None else '≥'} {self.level:g}"


class Stop(_Threshold):
    """A threshold that ends training early, checked off the clock every `check_every` updates.

    `metric` is one of `forget.p`, `retain.p` (mean probability of the right answer; for texts the per-row geometric
    token mean), `forget.acc`, `retain.acc` (share of answer tokens that are the model's first choice).
    """

    metric: Literal["forget.p", "retain.p", "forget.acc", "retain.acc"]
    check_every: PositiveInt = 1


class Relearn(Spec):
    """Relearning: `steps` updates of a fresh AdamW on a part of the forget rows, and what they bring back.

    `share` of the forget rows is drawn by (the run's seed, `seed`), at least one row; an update sees `batch` of them.
    The weights are looked at before the first update, every `every` updates, and after the last one.
    """

    share: float = Field(default=0.1, gt=0, le=1)
    steps: int = Field(default=40, ge=0)
    batch: PositiveInt = 16
    lr: PositiveFloat = 1e-5
    every: PositiveInt = 4
    seed: int = Field(default=0, ge=0)


class Quantise(Spec):
    """Weights rounded to 8 or 4 bits (`group` inputs share a scale at 4), and what is left then.

    `rows` questions of each set are answered, of at most `max_tokens` tokens, and as many retain rows are looked at.
    """

    bits: tuple[Literal[8, 4], ...] = Field(default=(8, 4), min_length=1)
    group: PositiveInt = 64
    rows: PositiveInt = 64
    max_tokens: PositiveInt = 200

    @field_validator("bits")
    @classmethod
    def _once(cls, bits: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(bits)) != len(bits):
            raise ValueError("bits repeat")
        return bits


class Paraphrase(Spec):
    """The forget questions in other words or another language; answers of at most `max_tokens` tokens."""

    max_tokens: PositiveInt = 200


class Robustness(Spec):
    """Which further axes are measured after the final score, and how; None is not at all."""

    relearn: Relearn | None = None
    quantise: Quantise | None = None
    paraphrase: Paraphrase | None = None

    @property
    def axes(self) -> dict[str, Spec]:
        """Those that are measured, by name."""
        named = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: settings for name, settings in named.items() if settings is not None}

    @model_validator(mode="after")
    def _relearns(self) -> Robustness:
        how = self.relearn
        if how is not None and how.steps < 1:
            raise ValueError(
                "relearn.steps is 0, and nothing would be relearnt: 1 or more, or leave relearn out"
            )
        if how is not None and how.every > how.steps:
            raise ValueError(
                f"relearn.every is {how.every} of {how.steps} steps: set it to {how.steps} or less"
            )
        return self


SHOWN_ONLY = {"title", "columns", "rank_by", "settings", "seeds", "cases", "lr_grid", "target", "robustness"}
"""Fields of a board that change no number of a run: presentation, and what is in the entries anyway.

`robustness` changes what is measured beside the score, under settings that the record holds.
"""


class Board(Spec):
    """One leaderboard: everything that is held equal between its entries.

    `models` maps roles to model references: a hub id, a folder, or `mini:NAME` for a model that ships with the
    package. `{case}` and `{seed}` in a reference are filled in per run.
    `target` is what time-to-target is taken to; without one it is the stop.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    title: str = ""
    version: PositiveInt = 1
    track: Literal["method", "optimizer"] = "method"
    task: TaskRef
    cases: tuple[str, ...] = ()
    models: dict[Literal["target", "retain", "again", "original", "init", "shared"], str]
    batch: Batching = Batching()
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_length: PositiveInt = 512
    template: Template = Template()
    budget: Budget
    stop: Stop | None = None
    target: Target | None = None
    seeds: tuple[int, ...] = Field(min_length=1)
    seeds_change: str = "the order of the rows"
    columns: tuple[str, ...] = Field(min_length=1)
    rank_by: str
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    lr_grid: dict[str, tuple[PositiveFloat, ...]] = Field(default_factory=dict)
    robustness: Robustness | None = None

    @field_validator("lr_grid")
    @classmethod
    def _rates(cls, grids: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
        for key, rates in grids.items():
            if not rates or len(set(rates)) != len(rates):
                raise ValueError(f"lr_grid.{key} is empty or names a rate twice")
        return {key: tuple(sorted(rates)) for key, rates in grids.items()}

    def learning_rates(self, loss: str, optimizer: str) -> tuple[float, ...]:
        """The rates that `uharness compare` tries for a pair, ascending; empty where the board names none.

        Of the keys of `lr_grid` the most special one counts: `LOSS.OPTIMIZER`, `OPTIMIZER`, `LOSS`, `default`.
        """
        keys = (f"{loss}.{optimizer}", optimizer, loss, "default")
        return next((self.lr_grid[key] for key in keys if key in self.lr_grid), ())

    @field_validator("seeds", "cases", "columns")
    @classmethod
    def _distinct(cls, values: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        if len(set(values)) != len(values):
            raise ValueError(f"{info.field_name} repeat")
        return values

    @field_validator("seeds")
    @classmethod
    def _natural(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if min(seeds) < 0:
            raise ValueError("seeds are 0 or more")
        return seeds

    @model_validator(mode="after")
    def _has_target(self) -> Board:
        if "target" not in self.models:
            raise ValueError("models has no target role: the model that methods start from")
        if self.rank_by not in self.columns:
            raise ValueError(f"rank_by is {self.rank_by!r}, which is not among the columns")
        for column in self.columns:
            if not METRIC_ID.fullmatch(column.split("@")[0]):
                raise ValueError(f"column {column!r} is not a metric id")
        return self

    @property
    def board_version(self) -> str:
        """`version` and a hash of everything that can change a number; presentation and settings are left out.

        What a submission was run with is in its entry, so `settings` of one method never age another's rows, nor do
        the rates of `lr_grid`.
        """
        return f"{self.version}-{content_hash(self.model_dump(mode='json', exclude=SHOWN_ONLY), 10)}"


class OptimizerSpec(Spec):
    """Which optimizer, and its schedule on the clock: linear warm-up over the first `warmup` of the budget.

    `options` are the optimizer's own (`harness.optim.NAME.Options`; `--set optimizer.KEY=VALUE` reaches them like the
    fields here). `master_weights` keeps the trained weights in float32 on a board of lower precision, whose dtype the
    passes then use by autocast: an update below the spacing of bfloat16 is not lost. False trains the board's dtype.
    """

    name: str = "adamw"
    lr: PositiveFloat = 1e-5
    weight_decay: float = Field(default=0.01, ge=0)
    warmup: float = Field(default=0.1, ge=0, le=1)
    decay: Literal["linear", "constant"] = "linear"
    max_grad_norm: PositiveFloat | None = None
    master_weights: bool = True
    options: dict[str, Any] = Field(default_factory=dict)

    def factor(self, fraction: float) -> float:
        """Multiplier of the learning rate at `fraction` (0 to 1) of the budget.

        >>> OptimizerSpec(warmup=.1).factor(.05), OptimizerSpec(warmup=.1).factor(1.0)
        (0.5, 0.0)
        """
        fraction = min(max(fraction, 0.0), 1.0)
        if fraction < self.warmup:
            return fraction / self.warmup
        if self.decay == "constant":
            return 1.0
        return (1.0 - fraction) / (1.0 - self.warmup) if self.warmup < 1 else 1.0


class LoraSpec(Spec):
    """Low-rank adapters in place of full training (Hu et al. 2021, arXiv 2106.09685), by peft; rank 0 is none.

    The update of a linear map is `alpha / rank` times B A; `alpha` defaults to 2 `rank`. The adapters are merged into
    the weights before anything is scored. `targets` is a regular expression on module names, or `all-linear`.
    """

    rank: int = Field(default=0, ge=0)
    alpha: PositiveFloat | None = None
    targets: str = "all-linear"


class ScoreRecord(Spec):
    """One number of a run: the value or, when there is none, why."""

    value: float | None
    n: int = Field(default=0, ge=0)
    why: str = ""

    @field_validator("value")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ValueError("a stored value is finite or null")
        return value


class Ledger(Spec):
    """What a row cost, over all trials of tuning and all children of a selector.

    `charged_s` and `gpu_hours` have the seconds in which a selector judged its mixes too. An evaluation by the board's
    own metric is a full one; that of the mix which was chosen is not counted again. `judge_*`: replies of a language
    model that the scores use, and their tokens (prompts and replies), whether they were cached or not.
    """

    trainings: int = 1
    proxy_evaluations: int = 0
    full_evaluations: int = 1
    charged_s: float = 0.0
    gpu_hours: float = 0.0
    judge_calls: int = 0
    judge_tokens: int = 0


class Selection(Spec):
    """How the weights of a row were picked, and how many of the rows that decided are also probe rows.

    `dropped` counts children of a selector that had no part in it, for their weight would not have been positive.
    """

    kind: Literal["none", "proxy", "full_metric"] = "none"
    proxy_rows: int = 0
    proxy_rows_in_probes: int = 0
    dropped: int = 0


class RunRecord(Spec):
    """One run, as stored in `leaderboards/<board>/results/<run_id>.json`."""

    format: Literal[1] = 1
    run_id: str
    board: str
    board_version: str
    entry: str
    submission: str
    title: str = ""
    reference: bool = False
    optimizer: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    case: str
    seed: int
    hashes: dict[str, str] = Field(default_factory=dict)
    env: dict[str, Any] = Field(default_factory=dict)
    started: str = ""
    budget: dict[str, Any] = Field(default_factory=dict)
    lanes_s: dict[str, float] = Field(default_factory=dict)
    charged_s: float | None = None
    overshoot_s: float | None = None
    updates: int | None = None
    examples: int | None = None
    tokens: int | None = None
    peak_gib: float | None = None
    stopped: str = ""
    optimizer_failures: dict[str, int] = Field(default_factory=dict)
    ledger: Ledger = Ledger()
    selection: Selection = Selection()
    scores: dict[str, ScoreRecord] = Field(default_factory=dict)
    rows: dict[str, str] = Field(default_factory=dict)
    status: Status
    error: str = ""

    @property
    def ranked(self) -> bool:
        """Whether this run may enter a ranking."""
        return self.status in RANKED_STATUSES and not self.reference

    @property
    def used_optimizer(self) -> str | None:
        """The optimizer; None of a run that ended well without any update: an edit of weights asks for none."""
        idle = self.updates == 0 and self.status in RANKED_STATUSES
        return None if idle else self.optimizer
