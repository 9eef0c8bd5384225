"""Edits as methods: on a job with texts, on images, and through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, Ran
from tiny_job import method, moved, run, text_job, weights
from torch import Tensor, nn

from harness import preflight
from harness.clock import Allowance, Clock
from harness.diagnostics.summary import summary
from harness.edits.finetune import Part, fine_tune
from harness.edits.layers import editable
from harness.edits.moments import Gathering
from harness.edits.onjob import forget_accuracy, look
from harness.entries import resolve_spec
from harness.errors import InvalidRun, ModelError, SubmissionError
from harness.job import Job, Plan
from harness.models import MINI, LoadedModel, load
from harness.specs import Batching, LoraSpec, OptimizerSpec
from harness.types import ArrayRow
from harness.workspace import Workspace

Command = Callable[..., Ran]
EDITS = ("neg_tv", "negmerge", "unmerge")


def job_with_start(start: str = "base", **more: Any) -> Job:
    job = text_job(updates=more.pop("updates", 6), **more)
    job._resources = {**job._resources, "model.init": lambda: load(str(MINI / start)).model}
    return job


class Heaps(nn.Module):
    """A small convolutional classifier, trained here on four heaps of images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().flatten(1))

    def save(self, folder: Path) -> None:
        raise AssertionError("not saved here")


@pytest.fixture(scope="module")
def heaps() -> tuple[dict[str, Tensor], list[ArrayRow]]:
    """Weights that tell four kinds of noisy images apart, and the images."""
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(4, 1, 6, 6))
    rows = [
        ArrayRow(str(i), (kinds[i % 4] + 0.4 * rng.normal(size=(1, 6, 6))).astype(np.float32), i % 4)
        for i in range(160)
    ]
    torch.manual_seed(0)
    net = Heaps()
    x, y = torch.tensor(np.stack([r.inputs for r in rows])), torch.tensor([r.label for r in rows])
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return {n: p.detach() for n, p in net.state_dict().items()}, rows


def heap_job(heaps: tuple[dict[str, Tensor], list[ArrayRow]], forget: Callable[[int, int], bool]) -> Job:
    state, rows = heaps
    net = Heaps()
    net.load_state_dict(state)
    gone = [r for i, r in enumerate(rows) if forget(i, r.label)]
    kept = [r for i, r in enumerate(rows) if not forget(i, r.label)]
    plan = Plan(0, Batching(effective=16), OptimizerSpec(lr=0.01, warmup=0))
    return Job(LoadedModel(net, None), gone, kept, Clock(Allowance(updates=20)), plan)


# --- texts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", EDITS)
def test_strength_0_leaves_the_model_as_it_was(name: str) -> None:
    job = job_with_start()
    before, more = weights(job), {"inseparable": "edit"} if name == "unmerge" else {}
    run(name, job, alpha=0.0, **more)
    assert not moved(job, before)
    assert {n["name"] for n in job.seen.log} >= {"alpha"}


@pytest.mark.parametrize("name", [*EDITS, "subspace_projection"])
def test_adapters_are_refused(name: str) -> None:
    with pytest.raises(SubmissionError, match="edits weights, not adapters"):
        run(name, text_job(lora=LoraSpec(rank=2)))


def test_negation_goes_as_far_the_other_way_as_fine_tuning_went() -> None:
    job = job_with_start()
    before, old = weights(job), forget_accuracy(job)
    run("neg_tv", job, alpha=1.0, training=1.0)
    negated = weights(job)
    again = job_with_start()
    with again.clock.lane("train"):
        assert fine_tune(again, 1.0) == 6
    for n, p in again.model.named_parameters():
        torch.testing.assert_close(before[n] - (p - before[n]), negated[n], atol=1e-6, rtol=0)
    assert again.clock.updates == 6 and again.seen.examples == 6 * 4
    assert forget_accuracy(again) >= old


