"""Numbers with words behind them: units do not count."""

from __future__ import annotations

import re

from lit_reason.verifier.words import spaced

_NUMBER = r"[-+]? ?[$€£]? ?(?:(?:\d{1,3}(?: \d{3})+|\d+(?:,\d{3})*)(?:\.\d+)?|\.\d+)"
_FRACTION = r"\\[dt]?frac(?:\{\d+\}|\d)(?:\{\d+\}|\d)"
_SYMBOLS = "m|g|s|h|L|l|cm|mm|km|dm|nm|kg|mg|lb|oz|ml|mL|ft|yd|mi|sq|hr|ms|kW|Hz"
# what is read as a product of letters or an operation, or makes another number of it
_NO_UNIT = (
    r"not|but|than|plus|minus|divided|over|squared|cubed|factorial|choose|mod|modulo|sqrt|"
    r"hundreds?|thousands?|millions?|billions?|trillions?|dozens?|lakhs?|crores?|score|gross|"
    r"tens|tenths?|hundredths?|thousandths?|fifths?|doubled|tripled|half|third|quarter|the|"
    r"sin|cos|tan|log|exp|"
    r"[abcnxyz]+"
)
_MULTIPLIED = re.compile(
    r"[\d}] ?(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore|half|third|quarter"
    r"|squared|cubed|factorial|[kKMBie](?![^\W\d_]))s?(?![^\W\d_])"
)
_POWER = r"(?:\^\{?-?[1-9]\}?)?"
_END = r"(?![^\W\d_])"
_UNIT = rf"(?!(?:{_NO_UNIT}){_END})(?:{_SYMBOLS}|[^\W\d_]{{3,}}){_END}{_POWER}"
_OR = r"or(?! (?:more|less|fewer|greater|higher|above|below)\b)"
_FILLER = rf"(?:(?:an?|of|in|at|on|by|to|as|is|the|{_OR}) )*"  # shares no word with _UNIT
_LONGEST = 200  # characters
_DEGREES = r"\^\{?\\circ\}? ?[CF]?"
_WITH_UNIT = re.compile(
    rf"({_NUMBER}(?: ?{_FRACTION}|(?:\s+\d+)?/\d+)?|[-+]?{_FRACTION})(?:\s*\\?%)?"
    rf"(?: ?{_DEGREES}| {_FILLER}{_UNIT}(?:(?: ?/ ?|[ -]| ?\\cdot ?| ?\(){_FILLER}{_UNIT})*\)?\.?)"
)
_LONG = re.compile(r"[^\\]*[^\W\d_\\]{2,}[^\\]*")


def is_multiplied(text: str) -> bool:
    r"""Whether a word or letter in `\text{}` behind a number makes another number of it.

    Example:
        >>> is_multiplied(r"5\text{ million}"), is_multiplied(r"5\text{ dollars}")
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
    text = spaced(text)
    match = _WITH_UNIT.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or (is_gold and not _LONG.fullmatch(text, match.end(1))):
        return None
    return match[1]
