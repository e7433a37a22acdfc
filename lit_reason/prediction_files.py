"""Rows of the files that `predict` writes, checked for what may have happened to them since."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lit_reason.errors import ConfigError

Row = dict[str, Any]

_NEEDED: dict[str, tuple[type, ...]] = {
    "prompt_index": (int,),
    "sample": (int,),
    "response": (str,),
    "gold": (str,),
    "status": (str,),
    "length": (int,),
    "truncated": (bool,),
}
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "source": (str,),
    "answer": (str,),
    "answer_format": (str,),
    "scoring": (dict,),
    "problems": (int,),
}
_NAMES = {int: "a whole number", str: "a text", bool: "true or false", dict: "an object"}


def read_predictions(paths: Iterable[Path]) -> list[Row]:
    """The rows of predictions files, the samples of a problem together.

    Raises:
        ConfigError: A file does not exist or holds something else, or problems have different
            numbers of responses.
    """
    rows = [row for path in paths for row in _read(path)]
    if not rows:
        raise ConfigError("the files hold no prediction")
    rows.sort(key=lambda row: (row["prompt_index"], row["sample"]))
    counts = Counter(row["prompt_index"] for row in rows)
    most = max(counts.values())
    expected = [(index, sample) for index in sorted(counts) for sample in range(most)]
    if [(row["prompt_index"], row["sample"]) for row in rows] != expected:
        index = next(i for i in sorted(counts) if _samples(rows, i) != list(range(most)))
        raise ConfigError(
            f"problem {index} has the samples {_samples(rows, index)}, another has {most}; give "
            "all files of one `predict`, and of one only"
        )
    return rows


def what_is_missing(rows: list[Row]) -> str | None:
    """What to say of problems without a row; `None` if there are none.

    Args:
        rows: As `read_predictions` returns them.

    Example:
        >>> what_is_missing([{"prompt_index": 0, "problems": 3}])
        'no row of 2 of 3 problems; give all files of one `predict`, or mind what limited it'
        >>> what_is_missing([{"prompt_index": 0}, {"prompt_index": 2}])
        'no row of problem 1; it is missing if `predict` did not leave it out'
    """
    indices = {row["prompt_index"] for row in rows}
    told = {row["problems"] for row in rows if row.get("problems") is not None}
    if len(told) > 1:
        return "the rows are of evaluations of different sizes; give the files of one `predict`"
    if told:
        (problems,) = told
        missing = problems - len(indices)
        return (
            f"no row of {missing} of {problems} problems; give all files of one `predict`, or mind "
            "what limited it"
            if missing
            else None
        )
    gaps = sorted(set(range(max(indices) + 1)) - indices)
    if not gaps:
        return None
    more = f" and {len(gaps) - 1} more" if len(gaps) > 1 else ""
    return f"no row of problem {gaps[0]}{more}; it is missing if `predict` did not leave it out"


def _samples(rows: list[Row], index: int) -> list[int]:
    return [row["sample"] for row in rows if row["prompt_index"] == index]


def _read(path: Path) -> list[Row]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8, from byte {error.start} on") from error
    # not splitlines: responses may hold other line separators
    return [_row(f"{path}:{i}", line) for i, line in enumerate(text.strip().split("\n"), 1)]


def _row(place: str, line: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not a JSON object") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{place}: not a JSON object")
    for key, kinds in (_NEEDED | _OPTIONAL).items():
        if key not in row:
            if key in _NEEDED:
                raise ConfigError(f"{place}: has no {key}; is it a file that `predict` wrote?")
            continue
        value = row[key]
        fits = type(value) in kinds or (value is None and key in _OPTIONAL)
        if not fits or (key in ("prompt_index", "sample", "length") and value < 0):
            raise ConfigError(f"{place}: {key} is {_short(value)}, expected {_NAMES[kinds[0]]}")
    return row


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "..."