def test_negmerge_trains_one_model_a_rate_from_the_same_start() -> None:
    job = job_with_start(updates=9)
    run("negmerge", job, rates=[0.5, 1.0, 2.0], training=1.0, alpha=1.0)
    noted = {n["name"]: n["value"] for n in job.seen.log}
    assert job.clock.updates == 9
    assert 0.2 < noted["signs.agree"] < 1.0 and noted["tau.norm"] > 0
    one = job_with_start(updates=3)
    run("negmerge", one, rates=[1.0], training=1.0, alpha=1.0)
    same = job_with_start(updates=3)
    run("neg_tv", same, training=1.0, alpha=1.0)
    assert not moved(one, weights(same))


def test_a_part_of_a_budget_is_a_clock_of_its_own() -> None:
    now = [0.0]
    clock = Clock(Allowance(seconds=10), now=lambda: now[0])
    with clock.lane("train"):
        part = Part(clock, 0.2, 0.6)
        now[0] = 4.0
        assert (part.fraction, part.remaining_s) == (pytest.approx(0.5), pytest.approx(2.0))
        now[0] = 9.0
        assert (part.fraction, part.remaining_s) == (1.0, 0.0)
    counted = Clock(Allowance(updates=10), spent_updates=6)
    assert Part(counted, 0.0, 0.6).remaining_s == 0.0 and Part(counted, 0.0, 0.7).remaining_s == float("inf")


def test_no_time_for_an_update_is_no_task_vector() -> None:
    with pytest.raises(InvalidRun, match="no time for a single update"):
        run("neg_tv", job_with_start(updates=1), training=0.1)


@pytest.mark.parametrize("basis", ["pca", "retain_pca", "cav_kmeans"])
@pytest.mark.parametrize("solver", ["closed", "adam"])
def test_unmerge_lowers_forget_accuracy_more_than_retain_accuracy(basis: str, solver: str) -> None:
    job = job_with_start(rows=20)
    untouched = {n for n, _ in job.model.named_parameters() if "norm" in n or "embed" in n}
    before = weights(job)
    run("unmerge", job, basis=basis, solver=solver, rank=4, steps=20, lr=1e-3, wanted=0.6, only="o_proj|down_proj",
        alphas=[8.0, 32.0], halvings=1)  # fmt: skip
    assert moved(job, before) and not moved(job, before) & untouched
    noted = {n["name"]: n["value"] for n in job.seen.log}
    assert noted["separability.deviations"] > 0 and noted["alpha"] > 0
    assert noted["forget.acc"] == pytest.approx(forget_accuracy(job))
    assert noted["forget.acc"] < 0.95


def test_both_starts_of_unmerge_and_the_layers_that_are_skipped() -> None:
    job = job_with_start(rows=4)
    first = method("unmerge", rank=2).look(job)
    zero = method("unmerge", rank=2, start="zero").look(job)
    base = load(str(MINI / "base")).model.state_dict()
    for layer in first.layers:
        torch.testing.assert_close(first.tau(layer) + layer.as_matrix(base[layer.name]), zero.tau(layer))
        assert zero.tau(layer).equal(layer.matrix)
    before = weights(job)
    run("unmerge", job, start="zero", rank=2, skip=0.75, alpha=1.0, inseparable="edit")
    assert {n.split(".")[2] for n in moved(job, before)} == {"3"}
    assert method("unmerge").needs == ("model.init",) and method("unmerge", start="zero").needs == ()


@pytest.mark.parametrize(
    ("start", "says"),
    [("tofu-full", "the task vector is 0"), ("random", "was not fine-tuned from this starting model")],
)
def test_a_wrong_start_is_refused_before_any_row_is_looked_at(start: str, says: str) -> None:
    job = job_with_start(rows=2)
    if start == "tofu-full":
        job._resources["model.init"] = lambda: load(str(MINI / start)).model  # type: ignore[index]
    else:
        from transformers import LlamaForCausalLM

        job._resources["model.init"] = lambda: LlamaForCausalLM(job.model.config)  # type: ignore[index]
    with pytest.raises(ModelError, match=says):
        run("unmerge", job)
    assert not job.seen.examples


