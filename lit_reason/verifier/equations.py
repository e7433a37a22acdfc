r"""Equations that state a value: `x = 6` does, `2x = 6` does not."""

from __future__ import annotations

import re

from lit_reason.verifier.lists import parts
from lit_reason.verifier.words import has_word, unset

_EQUALS = re.compile(r"(?<![<>!:\\])=(?![<>=]|[^()]*\))")  # P(X=1)=1/2 has one
_SPACE_OR_NORM = re.compile(r"\\[,;:! |]")
# on a left side these make a computation
_COMPUTED = re.compile(
    r"\\(?:sqrt|[dtc]?frac|cdot|times|div|ln|log|exp|[dt]?binom|sum|int|prod|lim|[pm]m|pi|infty)"
    r"(?![a-zA-Z])"
)
_DERIVATIVE = re.compile(r"\\[dt]?frac ?\{d\w?\} ?\{d\w\}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
# a length, an area; |x| may have two solutions
_MEASURE = re.compile(r"\|([A-Z]{2}|\\[^|]*)\||\[([A-Z]{3,5})\]")
_INDEX = re.compile(r"_(?:\{[^{}]*\}|\w)|\^(?:\{(?:-1|\*|\\prime|\(\w+\))\}|\*)|'")
# x(x+1) is a product, f(x+1) is none
_ARGUMENT = re.compile(r"(?<=[f-hp-tA-Z])\}?\s?[(\[].*[)\]]$|(?<=[a-z])\([A-Z]\)$")
_TUPLE = re.compile(r"\([^()]*,[^()]*\)")
_BARE = re.compile(r"[a-zA-Z]|m?[A-Z]+[a-z]?")
_PHRASE = re.compile(r"[^\W\d_]+(?: [^\W\d_]+)*")
_LETTER = re.compile(r"[a-zA-Z]")
_UNIT = re.compile(r"(?<=\d) ?[a-zA-Z]{3,}")


def is_name(text: str) -> bool:
    r"""Whether the left side of an equation only names what the other is the value of.

    Example:
        >>> [is_name(x) for x in ("x", "f(x)", r"\angle ABC", "AB", r"\text{Area}", "a_{10}")]
        [True, True, True, True, True, True]
        >>> [is_name(x) for x in ("2x", "x+y", "xy", "x^2", r"\frac{x}{2}", "x(x+1)", "|x|")]
        [False, False, False, False, False, False, False]
    """
    text = " ".join(_SPACE_OR_NORM.sub("", unset(_DERIVATIVE.sub("D", text))).split())
    if _TUPLE.fullmatch(text):
        return all(map(is_name, parts(text[1:-1])))
    text = _ARGUMENT.sub("", _INDEX.sub("", _MEASURE.sub(r"\1\2", text)))
    if _COMPUTED.search(text):
        return False
    symbol = re.sub(r"[{} ]", "", _COMMAND.sub("A", text))
    return bool(_BARE.fullmatch(symbol)) or (bool(_PHRASE.fullmatch(text)) and has_word(text))


def sides(text: str) -> list[str]:
    """What stands between the equality signs of an equation, in parentheses left out.

    Example:
        >>> sides("x = 2"), sides("P(X=1) = 1/2"), sides("x >= 2")
        (['x ', ' 2'], ['P(X=1) ', ' 1/2'], ['x >= 2'])
    """
    return _EQUALS.split(text)


def asks_for_values(gold: str) -> bool:
    """Whether a gold answer is a value or several, with a name or without, and no equation.

    Example:
        >>> asks_for_values("6"), asks_for_values("x = 6"), asks_for_values("y = 2x")
        (True, True, False)
    """
    for part in parts(gold):
        name, *values = sides(part)
        if values and (len(values) > 1 or not is_name(name) or _has_letters(values[0])):
            return False
    return True


def claims(stated: str) -> list[tuple[str, str]]:
    r"""Pairs that have to be equal if `stated` states the last side of each of its equations.

    Where a chain begins with a name, the terms in other letters behind it are its formula.

    Example:
        >>> claims("x = 2+4 = 6"), claims("2x = 6")
        ([('2+4', '6')], [('2x', '6')])
        >>> claims(r"A = \pi r^2 = 9\pi"), claims("x=1, 2y=4")
        ([], [('2y', '4')])
    """
    pairs = []
    for part in parts(stated):
        *lefts, value = sides(part.replace("$", ""))
        named = bool(lefts) and is_name(lefts[0])
        terms = [x for x in lefts if x.strip() and not is_name(x)]
        pairs += [(_UNIT.sub("", x), value) for x in terms if not (named and _has_letters(x))]
    return [(left.strip(), value.strip()) for left, value in pairs]


def _has_letters(text: str) -> bool:
    return bool(_LETTER.search(_COMMAND.sub("", text)))
