r"""Numbers whose value their spelling tells: decimals and fractions of two integers."""

from __future__ import annotations

import re
from fractions import Fraction

_DECIMAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_FRACTION = re.compile(
    r"([-+]?)(?:\\frac(?:\{(-?[0-9]+)\}|([0-9]))(?:\{(-?[0-9]+)\}|([0-9]))|([0-9]+)/([0-9]+))"
)
_ROUNDING = Fraction(2, 10**6)  # the engine takes what rounds to the same six decimals for equal


def is_rational(text: str) -> bool:
    r"""Whether `text` is spelled as a decimal or a fraction, over zero too.

    Example:
        >>> is_rational("-1.5"), is_rational(r"\frac{1}{2}"), is_rational("x")
        (True, True, False)
    """
    return bool(_DECIMAL.fullmatch(text) or _FRACTION.fullmatch(text))


def rational(text: str) -> Fraction | None:
    r"""The value of a decimal or a fraction; `None` of anything else.

    Example:
        >>> rational("0.5"), rational(r"-\frac{1}{3}"), rational("1/0")
        (Fraction(1, 2), Fraction(-1, 3), None)
    """
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    sign, *parts = match.groups()
    above, below = (int(part) for part in parts if part is not None)
    return Fraction(above, below) * (-1 if sign == "-" else 1) if below else None


def same_number(one: Fraction, other: Fraction, rounded: bool) -> bool | None:
    """Whether two values are equal; `None` where that is for the engine's tolerance.

    Args:
        one: A value.
        other: Another.
        rounded: One of them was spelled as a decimal.

    Example:
        >>> same_number(Fraction(1, 3), Fraction("0.333333"), True) is None
        True
        >>> same_number(Fraction(1), Fraction(2), True), same_number(Fraction(1), Fraction(1), True)
        (False, True)
    """
    if one == other:
        return True
    return None if rounded and abs(one - other) < _ROUNDING else False