def test_retain_rows_are_looked_at_while_half_of_the_budget_lasts() -> None:
    ticks = iter(range(10_000))
    job = text_job(rows=8, seconds=10.0, now=lambda: float(next(ticks)), micro=2)
    layers = editable(job.model, only="down_proj")
    with job.clock.lane("train"):
        found, names = look(job, layers, Gathering(), controls=2)
    assert names == ["forget", "random 0", "random 1"]
    assert 8 < job.seen.examples < 8 + 16
    assert next(iter(found.values())).count["retain"] > 0


def test_texts_have_no_classes_and_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(SubmissionError, match="texts have no class labels"):
        run("unmerge", job_with_start(rows=2), basis="cav_class", start="zero")
    for wrong, says in (
        ({"rank": 0}, "rank=0"),
        ({"lam": -1.0}, "lam=-1"),
        ({"lr": 0.0}, "lr=0"),
        ({"basis": "ica"}, "basis"),
    ):
        with pytest.raises(SubmissionError, match=says):
            method("unmerge", **wrong)
    with pytest.raises(SubmissionError, match="above 0"):
        method("subspace_projection", alpha_f=0.0)


# --- images ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("basis", ["pca", "cav_kmeans", "cav_class"])
def test_a_class_is_unmerged_from_a_convolutional_net(basis: str, heaps: Any) -> None:
    job = heap_job(heaps, lambda _, label: label == 2)
    run("unmerge", job, basis=basis, start="zero", rank=3, solver="closed", wanted=0.05)
    noted = {n["name"]: n["value"] for n in job.seen.log}
    assert noted["separable"] == 1.0 and noted["reached"] == 1.0
    assert forget_accuracy(job) <= 0.05
    kept = job.score(job.retain).hit.mean()
    assert kept > 0.9


def test_projection_forgets_a_class_and_keeps_the_others(heaps: Any) -> None:
    job = heap_job(heaps, lambda _, label: label == 1)
    bias = job.model.head.bias.clone()
    run("subspace_projection", job, alpha_f=3.0, alpha_r=300.0)
    assert forget_accuracy(job) < 0.5 < job.score(job.retain).hit.mean()
    assert job.model.head.bias.equal(bias)


def test_random_images_are_flagged_and_left_alone(heaps: Any) -> None:
    chosen = set(np.random.default_rng(5).permutation(160)[:40].tolist())
    job = heap_job(heaps, lambda i, _: i in chosen)
    before = weights(job)
    run("unmerge", job, start="zero", alpha=1.0)
    assert {n["name"]: n["value"] for n in job.seen.log}["separable"] == 0.0
    assert not moved(job, before) and "this request is not separable" in job.seen.stopped
    run("unmerge", job, start="zero", alpha=1.0, inseparable="edit")
    assert moved(job, before)


# --- the command line -----------------------------------------------------------------------------------------------
def few(workspace: Path, *, init: str = "mini:base") -> None:
    board = (ROOT / "leaderboards" / "tofu-mini.toml").read_text()
    board = board.replace("reference_steps = 50", "updates = 2").replace(
        'init = "mini:base"\n', f'init = "{init}"\n' if init else ""
    )
    (workspace / "leaderboards/few.toml").write_text(board)


def test_a_board_without_a_starting_model_says_so(uharness: Command, workspace: Path) -> None:
    few(workspace, init="")
    ran = uharness("submit", "unmerge", "--board", "few", "--seed", "0", "--set", "start=init")
    assert ran.code == 2 and "needs 'model.init', which board few does not supply" in ran.err


def test_a_starting_model_of_the_hub_is_fetched_for_who_needs_it(workspace: Path) -> None:
    def roles(init: str, name: str) -> set[str]:
        few(workspace, init=init)
        ready = preflight.board_ready(here.board("few"), here)
        needs = preflight.needed(resolve_spec(name, here.submissions, ready.board.settings, {}), ready)
        return set(ready.models("forget10", 0, here.roots, needs))

    here = Workspace(workspace)
    for name in ("grad_diff", "best_of:grad_diff"):
        assert roles("owner/base", name) == {"target", "retain"}
    assert roles("mini:base", "grad_diff") == {"target", "retain", "init"}  # it is here, and in older records
    for name in ("unmerge", "best_of:unmerge"):
        with pytest.raises(ModelError, match="model 'owner/base' is not in the local cache"):
            roles("owner/base", name)


