"""What does not fit together is told before anything runs: methods and boards, adapters, selectors and their bases."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Ran, write_board

from harness import fits, preflight
from harness.entries import parse_set, resolve_spec
from harness.errors import SubmissionError
from harness.plugins import Loaded, load_submission, optimizer_names, wants_curvature
from harness.preflight import Ready
from harness.workspace import Workspace

Command = Callable[..., Ran]
WORKSPACE = Workspace(ROOT)
EDITS = ("neg_tv", "negmerge", "subspace_projection", "unmerge")
FILE = """
from dataclasses import dataclass
from harness import Submission
from harness.edits import onjob

@dataclass(frozen=True)
class Mine:
    form: str = "a"
    def unlearn(self, job):
        {first}
        {second}
    def helper(self, job):
        onjob.refuse_adapters(job, "mine")
        job.instruct("x")
    def again(self, job):
        self.again(job)

submission = Submission(method=Mine())
"""


@pytest.fixture(scope="module")
def ready() -> Callable[[str], Ready]:
    made: dict[str, Ready] = {}

    def board(name: str) -> Ready:
        if name not in made:
            made[name] = preflight.board_ready(WORKSPACE.board(name), WORKSPACE)
        return made[name]

    return board


def check(ready: Ready, name: str, *pairs: str) -> None:
    entry = resolve_spec(name, WORKSPACE.submissions, ready.board.settings, parse_set(pairs))
    preflight.entry_ready(entry, ready)


def refused(ready: Ready, name: str, *pairs: str) -> str:
    with pytest.raises(SubmissionError) as caught:
        check(ready, name, *pairs)
    said = str(caught.value)
    assert "\n" not in said
    return said


def written(folder: Path, first: str, second: str = "pass", top: str = "") -> Loaded:
    path = folder / "mine.py"
    path.write_text(f"{top}\n" + FILE.format(first=first, second=second))
    return load_submission(str(path), ())


# --- boards ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("board", ["tofu-mini", "muse-mini", "bma-mini"])
def test_a_method_for_image_classifiers_is_refused_elsewhere(
    ready: Callable[[str], Ready], board: str
) -> None:
    assert f"logit_mask needs 'images', which board {board} does not supply" in refused(
        ready(board), "logit_mask"
    )


def test_a_method_for_image_classifiers_fits_a_board_of_images(ready: Callable[[str], Ready]) -> None:
    check(ready("digits-mini"), "logit_mask")
    assert fits.told_needs(load_submission("grad_diff", WORKSPACE.submissions).submission.method) == ()


@pytest.mark.parametrize(
    ("line", "call", "needs"),
    [
        ("from harness.vision import head", "head(job.model)", ("images",)),
        ("from harness import vision", "x = vision.head(job.model)", ("images",)),
        ("from harness.vision import head", "if job.forget: head(job.model)", ()),
        ("from harness.vision import reads_pixels", "reads_pixels(job.model)", ()),
        ("head = print", "head(job.model)", ()),
    ],
)
def test_the_head_of_an_image_classifier_is_a_need(
    tmp_path: Path, line: str, call: str, needs: tuple[str, ...]
) -> None:
    assert fits.told_needs(written(tmp_path, call, top=line).submission.method) == needs


# --- adapters -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*EDITS, "lunar", "retrain"])
def test_methods_that_work_on_the_weights_take_no_adapters(ready: Callable[[str], Ready], name: str) -> None:
    said = refused(ready("tofu-mini"), name, "lora.rank=8")
    assert said.startswith(f"{name}: lora.rank=8; ") and said.endswith("leave lora.rank at 0")
    check(ready("tofu-mini"), name)


def test_a_setting_decides_whether_rmu_takes_adapters(ready: Callable[[str], Ready]) -> None:
    assert "rmu: lora.rank=8" in refused(ready("tofu-mini"), "rmu", "lora.rank=8", "form=wmdp")
    check(ready("tofu-mini"), "rmu", "lora.rank=8")
    check(ready("tofu-mini"), "grad_diff", "lora.rank=8")


def test_every_method_that_refuses_adapters_is_known_to() -> None:
    said = {p.stem for p in (ROOT / "submissions").glob("*.py") if "adapters" in p.read_text()}
    known = set()
    for name in said:
        method = load_submission(name, WORKSPACE.submissions).submission.method
        wmdp = type(method)(form="wmdp") if name == "rmu" else method
        known |= {name} if fits.refuses_adapters(wmdp) else set()
    assert known == {*EDITS, "lunar", "rmu"} == said - {"undial"}


@pytest.mark.parametrize(
    ("first", "refuses"),
    [
        ('onjob.refuse_adapters(job, "mine")', True),
        ("self.helper(job)", True),
        ("x = self.helper(job)", True),
        ("return self.helper(job)", True),
        ("if job.loaded.adapters: raise ValueError", True),
        ('if self.form == "a": self.helper(job)', True),
        ('if self.form == "b": self.helper(job)', False),
        ("if job.loaded.adapters: print(job)", False),
        ("if job.forget: self.helper(job)", False),
        ("if job.forget: return", False),
        ("if job.forget: raise ValueError", True),
        ("def f(): return 3", True),
        ("self.again(job)", False),
    ],
)
def test_only_what_runs_in_any_case_counts(tmp_path: Path, first: str, refuses: bool) -> None:
    second = "self.helper(job)" if first.startswith(("if job.forget: r", "def")) else "pass"
    assert fits.refuses_adapters(written(tmp_path, first, second).submission.method) is refuses


def test_a_method_without_a_source_is_left_to_its_run(tmp_path: Path) -> None:
    method = written(tmp_path, "self.helper(job)").submission.method
    assert fits.instructs(method)
    module = sys.modules.pop(type(method).__module__)
    assert not fits.instructs(method) and not fits.refuses_adapters(method)
    assert fits.told_needs(method) == ()
    assert module.submission.method is method


# --- optimizers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["neg_tv", "negmerge", "lunar"])
def test_curvature_needs_a_method_that_trains_on_the_rows(ready: Callable[[str], Ready], name: str) -> None:
    said = refused(ready("tofu-mini"), name, "optimizer.name=sophia")
    assert said.startswith(f"{name}: optimizer.name=sophia estimates curvature")
    check(ready("tofu-mini"), name, "optimizer.name=adamw")
    check(ready("tofu-mini"), "grad_diff", "optimizer.name=sophia")


def test_the_optimizers_that_estimate_curvature_are_known() -> None:
    assert [name for name in optimizer_names() if wants_curvature(name)] == ["sophia"]


# --- selectors ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("efficient_soup:no_op", "no_op is a reference"), ("best_of:retrain", "retrain is a reference"),
        ("best_checkpoint:no_op", "no_op is a reference"), ("uniform_soup:in_context", "in_context changes no weights"),
    ],
)  # fmt: skip
def test_a_selector_needs_trainings_to_choose_from(
    ready: Callable[[str], Ready], name: str, says: str
) -> None:
    said = refused(ready("tofu-mini"), name)
    assert says in said and said.endswith("by itself")
    check(ready("tofu-mini"), f"{name.partition(':')[0]}:grad_diff")


@pytest.mark.parametrize(
    ("name", "pairs", "says"),
    [
        ("efficient_soup", ('each=[{"alpha": 1}, {"alpha": 2}, {"alpha": 3}]',), "each has 3 settings; there are 2"),
        ("best_of", ("n=1", 'each=[{"alpha": 1}, {"alpha": 2}]'), "each has 2 settings; there are 1"),
        ("greedy_soup", ('each=[{"alpha": 1}, {"alpha": 2}, {"alpha": 1.0}]',), "names {'alpha': 1.0} twice"),
        ("best_of", ('each=[{"lora.rank": 4}, {"lora.rank": -1}]',), "lora.rank"),
    ],
)  # fmt: skip
def test_settings_that_no_training_would_try_are_refused(
    ready: Callable[[str], Ready], name: str, pairs: tuple[str, ...], says: str
) -> None:
    assert says in refused(ready("tofu-mini"), f"{name}:grad_diff", *pairs)


def test_as_many_settings_as_trainings_fit(ready: Callable[[str], Ready]) -> None:
    check(ready("tofu-mini"), "efficient_soup:grad_diff", 'each=[{"alpha": 1}, {"alpha": 2}]')


def test_settings_of_children_are_checked_like_the_base_s(ready: Callable[[str], Ready]) -> None:
    each = 'each=[{"lora.rank": 0}, {"lora.rank": 8}]'
    assert "neg_tv: lora.rank=8" in refused(ready("tofu-mini"), "best_of:neg_tv", each)
    assert "no Hugging Face model" in refused(ready("digits-mini"), "best_of:grad_diff", each)
    assert "needs 'random_labels'" in refused(ready("muse-mini"), "best_of:random_label")


# --- the command line -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("logit_mask",), "needs 'images'"),
        (("best_of:no_op",), "no_op is a reference"),
        (("grad_diff", "--seed", "-1"), "--seed"),
    ],
)
def test_it_is_one_line_and_nothing_runs(
    uharness: Command, workspace: Path, given: tuple[str, ...], says: str
) -> None:
    ran = uharness("submit", *given, "--board", "tiny")
    assert (ran.code, len(ran.err.strip().splitlines())) == (2, 1) and says in ran.err
    assert not (workspace / "runs").exists()


def test_a_method_s_needs_are_listed(uharness: Command, workspace: Path) -> None:
    listed = json.loads(uharness("list", "methods", "--json").out)
    assert {m["name"]: m["needs"] for m in listed}["logit_mask"] == ["images"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seeds = [17]", "seeds = [-1]", "seeds are 0 or more"),
        ('cases = ["M4"]', 'cases = ["M4", "M4"]', "cases repeat"),
        ('"forget.p", "retain.p"', '"forget.p", "forget.p"', "columns repeat"),
        ("updates = 3", "seconds = inf", "budget.seconds is inf, which is not finite"),
        ("at_most = 0.1", "at_most = nan", "stop.at_most is nan, which is not finite"),
        ("updates = 3", "updates = 3\nhang_s = inf", "budget.hang_s is inf"),
        ("fraction = 0.6", "fraction = nan", "task.options.train_fraction is nan"),
    ],
)
def test_a_board_with_numbers_that_cannot_be_meant(
    uharness: Command, workspace: Path, old: str, new: str, says: str
) -> None:
    path = write_board(workspace, "tiny")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    ran = uharness("submit", "no_op", "--board", "tiny")
    assert (ran.code, len(ran.err.strip().splitlines())) == (2, 1) and says in ran.err, ran.err
