"""Sentences that state one number."""

from __future__ import annotations

import re

from lit_reason.verifier.changes import CHANGING, CHANGING_BEHIND
from lit_reason.verifier.words import spaced

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
_CHANGED_BEHIND = re.compile(CHANGING_BEHIND)
# what a number is said to be may deny it in any words
_SAID_TO_BE = re.compile(r"\b(?:is|are|was|were|be|being|been|would|could|should|may|might)\b(.*)")
_AFFIRMED = re.compile(
    r"(?:(?:the|an?|our|my|his|her|their|final|correct|right|true|answer|result|total|value"
    r"|solution|number|sum|amount|cost|price|of|it|what|required|needed|left|there|all|in)\W*)*"
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
    behind = match[4].lower()
    if any(map(_CHANGED_BEHIND.fullmatch, _WORD.findall(behind))):
        return None
    said = _SAID_TO_BE.search(behind)
    if said and not _AFFIRMED.fullmatch(said[1].strip()):
        return None
    number = re.sub(r"[$€£\\ ]", "", match[2]) + (r"\%" if match[3] else "")
    return number if any(len(w) > 1 for w in words) else None