def test_a_request_s_lines_name_its_layers() -> None:
    def line(name: str, measure: str, value: float) -> dict[str, Any]:
        return {"run_id": "r", "kind": "request", "name": name, "measure": measure, "value": value, "why": ""}

    told = summary([
        line("a.q", "overlap", 0.5), line("b.k", "overlap", 0.25),
        line("a.q.weight", "tau.relative", 0.125),
    ])  # fmt: skip
    assert told == [
        "request     overlap of forget and retain inputs, layer by layer: a.q 0.50, b.k 0.25",
        "request     task vector by weights' norm, layer by layer: a.q.weight 0.12",
    ]


def test_what_belongs_to_no_run_is_refused_with_one(uharness: Command, workspace: Path) -> None:
    for given, says in (
        (("diagnose", "some", "--request"), "give one of them"),
        (("diagnose", "--request", "--case", "M5", "--board", "tiny"), "has no case 'M5'"),
        (("diagnose", "--request", "--board", "tiny", "--ablate"), "are about runs"),
        (("diagnose", "some", "--seed", "1"), "belong to --request"),
        (("diagnose", "some", "--board", "tiny"), "belong to --power-sweep"),
    ):
        ran = uharness(*given)
        assert ran.code == 2 and says in ran.err, ran.err


def test_negation_works_where_inputs_cannot_be_seen(uharness: Command, workspace: Path) -> None:
    some = ("--set", "alphas=[1.0]", "--set", "halvings=0", "--set", "training=1.0")
    ran = uharness("submit", "neg_tv", "--board", "tiny", *some)
    assert ran.code == 0, ran.err
    (path,) = (workspace / "leaderboards/tiny/results").glob("*.json")
    record = json.loads(path.read_text())
    assert (record["status"], record["updates"]) == ("ok", 3), record["error"]


@pytest.mark.slow
def test_a_request_and_the_parts_of_a_run_are_told(uharness: Command, workspace: Path) -> None:
    few(workspace)
    some = ("--set", "rank=1", "--set", "halvings=0", "--set", "alphas=[8.0]", "--set", "only=down_proj")
    ran = uharness("submit", "unmerge", "--board", "few", "--seed", "0", "--limit", "8", *some)
    assert ran.code == 0, ran.err
    (path,) = (workspace / "leaderboards/few/results").glob("*.json")
    record = json.loads(path.read_text())
    assert (record["status"], record["updates"]) == ("limited", 0), record["error"]
    ran = uharness(
        "diagnose", path.stem, "--ablate", "--what", "request", "--limit", "4", "--json", "out.json"
    )
    assert ran.code == 0, ran.err
    assert "request     this request is" in ran.out and "ablation    without leakage: alpha 8" in ran.out
    lines = json.loads((workspace / "out.json").read_text())["lines"]
    names = {n["name"] for n in lines if n["kind"] == "ablation"}
    assert names == {"rank 1", "rank 2", "rank 4", "full", "without leakage", "without size", "projection"}
    layers = {n["name"] for n in lines if n["measure"] == "overlap"}
    assert len(layers) == 28 and {
        n["value"] is not None for n in lines if n["measure"] == "tau.relative"
    } == {True}


@pytest.mark.slow
def test_a_request_is_looked_at_without_any_run(uharness: Command, workspace: Path) -> None:
    few(workspace, init="mini:muse-target")
    ran = uharness("diagnose", "--request", "--board", "few", "--json", "out.json")
    assert ran.code == 0, ran.err
    lines = json.loads((workspace / "out.json").read_text())["lines"]
    assert {n["value"] for n in lines if n["measure"] == "separable"} == {1.0}
    overlaps = [n["value"] for n in lines if n["measure"] == "overlap"]
    assert len(overlaps) == 28 and all(0 <= v <= 1 for v in overlaps)
    ran = uharness("diagnose", "--request", "--board", "tiny")
    assert ran.code == 1 and "does not go through query.weight" in ran.err
