"""From a name to a submission or a task: a file in submissions/, then an installed entry point, then a helpful error.

Nothing registers itself: loading a submission executes its file and returns the object it ends with.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import json
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.errors import InputError, SubmissionError, near
from harness.specs import LoraSpec, OptimizerSpec, Spec, TaskRef, Template, content_hash
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


@dataclass(frozen=True)
class Entry:
    """What a row of a leaderboard is: a submission with every hyper-parameter settled.

    `config` has the method's fields, `optimizer.*` and `lora.*`; `overrides` are those that `--set` changed.
    """

    loaded: Loaded
    base: Entry | None
    method: Any
    optimizer: OptimizerSpec
    config: Mapping[str, Any]
    overrides: Mapping[str, Any]
    lora: LoraSpec = field(default_factory=LoraSpec)

    @property
    def name(self) -> str:
        """`selector:base` for selectors, the submission's name else."""
        return f"{self.loaded.name}:{self.base.name}" if self.base is not None else self.loaded.name

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of resources that the entry needs; see `needs_of`."""
        return needs_of(self.loaded.submission, self.method)

    @property
    def code(self) -> str:
        """Hash of all source files involved: the submissions', and the optimizer's."""
        if self.base is not None:
            return content_hash([self.loaded.code, self.base.code])
        return content_hash([self.loaded.code, optimizer_code(self.optimizer.name)])

    @property
    def id(self) -> str:
        """Readable and unique: the name, what `--set` changed, and a hash of code and configuration."""
        changed = ",".join(f"{k}={_short(v)}" for k, v in sorted(self.overrides.items()))
        digest = content_hash([self.name, self.code, _plain(self.config)], 6)
        return f"{self.name}{f'[{changed}]' if changed else ''}@{digest}"


def _short(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


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


def needs_of(submission: Submission, method: Any) -> tuple[str, ...]:
    """The submission's `needs`, and those that its method's settings decide: a property `needs` of the method."""
    return (*submission.needs, *getattr(method, "needs", ()))


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def settings_of(submission: Submission) -> dict[str, Any]:
    """Every hyper-parameter that `--set` and a board's settings can reach, with its default."""
    values = {f.name: getattr(submission.method, f.name) for f in dataclasses.fields(submission.method)}
    if hasattr(submission.method, "unlearn"):
        optimizer = submission.optimizer.model_dump(mode="json")
        options = optimizer.pop("options")
        options = {**optimizer_options(submission.optimizer.name)().model_dump(mode="json"), **options}
        values |= {f"optimizer.{k}": v for k, v in {**optimizer, **options}.items()}
        values |= {f"lora.{k}": v for k, v in submission.lora.model_dump(mode="json").items()}
    return values


