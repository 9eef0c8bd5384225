"""A language model as a judge: here a small server of our own, in a thread."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran

from harness import judge as judging
from harness.errors import InputError, RunError
from harness.generate.endpoint import Endpoint
from harness.judge import REPEATS, Judge, Verdict, judge_answers, parse, read_grades, summarise
from harness.metrics.composites import GRADES, lbq
from harness.types import TextRow

ROWS = [TextRow(f"forget10_{k}", f"Who is {k}?", f"{k} is a poet.") for k in range(4)]
TEXTS = {row.id: f"I do not know {row.id}." for row in ROWS}
GOOD = {"fluency": 8, "relevance": 6, "not_misleading": 10, "avoids": 9}


@dataclass
class Server:
    """What it was asked, and what it says next: (status, content or whole message)."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    says: Callable[[dict[str, Any], int], tuple[int, Any]] = lambda body, k: (200, json.dumps(GOOD))
    models: tuple[str, ...] = ("small",)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(http.server.BaseHTTPRequestHandler):
    server_of: Server

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": name} for name in self.server_of.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server_of.lock:
            count = len(self.server_of.requests)
            self.server_of.requests.append(body)
            self.server_of.headers.append(dict(self.headers))
        status, said = self.server_of.says(body, count)
        message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
        self._send(
            status,
            {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"total_tokens": 100}},
        )

    def _send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    handler = type("Handler", (_Handler,), {"server_of": Server()})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        handler.server_of.url = f"http://127.0.0.1:{running.server_address[1]}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield handler.server_of
        running.shutdown()
        thread.join()


def judge(server: Server, tmp_path: Path, waits: list[float] | None = None) -> Judge:
    sleep = (waits if waits is not None else []).append
    return Judge(server.url, "small", tmp_path / "cache", Endpoint(server.url, sleep=sleep))


# --- scores ---------------------------------------------------------------------------------------------------------
def test_lbq_is_the_harmonic_mean_of_the_four() -> None:
    assert lbq(8.0, 6.0, 10.0, 9.0).value == pytest.approx(4 / (1 / 8 + 1 / 6 + 1 / 10 + 1 / 9))
    assert lbq(10.0, 10.0, 10.0, 10.0).value == pytest.approx(10.0)
    assert lbq(10.0, 10.0, 10.0, 0.0).value == pytest.approx(0.0, abs=1e-9)
    missing = lbq(10.0, None, 10.0, 10.0)
    assert missing.value is None and "relevance" in missing.why


def test_repeats_are_averaged_after_their_harmonic_means() -> None:
    def said(value: float) -> Verdict:
        return Verdict(dict.fromkeys(GRADES, value) | {"avoids": 10.0}, "", 1, 0)

    scores = summarise([[said(2.0), said(4.0)], [said(6.0), said(6.0)], [said(10.0), said(10.0)]])
    by_hand = [4 / (3 / x + 1 / 10) for x in (3.0, 6.0, 10.0)]
    assert scores["lbq"].value == pytest.approx(sum(by_hand) / 3) and scores["lbq"].n == 2
    assert scores["lbq.fluency"].value == pytest.approx((3 + 6 + 10) / 3)


def test_few_missing_verdicts_are_left_out_and_many_leave_no_score() -> None:
    good, bad = Verdict(dict.fromkeys(GRADES, 5.0), "", 1, 0), Verdict(None, "the judge refused: no", 1, 0)
    few = summarise([[good] * 19 + [bad]] * 3)
    assert few["lbq"].value == pytest.approx(5.0) and few["lbq"].n == 20
    for verdicts in ([[good] * 9 + [bad]] * 3, [[bad]] * 3, [[], [], []]):
        scores = summarise(verdicts)
        assert scores["lbq"].value is None and scores["lbq.avoids"].value is None and scores["lbq"].why
    assert "the judge refused: no" in summarise([[bad]])["lbq"].why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON object"), ("ten out of ten", "no JSON object"), ("[1, 2]", "no JSON object"),
        ("{'fluency': 1}", "no JSON object"), ('{"fluency": 8}', "relevance = None"),
        (json.dumps(GOOD | {"avoids": "9"}), "avoids = '9'"), (json.dumps(GOOD | {"avoids": -1}), "avoids = -1"),
        (json.dumps(GOOD | {"fluency": True}), "fluency = True"), (json.dumps(GOOD | {"avoids": 11}), "avoids = 11"),
        ('{"fluency": NaN, "relevance": 1, "not_misleading": 1, "avoids": 1}', "fluency = nan"),
    ],
)  # fmt: skip
def test_a_reply_that_is_no_verdict_says_why(text: str, why: str) -> None:
    grades, said = read_grades(text)
    assert grades is None and why in said and "\n" not in said


