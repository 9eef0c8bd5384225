"""What a method's own code tells of where it fits, before it is run: boards of images, adapters, selectors.

The file is read, not executed. It tells what `unlearn` does in any case under the method's settings: its statements one
after the other, those of the methods of its own that it calls, and those below `if self.KEY == VALUE`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from typing import Any

VISION = "harness.vision"


def told_needs(method: Any) -> tuple[str, ...]:
    """Needs that follow from what `unlearn` calls: `images` for the `head` of an image classifier."""
    module = sys.modules.get(type(method).__module__)
    used = vars(module).values() if module is not None else ()
    sees = any(VISION in (_name(v), getattr(v, "__module__", "")) for v in used)
    return ("images",) if sees and any(_called(s) == "head" for s in _statements(method)) else ()


def refuses_adapters(method: Any) -> bool:
    """Whether `unlearn` calls `refuse_adapters`, or says `if job.loaded.adapters: raise ...`."""
    return any(
        _called(s) == "refuse_adapters"
        or (isinstance(s, ast.If) and _attribute(s.test) == "adapters" and isinstance(s.body[0], ast.Raise))
        for s in _statements(method)
    )


def picks_its_rows(method: Any) -> bool:
    """Whether `unlearn` calls `fine_tune`, or `fit` with `updates` of its own: no optimizer can ask for other rows."""
    sure = (s for s in _statements(method) if not isinstance(s, ast.If))
    calls = (c for s in sure for c in ast.walk(s) if isinstance(c, ast.Call))
    return any(
        _attribute(c.func) == "fine_tune"
        or (_attribute(c.func) == "fit" and any(k.arg == "updates" for k in c.keywords))
        for c in calls
    )


def instructs(method: Any) -> bool:
    """Whether `unlearn` calls `job.instruct`: it changes what is said before a question, and no weights."""
    return any(_called(s) == "instruct" for s in _statements(method))


def _name(value: Any) -> str:
    return value.__name__ if inspect.ismodule(value) else ""


def _statements(method: Any) -> Iterator[ast.stmt]:
    """Statements that `unlearn` comes by in any case; none where the source cannot be read."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[type(method).__module__]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == type(method).__name__:
            own = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
            if "unlearn" in own:
                yield from _run(own.pop("unlearn").body, own, method)


def _run(body: Sequence[ast.stmt], own: dict[str, ast.FunctionDef], method: Any) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and _holds(statement.test, method):
            yield from _run(statement.body, own, method)
        elif isinstance(call := _call(statement), ast.Attribute) and _attribute(call.value) == "self":
            called = own.get(call.attr)
            if called is not None:
                rest = {name: f for name, f in own.items() if f is not called}
                yield from _run(called.body, rest, method)
        if not isinstance(statement, ast.FunctionDef) and any(
            isinstance(part, ast.Return) for part in ast.walk(statement)
        ):
            return


def _holds(test: ast.expr, method: Any) -> bool:
    """Whether a condition is `self.KEY == VALUE`, and the method's setting is that value."""
    match test:
        case ast.Compare(ast.Attribute(ast.Name("self"), key), [ast.Eq()], [ast.Constant(value)]):
            return bool(getattr(method, key, None) == value)
    return False


def _call(statement: ast.stmt) -> ast.expr | None:
    """What a statement calls, if it is a call or sets a name to one."""
    value = statement.value if isinstance(statement, ast.Expr | ast.Assign | ast.Return) else None
    return value.func if isinstance(value, ast.Call) else None


def _called(statement: ast.stmt) -> str:
    return _attribute(_call(statement))


def _attribute(node: ast.expr | None) -> str:
    """The last part of a dotted name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
