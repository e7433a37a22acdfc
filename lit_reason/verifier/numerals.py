r"""Numbers in other notations than digits: mixed, scientific, in words of magnitude, in a base."""

from __future__ import annotations

import re
from decimal import Decimal

from lit_reason.verifier.words import NUMBER_WORDS, spaced

_MIXED = re.compile(
    r"(-?)([0-9]+)(?: +([0-9]+)/([0-9]+)"
    r"| *\\[dt]?frac(?:\{([0-9]+)\}\{([0-9]+)\}|([0-9])([0-9])))(\s*\\?%)?"
)
_SPACED_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?: [0-9]{3})+")
_SCIENTIFIC = re.compile(r"([-+]?[0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,3})")

_MAGNITUDES = {
    **{"dozen": 12, "hundred": 10**2, "thousand": 10**3},
    **{"million": 10**6, "billion": 10**9, "trillion": 10**12},
}
_MAGNITUDE = "|".join(_MAGNITUDES)
_END = r"(?![^\W\d_])"
_MAGNIFIED = re.compile(
    rf"\\?[$€£]? ?(-?\d{{1,15}}(?:,\d{{3}})*(?:\.\d{{1,15}})?) ({_MAGNITUDE}){_END}"
    rf"(?! (?:and|{NUMBER_WORDS}|{_MAGNITUDE}){_END})"
)

_BASES = {name: i for i, name in enumerate(NUMBER_WORDS.split("|"), 1) if 2 <= i <= 16}
_DIGITS = r"\(?(?:\\(?:text|mathrm)\{)?([0-9][0-9a-zA-Z]*|[0-9A-F]{2,})\}?\)?"
_BASED = re.compile(
    rf"{_DIGITS}(?:_\{{?\(?(?:\\(?:text|mathrm)\{{)?([a-z]+|\d+)\}}?\)?\}}?"
    rf"|(?:\\text\{{)? *(?:in )?base *\}}? *([a-z]+|\d+)\}}?)"
)
_HAS_BASE = re.compile(r"[0-9]\)?_")
_ABOVE_TEN = re.compile(r"[0-9][0-9a-f]*_1[1-6]", re.IGNORECASE)


def numeral(text: str) -> str:
    r"""`text` as digits or a fraction, if it is a number in another notation.

    Example:
        >>> numeral("4 3/5"), numeral(r"33\frac13\%"), numeral("1 000"), numeral("4.2e5")
        ('\\frac{23}{5}', '\\frac{100}{3}\\%', '1000', '4.2\\cdot 10^{5}')
        >>> numeral(r"1.5\text{ million}"), numeral("2 dozen eggs"), numeral("2 hundred and five")
        ('1500000', '24 eggs', '2 hundred and five')
        >>> numeral(r"(101)_{\text{two}}"), numeral(r"42\text{ base }5"), numeral("42_{10}")
        ('101_2', '42_5', '42')
    """
    if _SPACED_THOUSANDS.fullmatch(text):
        return text.replace(" ", "")
    if match := _MIXED.fullmatch(text):
        sign, whole, above, below = (x for x in match.groups()[:-1] if x is not None)
        fraction = rf"{sign}\frac{{{int(whole) * int(below) + int(above)}}}{{{below}}}"
        return fraction + (r"\%" if match[9] else "")
    if match := _SCIENTIFIC.fullmatch(text):
        return rf"{match[1]}\cdot 10^{{{match[2]}}}"
    if match := _BASED.fullmatch(text):
        return _in_base(match) or text
    aloud = spaced(text)
    if match := _MAGNIFIED.match(aloud):
        value = Decimal(match[1].replace(",", "")) * _MAGNITUDES[match[2]]
        return f"{value.normalize():f}" + aloud[match.end() :]
    return text


def _in_base(match: re.Match[str]) -> str | None:
    digits, base = match[1], match[2] or match[3]
    base = str(_BASES.get(base, base))
    if not base.isdecimal():
        return None
    return digits if base == "10" else f"{digits.lower() if int(base) > 10 else digits}_{base}"


def has_base(text: str) -> bool:
    """Whether digits with a base stand somewhere; the engine would take it for a subscript.

    Example:
        >>> has_base("101_2"), has_base("101_2, 11_2"), has_base("x_2")
        (True, True, False)
    """
    return _HAS_BASE.search(text) is not None


def without_case_of_digits(text: str) -> str:
    """A number in a base above ten in lower case; other texts as they are.

    Example:
        >>> without_case_of_digits("1A_16"), without_case_of_digits("1A")
        ('1a_16', '1A')
    """
    return text.lower() if _ABOVE_TEN.fullmatch(text) else text
