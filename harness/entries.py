"""What a row of a leaderboard is: a submission with every hyper-parameter settled.

From its own defaults, what the board sets, and what `--set` says. `plugins` finds and loads the submission.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.errors import SubmissionError, near
from harness.fits import told_needs
from harness.plugins import Loaded, load_submission, optimizer_code, optimizer_options
from harness.specs import LoraSpec, OptimizerSpec, Spec, content_hash
from harness.types import Submission


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


def needs_of(submission: Submission, method: Any) -> tuple[str, ...]:
    """The submission's `needs`, those of its method's settings (a property `needs`), and those that its file tells."""
    return (*submission.needs, *getattr(method, "needs", ()), *told_needs(method))


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
