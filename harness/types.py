"""Specs that people write, and values that the machine passes on.

Specs are frozen pydantic models that refuse unknown keys; values are frozen dataclasses over numpy arrays.
Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
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


class Stop(Spec):
    """A threshold that ends training early, checked off the clock every `check_every` updates.

    `metric` is one of `forget.p`, `retain.p` (mean probability of the right answer; for texts the per-row geometric
    token mean), `forget.acc`, `retain.acc` (share of answer tokens that are the model's first choice).
    """

    metric: Literal["forget.p", "retain.p", "forget.acc", "retain.acc"]
    at_most: float | None = None
    at_least: float | None = None
    check_every: PositiveInt = 1

    @model_validator(mode="after")
    def _one_side(self) -> Stop:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("a stop has exactly one of at_most, at_least")
        return self

    def reached(self, value: float) -> bool:
        """Whether `value` is on the far side of the threshold; NaN never is."""
        return value <= self.at_most if self.at_most is not None else value >= (self.at_least or 0.0)


class Board(Spec):
    """One leaderboard: everything that is held equal between its entries.

    `models` maps roles to model references: a hub id, a folder, or `mini:NAME` for a model that ships with the
    package. `{case}` and `{seed}` in a reference are filled in per run.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    title: str = ""
    version: PositiveInt = 1
    track: Literal["method", "optimizer"] = "method"
    task: TaskRef
    cases: tuple[str, ...] = ()
    models: dict[Literal["target", "retain", "original", "init", "shared"], str]
    batch: Batching = Batching()
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_length: PositiveInt = 512
    template: Template = Template()
    budget: Budget
    stop: Stop | None = None
    seeds: tuple[int, ...] = Field(min_length=1)
    seeds_change: str = "the order of the rows"
    columns: tuple[str, ...] = Field(min_length=1)
    rank_by: str
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("seeds repeat")
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

        What a submission was run with is in its entry, so `settings` of one method never age another's rows.
        """
        shown_only = {"title", "columns", "rank_by", "settings", "seeds", "cases"}
        return f"{self.version}-{content_hash(self.model_dump(mode='json', exclude=shown_only), 10)}"


class OptimizerSpec(Spec):
    """Which optimizer, and its schedule on the clock: linear warm-up over the first `warmup` of the budget.

    Defaults are torch's AdamW and HF's; a board's settings say what a paper used instead.
    """

    name: str = "adamw"
    lr: PositiveFloat = 1e-5
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    warmup: float = Field(default=0.1, ge=0, le=1)
    decay: Literal["linear", "constant"] = "linear"
    max_grad_norm: PositiveFloat | None = None

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
    """What a row cost, over all trials of tuning and all children of a selector."""

    trainings: int = 1
    proxy_evaluations: int = 0
    full_evaluations: int = 1
    charged_s: float = 0.0
    gpu_hours: float = 0.0


class Selection(Spec):
    """How the weights of a row were picked, and how many of the rows that decided are also probe rows."""

    kind: Literal["none", "proxy", "full_metric"] = "none"
    proxy_rows: int = 0
    proxy_rows_in_probes: int = 0


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


# --- values: rows and probes ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TextRow:
    """A question and the answer that is scored or trained on; `id` is the data file's name and the row's index."""

    id: str
    prompt: str
    target: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ArrayRow:
    """A numeric input (token ids, pixels) and its class label."""

    id: str
    inputs: np.ndarray
    label: int
    meta: Mapping[str, Any] = field(default_factory=dict)


Row = TextRow | ArrayRow


@dataclass(frozen=True)
class Case:
    """One unlearning request. `after` names the case that must have been unlearned before (sequential requests)."""

    id: str
    forget: Sequence[Row]
    retain: Sequence[Row]
    after: str | None = None


@dataclass(frozen=True)
class Likelihood:
    """Log-probabilities of each row's target under teacher forcing."""

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Generation:
    """Greedy continuations of each row's prompt."""

    name: str
    rows: Sequence[TextRow]
    max_tokens: int = 200
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Classify:
    """Class logits of each array row."""

    name: str
    rows: Sequence[ArrayRow]


Probe = Likelihood | Generation | Classify
"""What a task can ask. The union is closed: the answer stage knows every member."""


# --- values: answers ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TokenScores:
    """Per-token results of teacher forcing, rows laid end to end.

    Attributes:
        logp: log-probability of the right token, natural log [tokens] float32, at most 0.
        hit: whether the right token is the model's first choice [tokens] bool.
        is_eos: whether the right token ends the answer [tokens] bool.
        mean_logp: mean of log p over the vocabulary under p itself [tokens] float32 (Min-K++).
        var_logp: variance of log p over the vocabulary under p itself [tokens] float32, at least 0 (Min-K++).
        offsets: row i is tokens offsets[i]:offsets[i + 1] [rows + 1] int64.
    """

    logp: np.ndarray
    hit: np.ndarray
    is_eos: np.ndarray
    mean_logp: np.ndarray
    var_logp: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, i: int) -> TokenScores:
        """Row `i` alone."""
        a, b = int(self.offsets[i]), int(self.offsets[i + 1])
        return TokenScores(
            self.logp[a:b], self.hit[a:b], self.is_eos[a:b], self.mean_logp[a:b], self.var_logp[a:b],
            np.array([0, b - a], dtype=np.int64),
        )  # fmt: skip

    def __iter__(self) -> Iterator[TokenScores]:
        return (self.row(i) for i in range(len(self)))


@dataclass(frozen=True)
class LikelihoodAnswers:
    """Answers to a `Likelihood` probe, in the order of its rows."""

    ids: tuple[str, ...]
    scores: TokenScores


