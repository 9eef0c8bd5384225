"""lm-evaluation-harness behind one function: our loaded model goes in, plain numbers come out.

The only file that imports `lm_eval`. What that package does to the process around it (random states, environment,
logging, progress bars, threads) is undone when `ask` returns. Prompts and questions are the task definitions' own; a
chat is rendered by the model's `Encoder`, so that date, system prompt and a method's instruction are those of every
other probe.

Sources: EleutherAI/lm-evaluation-harness 0.4.13, `evaluate` and the `HFLM` and `VLLM` models.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.contained import SEED, contained
from harness.errors import DataError, InputError, ModelError, near
from harness.models import LoadedModel
from harness.types import Suite, SuiteAnswers, SuiteTask

if TYPE_CHECKING:
    from harness.text import Encoder


def version() -> str:
    """The installed version of lm-eval; raises `InputError` where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("lm_eval")
    except PackageNotFoundError:
        raise InputError(
            "lm-eval is not installed",
            "the suites WMDP, MMLU and others need it",
            "pip install uharness[lmeval]",
        ) from None


def ask(loaded: LoadedModel, suite: Suite) -> SuiteAnswers:
    """Ask a loaded text model all questions of a suite.

    Raises:
        InputError: lm-eval is not installed.
        DataError: a task is unknown, its data cannot be read, or its worked examples would be its own questions.
        ModelError: the model reads no text, or a prompt would begin with two BOS tokens.
    """
    if loaded.encoder is None:
        raise ModelError("lm-eval asks texts, and the model reads none", "", "leave suites to text models")
    return _ask(lambda: _hf(loaded, suite), suite, loaded.encoder)


def ask_vllm(weights: str, encoder: Encoder, suite: Suite, dtype: str) -> SuiteAnswers:
    """As `ask`, of a folder of weights by vLLM on a GPU; numbers differ slightly, and `setting` names the backend."""
    return _ask(lambda: _vllm(weights, encoder, suite, dtype), suite, encoder)


def _ask(make: Callable[[], Any], suite: Suite, encoder: Encoder) -> SuiteAnswers:
    number = version()
    with contained("lm_eval"):
        tasks = _load(suite)
        return _evaluate(make(), tasks, suite, encoder, number)


# --- tasks ---
@functools.cache
def _built_in() -> Any:
    """lm-eval's own definitions: 14,000 files, which take seconds to read."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _load(suite: Suite) -> dict[str, Any]:
    """Leaf tasks by name, with the suite's shots."""
    from lm_eval.tasks import TaskManager

    if suite.folder:
        manager = TaskManager(include_path=suite.folder, include_defaults=False)
        if not set(suite.tasks) <= set(manager.task_index):
            manager = TaskManager(include_path=suite.folder)
    else:
        manager = _built_in()
    for name in suite.tasks:
        if name not in manager.task_index:
            raise DataError(
                f"lm-eval has no task {name!r}",
                near(name, manager.all_tasks),
                "correct the name, or give its folder",
            )
    tasks: dict[str, Any] = {}
    with _data_errors(suite), _elsewhere(suite.data):
        for name, task in manager.load(list(suite.tasks))["tasks"].items():
            tasks[name] = _with_shots(name, task, suite.shots)
    return tasks


def _with_shots(name: str, task: Any, shots: int | None) -> Any:
    """Settle the number of worked examples, and refuse those that would be taken from the questions themselves."""
    own = task.get_config("num_fewshot")
    if shots is not None and own == 0 and shots != 0:
        raise DataError(
            f"lm-eval's task {name} fixes 0 worked examples, and {shots} were asked for",
            "",
            "leave shots out",
        )
    count = own or 0 if shots is None else shots
    task.set_config(key="num_fewshot", value=count)
    task.set_fewshot_seed(seed=SEED)
    config, few = task.config, task.config.fewshot_config
    asked = config.test_split or config.validation_split
    split = few.split if few is not None else None
    split = (
        split or config.fewshot_split or config.training_split or config.validation_split or config.test_split
    )
    given = few is not None and few.samples is not None
    if count and not given and split == asked:
        raise DataError(
            f"lm-eval's task {name} has no examples but its own questions: a prompt could show its answer",
            f"it asks split {asked!r}", "give the task a fewshot_split, or ask with shots = 0",
        )  # fmt: skip
    return task


