"""Soups: mixes of weights, the searches over them, and what selectors count."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT, Ran
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny_text import random_llama
from torch import nn

from harness import select, stages
from harness.edits import soups
from harness.entries import resolve
from harness.errors import ModelError, RunError, SubmissionError
from harness.models import MINI, LoadedModel, load, save, with_adapters
from harness.plugins import load_submission
from harness.recording import _ledger
from harness.runs import RunSpec, Source, read_json, write_json
from harness.select import ORIGINAL, Pool
from harness.specs import Board, Budget, LoraSpec, TaskRef
from harness.supervise import Outcome
from harness.types import MetricInfo, Score

SELECTORS = ("best_of", "efficient_soup", "performance_soup", "uniform_soup", "greedy_soup")


# --- mixing ---------------------------------------------------------------------------------------------------------
def test_a_soup_of_one_model_is_that_model() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        model = {"w": torch.randn(5, 3).to(dtype), "b": torch.randn(5).to(dtype)}
        for weights, sources in (([1.0], [model]), ([0.0, 1.0], [{"w": torch.zeros(1)}, model])):
            out = dict(soups.mixed(sources, weights))
            assert all(out[name].equal(model[name]) and out[name].dtype == dtype for name in model)


def test_mixes_in_closed_form() -> None:
    a, b, c = ({"w": torch.full((2,), x)} for x in (1.0, 2.0, 4.0))
    assert soups.interpolated(a, b, 0.25)["w"].tolist() == [1.25, 1.25]
    assert dict(soups.mixed([a, b, c], [0.5, 0.25, 0.25]))["w"].tolist() == [2.0, 2.0]
    assert dict(soups.mixed([a, b, c], soups.uniform(3)))["w"].tolist() == pytest.approx([7 / 3] * 2)
    assert dict(soups.combined([a, b], [2.0, -1.0]))["w"].tolist() == [0.0, 0.0]


def test_bfloat16_is_summed_in_float32_and_rounded_once() -> None:
    torch.manual_seed(0)
    models = [{"w": torch.randn(2000).bfloat16()} for _ in range(7)]
    weights = soups.proportional(
        [math.sqrt(k) for k in (2, 3, 5, 7, 11, 13, 17)]
    )  # no sum is a tie of two roundings
    out = dict(soups.mixed(models, weights))["w"]
    exact = sum(w * m["w"].double() for w, m in zip(weights, models, strict=True))
    running = torch.zeros(2000, dtype=torch.bfloat16)
    for w, m in zip(weights, models, strict=True):
        running += w * m["w"]
    assert out.dtype == torch.bfloat16
    assert (out != exact.bfloat16()).float().mean() < 0.001
    assert (running != exact.bfloat16()).float().mean() > 0.3


def test_the_widest_dtype_comes_out() -> None:
    out = dict(soups.mixed([{"w": torch.ones(1).bfloat16()}, {"w": torch.full((1,), 1.001)}], [0.5, 0.5]))[
        "w"
    ]
    assert out.dtype == torch.float32 and out.item() == pytest.approx(1.0005)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda ws: sum(ws) > 1e-3))
def test_a_mix_lies_between_its_models(raw: list[float]) -> None:
    weights = [w / math.fsum(raw) for w in raw]
    models = [{"w": torch.tensor([float(k), -2.0 * k])} for k in range(len(weights))]
    out = dict(soups.mixed(models, weights))["w"]
    high = max(k for k, w in enumerate(weights) if w > 0)
    assert -1e-5 <= out[0] <= high + 1e-5 and -2 * high - 1e-5 <= out[1] <= 1e-5


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([0.5], "1 weights for 2 models"), ([0.6, 0.6], "sum to 1.2"), ([1.5, -0.5], "not negative"),
        ([math.nan, 1.0], "finite"), ([0.0, 0.0], "sum to 0"),
    ],
)  # fmt: skip
def test_weights_sum_to_one_and_are_never_negative(weights: list[float], says: str) -> None:
    models = [{"w": torch.ones(1)}, {"w": torch.ones(1)}]
    with pytest.raises(ValueError, match=says):
        soups.mixed(models, weights)


@pytest.mark.parametrize("bad", [[], [0.5, 0.0], [0.5, -0.1], [math.inf], [math.nan]])
def test_weights_are_made_of_positive_performances_only(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        soups.proportional(bad)


def test_models_that_do_not_belong_together_are_refused_in_a_line() -> None:
    a = {"w": torch.ones(2), "steps": torch.tensor(3)}
    for other, says in (
        ({"w": torch.ones(3), "steps": torch.tensor(3)}, r"w is \(3,\) in one and \(2,\)"),
        ({"v": torch.ones(2), "steps": torch.tensor(3)}, "v is in one of them only"),
        ({"w": torch.ones(2), "steps": torch.tensor(4)}, "steps holds torch.int64 and differs"),
    ):
        with pytest.raises(ModelError, match=says) as caught:
            dict(soups.mixed([a, other], [0.5, 0.5]))
        assert "\n" not in str(caught.value)
    same = dict(soups.mixed([a, {"w": torch.zeros(2), "steps": torch.tensor(3)}], [0.5, 0.5]))
    assert same["steps"].item() == 3 and same["steps"].dtype == torch.int64


def test_folders_that_hold_no_whole_weights_are_refused_in_a_line(tmp_path: Path) -> None:
    for name, content, says in (
        ("adapter_config.json", b"{}", "low-rank adapters"), ("model.safetensors", b"no", "cannot be read"),
        ("config.json", b"{}", "no safetensors"),
    ):  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(content)
        with pytest.raises(ModelError, match=says) as caught:
            soups.Stored(folder)
        assert "\n" not in str(caught.value)


# --- models on disk -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("tied", [False, True])
def test_folders_are_mixed_as_state_dicts_are(tmp_path: Path, tied: bool) -> None:
    models = [random_llama(40, seed=k, tie_word_embeddings=tied) for k in range(3)]
    models[0].save_pretrained(tmp_path / "0")
    models[1].save_pretrained(tmp_path / "1", max_shard_size="20KB")
    assert len(list((tmp_path / "1").glob("*.safetensors"))) > 1
    weights = [0.3, 0.7]
    soups.pour(soups.mixed([soups.Stored(tmp_path / "0"), soups.Stored(tmp_path / "1")], weights), models[2])
    want = {
        name: sum(w * m.state_dict()[name] for w, m in zip(weights, models[:2], strict=True))
        for name in models[0].state_dict()
    }
    for name, tensor in models[2].state_dict().items():
        torch.testing.assert_close(tensor, want[name])
    shared = models[2].lm_head.weight.data_ptr() == models[2].model.embed_tokens.weight.data_ptr()
    assert shared == tied


def test_what_does_not_fit_is_not_poured() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ModelError, match="nothing was written to bias"):
        soups.pour([("weight", torch.zeros(1, 2))], model)
    with pytest.raises(ModelError, match="the model has no scale"):
        soups.pour([("scale", torch.zeros(1))], model)


def test_children_with_adapters_were_merged_when_they_were_saved(tmp_path: Path) -> None:
    adapted = with_adapters(load(str(MINI / "tofu-full")), LoraSpec(rank=2), 0)
    with torch.no_grad():
        for name, parameter in adapted.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
    save(adapted, tmp_path / "child")
    pair = [soups.Stored(MINI / "tofu-full"), soups.Stored(tmp_path / "child")]
    soups.check_alike(pair)
    mixed = dict(soups.mixed(pair, [0.5, 0.5]))
    name = "model.layers.0.mlp.down_proj.weight"
    assert not pair[0][name].equal(pair[1][name])
    torch.testing.assert_close(
        mixed[name], ((pair[0][name].float() + pair[1][name].float()) / 2).to(mixed[name].dtype)
    )


# --- searching ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("judge", "asked", "found"),
    [
        (lambda t: -t, [0.5, 0.75, 0.875], 0.875),
        (lambda t: t, [0.5, 0.25, 0.125], 0.0),
        (lambda t: abs(t - 0.6), [0.5, 0.75, 0.625], 0.625),
        (lambda t: 0.0, [0.5, 0.25, 0.125], 0.0),  # no better is not better
    ],
)
def test_an_edge_is_searched_by_bisection(
    judge: Callable[[float], float], asked: list[float], found: float
) -> None:
    seen: list[float] = []

    def noted(t: float) -> float:
        seen.append(t)
        return judge(t)

    best, value = soups.search_edge(noted, judge(0.0), 4)
    assert (seen, best, value) == (asked, found, judge(found))


def test_a_search_of_depth_one_judges_nothing() -> None:
    assert soups.search_edge(lambda t: 1 / 0, 0.3, 1) == (0.0, 0.3)
    with pytest.raises(ValueError, match="at least 1"):
        soups.search_edge(lambda t: t, 0.3, 0)


# --- selectors ------------------------------------------------------------------------------------------------------
def selector(name: str, **values: Any) -> Any:
    return resolve(load_submission(name, [ROOT / "submissions"]), {}, values).method


def pool_of(
    tmp_path: Path, children: Sequence[float], distance: Callable[[float], float], **more: Any
) -> Pool:
    """Models of one number: the original is 0; a mix is judged by the number that it comes to."""
    places = []
    for k, value in enumerate([0.0, *children]):
        folder = tmp_path / f"model{k}"
        folder.mkdir(exist_ok=True)
        save_file({"weight": torch.tensor([[value]])}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")
        places.append(folder)
    model = nn.Linear(1, 1, bias=False)
    return Pool(
        LoadedModel(model, None), places[0], places[1:], lambda m: distance(m.model.weight.item()), **more
    )


@pytest.mark.parametrize(
    ("name", "settings", "trainings", "evaluations"),
    [
        ("best_of", {"n": 7}, 7, 7), ("efficient_soup", {"depth": 4}, 2, 8), ("performance_soup", {"n": 7}, 7, 13),
        ("best_of", {"n": 6}, 6, 6), ("efficient_soup", {"depth": 3}, 2, 6), ("performance_soup", {"n": 6}, 6, 11),
        ("greedy_soup", {"n": 7}, 7, 13), ("uniform_soup", {"n": 7}, 7, 0), ("efficient_soup", {"depth": 1}, 2, 2),
    ],
)  # fmt: skip
def test_the_counts_are_those_of_the_paper(
    tmp_path: Path, name: str, settings: dict[str, int], trainings: int, evaluations: int
) -> None:
    """TOFU: 7 trainings and 7 DS; 2 and 8 at depth 4; 7 and 13. WMDP, MUSE: 6 and 6; 2 and 6 at depth 3; 6 and 11."""
    method = selector(name, **settings)
    assert len(method.children(0)) == trainings
    pool = pool_of(tmp_path, [0.3 + 0.1 * k for k in range(trainings)], lambda x: abs(x - 0.55))
    method.choose(pool)
    assert len(pool.tried) == evaluations
    assert math.fsum(pool.chosen.values()) == pytest.approx(1.0) and min(pool.chosen.values()) > 0
    note = {"trainings": trainings, "charged_s": 10.0, "peak_kind": "cuda"}
    for by, proxies, full in (("proxy", evaluations, 1), ("full_metric", 0, evaluations or 1)):
        ledger = _ledger(note, {"by": by, "evaluations": evaluations, "seconds": 8.0}, {}, True)
        assert (ledger.trainings, ledger.proxy_evaluations, ledger.full_evaluations) == (
            trainings,
            proxies,
            full,
        )
        assert ledger.charged_s == 18.0 and ledger.gpu_hours == pytest.approx(18.0 / 3600)


@pytest.mark.parametrize("name", SELECTORS)
def test_one_child_is_chosen_as_it_is(tmp_path: Path, name: str) -> None:
    method = selector(name, **({"depth": 1} if name == "efficient_soup" else {"n": 1}))
    children = [0.5, 0.5] if name == "efficient_soup" else [0.5]
    pool = pool_of(tmp_path, children, lambda x: x)
    method.choose(pool)
    assert pool.chosen == {"child 0": 1.0} and pool.loaded.model.weight.item() == 0.5


def test_efficient_soup_goes_back_to_the_original_and_over_to_the_other(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, [4.0, 2.0], lambda x: abs(x - 1.5))
    selector("efficient_soup", depth=4).choose(pool)
    assert [t["mix"] for t in pool.tried[:3]] == [
        {"child 0": 1.0},
        {"child 1": 1.0},
        {"child 1": 0.5, "original": 0.5},
    ]
    best = min(pool.tried, key=lambda t: t["value"])
    assert pool.chosen == best["mix"] and pool.loaded.model.weight.item() == pytest.approx(1.5)


def test_performance_soup_weighs_by_performance_and_takes_ties_but_nothing_worse(tmp_path: Path) -> None:
    values = {1.0: 0.2, 2.0: 0.6, 3.0: 0.4}

    def distance(x: float) -> float:
        return values.get(x, 0.2 if x < 2 else 0.9)

    pool = pool_of(tmp_path, [1.0, 2.0, 3.0], distance)
    selector("performance_soup", n=3).choose(pool)
    # order: 1, 3, 2; P = .8, .6, .4; the mix of 1 and 3 is 1.857 (a tie with .2: taken); all three are 1.889: taken
    assert pool.chosen == pytest.approx({"child 0": 0.8 / 1.8, "child 1": 0.4 / 1.8, "child 2": 0.6 / 1.8})
    greedy = pool_of(tmp_path, [1.0, 2.0, 3.0], distance)
    selector("greedy_soup", n=3).choose(greedy)
    assert greedy.chosen == {"child 0": 1.0}  # a plain greedy soup wants it strictly better


def test_performance_soup_drops_what_has_no_positive_performance_and_counts_it(tmp_path: Path) -> None:
    pool = pool_of(tmp_path, [0.4, 1.0, 1.3], lambda x: x)
    selector("performance_soup", n=3).choose(pool)
    assert (pool.dropped, pool.chosen, len(pool.tried)) == (2, {"child 0": 1.0}, 3)
    hopeless = pool_of(tmp_path, [1.0, 1.2], lambda x: x)
    with pytest.raises(RunError, match="no child has a positive performance: all 2"):
        selector("performance_soup", n=2).choose(hopeless)


def test_an_interrupted_choice_goes_on_and_counts_nothing_twice(tmp_path: Path) -> None:
    calls: list[float] = []

    def distance(x: float) -> float:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(x)
        return abs(x - 1.0)

    ticks = iter(range(100))
    method, journal = selector("efficient_soup", depth=3), tmp_path / "tried.json"
    with pytest.raises(KeyboardInterrupt):
        method.choose(pool_of(tmp_path, [2.0, 3.0], distance, journal=journal, now=lambda: next(ticks)))
    again: list[float] = []
    pool = pool_of(tmp_path, [2.0, 3.0], lambda x: again.append(x) or abs(x - 1.0), journal=journal)
    method.choose(pool)
    assert (len(calls), len(again), len(pool.tried)) == (3, 3, 6)
    assert [t["seconds"] for t in pool.tried[:3]] == [1, 1, 1]
    fresh = pool_of(tmp_path, [2.0, 3.5], lambda x: abs(x - 1.0), journal=journal)
    assert fresh.tried == []  # other children: nothing of the old journal holds


def test_an_interrupted_selector_trains_only_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(
        name="b", task=TaskRef(name="bma"), models={"target": "mini:bma/M4"}, budget=Budget(updates=1), seeds=(0,),
        columns=("forget.p",), rank_by="forget.p",
    )  # fmt: skip
    sources = tuple(
        Source(name=name, source=str(ROOT / "submissions" / f"{name}.py"), code="")
        for name in ("best_of", "npo")
    )
    spec = RunSpec(
        run_id="r", board=board, entry="e", submission="best_of:npo", sources=sources, case="M4", seed=0,
        overrides={"n": 3},
    )  # fmt: skip
    trained: list[str] = []

    def unlearn(session: Any, sub: RunSpec, folder: Path) -> Outcome:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(folder.name)
        note = {"status": "ok", "charged_s": 2.0, "updates": 5, "examples": 1, "tokens": 1, "overshoot_s": 0.0,
                "lanes_s": {"train": 2.0}, "peak_gib": None, "error": "", "points": []}  # fmt: skip
        write_json(folder / "unlearn.json", note)
        return Outcome("ok")

    monkeypatch.setattr(stages, "unlearn", unlearn)
    monkeypatch.setattr(stages, "run_stage", lambda *_, **__: Outcome("ok"))
    session: Any = None
    with pytest.raises(KeyboardInterrupt):
        stages.select(session, spec, tmp_path)
    done, trained = trained, []
    assert stages.select(session, spec, tmp_path).ok
    assert (done, trained) == (["0", "1"], ["2"])
    note = read_json(tmp_path / "unlearn.json")
    assert (note["trainings"], note["charged_s"], note["updates"], note["lanes_s"]) == (
        3,
        6.0,
        15,
        {"train": 6.0},
    )


def test_a_mix_that_cannot_be_judged_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="was judged as nan"):
        pool_of(tmp_path, [1.0], lambda x: math.nan).judge({0: 1.0})
    with pytest.raises(ValueError, match="not negative"):
        pool_of(tmp_path, [1.0], lambda x: x).judge({0: 1.5, ORIGINAL: -0.5})


def test_children_differ_by_seed_by_rate_or_by_strength() -> None:
    assert [c.seed for c in selector("efficient_soup").children(3)] == [3, 1003]
    pair = selector("efficient_soup", each=[{"optimizer.lr": 1e-5}, {"optimizer.lr": 2e-5}]).children(3)
    assert [(c.seed, c.overrides["optimizer.lr"]) for c in pair] == [(3, 1e-5), (3, 2e-5)]
    both = selector("best_of", n=4, each=[{"alpha": 1.0}, {"alpha": 5.0}]).children(3)
    assert [(c.seed, c.overrides["alpha"]) for c in both] == [(3, 1.0), (3, 5.0), (1003, 1.0), (1003, 5.0)]


@pytest.mark.parametrize(("name", "value"), [("best_of", {"n": 0}), ("efficient_soup", {"depth": 0})])
def test_a_selector_without_children_or_depth_is_refused(name: str, value: dict[str, int]) -> None:
    with pytest.raises(SubmissionError, match="at least 1"):
        selector(name, **value)


# --- the board's own metric -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("direction", "low", "high", "target", "value", "distance"),
    [
        ("higher", 0.0, 10.0, None, 7.5, 0.25), ("lower", 0.0, 1.0, None, 0.3, 0.3),
        ("higher", 0.0, 1.0, None, 1.0, 0.0), ("target", -100.0, 300.0, 0.0, -30.0, 0.1),
    ],
)  # fmt: skip
def test_the_distance_of_a_metric_is_a_share_of_its_range(
    direction: Any, low: float, high: float, target: float | None, value: float, distance: float
) -> None:
    info = MetricInfo("m", direction, low, high, "", "", target)
    task: Any = SimpleNamespace(
        metrics=lambda: [info], probes=lambda case: [], score=lambda *_: {"m": Score(value)}
    )
    spec: Any = SimpleNamespace(board=SimpleNamespace(rank_by="m@case"), limit=None, references={})
    judge = select.full_distance(spec, task, SimpleNamespace())  # type: ignore[arg-type]
    assert judge(LoadedModel(nn.Linear(1, 1), None)) == pytest.approx(distance)


@pytest.mark.parametrize(("direction", "high"), [("higher", None), ("none", 1.0)])
def test_a_metric_without_range_or_direction_judges_no_mix(direction: Any, high: float | None) -> None:
    with pytest.raises(SubmissionError, match="no range or no direction"):
        select.bounds(MetricInfo("m", direction, 0.0, high, "", ""))


# --- whole runs -----------------------------------------------------------------------------------------------------
Command = Callable[..., Ran]


def record_of(workspace: Path, name: str) -> dict[str, Any]:
    files = sorted((workspace / "leaderboards/tiny/results").glob(f"{name}-*.json"))
    assert len(files) == 1, files
    return json.loads(files[0].read_text())


def test_settings_of_children_are_checked_before_anything_runs(uharness: Command, workspace: Path) -> None:
    for value, says in (
        ('each=[{"alhpa": 1}]', "did you mean alpha"),
        ("each=3", "each=3"),
        ("by=metric", "by='metric'"),
    ):
        ran = uharness("submit", "best_of:random_label", "--board", "tiny", "--set", value)
        assert (ran.code, len(ran.err.strip().splitlines())) == (2, 1) and says in ran.err, ran.err
    assert not (workspace / "runs").exists()


@pytest.mark.slow
def test_a_soup_is_submitted_counted_and_looked_into(uharness: Command, workspace: Path) -> None:
    ran = uharness("submit", "efficient_soup:random_label", "--board", "tiny", "--set", "depth=2")
    assert ran.code == 0, ran.err
    found = record_of(workspace, "efficient_soup_of_random_label")
    ledger, run = found["ledger"], found["run_id"]
    assert (ledger["trainings"], ledger["proxy_evaluations"], ledger["full_evaluations"]) == (2, 4, 1)
    assert found["selection"]["kind"] == "proxy" and found["updates"] == 6
    total = found["scores"]["cost.total_s"]["value"]
    assert total == pytest.approx(ledger["charged_s"]) and total > found["charged_s"]
    looked = uharness("diagnose", run, "--what", "mixes,slice", "--grid", "2", "--json", "-")
    assert looked.code == 0, looked.err
    lines = json.loads(looked.out)["lines"]
    mixes = [n for n in lines if n["kind"] == "mixes" and n["measure"] == "value" and n["name"] != "chosen"]
    assert len(mixes) == 4 and all(0 <= n["value"] <= math.sqrt(2) for n in mixes)
    weights = [n["value"] for n in lines if n["name"] == "chosen" and n["measure"].startswith("weight.")]
    assert math.fsum(weights) == pytest.approx(1.0)
    assert len([n for n in lines if n["kind"] == "slice" and n["measure"] == "ds_es"]) == 4
    assert uharness("submit", "random_label", "--board", "tiny", "--trajectory").code == 0
    plain = record_of(workspace, "random_label")["run_id"]
    looked = uharness("diagnose", plain, "--what", "ds", "--limit", "8", "--json", "-")
    assert looked.code == 0, looked.err
    along: dict[str, list[float]] = {}
    for n in (n for n in json.loads(looked.out)["lines"] if n["kind"] == "ds"):
        along.setdefault(n["measure"], []).append(n["value"])
    assert {len(values) for values in along.values()} == {4} and "loss.total" in along  # start, 2 points, end
    parts = zip(along["forget.es"], along["retain.es"], strict=True)
    assert along["ds_es"] == [pytest.approx(100 * math.hypot(f, 1 - r)) for f, r in parts]
    refused = uharness("diagnose", plain, "--what", "slice")
    assert refused.code == 2 and "is not a selector's" in refused.err


@pytest.mark.slow
def test_a_choice_by_the_board_s_metric_is_marked(uharness: Command, workspace: Path) -> None:
    board = workspace / "leaderboards/tiny.toml"
    board.write_text(board.read_text().replace('rank_by = "retain.damage"', 'rank_by = "retain.p"'))
    ran = uharness(
        "submit", "best_of:random_label", "--board", "tiny", "--set", "n=2", "--set", "by=full_metric"
    )
    assert ran.code == 0, ran.err
    found = record_of(workspace, "best_of_of_random_label")
    assert (found["selection"]["kind"], found["ledger"]["full_evaluations"]) == ("full_metric", 2)
    assert found["ledger"]["proxy_evaluations"] == 0
    assert found["selection"]["proxy_rows"] == found["selection"]["proxy_rows_in_probes"] > 0
