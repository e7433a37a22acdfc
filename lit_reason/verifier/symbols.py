"""Characters and decorations of a model's text, in the spelling that the parser reads."""

from __future__ import annotations

import re
import unicodedata

_SIGNS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{INFINITY}": r"\infty ",
        "\N{GREEK SMALL LETTER PI}": r"\pi ",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{DOT OPERATOR}": r"\cdot ",
        "\N{MIDDLE DOT}": r"\cdot ",
        "\N{DIVISION SIGN}": "/",
        "\N{FRACTION SLASH}": "/",
        "\N{LESS-THAN OR EQUAL TO}": r"\le ",
        "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
        "\N{NOT EQUAL TO}": r"\ne ",
        "\N{ALMOST EQUAL TO}": r"\approx ",
        "\N{PLUS-MINUS SIGN}": r"\pm ",
        "\N{UNION}": r"\cup ",
        "\N{INTERSECTION}": r"\cap ",
        "\N{ELEMENT OF}": r"\in ",
        "\N{EMPTY SET}": r"\emptyset ",
        "\N{RIGHTWARDS ARROW}": r"\to ",
        "\N{RIGHTWARDS DOUBLE ARROW}": r"\Rightarrow ",
        "\N{DEGREE SIGN}": r"^\circ",
        "\N{IDEOGRAPHIC COMMA}": ", ",
        "\N{RATIO}": ":",
    }
)
_RAISED = re.compile(r"[\u2070\u00b9\u00b2\u00b3\u2074-\u207e]+")
_LOWERED = re.compile(r"[\u2080-\u208e]+")
_FRACTION = re.compile(r"[\u00bc-\u00be\u2150-\u215e\u2189]")
_OVERLINED = re.compile(r"((?:\d\u0305)+)")
_BOLD = re.compile(r"(\*\*|\*|__|`)([^*`]+)\1")
_PERCENT = re.compile(
    r"(?<=\d)\s*(?:\\text\{ *(?:percent|per cent) *\}|(?:percent|per cent)(?![a-zA-Z]))"
)

# a period under a line, under points at both of its ends, or in parentheses, behind a decimal point
_PERIOD = re.compile(
    r"(?<![\d.])(\d*)\.(\d{0,30})(?:"
    r"\\(?:overline|bar) ?(?:\{(\d+)\}|(\d))"
    r"|\\dot ?(\{\d\}|\d)(?:(\d*)\\dot ?(\{\d\}|\d))?"
    r"|\((\d+)\)$"
    r"|(\d)\9\9+ ?(?:\.\.\.|\\l?dots)"
    r")(?![\d.])"
)
_NO_SOLUTION = re.compile(
    r"(?:(?:there (?:is|are) )?no (?:real |integer )?solutions?|(?:the )?empty set"
    r"|\\varnothing|\\\{ *\\\}|\\emptyset)",
    re.IGNORECASE,
)


def in_ascii(text: str) -> str:
    r"""`text` with digits, fractions, powers and signs as TeX and ASCII have them.

    Example:
        >>> in_ascii("\u22121\u00bd"), in_ascii("x\u00b9\u00b2"), in_ascii("\u0664\u0662, \uff15")
        ('-1\\frac{1}{2}', 'x^{12}', '42, 5')
    """
    if text.isascii():
        return text
    text = _RAISED.sub(lambda m: f"^{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    text = _LOWERED.sub(lambda m: f"_{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    text = _FRACTION.sub(_spelled_fraction, text)
    text = _OVERLINED.sub(lambda m: rf"\overline{{{m[1].replace(chr(0x305), '')}}}", text)
    # first the signs: the compatible form of some is two characters
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    return "".join(str(unicodedata.decimal(c, c)) for c in text)


def _spelled_fraction(match: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", match[0]).split("\N{FRACTION SLASH}")
    return rf"\frac{{{above}}}{{{below}}}"


def without_markup(text: str) -> str:
    """`text` without the marks of bold, slanted or code around it.

    Example:
        >>> without_markup("**5**"), without_markup("2*3")
        ('5', '2*3')
    """
    match = _BOLD.fullmatch(text)
    return match[2].strip() if match else text


def exact(text: str) -> str:
    r"""`text` with repeating decimals as fractions, which the parser would cut.

    Example:
        >>> exact(r"0.1\overline{6}"), exact("0.(36)"), exact(r"2.\dot{3}1\dot{8}")
        ('\\frac{15}{90}', '\\frac{36}{99}', '\\frac{2316}{999}')
    """
    text = text.replace("+/-", r"\pm ")
    return _PERIOD.sub(_as_fraction, _PERCENT.sub(r"\\%", text))


def _as_fraction(match: re.Match[str]) -> str:
    whole, fixed, *periods = match.groups(default="")
    period = "".join(periods).replace("{", "").replace("}", "")
    digits = int(whole + fixed + period) - int((whole + fixed) or "0")
    return rf"\frac{{{digits}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def is_no_solution(text: str) -> bool:
    r"""Whether an answer is the empty set, in symbols or words.

    Example:
        >>> is_no_solution(r"\varnothing"), is_no_solution("No solutions"), is_no_solution("0")
        (True, True, False)
    """
    return _NO_SOLUTION.fullmatch(text.strip()) is not None
