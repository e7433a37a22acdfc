r"""Where a response states its answer.

Every function here is linear in the length of the text: responses can be of any size and shape.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Literal

from lit_reason.verifier.units import number_before_unit

AnswerFormat = Literal["boxed", "answer", "gsm8k", "think_answer"]

MARKERS: dict[str, str] = {"answer": "Answer:", "gsm8k": "####"}

# a box with a brace, one with a number; a line break and an escaped brace are no braces of TeX
_BOX_OR_BRACE = re.compile(
    r"\\(?:boxed|fbox)(?:\s*(\{)|\s+([-+]?\d[\d.,/]*))|\\\\(?!boxed|fbox)|\\[{}]|[{}]"
)
_EMPTY = re.compile(r"(?:\\(?:boxed|fbox|text|[,;:!\[\]() ])|[\s{}$*~])*")
_INK = re.compile(r"\S")
_LONGEST_EMPTY = 60  # characters
# bold may end before the colon or behind it
_ANSWER = re.compile(
    r"answer(?:\s{0,9}(?:\*{1,2}|__))?\s*[:\uff1a]\s*(?:(?:\*{1,2}|__)(?=\s)\s*)?(?=\S)",
    re.IGNORECASE,
)
_DISPLAYS = {"$$": "$$", r"\[": r"\]"}
_GOES_ON = re.compile(r"[ \t]{0,9}(?:[,;]|or\b|and\b)[ \t]{0,9}(?:\$|\\\[|\\\(|\d)")
_LONGEST_DISPLAY = 4096  # characters
_NEXT_QUESTION = re.compile(r"^[ \t]*(?:Question|Problem|Q)[ \t]*:", re.MULTILINE)
_NUMBER = re.compile(r"([-+]? ?\$? ?\d[\d,]*(?:\.\d+)?)\.?$")


def extract(text: str, answer_format: AnswerFormat, marker: str | None = None) -> str | None:
    r"""The answer that a response states, or `None`.

    * `boxed`: what stands in the last `\boxed{}`; `\boxed 6` counts, an empty box does not. A last
      box that is never closed takes back those before it: the response was cut while stating
      another answer.
    * `answer`: the rest of the last line with `Answer:` in it, in any case, without `**`, or the
      formula in `$$ $$` or `\[ \]` that begins there.
    * `gsm8k`: the same behind `####`, without the unit of a number. What follows a later
      `Question:` is another problem, which the model put to itself.
    * `think_answer`: what stands in the last `<answer>…</answer>`.

    Args:
        text: The response.
        answer_format: Where to look.
        marker: What stands before the answer, in place of `Answer:` or `####`.

    Example:
        >>> extract(r"so \boxed{\frac{1}{2}} it is", "boxed")
        '\\frac{1}{2}'
        >>> extract("Answer: 3\nno, wait.\nAnswer: **4**", "answer")
        '4'
        >>> extract("#### 18 eggs a day", "gsm8k"), extract("A: 18 eggs", "gsm8k", marker="A:")
        ('18', '18')
        >>> extract("<think>6?</think><answer>7</answer>", "think_answer")
        '7'
    """
    if answer_format == "boxed":
        return last_box(text)
    if answer_format == "think_answer":
        return _last_answer_tag(text)
    if answer_format == "gsm8k":
        return _number_behind(text, marker or MARKERS["gsm8k"])
    if marker is not None:
        return _undecorated(_line_behind(text, marker))
    found, read = None, 0
    for match in _ANSWER.finditer(text):
        if match.start() >= read:
            line = _line(text, match.end(), len(text))
            read = match.end() + len(line)
            found = _undecorated(line) or found
    return found


def state(answer: str, answer_format: AnswerFormat, marker: str | None = None) -> str:
    r"""The shortest response that states `answer`, as `extract` reads it.

    Example:
        >>> state("1/2", "boxed"), state("1/2", "gsm8k"), state("1/2", "gsm8k", marker="A:")
        ('\\boxed{1/2}', '#### 1/2', 'A: 1/2')
    """
    if answer_format == "boxed":
        return f"\\boxed{{{answer}}}"
    if answer_format == "think_answer":
        return f"<answer>{answer}</answer>"
    return f"{marker or MARKERS[answer_format]} {answer}"


def last_box(text: str) -> str | None:
    r"""What stands in the last `\boxed{}` that holds something.

    `None` without one, or if it is never closed.

    Example:
        >>> last_box(r"\boxed{3}, no: \boxed{\{1, 2\}}."), last_box(r"\boxed{3}, no: \boxed{4")
        ('\\{1, 2\\}', None)
        >>> last_box(r"\boxed{5}. It is in \boxed{} as asked."), last_box(r"\boxed{ }")
        ('5', None)
    """
    for start, end in reversed(_boxes(text)):
        if end is None:
            return None
        inside = text[start:end].strip()
        if not is_empty(inside):
            return inside
    return None


def unboxed(text: str) -> str:
    r"""What stands in the boxes of a stated answer, as a list if they differ; `text` without one.

    Example:
        >>> unboxed(r"\boxed{4} or \boxed{5}"), unboxed(r"\boxed{\boxed{5}}"), unboxed("5")
        ('4, 5', '5', '5')
    """
    boxes = [(a, b) for a, b in _boxes(text) if b is None or not is_empty(text[a:b])]
    inside: list[str] = []
    for (start, end), (following, _) in pairwise([*boxes, (len(text), None)]):
        if end is None:
            return text
        if end <= following:  # no box stands in this one
            inside.append(text[start:end].strip())
    return ", ".join(dict.fromkeys(inside)) or text


def is_empty(stated: str) -> bool:
    r"""Whether nothing stands there but decoration.

    Example:
        >>> is_empty(r"\boxed{ }"), is_empty("$$"), is_empty("0")
        (True, True, False)
    """
    return len(stated) <= _LONGEST_EMPTY and _EMPTY.fullmatch(stated) is not None


def _boxes(text: str) -> list[tuple[int, int | None]]:
    """(start, end) of what stands in each box, in order; the end of one never closed is `None`."""
    boxes: list[tuple[int, int | None]] = []
    open_boxes: list[int | None] = []  # number of the box of each open brace
    for match in _BOX_OR_BRACE.finditer(text):
        if match[1]:
            open_boxes.append(len(boxes))
            boxes.append((match.end(), None))
        elif match[2]:
            boxes.append((match.start(2), match.start(2) + len(match[2].rstrip(".,/"))))
        elif match[0] == "{":
            open_boxes.append(None)
        elif match[0] == "}" and open_boxes:
            number = open_boxes.pop()
            if number is not None:
                boxes[number] = (boxes[number][0], match.start())
    return boxes


def _last_answer_tag(text: str) -> str | None:
    """What stands in the last tags that hold something; `None` if they are never closed."""
    limit = len(text)
    while (start := text.rfind("<answer>", 0, limit)) >= 0:
        end = text.find("</answer>", start, limit)
        if end < 0 and limit == len(text):
            return None
        inside = text[start + len("<answer>") : max(end, 0)].strip()
        if not is_empty(inside):
            return inside
        limit = start
    return None


def _number_behind(text: str, marker: str) -> str | None:
    first = text.find(marker)
    if first < 0:
        return None
    following = _NEXT_QUESTION.search(text, first)
    stated = _undecorated(_line_behind(text[: following.start()] if following else text, marker))
    if stated is None:
        return None
    stated = " ".join(stated.split())
    number = _NUMBER.match(stated)
    return number.group(1) if number else number_before_unit(stated) or stated


def _line_behind(text: str, marker: str) -> str | None:
    """The line behind the last `marker` that has anything behind it."""
    end = len(text)
    while (start := text.rfind(marker, 0, end)) >= 0:
        behind = _INK.search(text, start + len(marker), end)
        line = _line(text, behind.start(), end) if behind else ""
        if line and not is_empty(line):
            return line
        end = start
    return None


def _line(text: str, start: int, end: int) -> str:
    """The rest of a line, or the formula set apart that begins there, with one it goes on to."""
    closing = _DISPLAYS.get(text[start : start + 2])
    if closing is not None:
        closed = text.find(closing, start + 2, min(end, start + _LONGEST_DISPLAY))
        if closed > 0 and not is_empty(text[start:closed]):
            if not _GOES_ON.match(text, closed + 2, end):
                return text[start : closed + 2]
            stop = text.find("\n", closed, end)
            return text[start : end if stop < 0 else stop]
    stop = text.find("\n", start, end)
    return text[start : end if stop < 0 else stop]


def _undecorated(line: str | None) -> str | None:
    if line is None or is_empty(line):
        return None
    return line.strip().strip("*").strip() or None
