"""Sentences that state one number."""

from __future__ import annotations

import re

from lit_reason.verifier.words import CHANGING, spaced

_LONGEST = 200  # characters
_NUMBER = r"-? ?\\?[$€£]? ?-?\d+(?:,\d{3})*(?:\.\d+|/\d+)?"
_PROSE = r"(?:[^\W\d_]|[ .,:;!'\N{RIGHT SINGLE QUOTATION MARK}()-](?![\d.]))*"
_SENTENCE = re.compile(rf"({_PROSE}) ({_NUMBER})(?:\s?\\?(%))?(?![\w/^.]\w)({_PROSE})")
_WORD = re.compile(r"[^\W\d_]+")
_CHANGED = re.compile(
    rf"(?:{CHANGING}|no|without|except|unless|instead|rather|if|or|and|least|most|more|less|fewer"
    r"|greater|higher|lower|above|below|under|between|within|beyond|exceeds|up|down|to|from|until"
    r"|before|after|negative|times|twice|thrice|double|triple|square|root"
    r"|cube|power|multiplied|base|reciprocal|inverse|opposite|remainder|t)"
)


def number_stated(text: str) -> str | None:
    r"""The number of a short text that holds one and else only words; otherwise `None`.

    A word that denies the number, bounds it or makes another of it leaves none.

    Example:
        >>> number_stated("Tom has 34 apples."), number_stated(r"\text{Total: }\$1,250")
        ('34', '1,250')
        >>> number_stated("about 18"), number_stated("not 18"), number_stated("twice 18")
        ('18', None, None)
        >>> number_stated("Day 3: 18"), number_stated("x 18")
        (None, None)
    """
    if len(text) > _LONGEST:
        return None
    text = re.sub(r"(?<!\\)\$ ?(-?[\d.,/]+) ?\$", r"\1", spaced(text))
    match = _SENTENCE.fullmatch(text)
    if match is None:
        return None
    words = _WORD.findall(f"{match[1]} {match[4]}".lower())
    if any(_CHANGED.fullmatch(w) or (len(w) == 1 and w not in "ais") for w in words):
        return None
    number = re.sub(r"[$€£\\ ]", "", match[2]) + (r"\%" if match[3] else "")
    return number if any(len(w) > 1 for w in words) else None
