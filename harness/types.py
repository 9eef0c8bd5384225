"""Values that the machine passes on, and what a contributor writes: frozen dataclasses over numpy, and protocols.

Nothing here imports torch. What people write in TOML and what is stored is in `harness.specs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from harness.specs import LoraSpec, OptimizerSpec


# --- values: rows and probes ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TextRow:
    """A question and the answer that is scored or trained on; `id` is the data file's name and the row's index.

    Attributes:
        form: `question` is rendered by the board's template; of a `text`, prompt and target stand as they are, one
            after the other, and the prompt may be empty (a document is a target alone).
        lead: what the asker lets a question's answer begin with, such as `Answer:`; it belongs to the prompt.
        meta: `ids`, where it is there, are the target's token ids as they stand, and no EOS comes after them.
    """

    id: str
    prompt: str
    target: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    form: Literal["question", "text"] = "question"
    lead: str = ""


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


@dataclass(frozen=True)
class Features:
    """Class logits of each array row, and the features that the last linear map makes them of."""

    name: str
    rows: Sequence[ArrayRow]


@dataclass(frozen=True)
class Suite:
    """Tasks of lm-evaluation-harness, which brings its own questions and prompts; asked by `harness.lmeval`.

    Attributes:
        name: of the probe.
        tasks: names of lm-eval tasks, groups or tags.
        shots: worked examples before each question; None is what each task sets itself (0 where it sets nothing).
        limit: most questions of a task (each subject of a group is one); None is all.
        chat_template: whether a question is a turn of a chat, or plain text.
        batch_size: questions that go through the model at once; part of the setting, as results may depend on it.
        folder: local task definitions in lm-eval's YAML, by which built-in ones of the same name are replaced.
        data: hub data set -> local folder to read in its stead.
    """

    name: str
    tasks: tuple[str, ...]
    shots: int | None = None
    limit: int | None = None
    chat_template: bool = False
    batch_size: int = 16
    folder: str = ""
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Row, ...]:
        """None: the questions are lm-eval's."""
        return ()


Probe = Likelihood | Generation | Classify | Features | Suite
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
class FeatureAnswers(ClassAnswers):
    """Answers to a `Features` probe: logits [rows, classes] and features [rows, d], both float32."""

    features: np.ndarray


@dataclass(frozen=True)
class RowValues:
    """One number a row that a task worked out where the model was: a judge's verdict, a gradient's norm.

    `why` says why there are none, in which case `ids` is empty.
    """

    ids: tuple[str, ...]
    values: tuple[float | None, ...]
    why: str = ""


@dataclass(frozen=True)
class SuiteTask:
    """What is known of one lm-eval task that was asked.

    Attributes:
        version: of the task's definition.
        shots: worked examples that were shown.
        n: questions that were asked.
        available: questions that the task has.
        metrics: the task's own metrics as lm-eval sums them up; None where that is no number.
        stderr: standard errors of those that are means over questions: sample deviation / sqrt(n); None for n < 2.
    """

    version: str
    shots: int
    n: int
    available: int
    metrics: Mapping[str, float | None]
    stderr: Mapping[str, float | None]


@dataclass(frozen=True)
class SuiteAnswers:
    """Answers to a `Suite` probe, question by question.

    Attributes:
        ids: `<task>/<number in its data>`.
        tasks: the lm-eval task that each question belongs to.
        gold: number of the right option; None where a question has not exactly one.
        loglikelihoods: of each question's options, natural log; empty where it is no choice.
        values: metric -> what the task itself says of each question; None where it says nothing.
        about: lm-eval task -> what is known of it.
        setting: what decided the numbers besides: version of lm-eval, batch size, chat template, length limit.
    """

    ids: tuple[str, ...]
    tasks: tuple[str, ...]
    gold: tuple[int | None, ...]
    loglikelihoods: tuple[tuple[float, ...], ...]
    values: Mapping[str, tuple[float | None, ...]]
    about: Mapping[str, SuiteTask]
    setting: Mapping[str, Any]


Answer = LikelihoodAnswers | GenerationAnswers | ClassAnswers | RowValues | SuiteAnswers


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
    called where the model is, and what it returns is kept with the answers. One that compares weights has
    `compare(loaded, others)`, called likewise on finished runs; `others` maps model roles to what loads them.
    One whose training rows depend on the tokenizer has `tokenized(case, encoder) -> Case`, called where they are made.
    One of array rows may have `class_names`, in the order of the labels, for people who read what was answered.
    `keeps_weights = False` says that a run's weights are deleted once they are scored, unless they are asked for.

    For the robustness axes a task may have `questions(case)`, where the training rows are no questions: those on what
    is to be forgotten and what is kept, {"forget": Generation, "retain": Generation}; and `paraphrases(case)`: the
    forget questions in other words or languages, {"paraphrase": rows, "translated": rows}. Each may be left out.
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


class Sampler(Protocol):
    """A `Generator` that can also draw; what a job generates with."""

    def generate(
        self,
        token_ids: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> tuple[tuple[str, bool], ...]:
        """As `Generator.generate` at `temperature` 0; above, tokens are drawn from p^(1 / temperature).

        What is drawn for the i-th prompt is a function of (seed, i), however prompts are batched.
        """
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
        lora: low-rank adapters to train in place of the weights; none by default.
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
    lora: LoraSpec = field(default_factory=LoraSpec)
    search_space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    goal: Literal["remove", "suppress"] = "suppress"
    needs: tuple[str, ...] = ()
    reference: bool = False