@dataclass(frozen=True)
class GenerationAnswers:
    """Answers to a `Generation` probe. `hit_limit[i]`: the text was cut at `max_tokens`."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    hit_limit: tuple[bool, ...]


@dataclass(frozen=True)
class ClassAnswers:
    """Answers to a `Classify` probe: logits [rows, classes] float32."""

    ids: tuple[str, ...]
    logits: np.ndarray


@dataclass(frozen=True)
class RowValues:
    """One number a row that a task worked out where the model was: a judge's verdict, a gradient's norm.

    `why` says why there are none, in which case `ids` is empty.
    """

    ids: tuple[str, ...]
    values: tuple[float | None, ...]
    why: str = ""


Answer = LikelihoodAnswers | GenerationAnswers | ClassAnswers | RowValues


@dataclass(frozen=True)
class Trajectory:
    """What was seen along a run at its checks, off the clock; all arrays have one entry per check.

    The first check is before the first update. Values: `forget.p`, `retain.p`, `forget.acc`, `retain.acc` in 0..1.
    """

    updates: np.ndarray
    charged_s: np.ndarray
    values: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Answers:
    """Everything that one model answered on one case."""

    probes: Mapping[str, Answer]
    trajectory: Trajectory | None = None


@dataclass(frozen=True)
class Score:
    """One metric of one run.

    `per_row` maps row ids to values; rows that have no value map to None. `value` is None exactly when `why` says so.
    """

    value: float | None
    n: int = 0
    why: str = ""
    per_row: Mapping[str, float | None] | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "why", self.why or f"the value came out as {self.value}")
            object.__setattr__(self, "value", None)
        if self.value is None and not self.why:
            raise ValueError("a missing score needs its reason")


@dataclass(frozen=True)
class MetricInfo:
    """What a column means.

    Attributes:
        id: `probe.metric.variant`.
        direction: `higher` or `lower` is better; `target`: closest to `target` is best; `none`: shown, never ranked.
        low, high: the range; None is unbounded.
        unit: such as `probability`, `nats`, `bits`, `s`.
        target: the value to come close to, where there is one.
        roles: model roles whose answers the metric needs besides the run's own.
        text: one sentence.
        source: paper and equation, or the public implementation that defines it.
    """

    id: str
    direction: Literal["higher", "lower", "target", "none"]
    low: float | None
    high: float | None
    unit: str
    text: str
    target: float | None = None
    roles: tuple[str, ...] = ()
    source: str = ""


# --- protocols: what a contributor writes ---------------------------------------------------------------------------
@runtime_checkable
class Task(Protocol):
    """A benchmark: data, questions, and a pure function from answers to scores.

    A task is constructed by its module's `build(ref: TaskRef, template: Template) -> Task`, which validates `ref` and
    raises `DataError` before any model is loaded. A task that needs more than the probes' answers, such as a
    classifier's opinion on generated texts, also has `judge(loaded, probes, answers) -> Mapping[str, Answer]`; it is
    called where the model is, and what it returns is kept with the answers.
    """

    name: str
    version: int
    rows_public: bool

    def case_ids(self) -> Sequence[str]:
        """Names of all cases, in order."""
        ...

    def case(self, case_id: str, seed: int) -> Case:
        """The forget and retain rows of one request."""
        ...

    def probes(self, case: Case) -> Sequence[Probe]:
        """The questions that are asked of a model for `case`."""
        ...

    def resources(self) -> Sequence[str]:
        """Names that `resource` can supply."""
        ...

    def resource(self, name: str, case: Case, seed: int) -> Any:
        """A resource that a method asked for by name."""
        ...

    def score(self, case: Case, answers: Answers, references: Mapping[str, Answers]) -> dict[str, Score]:
        """All metrics of this task, from numpy alone."""
        ...

    def metrics(self) -> Sequence[MetricInfo]:
        """What `score` returns, for headings and help."""
        ...

    def data_hash(self) -> str:
        """Content hash of every row this task can show."""
        ...


@dataclass(frozen=True)
class Outline:
    """What a task's module can tell of a `TaskRef` without its data, by an optional function `outline(ref)`.

    Attributes:
        cases: as `case_ids` of the task.
        metrics: as `metrics` of the task.
        hub: data sets that would be read from the hub; empty when all rows are local or built in.
    """

    cases: tuple[str, ...]
    metrics: tuple[MetricInfo, ...]
    hub: tuple[str, ...] = ()


class Generator(Protocol):
    """Greedy text generation from token ids."""

    def generate(
        self, token_ids: Sequence[Sequence[int]], *, max_tokens: int, stop: Sequence[str] = ()
    ) -> tuple[tuple[str, bool], ...]:
        """One (text, was cut at max_tokens) per prompt, without the prompt; `stop` strings are cut off."""
        ...


@dataclass(frozen=True)
class Submission:
    """What a file in `submissions/` ends with: `submission = Submission(method=...)`.

    Attributes:
        method: a frozen dataclass with `unlearn(job)`; its fields are the hyper-parameters that `--set` reaches.
        title: as shown in tables.
        paper: citation with an identifier that can be looked up.
        authors: of the method.
        optimizer: the optimizer and schedule that `job.optimizer` builds.
        search_space: values to try per setting, in the keys of `--set`.
        goal: `remove` the training contribution, or `suppress` the answers (papers differ in what they promise).
        needs: names of resources (`alternative_answers`, `model.retain`, ...), checked before any training.
        reference: a row that is shown for orientation and never ranked (the untouched and the retrained model).
    """

    method: Any
    title: str = ""
    paper: str = ""
    authors: str = ""
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    search_space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    goal: Literal["remove", "suppress"] = "suppress"
    needs: tuple[str, ...] = ()
    reference: bool = False