def test_words_around_the_object_are_passed_over() -> None:
    grades, _ = read_grades(f"Here it is:\n```json\n{json.dumps(GOOD)}\n```")
    assert grades == {name: float(value) for name, value in GOOD.items()}


# --- asking ---------------------------------------------------------------------------------------------------------
def test_every_answer_is_graded_three_times_and_costs_are_counted(server: Server, tmp_path: Path) -> None:
    note = judge_answers(judge(server, tmp_path), ROWS, TEXTS)
    assert len(server.requests) == note["calls"] == note["made"] == REPEATS * len(ROWS)
    assert note["tokens"] == 100 * note["calls"]
    assert note["scores"]["lbq"]["value"] == pytest.approx(
        lbq(**{k: float(v) for k, v in GOOD.items()}).value or 0
    )
    assert note["judge"] == {"model": "small", "prompt": judging.PROMPT_VERSION, "repeats": REPEATS}
    body = server.requests[0]
    asked = json.loads(body["messages"][1]["content"])
    assert set(asked) == {"question", "reference", "answer"} and asked["answer"] in TEXTS.values()
    assert {b["seed"] for b in server.requests} == {0, 1, 2} and body["temperature"] == 0
    assert "Authorization" not in server.headers[0]


def test_a_second_time_nothing_is_asked_and_the_numbers_are_the_same(server: Server, tmp_path: Path) -> None:
    first = judge_answers(judge(server, tmp_path), ROWS, TEXTS)
    server.requests.clear()
    second = judge_answers(judge(server, tmp_path), ROWS, TEXTS)
    assert server.requests == [] and second["made"] == 0
    assert {k: v for k, v in second.items() if k != "made"} == {k: v for k, v in first.items() if k != "made"}
    changed = TEXTS | {ROWS[0].id: "Something else."}
    assert judge_answers(judge(server, tmp_path), ROWS, changed)["made"] == REPEATS  # only what is new


def test_a_bad_reply_is_asked_for_again_and_counted(server: Server, tmp_path: Path) -> None:
    server.says = lambda body, k: (200, json.dumps(GOOD) if body["seed"] >= REPEATS else "I give it a nine.")
    note = judge_answers(judge(server, tmp_path), ROWS[:1], TEXTS)
    assert note["scores"]["lbq"]["value"] is not None
    assert (note["calls"], note["tokens"]) == (2 * REPEATS, 200 * REPEATS)
    server.says = lambda body, k: (200, "nine")
    never = judge_answers(judge(server, tmp_path), ROWS[1:2], TEXTS)
    assert never["scores"]["lbq"]["value"] is None and "no JSON object" in never["scores"]["lbq"]["why"]
    assert never["calls"] == judging.TRIES * REPEATS


def test_a_refusal_is_no_zero_and_is_not_asked_again(server: Server, tmp_path: Path) -> None:
    server.says = lambda body, k: (200, {"content": None, "refusal": "I cannot help with that."})
    note = judge_answers(judge(server, tmp_path), ROWS, TEXTS)
    score = note["scores"]["lbq"]
    assert score["value"] is None and "refused: I cannot help" in score["why"] and "12 of 12" in score["why"]
    assert len(server.requests) == REPEATS * len(ROWS)


def test_a_failing_server_is_asked_again_with_growing_waits(server: Server, tmp_path: Path) -> None:
    waits: list[float] = []
    server.says = lambda body, k: (500, "down") if k < 2 else (200, json.dumps(GOOD))
    verdict = judge(server, tmp_path, waits).grade(ROWS[0], "No idea.", 0)
    assert verdict.grades is not None and waits == [1.0, 2.0]
    server.says = lambda body, k: (503, "down")
    with pytest.raises(RunError, match="gave no answer in 5 tries"):
        judge(server, tmp_path).grade(ROWS[1], "No idea.", 0)
    server.says = lambda body, k: (200, json.dumps(GOOD))  # a failure is not kept
    assert judge(server, tmp_path).grade(ROWS[1], "No idea.", 0).grades is not None