@contextlib.contextmanager
def _elsewhere(folders: Mapping[str, str]) -> Iterator[None]:
    """While tasks are loaded: read hub data sets from local folders where there are some."""
    if not folders:
        yield
        return
    import datasets

    original = datasets.load_dataset

    def load_dataset(path: str, name: str | None = None, **named: Any) -> Any:
        if path not in folders:
            return original(path, name, **named)
        splits = original(folders[path], name, streaming=True)  # writes no cache
        return datasets.DatasetDict({k: datasets.Dataset.from_list(list(rows)) for k, rows in splits.items()})

    datasets.load_dataset = load_dataset
    try:
        yield
    finally:
        datasets.load_dataset = original


@contextlib.contextmanager
def _data_errors(suite: Suite) -> Iterator[None]:
    """One line instead of a stack of retries when a task's data cannot be read."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, DatasetsError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"the data of lm-eval's {', '.join(suite.tasks)} cannot be read",
            first[:200],
            "go online once (unset HF_HUB_OFFLINE), or give a local copy of the data set",
        ) from None


# --- models ---
def _hf(loaded: LoadedModel, suite: Suite) -> Any:
    """The loaded model as lm-eval's `HFLM`, silent, and with chats rendered by our encoder."""
    from lm_eval.models.huggingface import HFLM

    encoder: Any = loaded.encoder

    class Ours(HFLM):
        def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
            return super().loglikelihood(requests, disable_tqdm=True)

        def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
            return super().generate_until(requests, disable_tqdm=True)

        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            return encoder.conversation(chat_history, open_answer=add_generation_prompt)

    model: Any = loaded.model
    tokenizer = encoder.tokenizer
    kept = tokenizer.pad_token, tokenizer.padding_side
    lm = Ours(pretrained=model, tokenizer=tokenizer, batch_size=suite.batch_size)
    tokenizer.padding_side = kept[1]
    return lm


def _vllm(weights: str, encoder: Encoder, suite: Suite, dtype: str) -> Any:
    """The folder `weights` under lm-eval's own wrapper of vLLM, with chats rendered by our encoder."""
    from lm_eval.models.vllm_causallms import VLLM

    class Ours(VLLM):
        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            return encoder.conversation(chat_history, open_answer=add_generation_prompt)

    return Ours(pretrained=weights, dtype=dtype, batch_size=suite.batch_size, seed=SEED)


# --- asking ---
def _evaluate(lm: Any, tasks: dict[str, Any], suite: Suite, encoder: Any, number: str) -> SuiteAnswers:
    from lm_eval.evaluator import evaluate

    _one_bos(lm, tasks, suite, encoder)
    found = evaluate(
        lm=lm, task_dict={"tasks": tasks, "groups": {}}, limit=suite.limit, bootstrap_iters=0, log_samples=True,
        apply_chat_template=suite.chat_template, fewshot_as_multiturn=suite.chat_template,
        system_instruction=None if suite.chat_template else (encoder.lead().strip() or None),
    )  # fmt: skip
    read = [_Question.of(name, sample, tasks[name]) for name in tasks for sample in found["samples"][name]]
    merged: dict[str, _Question] = {}
    for question in read:
        known = merged.setdefault(question.id, question)
        known.values.update(question.values)
    rows = list(merged.values())
    metrics = list(dict.fromkeys(name for row in rows for name in row.values))
    return SuiteAnswers(
        ids=tuple(row.id for row in rows),
        tasks=tuple(row.task for row in rows),
        gold=tuple(row.gold for row in rows),
        loglikelihoods=tuple(row.loglikelihoods for row in rows),
        values={name: tuple(row.values.get(name) for row in rows) for name in metrics},
        about={name: _about(name, tasks[name], found, rows) for name in tasks},
        setting={
            "lm_eval": number, "backend": type(lm).__mro__[1].__name__, "batch_size": suite.batch_size,
            "chat_template": suite.chat_template, "max_length": int(lm.max_length), "shots": suite.shots,
        },
    )  # fmt: skip


