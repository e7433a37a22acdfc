"""Which answers the scorers of `reasoning-gym` may see.

Nine scorers hand the answer to `eval` or to `sympy.parse_expr`, which evaluates Python too. What a
policy wrote gets there only if it is spelled with what a right answer needs.
"""

from __future__ import annotations

import re

_FUNCTIONS = {
    *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("exp", "log", "ln", "sqrt", "Abs", "abs", "pi", "Integral"),
}
_ARITHMETIC = re.compile(r"[\d\s+*/().-]*")
_LISTS = re.compile(r"[\w\s,;\[\]'\"-]*")
_FORMULA = re.compile(r"[\w\s+*/^().-]*")
# a letter or a parenthesis to a small power, and no power of that
_SMALL_POWER = re.compile(
    r"[a-zA-Z)]\s*\*\*\s*(?:\(\s*-?\d{1,2}(?:\s*/\s*\d{1,2})?\s*\)|-?\d{1,2}(?![\d.]))(?!\s*\*\*)"
)
_LONGEST = 2000  # characters


def may_be_scored(generator: str, answer: str) -> bool:
    """Whether an answer is safe to hand to the scorer of a generator.

    Example:
        >>> may_be_scored("countdown", "6*(98 - 54) - 100")
        True
        >>> may_be_scored("countdown", "__import__('os').getpid()")
        False
        >>> may_be_scored("simple_integration", "x**2/2 + C"), may_be_scored("gcd", "(anything)")
        (True, True)
    """
    if len(answer) > _LONGEST:
        return False
    if generator in ("countdown", "puzzle24"):
        return bool(_ARITHMETIC.fullmatch(answer)) and "**" not in answer
    if generator in ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"):
        # without parentheses, dots and operators nothing can be called or grow
        return bool(_LISTS.fullmatch(answer))
    if generator in ("intermediate_integration", "polynomial_multiplication", "simple_integration"):
        return _is_formula(answer)
    return True


def _is_formula(text: str) -> bool:
    names = re.findall(r"[^\W\d]\w*", text)
    known = all(len(name) == 1 or name in _FUNCTIONS for name in names)
    # a power of a power of a power can be too long to write down
    nested = len(re.findall(r"\)\s*\*\*", text))
    powers = text.count("**") == len(_SMALL_POWER.findall(text)) and nested <= 2
    return bool(_FORMULA.fullmatch(text)) and known and powers
