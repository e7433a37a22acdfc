r"""Answers that are words or letters of a choice: the only ones whose case does not count."""

from __future__ import annotations

import re

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\{([^{}]*)\}")
_SET_AS_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mbox)\{([^\d_{}\\$]*)\}")
# commands and Greek letters keep their case
_COMMAND_OR_WORD = re.compile(
    r"\\[a-zA-Z]+|[^\W\d_\u0370-\u03ff]{4,}|\b(?:yes|no|odd)\b|(?<=:\d\d)\s*[ap]m\b",
    re.IGNORECASE,
)
_SPACE = re.compile(r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|~")
NUMBER_WORDS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen"
    "|sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
    "|zero"
)
# with these behind it or before it, a number is denied or another one
CHANGING = (
    "not|nor|never|neither|none|nothing|cannot|but|other|wrong|incorrect|false|impossible|than"
    "|plus|minus|divided|over|squared|cubed|factorial|choose|mod|modulo|hundreds?|thousands?"
    "|millions?|billions?|trillions?|dozens?|lakhs?|crores?|score|gross|tens|tenths?|hundredths?"
    "|thousandths?|fifths?"
    "|doubled|tripled|half|halves|thirds?|quarters?|fourths?|if|unless|maybe|perhaps|possibly|another|something|else"
    f"|{NUMBER_WORDS}"
)

# a name of three capitals, or what has a vowel: xyz is a product
_WORD = re.compile(r"[A-Z]{3,}|(?=[^\W\d_]*[aeiouAEIOU])[^\W\d_]{3,}|no")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_CONNECTIVE = re.compile(r"\b(?:or|and)\b")
_OPTION = re.compile(r"(?:the )?(?:option|choice|answer)\s*:?\s+(?=\(?[A-Ja-j]\b)", re.IGNORECASE)
_POINTS = re.compile(r"[A-Z]{4,5}")  # ABCD is a figure, abcd a product
_SHOUTED = ("TRUE", "FALSE", "EVEN", "NONE")
_CHOICE = re.compile(
    r"\(([A-J])\)|\(([a-j])\)(?=\s|$)|([A-J])[.):]\s|([A-Ja-j])\)?$|([A-J])(?=\s*,|\s+(?:or|and)\b)"
)
_NEXT_CHOICE = re.compile(
    r"(?:[\s,;&/]|\b(?:or|and)\b)*(?:\(([A-Ja-j])\)|([A-J])(?:[.):,\s]|$))"
    r"|.*\b(?:or|and)\s*(?:\(([A-J])\)|([A-J])[.):])",
    re.DOTALL,
)


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
        >>> spaced(r"48\text{ cm}^2"), spaced(r"5\,\mathrm{m}/s"), spaced(r"1\text{hour}")
        ('48 cm^2', '5 m/s', '1 hour')
    """
    return " ".join(_SPACE.sub(" ", _TEXT.sub(r" \1", text)).split())


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


def same_choice(gold: str, stated: str) -> bool | None:
    r"""Whether `stated` names the letter of a multiple-choice gold; `None` if that is not asked.

    An answer that goes on to another letter names none.

    Example:
        >>> same_choice("C", r"\textbf{(C)}\ 12"), same_choice("A", "C. A larger sample")
        (True, False)
        >>> same_choice("A", "Option A"), same_choice("A", "Option B")
        (True, False)
        >>> same_choice("A", "(A)(B)(C)"), same_choice("A", "A. or B."), same_choice("x", "x")
        (False, False, None)
    """
    gold = unset(gold.strip(" $.")).strip()
    if not re.fullmatch(r"\(?[A-J]\)?", gold):
        return None
    stated = _OPTION.sub("", unset(stated.strip(" $.")).strip(), count=1)
    match = _CHOICE.match(stated)
    if match is None:
        return None
    letter = next(filter(None, match.groups()))
    other = _NEXT_CHOICE.match(stated, match.end())
    if other and next(filter(None, other.groups())).upper() != letter.upper():
        return False
    return letter.upper() == gold.strip("()")
