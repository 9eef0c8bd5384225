"""The error tree.

::

    UharnessError
    ├── InputError            bad input: nothing was run, exit code 2
    │   ├── BoardError        a board file: unknown, misspelt, contradictory
    │   ├── SubmissionError   a submission: not found, does not load, wrong setting, unmet need
    │   ├── DataError         rows: missing split, column, pairing
    │   ├── ModelError        a model folder or id: missing, incomplete, of the wrong kind
    │   └── ReferenceError_   reference answers: missing, self-made, made on other rows
    ├── RunError              a run went wrong: it becomes a record with a reason, exit code 1
    │   ├── MethodError       the method's own fault: an exception, a sys.exit, a signal
    │   └── InvalidRun        the numbers cannot be used: NaN weights, a loss that is not finite
    └── StoreError            records or database cannot be read or written

An `InputError` reads as one line: what is wrong; what is known; what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UharnessError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1


class InputError(UharnessError):
    """Input that cannot be used. Raised before anything expensive; exit code 2.

    Args:
        what: what is wrong, with the offending value.
        known: what would have been accepted, or where it was looked for.
        todo: the next thing to type or to change.
    """

    exit_code = 2

    def __init__(self, what: str, known: str = "", todo: str = "") -> None:
        self.what, self.known, self.todo = what, known, todo
        super().__init__("; ".join(" ".join(part.split()) for part in (what, known, todo) if part))

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.what, self.known, self.todo)


class BoardError(InputError):
    """A board file is unknown, misspelt or contradicts itself."""


class SubmissionError(InputError):
    """A submission cannot be found, does not load, or was given a setting it does not have."""


class DataError(InputError):
    """Rows are missing, lack a column, or two sets of rows do not belong together."""


class ModelError(InputError):
    """A model folder or id is missing, incomplete or of the wrong kind."""


class ReferenceError_(InputError):
    """Reference answers are missing, are the submission's own, or were made on other rows."""


class RunError(UharnessError):
    """Something went wrong inside a run; it is recorded with its reason."""


class MethodError(RunError):
    """The method itself failed: it raised, exited, or was killed."""


class InvalidRun(RunError):
    """The run ended, but its numbers cannot be used (NaN weights, a loss that is not finite)."""


class StoreError(UharnessError):
    """Records or the database cannot be read or written."""


def near(name: str, known: Iterable[str], *, limit: int = 8) -> str:
    """Text that names the closest matches of `name`, or the whole of a short list.

    >>> near("grad_dif", ["grad_diff", "npo"])
    'did you mean grad_diff? known: grad_diff, npo'
    >>> near("zzz", [])
    'nothing is known here'
    """
    names = sorted(set(known))
    if not names:
        return "nothing is known here"
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    shown = ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")
    return (f"did you mean {' or '.join(close)}? " if close else "") + f"known: {shown}"
