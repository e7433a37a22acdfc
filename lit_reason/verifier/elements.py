r"""Lists, tuples and ranges of plain numbers, which are told apart without algebra."""

from __future__ import annotations

import re
from fractions import Fraction

from lit_reason.verifier.rationals import rational, same_number

_BRACKETED = re.compile(r"(\(|\[|\\?\\\{)?(.*?)(\)|\]|\\?\\\})?", re.DOTALL)
_MAY_BE_GROUPED = re.compile(r"\d,\d{3}(?!\d)")


def same_elements(gold: str, stated: str) -> bool | None:
    r"""Whether two lists in the same brackets have equal elements; `None` if that is not told.

    Example:
        >>> same_elements("(1,2)", "(1,3)"), same_elements("(1,2)", r"(1,\frac{4}{2})")
        (False, True)
        >>> same_elements("1, 2", "2, 1"), same_elements("1,2", "(1,2)")
        (True, None)
        >>> same_elements("(1,x)", "(1,2)"), same_elements("100, 200", "100,200")
        (None, None)
    """
    one, other = _read(gold), _read(stated)
    if one is None or other is None or one[0] != other[0]:
        return None
    values, others = one[1], other[1]
    if len(values) == len(others) == 1:
        return None
    if one[0][0] not in ("(", "["):
        repeated = any(len(set(some)) < len(some) for some in (values, others))
        if repeated and len(values) != len(others):
            return None  # a set holds each once
        values, others = sorted(values), sorted(others)
    if len(values) != len(others):
        return False
    rounded = "." in gold + stated
    same = [same_number(a, b, rounded) for a, b in zip(values, others, strict=True)]
    return False if False in same else None if None in same else True


def _read(text: str) -> tuple[tuple[str, str], list[Fraction]] | None:
    match = _BRACKETED.fullmatch(text.strip())
    if match is None or _MAY_BE_GROUPED.search(text):
        return None
    values = [rational("".join(part.split())) for part in re.split("[,;]", match[2])]
    known = [value for value in values if value is not None]
    return ((match[1] or "", match[3] or ""), known) if len(known) == len(values) else None
