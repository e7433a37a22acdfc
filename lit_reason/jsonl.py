"""Files with one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lit_reason.errors import ConfigError
from lit_reason.files import replacing, writing


def append_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Appends one JSON object a line; makes the folder if there is none.

    Half a surrogate pair, which text may hold and UTF-8 may not, is written as JSON's own escape.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, without blank lines and a last one that was not written to its end.

    Raises:
        ValueError: A line is no JSON; the message has its number in the file.
    """
    # bytes, as the cut may go through a character
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n") and line.strip():
                try:
                    row = json.loads(line)
                except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise ValueError(f"line {number} is no JSON: {_reason(error)}") from error
                yield row


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return error.reason if isinstance(error, UnicodeDecodeError) else "nested too deeply"


def is_cut(path: Path) -> bool:
    """Whether the last line of a file was not written to its end."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def drop_from(path: Path, rollout: int) -> None:
    """Leaves the rows of earlier rollouts than `rollout`: a resumed run writes the others again.

    Raises:
        ConfigError: The file is not what the run had written.
    """
    if not path.exists():
        return
    try:
        kept = [row for row in read_rows(path) if row["rollout"] < rollout]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: is not as the run wrote it ({type(error).__name__}: {error}); move it away "
            "to continue without it"
        ) from error
    with replacing(path) as partial:
        append_rows(partial, kept)
