r"""The gold answer of a row: a value, or what a worked solution states."""

from __future__ import annotations

import math
import re
from typing import Any

from lit_reason.tasks.layouts import as_text
from lit_reason.tasks.left_out import RowError
from lit_reason.verifier.extract import last_box
from lit_reason.verifier.spelling import ungrouped

_WORKED = {"solution", "solutions", "rationale", "explanation", "reasoning"}
_TEXT = re.compile(r"\\[a-zA-Z]+|\{[^{}]*\}|\$[^$]*\$")
_WORD = re.compile(r"[^\W\d_]{2,}")
# the last line of a worked solution
_FINAL = re.compile(
    r"(?:(?:A|(?:final )?answer)\s*[:\uff1a]|(?:so |thus |hence )?,? ?the (?:final )?answer is:?)"
    r"\s*(\S.*)",
    re.IGNORECASE,
)
_EXACT = 2**53  # from here on a float64 stands for several integers


def is_worked(column: str) -> bool:
    """Whether a column is known to hold worked solutions, which may be values all the same.

    Example:
        >>> is_worked("solution"), is_worked("extra.solution"), is_worked("answer")
        (True, True, False)
    """
    return column.rsplit(".", 1)[-1].lower() in _WORKED


def gold_of(value: Any, worked: bool = False) -> str:
    r"""The gold answer of a cell.

    Args:
        value: A value, or a worked solution: what stands behind its last `####`, in its last
            `\boxed{}`, or on a last line that begins with `A:`, `Answer:` or "The answer is".
            Prose that states its answer in none of these ways is none.
        worked: The cell is from a column of worked solutions: three words are prose there.

    Raises:
        RowError: The answer is not known exactly, or not at all.

    Example:
        >>> gold_of("2 * 725 = 1450\n#### 1,450"), gold_of("#### (3, 4)"), gold_of(27.0)
        ('1450', '(3, 4)', '27')
        >>> gold_of(r"It is \boxed{\frac{1}{2}}.", worked=True), gold_of("$7$", worked=True)
        ('\\frac{1}{2}', '$7$')
        >>> gold_of("She eats 2 eggs a day.\nA: 18 eggs")
        '18 eggs'
    """
    _check_exact(value)
    text = as_text(value).strip()
    marked = "####" in text
    if marked:
        text = text.rsplit("####", 1)[1].strip()
        text = ungrouped(text)
    boxed = last_box(text)
    if not marked and boxed is None:
        text = _without_working(text, worked)
    text = text if boxed is None else boxed
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text


def _is_prose(text: str, worked: bool) -> bool:
    """Sentences; in a column of worked solutions three words outside of formulas, or two lines."""
    lines = [len(_WORD.findall(_TEXT.sub(" ", line))) for line in text.splitlines()]
    if worked and (len(lines) > 1 or sum(lines) >= 3):
        return True
    sentences = len(lines) > 1 or text.endswith(".") or sum(lines) >= 8
    return sentences and max(lines, default=0) >= 4


def _without_working(text: str, worked: bool) -> str:
    """What the last line of a worked solution states; another text as it is."""
    before, _, last = text.rpartition("\n")
    match = _FINAL.fullmatch(last.strip())
    stated = match[1].strip().rstrip(".") if match else ""
    is_prose = _is_prose(text, worked)
    if stated and (is_prose or "=" in before) and not _is_prose(stated, worked):
        return ungrouped(stated)
    if is_prose:
        raise RowError("the solution states no answer behind #### or in \\boxed{}", text)
    return text


def _check_exact(value: Any) -> None:
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, float):
            continue
        if not math.isfinite(item):
            raise RowError("the answer is no finite number", item)
        if abs(item) >= _EXACT:
            raise RowError(
                "the answer was read as a float and is too large for it to be exact; store it as "
                "text",
                item,
            )
