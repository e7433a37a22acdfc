"""Numbers with words behind them: units do not count."""

from __future__ import annotations

import re

from lit_reason.verifier.changes import CHANGING_BEHIND, bare_units
from lit_reason.verifier.words import spaced

_NUMBER = r"[-+]? ?\\?[$€£]? ?(?:(?:\d{1,3}(?: \d{3})+|\d+(?:,\d{3})*)(?:\.\d+)?|\.\d+)"
_FRACTION = r"\\[dt]?frac(?:\{\d+\}|\d)(?:\{\d+\}|\d)"
_LETTERS = "m|g|s|h|L|l|N|J|W|V"
# also without a space; `in` is one at the end alone, elsewhere it goes on to another word
_ATTACHED = r"cm|mm|km|kg|lbs?|oz|m[lL]|ft|mph|hrs?|mins?|in(?=\.?$|\^)"
_SYMBOLS = rf"{_LETTERS}|{_ATTACHED}|dm|nm|mg|yd|mi|sq|cu|ms|kW|Hz|Pa|kJ"
# what is read as a product of letters or an operation, or makes another number of it
_NO_UNIT = rf"{CHANGING_BEHIND}|and change|sqrt|the|sin|cos|tan|log|exp|[abcnxyz]+"
_MULTIPLIED = re.compile(r"[\d}] ?[kKMBie](?![^\W\d_])")
_POWER = r"(?:\^\{?-?[1-9]\}?)?"
_END = r"(?![^\W\d_])"
_UNIT = rf"(?!(?:{_NO_UNIT}){_END})(?:{_SYMBOLS}|[^\W\d_]{{3,}}){_END}{_POWER}"
_OR = r"or(?! (?:more|less|fewer|greater|higher|above|below)\b)"
_AFFIRMED = r"is(?= the (?:answer|result|total)\b)"
# shares no word with _UNIT
_FILLER = rf"(?:(?:an?|of|in|on|by|to|at|as|the|{_AFFIRMED}|{_OR}) )*"
_LONGEST = 200  # characters
_DEGREES = r"\^\{?\\circ\}? ?[CF]?"
# behind a sign a letter alone is a variable
_SIGN = r"(?:-(?=[^\W\d_]{3})| ?/ ?(?:an? )?(?=[^\W\d_]{2})| ?\((?=[^\W\d_]{2}))"
_BEHIND_NUMBER = rf"(?: {_FILLER}{_UNIT}|(?:{_ATTACHED}){_END}{_POWER}|{_SIGN}{_UNIT})"
_WITH_UNIT = re.compile(
    rf"({_NUMBER}(?: ?{_FRACTION}|(?:\s+\d+)?/\d+)?|[-+]?{_FRACTION})(?:\s*\\?%)?"
    rf"(?: ?{_DEGREES}|{_BEHIND_NUMBER}(?:(?: ?/ ?|[ -]| ?\\cdot ?| ?\(){_FILLER}{_UNIT})*\)?\.?)"
)
_SYMBOL_BEHIND_TERM = re.compile(rf"(?<=[\w}})])\s+(?:[ckm]m|kg|ft|in|lbs?|oz){_POWER}\.?$")
_LONG = re.compile(r"[^\\]*[^\W\d_\\]{2,}[^\\]*")


def is_multiplied(text: str) -> bool:
    r"""Whether a letter in `\text{}` behind a number makes another number of it.

    Example:
        >>> is_multiplied(r"5\text{ k}"), is_multiplied(r"5\text{ dollars}")
        (True, False)
    """
    return len(text) <= _LONGEST and "\\" in text and bool(_MULTIPLIED.search(spaced(text)))


def number_before_unit(text: str, is_gold: bool = False) -> str | None:
    r"""The number of an answer that is one with a unit; otherwise `None`.

    Args:
        text: The answer.
        is_gold: A letter alone is a variable, not a symbol such as `m`.

    Example:
        >>> number_before_unit("18 dollars a day"), number_before_unit(r"\frac{3}{4}\text{ cup}")
        ('18', '\\frac{3}{4}')
        >>> number_before_unit("18 m^2"), number_before_unit("18 m^2", is_gold=True)
        ('18', None)
        >>> number_before_unit("18 x"), number_before_unit("18 thousand"), number_before_unit("18")
        (None, None, None)
    """
    text = bare_units(spaced(text))
    match = _WITH_UNIT.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return None
    if is_gold and (text[match.end(1)].isalpha() or not _LONG.fullmatch(text, match.end(1))):
        return None
    return match[1]


def term_before_unit(text: str) -> str:
    r"""`text` without a symbol such as `cm^2` that stands behind a space at its end.

    Example:
        >>> term_before_unit(r"6\pi cm^2"), term_before_unit(r"6\pi km"), term_before_unit("2 x")
        ('6\\pi', '6\\pi', '2 x')
    """
    return _SYMBOL_BEHIND_TERM.sub("", text) if len(text) <= _LONGEST else text
