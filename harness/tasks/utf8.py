"""Files of rows as text, or one line that says why not."""

from __future__ import annotations

from pathlib import Path

from harness.errors import DataError


def read(path: Path) -> str:
    """The text of a UTF-8 file, with or without a byte order mark.

    Raises:
        DataError: the file is in another encoding.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8",
            f"byte {error.start} is {error.object[error.start]:#04x}",
            "save it as UTF-8",
        ) from None
