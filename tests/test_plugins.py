"""From a name to a submission, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.entries import parse_set, resolve, resolve_spec, settings_of
from harness.errors import InputError, SubmissionError
from harness.plugins import load_submission, load_task, submission_names
from harness.specs import TaskRef, Template

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / "submissions",)

GOOD = """
from dataclasses import dataclass
from harness import Submission

@dataclass(frozen=True)
class M:
    strength: float = 1.0
    rounds: int = 2
    def unlearn(self, job): pass

submission = Submission(method=M(), title="Mine")
"""


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_every_shipped_submission_loads_with_a_title() -> None:
    names = submission_names(FOLDERS)
    assert {
        "grad_ascent",
        "grad_diff",
        "npo",
        "random_label",
        "dpo",
        "max_entropy",
        "retrain",
        "no_op",
    } <= set(names)
    for name in names:
        loaded = load_submission(name, FOLDERS)
        assert loaded.submission.title
        assert loaded.code


def test_a_near_match_is_offered() -> None:
    with pytest.raises(SubmissionError, match=r"did you mean grad_diff.*write submissions/grad_dif\.py"):
        load_submission("grad_dif", FOLDERS)


def test_a_file_path_is_a_submission(tmp_path: Path) -> None:
    loaded = load_submission(write(tmp_path, GOOD), FOLDERS)
    assert (loaded.name, loaded.submission.title) == ("mine", "Mine")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def broken(:\n", r"line 1: invalid syntax"),
        ("import nothing_like_this\n", r"line 1: loading it raised ModuleNotFoundError"),
        ("x = 1\n", r"defines no `submission`; it defines x"),
        ("submission = 3\n", r"is a int; it must be a harness.Submission"),
        ("raise SystemExit(3)\n", r"line 1: loading it raised SystemExit: 3"),
        (GOOD.replace("unlearn", "forget"), r"has no unlearn\(job\)"),
        (GOOD.replace("@dataclass(frozen=True)\n", "").replace("M()", "M()"), r"not a dataclass instance"),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SubmissionError, match=says) as caught:
        load_submission(write(tmp_path, text), FOLDERS)
    assert "\n" not in str(caught.value)


def test_settings_go_defaults_board_set() -> None:
    loaded = load_submission("grad_diff", FOLDERS)
    entry = resolve(loaded, {"alpha": 10, "optimizer.lr": 3e-4}, {"alpha": 5})
    assert entry.method.alpha == 5.0
    assert entry.optimizer.lr == 3e-4
    assert entry.config["optimizer.weight_decay"] == loaded.submission.optimizer.weight_decay
    assert entry.id.startswith("grad_diff[alpha=5]@")
    assert resolve(loaded, {}, {}).id != resolve(loaded, {"alpha": 10}, {}).id


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("alpa=1", r"no setting 'alpa' \(from --set\); did you mean alpha"),
        ("alpha=much", r"alpha='much' is not a float"),
        ("optimizer.lr=-1", r"optimizer\.lr=-1: Input should be greater than 0"),
        ("optimizer.rate=1", r"no setting 'optimizer\.rate'"),
        ("alpha=NaN", r"alpha=nan is not finite"),
        ("alpha=-inf", r"alpha=-inf is not finite"),
        ("optimizer.lr=Infinity", r"optimizer\.lr=inf is not finite"),
    ],
)
def test_a_bad_setting_is_named(pair: str, says: str) -> None:
    with pytest.raises(SubmissionError, match=says):
        resolve(load_submission("grad_diff", FOLDERS), {}, parse_set([pair]))


def test_a_selector_chooses_among_runs_of_a_method() -> None:
    with pytest.raises(SubmissionError, match=r"runs of a selector, best_of; write uniform_soup:grad_diff"):
        resolve_spec("uniform_soup:best_of:grad_diff", FOLDERS, {}, {})
    with pytest.raises(SubmissionError, match=r"best_of: each=.*nan.* is not finite"):
        resolve_spec("best_of:grad_diff", FOLDERS, {}, parse_set(['each=[{"alpha": NaN}]']))


@pytest.mark.parametrize("pair", ["alpha", "=3"])
def test_set_needs_key_and_value(pair: str) -> None:
    with pytest.raises(SubmissionError, match="not key=value"):
        parse_set([pair])


def test_an_int_field_takes_no_fraction(tmp_path: Path) -> None:
    loaded = load_submission(write(tmp_path, GOOD), FOLDERS)
    with pytest.raises(SubmissionError, match=r"rounds=2\.5 is not a int"):
        resolve(loaded, {}, {"rounds": 2.5})
    assert set(settings_of(loaded.submission)) >= {"strength", "rounds", "optimizer.lr"}


def test_selectors_need_a_base_and_methods_take_none() -> None:
    entry = resolve_spec("best_of:npo", FOLDERS, {"npo": {"alpha": 3}}, {"n": 2, "base.beta": 0.5})
    assert entry.name == "best_of:npo"
    assert entry.method.n == 2
    assert entry.base is not None
    assert (entry.base.method.alpha, entry.base.method.beta) == (3.0, 0.5)
    with pytest.raises(SubmissionError, match="needs a base method"):
        resolve_spec("best_of", FOLDERS, {}, {})
    with pytest.raises(SubmissionError, match="no selector"):
        resolve_spec("npo:grad_diff", FOLDERS, {}, {})


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(InputError, match="did you mean tofu"):
        load_task(TaskRef(name="toffu"), Template())


def test_an_installed_package_offers_submissions(tmp_path: Path) -> None:
    """A real package, built and installed by pip into a folder of its own, is found by its entry point."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--target", str(tmp_path / "lib"), str(ROOT / "tests" / "plugin_package")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    code = (
        "from harness.plugins import *\n"
        "loaded = load_submission('halve', ())\n"
        "print(loaded.source, loaded.submission.title, load_source('halve', loaded.source).code == loaded.code)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(tmp_path / "lib")},
    )
    assert found.stdout.split() == ["entry:halve", "Halve", "True"]