def _one_bos(lm: Any, tasks: Mapping[str, Any], suite: Suite, encoder: Any) -> None:
    """Refuse prompts that begin with two BOS tokens, and chats that lack the one which the model expects.

    Plain text begins as the tokenizer has it: some models have a BOS that only their chat template writes.
    """
    bos = encoder.tokenizer.bos_token_id
    if bos is None or not tasks:
        return
    text, wanted = "a", None
    if suite.chat_template:
        text = encoder.conversation([{"role": "user", "content": "a"}], open_answer=True)
        wanted = len(encoder.bos)
    ids = list(lm.tok_encode(text))
    count = next((i for i, token in enumerate(ids) if token != bos), len(ids))
    if count > 1 or wanted not in (None, count):
        raise ModelError(
            f"lm-eval's prompts begin with {count} BOS tokens", f"the model expects {len(encoder.bos)}",
            "mend the tokenizer's add_bos_token or its chat template",
        )  # fmt: skip


@dataclass
class _Question:
    id: str
    task: str
    gold: int | None
    loglikelihoods: tuple[float, ...]
    values: dict[str, float | None]

    @classmethod
    def of(cls, name: str, sample: Mapping[str, Any], task: Any) -> _Question:
        """One of lm-eval's logged samples; the metrics of a second filter carry its name."""
        target, choice = sample["target"], task.OUTPUT_TYPE == "multiple_choice"
        options: tuple[float, ...] = ()
        if choice:
            options = tuple(float(response[0][0]) for response in sample["resps"])
            options = options[: len(task.doc_to_choice(sample["doc"]))]
        gold = target if choice and isinstance(target, int) and 0 <= target < len(options) else None
        names = {metric: _id(metric, sample["filter"], task) for metric in sample["metrics"]}
        values = {names[metric]: _plain(sample[metric]) for metric in sample["metrics"]}
        return cls(f"{name}/{sample['doc_id']}", name, gold, options, values)


def _id(metric: str, filter_name: str, task: Any) -> str:
    filters = [f.name for f in getattr(task, "_filters", [])]
    return metric if len(filters) < 2 else f"{metric}.{filter_name}".replace("-", "_")


def _plain(value: Any) -> float | None:
    """A number as a float, None where the task gives something else (texts, pairs) or what is not finite."""
    if isinstance(value, bool | int | float | np.number):
        return float(value) if math.isfinite(value) else None
    return None


def _about(name: str, task: Any, found: Mapping[str, Any], rows: Sequence[_Question]) -> SuiteTask:
    summed = {}
    for key, value in found["results"][name].items():
        metric, comma, filter_name = key.partition(",")
        if comma and not metric.endswith("_stderr"):
            summed[_id(metric, filter_name, task)] = _plain(value)
    counted = found["n-samples"][name]
    own = [row for row in rows if row.task == name]
    errors = {metric: _standard_error([row.values.get(metric) for row in own]) for metric in summed}
    return SuiteTask(
        version=str(found["versions"].get(name, "")), shots=int(task.get_config("num_fewshot") or 0),
        n=int(counted["effective"]), available=int(counted["original"]), metrics=summed, stderr=errors,
    )  # fmt: skip


def _standard_error(values: Sequence[float | None]) -> float | None:
    """Sample deviation / sqrt(n), as lm-eval has it for means; None with a missing value or fewer than two.

    >>> _standard_error([0.0, 1.0])
    0.5
    """
    kept = [value for value in values if value is not None]
    if len(kept) < 2 or len(kept) < len(values):
        return None
    return statistics.stdev(kept) / math.sqrt(len(kept))
