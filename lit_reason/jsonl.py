"""Files with one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lit_reason.files import replacing, writing


def append_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Appends one JSON object a line; makes the folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, without a last line that was not written to its end."""
    with path.open(encoding="utf-8", newline="\n") as file:
        yield from (json.loads(line) for line in file if line.endswith("\n"))


def drop_from(path: Path, rollout: int) -> None:
    """Leaves the rows of earlier rollouts than `rollout`: a resumed run writes the others again."""
    if path.exists():
        kept = [row for row in read_rows(path) if row["rollout"] < rollout]
        with replacing(path) as partial:
            append_rows(partial, kept)
