"""lm-eval behind one file: its numbers are those of lm-eval by itself, and nothing of it leaks."""

from __future__ import annotations

import copy
import importlib.metadata
import logging
import math
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import answers, lmeval, models, scores
from harness.errors import DataError, InputError, ModelError
from harness.metrics import suites
from harness.runs import cut_probes
from harness.specs import Template
from harness.tasks.wmdp_questions import MINI
from harness.types import Answers, Likelihood, Suite, SuiteAnswers, SuiteTask, TextRow

TASKS = ("wmdp_mini_dyeing", "wmdp_mini_dyeing_continuation", "mmlu_mini_world_continuation")
SUITE = Suite("questions", TASKS, limit=5, chat_template=True, folder=str(MINI))

LOCAL = """
task: {name}
custom_dataset: !function data.load
test_split: test
{more}output_type: multiple_choice
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 3}}
"""
DATA = """
import datasets
def load(**_):
    rows = [{"question": f"Which number is {n}?", "choices": [f"number {k}" for k in range(n - 1, n + 3)], "answer": 1}
            for n in range(3, 9)]
    return {"test": datasets.Dataset.from_list(rows[:3]), "dev": datasets.Dataset.from_list(rows[3:])}
"""


@pytest.fixture(scope="module")
def base() -> models.LoadedModel:
    return models.load(models.resolve("mini:base"))


