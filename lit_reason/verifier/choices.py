r"""Letters of a multiple choice, whose case does not count."""

from __future__ import annotations

import re

from lit_reason.verifier.changes import CHANGING_BEHIND
from lit_reason.verifier.words import unset

_GOLD = re.compile(r"\(?[A-J]\)?")
_OPTION = re.compile(r"(?:the )?(?:option|choice|answer)\s*:?\s+(?=\(?[A-Ja-j]\b)", re.IGNORECASE)
_CHOICE = re.compile(
    r"\(([A-J])\)|\(([a-j])\)(?=\s|$)|([A-J])[.):](?=\s)|([A-Ja-j])\)?$"
    r"|([A-J])(?=\s*[,=]|\s+(?:or|and)\b)"
)
_LABEL = r"(?<!\w)\(([A-J])\)|(?<![\w(])([A-J])[.):](?:\s|$)"
_NEXT_CHOICE = re.compile(
    # an A or an I before a space is a word or a number
    r"(?:[\s,;&/=]|\b(?:or|and)\b)*(?:\(([A-Ja-j])\)|([A-J])(?:[.):,]|$)|([B-HJ])\s)"
    rf"|.*?(?:{_LABEL}|(?<!\w)\(([a-j])\)(?=\s|$))",
    re.DOTALL,
)
_DENIED = re.compile(
    rf"[\s,:;-]*(?:(?:is|was|isn't|are)\b.*\b(?:{CHANGING_BEHIND})\b.*|isn't\b.*"
    r"|(?:wrong|incorrect|false|not|rejected|excluded|eliminated)[.!]?)",
    re.IGNORECASE | re.DOTALL,
)


def is_choice(gold: str) -> bool:
    r"""Whether a gold answer is a letter of a multiple choice.

    Example:
        >>> is_choice("C"), is_choice(r"\text{(C)}"), is_choice("x")
        (True, True, False)
    """
    return _GOLD.fullmatch(_inside(gold)) is not None


def same_choice(gold: str, stated: str) -> bool | None:
    r"""Whether `stated` names the letter of a multiple-choice gold; `None` if that is not asked.

    An answer that goes on to another letter, or denies its own, names none.

    Example:
        >>> same_choice("C", r"\textbf{(C)}\ 12"), same_choice("A", "C. A larger sample")
        (True, False)
        >>> same_choice("A", "Option A"), same_choice("A", "(A) 1 (B) 2"), same_choice("A", "A=B")
        (True, False, False)
        >>> same_choice("A", "(A) is wrong"), same_choice("A", "(A)7"), same_choice("x", "x")
        (False, False, None)
    """
    if not is_choice(gold):
        return None
    stated = _OPTION.sub("", _inside(stated), count=1)
    match = _CHOICE.match(stated)
    if match is None:
        return None
    letter = next(filter(None, match.groups())).upper()
    behind = stated[match.end() :]
    if behind[:1].isalnum() or behind.lstrip()[:1] == "=" or _DENIED.fullmatch(behind):
        return False
    other = _NEXT_CHOICE.match(stated, match.end())
    if other and next(filter(None, other.groups())).upper() != letter:
        return False
    return letter == _inside(gold).strip("()")


def _inside(text: str) -> str:
    return unset(text.strip(" $.")).strip()