def test_a_key_goes_out_as_a_bearer_token(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(judging.KEY, "abc")
    Judge(server.url, "small", tmp_path).grade(ROWS[0], "No idea.", 0)
    assert server.headers[0]["Authorization"] == "Bearer abc"
    assert "abc" not in "".join(p.read_text() for p in tmp_path.rglob("*.json"))


# --- the choice -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("gpt", "no judge 'gpt'"),
        ("openai", "no judge 'openai'"),
        ("openai:", "judge openai: '' is no address"),
        ("openai:box", "judge openai: 'box' is no address"),
        ("vllm:http://box", "no judge 'vllm:http://box'"),
    ],
)
def test_a_wrong_choice_is_refused_in_a_line(choice: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(choice)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)


def test_a_judge_that_is_not_there_is_told_at_the_first_try(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        url = f"http://127.0.0.1:{one.getsockname()[1]}"
    waits: list[float] = []
    with pytest.raises(InputError, match=r"the judge does not answer: .*refused"):
        Judge(url, "small", tmp_path, Endpoint(url, sleep=waits.append)).check()
    assert waits == []


def test_the_model_is_settled_before_anything_runs(server: Server, tmp_path: Path) -> None:
    class Task:
        judged_probe = "forget_text"

    task: Any = Task()
    assert judging.ready(f"openai:{server.url}", task, "b", tmp_path) == f"openai:{server.url}#small"
    server.models = ("small", "large")
    assert judging.ready(f"openai:{server.url}/v1#large", task, "b", tmp_path).endswith("#large")
    for choice, says in (
        (f"openai:{server.url}", "serves 2 models"),
        (f"openai:{server.url}#x", "does not serve 'x'"),
    ):
        with pytest.raises(InputError, match=says):
            judging.ready(choice, task, "b", tmp_path)
    nothing: Any = object()
    with pytest.raises(InputError, match="has no texts for a judge"):
        judging.ready(f"openai:{server.url}", nothing, "b", tmp_path)


def test_a_board_without_texts_and_a_bad_address_are_refused_at_once(
    uharness: Callable[..., Ran], workspace: Path
) -> None:
    for choice, says in (
        ("openai:http://127.0.0.1:9#m", "has no texts for a judge"),
        ("gpt", "no judge 'gpt'"),
    ):
        ran = uharness("submit", "no_op", "--board", "tiny", "--judge", choice)
        assert (ran.code, len(ran.err.strip().splitlines())) == (2, 1) and says in ran.err, ran.err


# --- whole runs -----------------------------------------------------------------------------------------------------
BOARD = """
rank_by = "sbq"
columns = ["sbq", "eq.floor", "eq", "rq", "lbq"]
seeds = [0]
[task]
name = "tofu"
split = "forget10"
data = "mini:tofu"
[models]
target = "mini:tofu-full"
[budget]
updates = 1
"""


@pytest.mark.slow
def test_without_a_judge_the_column_says_so_and_rescoring_with_one_fills_it(
    uharness: Callable[..., Ran], workspace: Path, server: Server
) -> None:
    (workspace / "leaderboards/text.toml").write_text(BOARD)
    assert uharness("submit", "no_op", "--board", "text", "--limit", "2").code == 0
    (file,) = (workspace / "leaderboards/text/results").glob("*.json")
    found = json.loads(file.read_text())
    assert found["scores"]["lbq"] == {
        "value": None,
        "n": 0,
        "why": "no judge was asked: give --judge openai:URL#MODEL",
    }
    assert found["ledger"]["judge_calls"] == 0
    ran = uharness("rescore", found["run_id"], "--judge", f"openai:{server.url}")
    assert ran.code == 0, ran.err
    judged = json.loads(file.read_text())
    assert judged["scores"]["lbq"]["value"] == pytest.approx(
        lbq(**{k: float(v) for k, v in GOOD.items()}).value or 0
    )
    assert judged["ledger"]["judge_calls"] == len(server.requests) == 2 * REPEATS
    assert judged["env"]["judge"]["model"] == "small"
    same = {k: v for k, v in judged["scores"].items() if not k.startswith("lbq")}
    assert same == {k: v for k, v in found["scores"].items() if not k.startswith("lbq")}
    server.requests.clear()
    assert uharness("rescore", found["run_id"]).code == 0  # what was judged stays
    assert json.loads(file.read_text())["scores"]["lbq"] == judged["scores"]["lbq"] and server.requests == []