@pytest.fixture(scope="module")
def asked(base: models.LoadedModel) -> SuiteAnswers:
    return lmeval.ask(base, SUITE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three local tasks: without examples of its own, with a split of them, and with none allowed."""
    kinds = {
        "bare": "",
        "dev": "fewshot_split: dev\nfewshot_config: {sampler: first_n}\n",
        "none": "num_fewshot: 0\n",
    }
    for name, more in kinds.items():
        (tmp_path / f"{name}.yaml").write_text(LOCAL.format(name=f"local_{name}", more=more))
    (tmp_path / "data.py").write_text(DATA)
    return tmp_path


@pytest.fixture
def quiet() -> Iterator[None]:
    """For lm-eval by itself, which warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def by_itself(loaded: models.LoadedModel, tasks: list[str], where: str, **named: Any) -> dict[str, Any]:
    """What lm-eval's own entry point finds on the same model and local tasks."""
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    lm = HFLM(pretrained=loaded.model, tokenizer=loaded.encoder.tokenizer, batch_size=4)  # type: ignore[union-attr,arg-type]
    manager = TaskManager(include_path=where, include_defaults=False)
    return evaluator.simple_evaluate(model=lm, tasks=tasks, task_manager=manager, **named)  # type: ignore[return-value]


def same(ours: SuiteAnswers, theirs: dict[str, Any]) -> None:
    for task in ours.about:
        result = theirs["results"][task]
        assert ours.about[task].metrics["acc"] == pytest.approx(result["acc,none"])
        assert ours.about[task].stderr["acc"] == pytest.approx(result["acc_stderr,none"])
        samples = sorted(theirs["samples"][task], key=lambda s: s["doc_id"])
        rows = [i for i, name in enumerate(ours.tasks) if name == task]
        assert [ours.ids[i] for i in rows] == [f"{task}/{s['doc_id']}" for s in samples]
        assert [ours.gold[i] for i in rows] == [s["target"] for s in samples]
        assert [ours.values["acc"][i] for i in rows] == [s["acc"] for s in samples]
        wanted = [[response[0][0] for response in s["resps"]] for s in samples]
        np.testing.assert_allclose([ours.loglikelihoods[i] for i in rows], wanted, atol=1e-4)


# --- the same numbers ---
def test_lm_eval_by_itself_finds_the_same(
    base: models.LoadedModel, asked: SuiteAnswers, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)  # calls a dozen programs
    theirs = by_itself(base, list(TASKS), str(MINI), limit=5, apply_chat_template=True, bootstrap_iters=1)
    same(asked, theirs)


def test_options_are_scored_as_our_own_likelihoods_are(base: models.LoadedModel, asked: SuiteAnswers) -> None:
    """A choice's text after a chat's question: what a `Likelihood` probe gives, without the EOS."""
    from harness.mini import facts

    record = facts.choices(facts.dye_facts())[2]
    rows = [TextRow(str(k), record["question"], text) for k, text in enumerate(record["choices"])]
    (found,) = answers.answer(base, [Likelihood("x", rows)], None).values()
    wanted = [float(row.logp[:-1].sum()) for row in found.scores]  # type: ignore[union-attr]
    at = asked.ids.index("wmdp_mini_dyeing_continuation/2")
    np.testing.assert_allclose(asked.loglikelihoods[at], wanted, atol=1e-4)
    assert asked.gold[at] == record["answer"]


def test_accuracy_is_the_tasks_own_where_all_questions_are_valid(asked: SuiteAnswers) -> None:
    for task, about in asked.about.items():
        found = suites.accuracy(asked, lambda name, task=task: name == task)
        assert found.score.value == pytest.approx(about.metrics["acc"])
        assert (found.score.n, found.invalid, found.chance) == (about.n, 0, 0.25) == (5, 0, 0.25)
        assert sum(found.letters.values()) == 5
    assert asked.about[TASKS[0]].available == 60 and asked.about[TASKS[0]].shots == 0
    assert suites.own_value(asked, "acc").value == suites.accuracy(asked).score.value
    assert asked.setting["backend"] == "HFLM" and asked.setting["lm_eval"] == importlib.metadata.version(
        "lm_eval"
    )


def test_a_batch_of_one_gives_the_same(base: models.LoadedModel, asked: SuiteAnswers) -> None:
    import dataclasses

    alone = lmeval.ask(base, dataclasses.replace(SUITE, batch_size=1))
    for ours, theirs in zip(alone.loglikelihoods, asked.loglikelihoods, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


# --- examples ---
def test_examples_come_from_their_own_split_or_not_at_all(base: models.LoadedModel, folder: Path) -> None:
    where = str(folder)
    none = lmeval.ask(base, Suite("s", ("local_dev",), shots=0, folder=where))
    two = lmeval.ask(base, Suite("s", ("local_dev",), shots=2, folder=where))
    assert (none.about["local_dev"].shots, two.about["local_dev"].shots) == (0, 2)
    assert none.about["local_dev"].version == "3"
    assert none.loglikelihoods != two.loglikelihoods
    with pytest.raises(DataError, match="no examples but its own questions"):
        lmeval.ask(base, Suite("s", ("local_bare",), shots=2, folder=where))
    with pytest.raises(DataError, match="fixes 0 worked examples, and 2 were asked for"):
        lmeval.ask(base, Suite("s", ("local_none",), shots=2, folder=where))


# --- what goes wrong ---
def test_a_model_of_nan_is_invalid_and_not_well_unlearned(base: models.LoadedModel, folder: Path) -> None:
    for value in (math.nan, 0.0):
        broken = models.LoadedModel(copy.deepcopy(base.model), base.encoder)
        with torch.no_grad():
            broken.model.get_output_embeddings().weight.fill_(value)  # type: ignore[operator,union-attr]
        found = lmeval.ask(broken, Suite("s", (TASKS[0],), limit=3, chat_template=True, folder=str(MINI)))
        result = suites.accuracy(found)
        assert result.score.value is None and result.invalid == 3
        assert "3 of 3 questions have no choice" in result.score.why
        assert scores.invalid(Answers({"s": found})).startswith("probe s: 3 of 3 questions")


def test_a_prompt_with_two_bos_is_refused(base: models.LoadedModel) -> None:
    from harness.text import Encoder

    tokenizer = copy.deepcopy(base.encoder.tokenizer)  # type: ignore[union-attr]
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    twice = models.LoadedModel(base.model, Encoder(tokenizer, Template(), 512))
    with pytest.raises(ModelError, match="begin with 2 BOS tokens"):
        lmeval.ask(twice, SUITE)


def test_unknown_tasks_missing_packages_and_models_of_no_text(
    base: models.LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "data.py").write_text("def load(**_): raise OSError('no such data\\nand more')")
    with pytest.raises(DataError, match="no such data") as caught:
        lmeval.ask(base, Suite("s", ("local_dev",), folder=str(folder)))
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="reads none"):
        lmeval.ask(models.LoadedModel(base.model, None), SUITE)

    def gone(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", gone)
    with pytest.raises(InputError, match=r"pip install uharness\[lmeval\]"):
        lmeval.ask(base, SUITE)


def test_vllm_is_asked_by_folder_and_the_answers_say_so(
    base: models.LoadedModel, asked: SuiteAnswers, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    """lm-eval's vLLM model is stood in for by one that loads the same folder without vLLM."""
    import sys
    import types

    from lm_eval.models.huggingface import HFLM

    seen: dict[str, Any] = {}

    class VLLM(HFLM):
        def __init__(self, **named: Any) -> None:
            seen.update(named)
            kept = {name: named[name] for name in ("pretrained", "dtype", "batch_size")}
            super().__init__(device="cpu", **kept)

    monkeypatch.setitem(
        sys.modules, "lm_eval.models.vllm_causallms", types.SimpleNamespace(VLLM=VLLM)  # type: ignore[arg-type]
    )  # fmt: skip
    folder = models.resolve("mini:base")
    found = lmeval.ask_vllm(folder, base.encoder, SUITE, "float32")  # type: ignore[arg-type]
    assert seen == {"pretrained": folder, "dtype": "float32", "batch_size": 16, "seed": 1234}
    assert found.setting["backend"] == "VLLM" and found.ids == asked.ids
    for ours, theirs in zip(found.loglikelihoods, asked.loglikelihoods, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


# --- what stays as it was ---
def test_nothing_of_lm_eval_leaks(base: models.LoadedModel, capfd: pytest.CaptureFixture[str]) -> None:
    def state() -> tuple[Any, ...]:
        root, own = logging.getLogger(), logging.getLogger("lm_eval")
        tokenizer = base.encoder.tokenizer  # type: ignore[union-attr]
        return (
            random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), dict(os.environ),
            torch.get_num_threads(), root.level, list(root.handlers), own.level, list(own.handlers), own.propagate,
            list(warnings.filters), tokenizer.pad_token, tokenizer.padding_side, base.model.training,
        )  # fmt: skip

    before = state()
    lmeval.ask(base, Suite("s", (TASKS[0],), limit=1, chat_template=True, folder=str(MINI)))
    assert state() == before
    assert capfd.readouterr() == ("", "")


def test_an_instruction_and_the_system_prompt_reach_lm_evals_prompts() -> None:
    template = Template(system="Be brief.", date="1 May 2020")
    path = models.resolve("mini:base")
    encoder = models.load_encoder(path, template=template)
    assert encoder is not None
    encoder.instruct("Pretend that you know nothing.")
    history = [{"role": "user", "content": "Why?"}]
    text = encoder.conversation(history, open_answer=True)
    ids = encoder.prompt(TextRow("", "Why?", ""))
    assert tuple(encoder.tokenizer(text, add_special_tokens=False)["input_ids"]) == ids
    said = [*history, {"role": "assistant", "content": "Because"}]
    assert encoder.conversation(said, open_answer=False).endswith("<|assistant|>Because")
    assert history == [{"role": "user", "content": "Why?"}]


# --- stored answers and accuracies, without lm-eval ---
def made(values: list[tuple[float, ...]], gold: list[int | None], tasks: list[str]) -> SuiteAnswers:
    about = {
        name: SuiteTask("1", 0, tasks.count(name), 60, {"acc": None}, {"acc": 0.5}) for name in set(tasks)
    }
    ids = tuple(f"{name}/{i}" for i, name in enumerate(tasks))
    own = {"acc": tuple(0.5 if g is None else None for g in gold)}
    return SuiteAnswers(
        ids, tuple(tasks), tuple(gold), tuple(values), own, about, {"batch_size": 4, "shots": None}
    )


def test_answers_survive_storage(tmp_path: Path, asked: SuiteAnswers) -> None:
    odd = made([(-1.5, math.inf), (), (-0.1, -2.0, -3.0)], [1, None, 0], ["a", "b", "a"])
    answers.write({"real": asked, "odd": odd}, tmp_path)
    assert answers.read(tmp_path) == {"odd": odd, "real": asked}
    answers.write({"nan": made([(math.nan, 0.0)], [0], ["a"])}, tmp_path / "more")
    (nan,) = answers.read(tmp_path / "more").values()
    assert math.isnan(nan.loglikelihoods[0][0])  # type: ignore[union-attr]


def test_a_hundred_nan_questions_have_no_accuracy() -> None:
    found = made([(math.nan,) * 4] * 100, [k % 4 for k in range(100)], ["a"] * 100)
    assert suites.accuracy(found).score.value is None
    assert "100 of 100 questions have no choice" in suites.invalid(found)


@pytest.mark.parametrize(("bad", "value"), [(1, 1.0), (2, None)])
def test_one_bad_question_in_a_hundred_is_left_out_and_two_are_too_many(
    bad: int, value: float | None
) -> None:
    values = [(0.0, -1.0)] * (100 - bad) + [(-1.0, -1.0)] * bad
    found = made(values, [0] * 100, ["a"] * 100)
    assert suites.accuracy(found).score.value == value
    assert bool(suites.invalid(found)) == (value is None)
    assert suites.accuracy(found).invalid == bad


def test_documents_are_averaged_and_subjects_beside_them() -> None:
    found = made([(0.0, -1.0)] * 10, [0] + [1] * 9, ["a"] + ["b"] * 9)
    result = suites.accuracy(found)
    assert (result.score.value, result.macro.value) == (0.1, 0.5)
    assert result.letters == {0: 10}
    assert (result.score.per_row or {})["b/1"] == 0.0


def test_questions_may_have_different_numbers_of_options() -> None:
    found = made([(0.0, -1.0), (-3.0, -2.0, -1.0, -4.0), ()], [0, 2, None], ["a", "b", "c"])
    result = suites.accuracy(found)
    assert (result.score.value, result.score.n, result.chance) == (1.0, 2, 0.375)
    assert suites.own_value(found, "acc", lambda name: name == "c").value == 0.5
    assert "no metric 'f1' (they have acc)" in suites.own_value(found, "f1").why
    assert suites.accuracy(None).score.why == suites.own_value(None, "acc").why == "the suite was not asked"
    assert "no choice question" in suites.accuracy(found, lambda name: name == "c").score.why


@pytest.mark.parametrize(
    ("own", "limit", "cut"), [(None, 3, 3), (2, 3, 2), (5, 3, 3), (5, None, 5), (None, None, None)]
)
def test_a_limit_cuts_a_suite(own: int | None, limit: int | None, cut: int | None) -> None:
    (probe,) = cut_probes([Suite("s", ("a",), limit=own)], limit)
    assert isinstance(probe, Suite) and probe.limit == cut and probe.rows == ()
