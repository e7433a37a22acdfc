r"""Answers that offer several values where one is asked for.

The engine takes one of them, often the one that is right.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

from lit_reason.verifier.words import spaced, unset

_SEVERAL = re.compile(r"[,;]|\\\\|\\\{|\\pm|\\cup|\\lor|\\land|\b(?:or|and)\b")
_GROUPING = re.compile(r"(?<=\d)(?:,|\{,\}|\\,|,\\!)(?=\d{3}(?!\d))")
_CONNECTIVE = re.compile(r"\b(?:or|and)\b")
_SET_CONNECTIVE = re.compile(r"[^\s]\s*\\text\{ *(?:or|and) *\}\s*[^\s]")
# what stands between two numbers and is no arithmetic
_SEPARATED = re.compile(
    r"\d[\s$]*(?:[;?&`@#|$~]|//|\.\.+|<?->|=>|\\[&#]"
    r"|\\(?:to|[a-zA-Z]*arrow|implies|iff|cup|vee|lor|mid|sim)(?![a-zA-Z])"
    r"|[^\x00-\x7f\u0370-\u03ff\u221a-\u221c]+)[\s$]*\d"
)
_MONEY_RANGE = re.compile(r"\d[\s$]*-\s*\\?[$€£]")
# a decimal point with something else than digits behind it, from which the engine cuts
_CUT = re.compile(r"\d\.(?:\{|\\(?!text|[lc]?dots)[a-zA-Z]|[a-zA-Z])")
_RELATION = r"[<>]=?|!=|\\not ?[=<>]|\\(?:n?[lg]eq?q?(?:slant)?|lt|gt|ll|gg|ne[qg]?)(?![a-zA-Z])"
_BEGINS_OPEN = re.compile(_RELATION)
_CLOSED_AT_INFINITY = re.compile(r"\\infty\s*\]|\[\s*[-+]?\s*\\infty")
_CONGRUENT = re.compile(r"\\(?:equiv|cong|p?mod|pod)(?![a-zA-Z])")
_ENDS_OPEN = re.compile(rf"(?:\+|{_RELATION})$")
_BOUND = re.compile(r"\b(?:at least|at most|than) \$?\d", re.IGNORECASE)
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_OPERATIONS = {
    *("sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "sqrt", "pi"),
    *("gcd", "lcm", "max", "min", "mod", "choose", "times", "plus", "minus"),
}


def offers_several(gold: str, stated: str) -> bool:
    r"""Whether `stated` lists values though `gold` is one.

    Example:
        >>> offers_several("5", r"5\\6"), offers_several("5", r"5\text{ or }6")
        (True, True)
        >>> offers_several("5,6", r"5\text{ or }6"), offers_several("5", r"5\text{ nuts and bolts}")
        (False, False)
    """
    one = unset(gold)
    if _SEVERAL.search(_GROUPING.sub("", one)) or _SEPARATED.search(one):
        return False
    if (r"\\" in stated and r"\begin" not in stated) or _SEPARATED.search(unset(stated)):
        return True
    if _MONEY_RANGE.search(stated.rpartition("=")[2]):
        return True
    digits = [match.start() for match in re.finditer(r"\d", stated)]
    between = unset(stated[digits[0] : digits[-1]]) if digits else ""
    return bool(_CONNECTIVE.search(between) or _SET_CONNECTIVE.search(stated))


def leaves_open(gold: str, stated: str) -> bool:
    r"""Whether `stated`, and not `gold`, is a side of a relation, or what the engine would repair.

    That is a decimal which it cuts, a congruence, and an interval that is closed at infinity.

    Example:
        >>> leaves_open("10", "> 10"), leaves_open("10", r"\ne 10"), leaves_open("> 10", ">10")
        (True, True, False)
        >>> leaves_open("2", r"2.\hat{7}"), leaves_open("2.7", "2.7")
        (True, False)
    """
    return any(
        is_open(stated) and not is_open(gold)
        for is_open in (_is_relation, _CUT.search, _CLOSED_AT_INFINITY.search, _CONGRUENT.search)
    )


def _is_relation(text: str) -> bool:
    return bool(_BEGINS_OPEN.match(text) or _ENDS_OPEN.search(text))


def is_no_single_number(stated: str) -> bool:
    r"""Whether `stated`, where one number is asked for, bounds it or goes on to another.

    Example:
        >>> is_no_single_number("5 hours 30 minutes"), is_no_single_number("12 + 3 eggs = 15 eggs")
        (True, False)
        >>> is_no_single_number("at least 10"), is_no_single_number("10 eggs")
        (True, False)
    """
    text = spaced(stated)
    result = _COMMAND.sub(" ", text.rpartition("=")[2])
    digits = [match.start() for match in re.finditer(r"\d", result)]
    words = _WORD.findall(result[digits[0] : digits[-1]]) if digits else []
    return bool(_BOUND.search(text)) or any(w.lower() not in _OPERATIONS for w in words)


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
