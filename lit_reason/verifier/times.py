"""Times, dates and ratios: numbers around a colon, a slash or a dash that are not divided."""

from __future__ import annotations

import re
from math import gcd

_TIME = re.compile(r"([0-9]{1,2})(?::([0-5][0-9]))?\s*([ap]\.?\s?m\.?)?", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{1,2}([/.-])[0-9]{1,2}\1[0-9]{4}|[0-9]{4}([/.-])[0-9]{1,2}\2[0-9]{1,2}")
_COLON = re.compile(r"\s*(?:\{:\}|:|\\colon|\\mathbin\{:\}|\\text\{\s*:\s*\})\s*")
_TO = re.compile(r"\s*(?:\\text\{\s*to\s*\}|\bto\b)\s*")
_RATIO = re.compile(r"[0-9]+(?:\.[0-9]+)?(?::[0-9]+(?:\.[0-9]+)?)+")
_WHOLE = re.compile(r"[0-9]{1,30}(?::[0-9]{1,30}){2,20}")


def with_colons(gold: str, stated: str) -> tuple[str, str]:
    r"""Both with plain colons, if `gold` is a ratio; `10 to 20` beside a number is a range.

    Example:
        >>> with_colons("3:4", "3 to 4"), with_colons(r"3\text{ to }4", "3 {:} 4")
        (('3:4', '3:4'), ('3:4', '3:4'))
        >>> with_colons("10", "10 to 20"), with_colons("10", "x : y")
        (('10', '10 to 20'), ('10', 'x : y'))
    """
    spelled = _ratio(gold)
    return (gold, stated) if spelled is None else (spelled, _ratio(stated) or stated)


def _ratio(text: str) -> str | None:
    text = _TO.sub(":", _COLON.sub(":", text))
    return text if _RATIO.fullmatch(text) else None


def same_time_or_ratio(gold: str, stated: str) -> bool | None:
    """Whether two times, dates, or ratios of three and more are the same; `None` without one.

    The engine would divide. What can be a ratio in lowest terms, such as 3:10, is taken for one.

    Example:
        >>> same_time_or_ratio("12:30", "0.4"), same_time_or_ratio("12:30", "12:30 pm")
        (False, True)
        >>> same_time_or_ratio("10 a.m.", "10:00 AM"), same_time_or_ratio("10 a.m.", "10 p.m.")
        (True, False)
        >>> same_time_or_ratio("3:4", "3/4"), same_time_or_ratio("3:4:5", "6:8:10")
        (None, True)
        >>> same_time_or_ratio("2020-07-04", "2009")
        False
    """
    if _DATE.fullmatch(gold) or _DATE.fullmatch(stated):
        return gold == stated
    if _WHOLE.fullmatch(gold) or _WHOLE.fullmatch(stated):
        return _reduced(gold) == _reduced(stated)
    time = _TIME.fullmatch(gold)
    if time is None or not _is_time(time):
        return None
    other = _TIME.fullmatch(stated)
    if other is None:
        return False
    halves = {(match[3] or "")[:1].lower() for match in (time, other)} - {""}
    hours, minutes = zip(*[(int(m[1]), m[2] or "00") for m in (time, other)], strict=True)
    return hours[0] == hours[1] and minutes[0] == minutes[1] and len(halves) < 2


def _is_time(match: re.Match[str]) -> bool:
    if match[2] is None or match[3]:
        return match[3] is not None
    return match[2][0] == "0" or gcd(int(match[1]), int(match[2])) > 1


def _reduced(ratio: str) -> list[int] | None:
    if not _WHOLE.fullmatch(ratio):
        return None
    terms = [int(term) for term in ratio.split(":")]
    return [term // (gcd(*terms) or 1) for term in terms]
