r"""Answers that are words, whose case does not count."""

from __future__ import annotations

import re

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\{([^{}]*)\}")
_TEXT_BEFORE_TERM = re.compile(rf"{_TEXT.pattern}(?=\w)")
_SET_AS_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mbox)\{([^\d_{}\\$]*)\}")
# commands and Greek letters keep their case
_COMMAND_OR_WORD = re.compile(
    r"\\[a-zA-Z]+|[^\W\d_\u0370-\u03ff]{4,}|\b(?:yes|no|odd)\b|(?<=:\d\d)\s*[ap]m\b",
    re.IGNORECASE,
)
_SPACE = re.compile(r"\\[,;:! ]|\\(?:q?quad|(?:thin|med|thick|en)?space|enskip)(?![a-zA-Z])|~")
NUMBER_WORDS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen"
    "|sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
    "|zero"
)
# a name of three capitals, or what has a vowel: xyz is a product
_WORD = re.compile(r"[A-Z]{3,}|(?=[^\W\d_]*[aeiouAEIOU])[^\W\d_]{3,}|no")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_CONNECTIVE = re.compile(r"\b(?:or|and)\b")
_POINTS = re.compile(r"[A-Z]{4,5}")  # ABCD is a figure, abcd a product
_SHOUTED = ("TRUE", "FALSE", "EVEN", "NONE")


def unset(text: str) -> str:
    r"""`text` without the commands that set a part of it as words.

    Example:
        >>> unset(r"48\text{ cm}")
        '48 cm'
    """
    return _TEXT.sub(r"\1", text)


def spaced(text: str) -> str:
    r"""`text` as it is read aloud: commands for words and for spacing are single spaces.

    Example:
        >>> spaced(r"48\text{ cm}^2"), spaced(r"5\,\mathrm{m}/s"), spaced(r"1\text{hour}x")
        ('48 cm^2', '5 m/s', '1 hour x')
    """
    text = _TEXT.sub(r" \1", _TEXT_BEFORE_TERM.sub(r"\g<0> ", text))
    return " ".join(_SPACE.sub(" ", text).split())


def without_case(text: str) -> str:
    r"""Words of four letters and more in lower case; variables and commands keep theirs.

    Example:
        >>> without_case("Friday"), without_case(r"\Delta Rr"), without_case("ABCD")
        ('friday', '\\Delta Rr', 'ABCD')
    """
    return _COMMAND_OR_WORD.sub(_lower, text)


def _lower(match: re.Match[str]) -> str:
    word = match[0]
    kept = word[0] == "\\" or (_POINTS.fullmatch(word) and word not in _SHOUTED)
    return word if kept else word.lower()


def has_word(text: str) -> bool:
    """Whether letters stand there that are a word or a name, and no product.

    Example:
        >>> has_word("Area"), has_word("ABC"), has_word("xyz"), has_word("xy")
        (True, True, False, False)
    """
    return any(map(_WORD.fullmatch, _LETTERS.findall(text)))


def other_order(gold: str, stated: str) -> bool:
    """Whether `stated` holds the letters of a word of `gold` in another order, as products may.

    Example:
        >>> other_order("seat", "east"), other_order("ABC", "A C B"), other_order("xyz", "zyx")
        (True, True, False)
        >>> other_order("AB", "BA"), other_order("cat, dog", "dog, cat")
        (False, False)
    """
    words, others = (_runs(unset(text)) for text in (gold, stated))
    letters = [sorted(other.lower()) for other in others]
    lower = {other.lower() for other in others}
    return any(
        sorted(word.lower()) in letters and word.lower() not in lower
        for word in words
        if _WORD.fullmatch(word)
    )


def _runs(text: str) -> list[str]:
    text = _CONNECTIVE.sub(",", _COMMAND.sub(",", text))
    return _LETTERS.findall("".join(text.split()))


def set_as_words(text: str) -> bool:
    r"""Whether an answer as a whole is set as words.

    Example:
        >>> set_as_words(r"\text{Bob}"), set_as_words(r"\text{B}"), set_as_words(r"3\text{ cm}")
        (True, False, False)
    """
    match = _SET_AS_WORDS.fullmatch(text.strip(" $."))
    return match is not None and sum(map(str.isalpha, match[1])) > 1
