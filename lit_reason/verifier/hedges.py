r"""Answers that offer several values where one is asked for.

The engine takes one of them, often the one that is right.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from math import gcd

from lit_reason.verifier.words import unset

_SEVERAL = re.compile(r"[,;]|\\\\|\\\{|\\pm|\\cup|\\lor|\\land|\b(?:or|and)\b")
_GROUPING = re.compile(r"(?<=\d)(?:,|\{,\}|\\,|,\\!)(?=\d{3}(?!\d))")
_CONNECTIVE = re.compile(r"\b(?:or|and)\b")
_SET_CONNECTIVE = re.compile(r"[^\s]\s*\\text\{ *(?:or|and) *\}\s*[^\s]")
_TIME = re.compile(r"([0-9]{1,2}):([0-5][0-9])\s*([ap]\.?m\.?)?", re.IGNORECASE)


def offers_several(gold: str, stated: str) -> bool:
    r"""Whether `stated` lists values though `gold` is one.

    Example:
        >>> offers_several("5", r"5\\6"), offers_several("5", r"5\text{ or }6")
        (True, True)
        >>> offers_several("5,6", r"5\text{ or }6"), offers_several("5", r"5\text{ nuts and bolts}")
        (False, False)
    """
    if _SEVERAL.search(_GROUPING.sub("", unset(gold))):
        return False
    if r"\\" in stated and r"\begin" not in stated:
        return True
    digits = [match.start() for match in re.finditer(r"\d", stated)]
    between = unset(stated[digits[0] : digits[-1]]) if digits else ""
    return bool(_CONNECTIVE.search(between) or _SET_CONNECTIVE.search(stated))


def contradicts_itself(values: list[Fraction | None]) -> bool:
    """Whether the values between equality signs differ by more than rounding.

    Args:
        values: Those of `3+3 = 6` are unknown and 6.

    Example:
        >>> contradicts_itself([Fraction(5), Fraction(6)]), contradicts_itself([None, Fraction(6)])
        (True, False)
    """
    known = [value for value in values if value is not None]
    return any(abs(a - b) > Fraction(1, 50) * max(abs(a), abs(b)) for a, b in pairwise(known))


def same_time(gold: str, stated: str) -> bool | None:
    """Whether two times of day are the same; `None` if `gold` is none. The engine would divide.

    What can be a ratio in lowest terms, such as 3:10, is taken for one.

    Example:
        >>> same_time("12:30", "0.4"), same_time("12:30", "12:30 pm"), same_time("3:4", "3/4")
        (False, True, None)
    """
    time = _TIME.fullmatch(gold)
    if time is None:
        return None
    is_ratio = time[2][0] != "0" and gcd(int(time[1]), int(time[2])) == 1
    if is_ratio and not time[3]:
        return None
    other = _TIME.fullmatch(stated)
    if other is None:
        return False
    halves = {(match[3] or "")[:1].lower() for match in (time, other)} - {""}
    return (int(time[1]), time[2]) == (int(other[1]), other[2]) and len(halves) < 2
