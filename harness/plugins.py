"""From a name to a submission, a task or an optimizer.

A submission is a file in submissions/, then an installed entry point, then a helpful error. Nothing registers itself:
loading one executes its file and returns the object it ends with.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from harness.errors import InputError, SubmissionError, near
from harness.specs import Spec, TaskRef, Template, content_hash
from harness.types import Outline, Submission, Task

SUBMISSIONS = "uharness.submissions"
TASKS = "uharness.tasks"


@dataclass(frozen=True)
class Loaded:
    """A submission with its source: `source` is a file path or `entry:NAME`; `code` is a hash of the file."""

    name: str
    source: str
    code: str
    submission: Submission
    path: Path


def submission_names(folders: Sequence[Path]) -> dict[str, str]:
    """Every submission that can be named, with where it comes from; files shadow entry points."""
    found = {ep.name: f"entry:{ep.name}" for ep in entry_points(group=SUBMISSIONS)}
    for folder in reversed(folders):
        found |= {p.stem: str(p) for p in sorted(folder.glob("*.py")) if not p.stem.startswith("_")}
    return dict(sorted(found.items()))


def load_submission(name: str, folders: Sequence[Path]) -> Loaded:
    """Find and execute one submission. Raises `SubmissionError` with near matches, or with the line that failed."""
    if name.endswith(".py") or "/" in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise SubmissionError(
                f"submission file {name!r} does not exist", "", "give the path of a Python file"
            )
        return _from_file(path.stem, path.resolve())
    known = submission_names(folders)
    if name not in known:
        raise SubmissionError(
            f"no submission {name!r}", near(name, known),
            f"write submissions/{name}.py, or give a path such as ./{name}.py",
        )  # fmt: skip
    if not known[name].startswith("entry:"):
        return _from_file(name, Path(known[name]).resolve())
    point = next(ep for ep in entry_points(group=SUBMISSIONS) if ep.name == name)
    return _from_entry_point(point)


def load_source(name: str, source: str) -> Loaded:
    """The submission that another process found at `source`."""
    if source.startswith("entry:"):
        return load_submission(source.removeprefix("entry:"), ())
    return _from_file(name, Path(source))


def _from_entry_point(point: EntryPoint) -> Loaded:
    try:
        value = point.load()
    except Exception as error:
        raise SubmissionError(
            f"installed submission {point.name!r} ({point.value}) does not load: {type(error).__name__}: {error}",
            f"it comes from {point.dist.name if point.dist else 'an unknown package'}", "repair or uninstall it",
        ) from error  # fmt: skip
    module = sys.modules[point.module]
    path = Path(module.__file__ or "")
    return Loaded(point.name, f"entry:{point.name}", _file_hash(path), _checked(value, point.value), path)


def _from_file(name: str, path: Path) -> Loaded:
    code = _file_hash(path)
    module_name = f"uharness_submission_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}_{code}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise SubmissionError(f"{path} is not a Python file", "", "give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickles look their module up there
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[module_name]
        raise SubmissionError(
            f"{path}, line {error.lineno}: {error.msg}", "", "correct the syntax error"
        ) from None
    except InputError:
        del sys.modules[module_name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        lines = [f.tb_lineno for f in _frames(error) if f.tb_frame.f_code.co_filename == str(path)]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise SubmissionError(
            f"{where}: loading it raised {type(error).__name__}: {error}",
            "",
            "a submission file only defines things",
        ) from error
    if not hasattr(module, "submission"):
        names = [n for n in vars(module) if not n.startswith("_")]
        raise SubmissionError(
            f"{path} defines no `submission`", f"it defines {', '.join(names[:8]) or 'nothing'}",
            "end the file with `submission = Submission(method=...)`",
        )  # fmt: skip
    return Loaded(name, str(path), code, _checked(module.submission, str(path)), path)


def _frames(error: BaseException) -> list[Any]:
    frames, tb = [], error.__traceback__
    while tb is not None:
        frames.append(tb)
        tb = tb.tb_next
    return frames


def _checked(value: Any, where: str) -> Submission:
    if not isinstance(value, Submission):
        raise SubmissionError(
            f"`submission` in {where} is a {type(value).__name__}", "it must be a harness.Submission",
            "end the file with `submission = Submission(method=...)`",
        )  # fmt: skip
    if not (hasattr(value.method, "unlearn") or hasattr(value.method, "choose")):
        raise SubmissionError(
            f"the method of {where}, {type(value.method).__name__}, has no unlearn(job)",
            "",
            "define unlearn(self, job)",
        )
    if not dataclasses.is_dataclass(value.method) or isinstance(value.method, type):
        raise SubmissionError(
            f"the method of {where} is not a dataclass instance", "its fields are the hyper-parameters",
            "decorate the class with @dataclass(frozen=True) and pass an instance",
        )  # fmt: skip
    return value


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def optimizer_names() -> list[str]:
    """Names of all optimizers: the modules in `harness.optim` that build one."""
    return sorted(
        p.stem for p in (Path(__file__).parent / "optim").glob("*.py") if "\ndef build(" in p.read_text()
    )


@functools.cache
def wants_curvature(name: str) -> bool:
    """Whether an optimizer estimates curvature, for which it asks for rows."""
    return "def wants_curvature(" in (Path(__file__).parent / "optim" / f"{name}.py").read_text()


@functools.cache
def optimizer_code(name: str) -> str:
    """Hash of an optimizer's module and of the modules of `harness.optim` that it is built on."""
    folder, used, asked = Path(__file__).parent / "optim", set[str](), [name]
    while asked:
        module = asked.pop()
        path = folder / f"{module}.py"
        if module not in used and path.exists():
            used.add(module)
            asked += re.findall(r"^from harness\.optim(?:\.| import )(\w+)", path.read_text(), re.MULTILINE)
    return content_hash([[module, _file_hash(folder / f"{module}.py")] for module in sorted(used)])


def optimizer_options(name: str) -> type[Spec]:
    """What can be set of an optimizer beside the fields of `OptimizerSpec`."""
    if name not in optimizer_names():
        raise SubmissionError(f"no optimizer {name!r}", near(name, optimizer_names()), "set optimizer.name")
    options: type[Spec] = importlib.import_module(f"harness.optim.{name}").Options
    return options


def task_names() -> list[str]:
    """Names of all tasks: the package's own modules in `harness.tasks`, and installed plugins."""
    own = [p.stem for p in (Path(__file__).parent / "tasks").glob("*.py") if "\ndef build(" in p.read_text()]
    return sorted({*own, *(ep.name for ep in entry_points(group=TASKS))})


def load_task(ref: TaskRef, template: Template) -> Task:
    """The task that a board names, built and checked against its data."""
    return _task_function(ref.name, "build")(ref, template)


def outline(ref: TaskRef) -> Outline | None:
    """Cases and metrics of a task without reading its data; None where its module does not tell."""
    tell = _task_function(ref.name, "outline")
    return None if tell is None else tell(ref)


def _task_function(name: str, function: str) -> Any:
    """A function beside a task's `build`, None where there is none."""
    if name not in task_names():
        raise InputError(f"no task {name!r}", near(name, task_names()), "see `uharness list tasks`")
    points = [ep for ep in entry_points(group=TASKS) if ep.name == name]
    if not points:
        return getattr(importlib.import_module(f"harness.tasks.{name}"), function, None)
    build = points[0].load()
    return build if function == "build" else getattr(sys.modules[points[0].module], function, None)