def parse_set(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` strings; values are JSON where they parse as JSON, strings else.

    >>> parse_set(["alpha=10", "optimizer.lr=3e-4", "form=entropy"])
    {'alpha': 10, 'optimizer.lr': 0.0003, 'form': 'entropy'}
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not found or not key.strip():
            raise SubmissionError(
                f"--set {pair!r} is not key=value", "", "write for instance --set optimizer.lr=1e-5"
            )
        if key.strip() in out:
            raise SubmissionError(f"--set names {key.strip()!r} twice", "", "give each key once")
        try:
            out[key.strip()] = json.loads(text)
        except json.JSONDecodeError:
            out[key.strip()] = text
    return out


def board_settings(
    loaded: Loaded, settings: Mapping[str, Mapping[str, Any]], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """What a board sets for an entry: `[settings.METHOD]`, then `[settings."optimizer.NAME"]` of its optimizer.

    Options that the method's settings hold for another optimizer than the one asked for are dropped.
    """
    own, used = dict(settings.get(loaded.name, {})), "optimizer.name"
    if not hasattr(loaded.submission.method, "unlearn"):
        return own
    usual = own.get(used, loaded.submission.optimizer.name)
    name = overrides.get(used, usual)
    if name != usual:
        general = {f"optimizer.{k}" for k in OptimizerSpec.model_fields}
        own = {k: v for k, v in own.items() if not k.startswith("optimizer.") or k in general}
    return own | {f"optimizer.{k}": v for k, v in settings.get(f"optimizer.{name}", {}).items()}


def resolve(
    loaded: Loaded, settings: Mapping[str, Any], overrides: Mapping[str, Any], base: Entry | None = None
) -> Entry:
    """Settle an entry's hyper-parameters: defaults, then the board's settings, then `--set`."""
    submission = loaded.submission
    if hasattr(submission.method, "unlearn"):
        submission = _with_optimizer(submission, {**settings, **overrides})
    known = settings_of(submission)
    for source, values in (("the board's settings", settings), ("--set", overrides)):
        for key in values:
            if key not in known:
                raise SubmissionError(f"{loaded.name} has no setting {key!r} (from {source})", near(key, known),
                                      f"see `uharness list methods {loaded.name}`")  # fmt: skip
    wanted = {**settings, **overrides}
    method = submission.method
    fields = {k: v for k, v in wanted.items() if not k.startswith(("optimizer.", "lora."))}
    hints = typing.get_type_hints(type(method))
    values = {k: _converted(loaded.name, k, v, hints[k]) for k, v in fields.items()}
    try:
        method = dataclasses.replace(method, **values)
    except (TypeError, ValueError) as error:
        raise SubmissionError(f"{loaded.name} refuses {values}: {error}", "", "choose other values") from None
    optimizer = _optimizer(loaded.name, submission.optimizer, _under(wanted, "optimizer."))
    lora = _validated(
        loaded.name, "lora.", LoraSpec, {**submission.lora.model_dump(), **_under(wanted, "lora.")}
    )
    settled = dataclasses.replace(submission, method=method, optimizer=optimizer, lora=lora)
    config = settings_of(settled)
    for key, value in config.items():
        if not _finite(value):
            raise SubmissionError(f"{loaded.name}: {key}={value!r} is not finite", "", f"give {key} a number")
    if base is not None:
        config |= {f"base.{k}": v for k, v in base.config.items()}
    return Entry(loaded, base, method, optimizer, _plain(config), dict(overrides), lora)


def _finite(value: Any) -> bool:
    """Whether a setting holds neither NaN nor infinity."""
    try:
        json.dumps(value, default=str, allow_nan=False)
    except ValueError:
        return False
    return True


def _under(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _with_optimizer(submission: Submission, wanted: Mapping[str, Any]) -> Submission:
    """The submission with the optimizer that is asked for by name, without options that were meant for its own."""
    own = submission.optimizer
    name = str(wanted.get("optimizer.name", own.name))
    if name != own.name:
        own = own.model_copy(update={"name": name, "options": {}})
    return dataclasses.replace(submission, optimizer=own)


def _optimizer(name: str, own: OptimizerSpec, changed: Mapping[str, Any]) -> OptimizerSpec:
    """`own` with `changed`, and every option of the optimizer spelt out."""
    general = {k: v for k, v in changed.items() if k in OptimizerSpec.model_fields}
    spec = _validated(name, "optimizer.", OptimizerSpec, {**own.model_dump(), **general})
    given = {**spec.options, **{k: v for k, v in changed.items() if k not in general}}
    options = _validated(name, "optimizer.", optimizer_options(spec.name), given)
    return spec.model_copy(update={"options": options.model_dump(mode="json")})


SpecT = typing.TypeVar("SpecT", bound=Spec)


def _validated(name: str, prefix: str, kind: type[SpecT], values: Mapping[str, Any]) -> SpecT:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = prefix + ".".join(map(str, first["loc"]))
        raise SubmissionError(
            f"{name}: {key}={first['input']!r}: {first['msg']}", "", f"change {key}"
        ) from None


def _converted(name: str, key: str, value: Any, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        wanted = getattr(kind, "__name__", str(kind).replace("typing.", ""))
        message = error.errors(include_url=False)[0]["msg"]
        raise SubmissionError(
            f"{name}: {key}={value!r} is not a {wanted}: {message}", "", f"give {key} a {wanted}"
        ) from None


def resolve_spec(
    spec: str,
    folders: Sequence[Path],
    settings: Mapping[str, Mapping[str, Any]],
    overrides: Mapping[str, Any],
) -> Entry:
    """An entry from what a person typed: `method`, `./file.py`, or `selector:method`.

    For a selector, `--set base.KEY=VALUE` reaches the base method.
    """
    first, colon, second = spec.partition(":")
    loaded = load_submission(first, folders)
    selects = hasattr(loaded.submission.method, "choose")
    if selects and not colon:
        raise SubmissionError(
            f"{first} is a selector and needs a base method", "", f"write {first}:grad_diff"
        )
    if colon and not selects:
        raise SubmissionError(
            f"{first} is no selector, so {spec!r} means nothing", "", f"write {second or first} alone"
        )
    if not selects:
        return resolve(loaded, board_settings(loaded, settings, overrides), overrides)
    own = {k: v for k, v in overrides.items() if not k.startswith("base.")}
    inner = {k.removeprefix("base."): v for k, v in overrides.items() if k.startswith("base.")}
    base = resolve_spec(second, folders, settings, inner)
    if base.base is not None:
        raise SubmissionError(
            f"{first} cannot select among the runs of a selector, {base.loaded.name}", "",
            f"write {first}:{base.base.loaded.name}",
        )  # fmt: skip
    entry = resolve(loaded, settings.get(loaded.name, {}), own, base)
    return dataclasses.replace(entry, overrides=dict(overrides))


def optimizer_names() -> list[str]:
    """Names of all optimizers: the modules in `harness.optim` that build one."""
    return sorted(
        p.stem for p in (Path(__file__).parent / "optim").glob("*.py") if "\ndef build(" in p.read_text()
    )


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
