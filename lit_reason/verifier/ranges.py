"""Ranges of one variable, in the one form that the engine compares."""

from __future__ import annotations

import re

_LESS = r"(<=?|\\l(?:eq?|t)(?![a-zA-Z])|\\leqslant(?![a-zA-Z]))"
_MORE = r"(>=?|\\g(?:eq?|t)(?![a-zA-Z])|\\geqslant(?![a-zA-Z]))"
_SIDE = r"([^<>=,;|:]+?)"
_FALLING = re.compile(rf"{_SIDE}\s*{_MORE}\s*([a-zA-Z])\s*{_MORE}\s*{_SIDE}")
_BOUND = re.compile(rf"([a-zA-Z])\s*(?:{_LESS}|{_MORE})\s*{_SIDE}")
_BOUND_FIRST = re.compile(rf"{_SIDE}\s*(?:{_LESS}|{_MORE})\s*([a-zA-Z])")
_BUILT = re.compile(
    r"\\?\\\{\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?)?\s*(?::|\\mid|\\vert|\|)(.+)\\\}"
)
_OR = re.compile(r"\s*(?:\\text\{\s*or\s*\}|\\lor|\\vee|\\cup|\bor\b)\s*")
_AND = re.compile(r"\s*(?:\\text\{\s*and\s*\}|\\land|\\wedge|\\cap|\band\b|,)\s*")


def inequality(text: str) -> str:
    r"""A range of one variable as the chain, or as the union, that the engine reads.

    Example:
        >>> inequality("2 > x > 1"), inequality(r"x>1 \text{ and } x\le 2")
        ('1<x<2', '1<x\\le 2')
        >>> inequality(r"x<-2 \text{ or } x\ge 2"), inequality(r"\{x : 0<x<1\}")
        ('x\\in(-\\infty,-2)\\cup[2,\\infty)', '0<x<1')
        >>> inequality("x < 2"), inequality("2, 1")
        ('x < 2', '2, 1')
    """
    if match := _BUILT.fullmatch(text):
        text = match[2].strip()
    if not re.search(r"[<>]|\\[lg][et]", text):
        return text
    if match := _FALLING.fullmatch(text):
        high, first, name, second, low = match.groups()
        return f"{low}{_turned(second)}{name}{_turned(first)}{high}"
    alternatives = [_one_sided(part) for part in _OR.split(text)]
    if len(alternatives) == 2:
        return _union(alternatives) or text
    together = [_one_sided(part) for part in _AND.split(text)]
    return (_chain(together) or text) if len(together) == 2 else text


_Bound = tuple[str, bool, bool, str]  # name, from above, included, value


def _one_sided(text: str) -> _Bound | None:
    if match := _BOUND.fullmatch(text):
        name, less, more, value = match.groups()
    elif match := _BOUND_FIRST.fullmatch(text):
        value, more, less, name = match.groups()
    else:
        return None
    sign = less or more
    return name, less is not None, _is_included(sign), value.strip()


def _is_included(sign: str) -> bool:
    return sign not in ("<", ">", r"\lt", r"\gt")


def _turned(sign: str) -> str:
    return r"\le " if _is_included(sign) else "<"


def _sorted(bounds: list[_Bound | None]) -> tuple[_Bound, _Bound] | None:
    """(bound from below, bound from above) of one variable."""
    one, other = bounds
    if one is None or other is None or one[0] != other[0] or one[1] == other[1]:
        return None
    return (other, one) if one[1] else (one, other)


def _union(bounds: list[_Bound | None]) -> str | None:
    if (pair := _sorted(bounds)) is None:
        return None
    (name, _, low_in, low), (_, _, high_in, high) = pair
    left = rf"{name}\in(-\infty,{high}" + ("]" if high_in else ")")
    return rf"{left}\cup" + ("[" if low_in else "(") + rf"{low},\infty)"


def _chain(bounds: list[_Bound | None]) -> str | None:
    if (pair := _sorted(bounds)) is None:
        return None
    (name, _, low_in, low), (_, _, high_in, high) = pair
    signs = [r"\le " if included else "<" for included in (low_in, high_in)]
    return f"{low}{signs[0]}{name}{signs[1]}{high}"
