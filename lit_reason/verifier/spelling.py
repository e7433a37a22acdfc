r"""Spellings of the same answer, and the comparisons that need no algebra."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

from lit_reason.verifier.ascii_maths import in_tex
from lit_reason.verifier.changes import is_changed
from lit_reason.verifier.choices import is_choice, same_choice
from lit_reason.verifier.elements import same_elements
from lit_reason.verifier.equations import is_name, sides
from lit_reason.verifier.extract import unboxed
from lit_reason.verifier.hedges import (
    contradicts_itself,
    is_no_single_number,
    leaves_open,
    offers_several,
)
from lit_reason.verifier.lists import both_signs, by_name, with_commas
from lit_reason.verifier.malformed import is_malformed
from lit_reason.verifier.numerals import has_base, numeral, without_case_of_digits
from lit_reason.verifier.ranges import inequality
from lit_reason.verifier.rationals import is_rational, rational, same_number
from lit_reason.verifier.sentences import number_stated
from lit_reason.verifier.symbols import exact, in_ascii, is_no_solution, without_markup
from lit_reason.verifier.times import same_time_or_ratio, with_colons
from lit_reason.verifier.units import is_multiplied, number_before_unit, term_before_unit
from lit_reason.verifier.words import other_order, set_as_words, unset, without_case

MAX_LENGTH = 4096  # characters; nobody states a result that is longer
# an answer beyond these is no spelling of the gold one; a power may be written out
_SENTENCE, _EXPANDED = 256, 16
_LONGEST_TERM = 64  # characters; a longer one that is not evaluated states no number
_GROUPING = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_TEX_GROUPING = re.compile(r"(?<=\d)(?:, ?\\!|\{,\})\s*(?=\d{3}(?!\d))")
_LISTED = re.compile(r",\s")
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_EQUALITY = re.compile(r"=|\\(?:approx|simeq|doteq)(?![a-zA-Z])")
_LONGEST_CHAIN = 9  # equality signs
_TEXT_COMMA = re.compile(r"\\text\{ *([,;]) *\}")
_ROOT = re.compile("\N{SQUARE ROOT}" r"([0-9]+|[a-z])")
_TWO_CHOICES = re.compile(r"[A-J]\s*=\s*[A-J]")
_VALUE_FIRST = re.compile(r"(?![A-J]\s*=\s*[A-J]$)([^=<>]+?)\s*=\s*([a-zA-Z])")
_OVER = re.compile(r"\{?([^{}]+?)\\over(?![a-zA-Z])([^{}]+)\}?")
_BRACED_OVER = re.compile(r"\{([^{}]+?)\\over(?![a-zA-Z])\s*([^{}]+)\}")
_ANGLES = re.compile(r"\\langle(?![a-zA-Z])(.+)\\rangle")
# a space between digits groups thousands or nothing
_BETWEEN_DIGITS = re.compile(r"(?<=\d)(?:\\[,!;: ]|~|\\q?quad)\s*(?=\d)(?!\d{3}(?!\d))")
_SPACING = re.compile(r"\\[,!;: $]|\\q?quad(?![a-zA-Z])|[$~]")
_SIZE = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])")
_DELIMITED = re.compile(r"\\\[((?:(?!\\\]).)*)\\\]|\\\(((?:(?!\\\)).)*)\\\)", re.DOTALL)
_ROW_GAP = re.compile(r"(?<=\\\\)\[-?[\d.]+ ?(?:pt|em|ex|mm|cm|in)\]")
_DOUBLE_BRACES = re.compile(r"\{(\{[^{}]*\})\}")
_DECORATION = re.compile(
    r"\\(?:textcolor|color)\{[\w!]+\}|\\(?:underline|bm|boldsymbol|displaystyle)(?![a-zA-Z])"
)


def text_of(value: Any) -> str:
    """A gold answer as text; integers that a data set stores as floats lose their `.0`.

    Example:
        >>> text_of(204.0), text_of(-3), text_of("0.50"), text_of(None), text_of(float("nan"))
        ('204', '-3', '0.50', '', '')
    """
    if value is None:
        return ""
    if isinstance(value, float):  # numpy's float64 is one
        if not isfinite(value):
            return ""  # nothing equals it
        value = int(value) if value.is_integer() else value
    return str(value)


def bare(text: str) -> str:
    r"""`text` without what only wraps or decorates it, in spellings that the parser reads.

    Example:
        >>> bare(r"$\boxed{4.2e5}$"), bare("4 3/5"), bare("17 = x")
        ('4.2\\cdot 10^{5}', '\\frac{23}{5}', 'x = 17')
        >>> bare(r"0.\overline{3}"), bare("1 000"), bare("**5**"), bare("no solution")
        ('\\frac{3}{9}', '1000', '5', '\\emptyset')
        >>> bare(r"\[\textcolor{red}{5}\]"), bare(r"\underline{5}")
        ('{5}', '{5}')
    """
    if is_rational(text):  # most answers are
        return text.rstrip(".")
    text = _ROW_GAP.sub("", " ".join(unboxed(text).split()))  # no run of spaces to try
    text = without_markup(in_ascii(text).removesuffix("$.").strip(" $€£"))
    if match := _DELIMITED.fullmatch(text):
        text = next(filter(None, match.groups()), "").strip()
    text = _fractions_of_over(text)
    text = _DOUBLE_BRACES.sub(r"\1", _DECORATION.sub("", text)).removesuffix(r"\\").strip()
    text = text if text.endswith("..") else text.rstrip(".")
    text = _TEX_GROUPING.sub(",", _TEXT_COMMA.sub(r"\1 ", text))
    text = exact(_ROOT.sub(r"\\sqrt{\1}", text)).strip()
    if is_no_solution(unset(text)):
        return r"\emptyset"
    text = numeral(in_tex(text))
    if match := _VALUE_FIRST.fullmatch(text):
        return f"{match[2]} = {match[1]}"
    return inequality(both_signs(with_commas(_ANGLES.sub(r"(\1)", _SIZE.sub("", text)))))


def _fractions_of_over(text: str) -> str:
    r"""`text` with `{1 \over 2}` as a fraction."""
    if r"\over" not in text:
        return text
    if match := _OVER.fullmatch(text):
        return rf"\frac{{{match[1].strip()}}}{{{match[2].strip()}}}"
    return _BRACED_OVER.sub(r"{\\frac{\1}{\2}}", text)


def comparable(gold: str, stated: str) -> tuple[str, str]:
    r"""Both answers bare: numbers without units, and values in the order of their names.

    Example:
        >>> comparable("18", "$18 dollars"), comparable(r"\frac{3}{4}", "3/4 cup")
        (('18', '18'), ('\\frac{3}{4}', '3/4'))
        >>> comparable("18 x", "18 apples"), comparable("a=1,b=2", "b=2,a=1")
        (('18 x', '18 apples'), ('(1,2)', '(1,2)'))
    """
    gold, stated = bare(gold), bare(stated)
    if "=" not in gold:
        stated = _unnamed(stated)
    elif "=" not in stated:
        gold = _unnamed(gold)
    gold, stated = with_colons(gold, stated)
    number = number_before_unit(gold, is_gold=True) or gold
    if is_number(number):
        return bare(number), bare("=".join(map(_number_of, stated.split("="))))
    return by_name(term_before_unit(gold), term_before_unit(stated))


def _unnamed(text: str) -> str:
    name, *values = sides(text)
    if len(values) != 1 or not is_name(name) or _TWO_CHOICES.fullmatch(text):
        return text
    return bare(values[0])


def _number_of(side: str) -> str:
    side = side.strip()
    return number_before_unit(side) or number_stated(side) or side


def is_number(text: str) -> bool:
    r"""Whether a bare answer is a number or a fraction of two.

    Example:
        >>> is_number("1,250"), is_number(r"\frac{1}{2}"), is_number("12_5"), is_number("x")
        (True, True, False, False)
    """
    return rational(plain(text)) is not None


def plain(text: str) -> str:
    r"""A spelling in which equal texts are equal; spaces between digits are kept.

    Words lose their case, variables keep it: `R` and `r` are two radii.

    Example:
        >>> plain(r"\left(1,\,\dfrac{2}{3}\right)"), plain("1,250"), plain(r"\text{Friday}.")
        ('(1,\\frac{2}{3})', '1250', 'friday')
        >>> plain(r"\frac{R}{r}"), plain(r"\Delta")
        ('\\frac{R}{r}', '\\Delta')
    """
    text = _BETWEEN_DIGITS.sub(" ", without_case(unset(text)))
    text = _SPACING.sub("", text).replace(r"\%", "%")
    is_list = _LISTED.search(text) is not None
    text = _SIZE.sub("", text).replace(r"\{,\}", ",")
    text = re.sub(r"\\[dt]frac(?![a-zA-Z])", r"\\frac", text)
    text = re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", text).rstrip(".")
    if text[:1] == "{" and text[-1:] == "}" and not set(text[1:-1]) & set("{}"):
        text = text[1:-1]
    text = re.sub(r"_\{(\w+)\}", r"_\1", text)
    text = without_case_of_digits(text)
    return text.replace(",", "") if _GROUPED.fullmatch(text) and not is_list else text


def ungrouped(text: str) -> str:
    """`text` without commas between digits, where no other comma makes it a list or a pair.

    Example:
        >>> ungrouped("x = 1,234"), ungrouped("(1,234)"), ungrouped("1,234, 5")
        ('x = 1234', '(1,234)', '1,234, 5')
    """
    number = _GROUPING.sub("", text)
    return text if set(number) & set(",;()[]") else number


def quick(gold: str, stated: str) -> bool | None:
    r"""Whether two answers are equal, where their spelling tells; else `None`.

    Example:
        >>> quick("1,250", "$1250$"), quick("7", "007"), quick("7", "8"), quick("1/2", "0.5")
        (True, True, False, True)
        >>> quick(r"2\sqrt{3}", r"\sqrt{12}"), quick("1/3", "0.333333")
        (None, None)
    """
    if len(gold) > MAX_LENGTH or len(stated) > MAX_LENGTH:
        return gold.strip() == stated.strip()
    gold, stated = in_ascii(gold), in_ascii(stated)
    if len(gold) > MAX_LENGTH or len(stated) > MAX_LENGTH:  # some characters are many in ASCII
        return gold == stated
    if len(stated) > _SENTENCE + _EXPANDED * len(gold):
        return False
    wrapped = comparable(gold, stated)
    spelled = plain(wrapped[0]), plain(wrapped[1])
    if not all(spelled):
        return False
    if _same_text(wrapped, spelled):
        return True
    if "%" in spelled[0] + spelled[1] and _same_percentage(*spelled):
        return True
    one, other = map(rational, spelled)
    if one is None or other is None:
        return _told_apart(wrapped, spelled)
    return same_number(one, other, rounded="." in "".join(spelled))


def _told_apart(wrapped: tuple[str, str], spelled: tuple[str, str]) -> bool | None:
    if _is_unfit(*wrapped, spelled[1]):
        return False
    same = same_time_or_ratio(*spelled)
    if same is None:
        same = same_choice(*wrapped)
    return same_elements(*wrapped) if same is None else same


def _same_text(wrapped: tuple[str, str], spelled: tuple[str, str]) -> bool:
    one, other = spelled
    if "," in one + other:  # a list without spaces is spelled as a grouped number is
        unspaced = ["".join(text.split()) for text in wrapped]
        if unspaced[0] == unspaced[1]:
            return True
    return one == other or (any(map(set_as_words, wrapped)) and one.lower() == other.lower())


def _same_percentage(one: str, other: str) -> bool:
    """Whether the numbers are equal that a `%` stands behind, where one does."""
    a, b = (rational(text.removesuffix("%")) for text in (one, other))
    if a is None or b is None:
        return False
    if one[-1] == other[-1]:
        return a == b
    percent, number = (a, b) if one[-1] == "%" else (b, a)
    return percent in (number, 100 * number)


def _is_unfit(gold: str, stated: str, spelled: str) -> bool:
    """Whether an answer is none that the engine should choose a value from."""
    if (
        is_malformed(gold, stated)
        or leaves_open(gold, stated)
        or offers_several(gold, stated)
        or other_order(gold, stated)
    ):
        return True
    if has_base(stated):  # the gold one is in no base, in another, or has other digits
        return True
    if not is_choice(gold) and is_changed(gold, stated):
        return True
    if is_number(gold) and len(stated) > _LONGEST_TERM and "=" not in stated:
        return True
    if is_number(gold) and (is_no_single_number(stated) or is_multiplied(stated)):
        return True
    parts = _EQUALITY.split(spelled, _LONGEST_CHAIN)
    return len(parts) > 1 and contradicts_itself([rational(part) for part in parts])
