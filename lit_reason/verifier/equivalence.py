r"""Equality of two answers: `math-verify`, and what it lacks."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from importlib.util import find_spec, module_from_spec
from typing import Any

from lit_reason.errors import ConfigError
from lit_reason.verifier.equations import asks_for_values, claims
from lit_reason.verifier.hedges import contradicts_itself
from lit_reason.verifier.spelling import comparable, plain, quick, ungrouped

WARM_UP = (  # the parser learns each shape once, in a tenth of a second
    (r"\frac{1}{2}\pi", r"2\sqrt{3}"),
    (r"\left(1, \frac{1}{2}\right)", r"[-2, \infty)"),
    ("x^2+3x+1", "(x-1)(y+2)"),
    (r"\{1, 2\}", "2,1"),
    ("x = 3", r"45^{\circ}"),
    (r"12\%", r"3\text{ cm}"),
)

_WORDS = re.compile(
    r"\\(?:text|mathrm|mbox|operatorname)|\s(?:[a-zA-Z]{3,}|[ckm]m|[km]g|ft|in|lb|mi)\b"
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_SET = re.compile(r"\\\{[^():|<>]+\\\}")
_TUPLE = re.compile(r"\([^()]+\)")
_POINTS = ("7/5", "23/9", "-31/17", "41/13", "-5/11", "3/19", "-53/7", "2/23")  # of no meaning


def equivalent(gold: str, stated: str) -> bool:
    r"""Whether two answers are the same mathematical value, or the same text.

    This is not for what a model wrote: `9^{9^{9^9}}` takes for ever. `Verifier` has limits.

    Args:
        gold: The answer to compare with; what it leaves open (`x = 3` or `3`) is left open.
        stated: The answer to judge.

    Raises:
        ConfigError: math-verify is not installed.

    Example:
        >>> equivalent("1/2", "0.5"), equivalent("3", "4"), equivalent("23/5", "4 3/5")
        (True, False, True)
        >>> equivalent("(0,6)", "0<x<6"), equivalent("(0,6)", r"0 \le x \le 6")
        (True, False)
    """
    decided = quick(gold, stated)
    if decided is not None:
        return decided
    gold, stated = map(ungrouped, comparable(gold, stated))
    spelled = plain(gold), plain(stated)
    values = _parsed(gold), _parsed(stated)
    if not all(values) or _other_greek(*spelled):
        return False
    sides = [(text, value[0]) for text, value in zip(spelled, values, strict=True)]
    if _are_unlike(*sides) or _are_unlike(*reversed(sides)):
        return False
    if asks_for_values(gold) and not all(_agree(*sides) for sides in claims(stated)):
        return False
    return _engine_says(*values) or _same_function(*values)


def _agree(one: str, other: str) -> bool:
    """Whether the sides of an equation are equal, but for rounding."""
    values = _parsed(one), _parsed(other)
    if not all(values):
        return False
    if _engine_says(*values):
        return True
    numbers = [_number(value[0]) for value in values]
    return None not in numbers and not contradicts_itself(numbers)


def _number(value: Any) -> Any:
    """The decimal value of a constant, exactly; `None` if there is none."""
    from sympy import Float

    found = value.doit().evalf(20) if getattr(value, "is_number", False) else None
    return Fraction(str(found)) if isinstance(found, Float) else None


def _are_unlike(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Whether one lists elements and the other is a point, a range, or the element it repeats.

    The engine ignores the brackets of a set, reads a range as the pair of its ends, and a list of
    one value as that value.
    """
    import sympy

    text, value = one
    other_text, other_value = other
    if _SET.fullmatch(text) and "," in text and _TUPLE.fullmatch(other_text):
        return True
    if not isinstance(value, sympy.FiniteSet):
        return False
    repeats = len(value.args) == 1 and "," in text and "," not in other_text
    bounds = other_value.args[:1] if isinstance(other_value, sympy.And) else (other_value,)
    is_range = any(isinstance(x, sympy.Rel) and not isinstance(x, sympy.Eq) for x in bounds)
    is_member = isinstance(other_value, sympy.Eq) and isinstance(other_value.rhs, sympy.Interval)
    return repeats or is_range or is_member


def _other_greek(one: str, other: str) -> bool:
    r"""Whether a Greek letter stands in the other case: the engine reads `\Gamma` as `\gamma`."""
    a, b = (set(_COMMAND.findall(text)) for text in (one, other))
    return any(name[0].swapcase() + name[1:] in b - a for name in a - b)


def _parsed(text: str) -> Any:
    """What `math-verify` reads in `text`: at most one expression, then the text itself."""
    return _engine()[0](f"${text}$")


def _engine_says(gold: list[Any], stated: list[Any]) -> bool:
    return (
        _engine()[1](gold, stated)
        and not _tiny_and_different(gold[0], stated[0])
        and not _named_in_other_case(gold[0], stated[0])
    )


def _named_in_other_case(gold: Any, stated: Any) -> bool:
    """Whether two names differ in case only; the engine ignores it in names of several letters."""
    return str(gold) != str(stated) and str(gold).lower() == str(stated).lower()


@lru_cache(maxsize=1)
def _engine() -> tuple[Any, Any]:
    try:
        from math_verify import verify

        parser = _parser()
        parse, in_latex, as_expression = (
            getattr(parser, n) for n in ("parse", "LatexExtractionConfig", "ExprExtractionConfig")
        )
    except ImportError as error:
        raise ConfigError(
            "task: verifying answers needs math-verify; install it with "
            "pip install 'lit-reason[math]'"
        ) from error
    # it warns that limits are off: they are signals, which work in the main thread only
    for module in ("parser", "grader"):
        logging.getLogger(f"math_verify.{module}").setLevel(logging.CRITICAL)

    # it takes single letters at the end for units, as the t of 4t: only words may be some
    normal = in_latex().normalization_config
    kinds = {
        units: (
            in_latex(normalization_config=replace(normal, units=units)),
            as_expression(),
        )
        for units in (False, True)
    }

    @lru_cache(maxsize=512)  # the responses of a group are compared with the same gold answer
    def read(text: str) -> Any:
        units = _WORDS.search(text) is not None
        return parse(text, kinds[units], parsing_timeout=None)  # type: ignore[arg-type]

    def compare(gold: Any, stated: Any) -> bool:
        return bool(verify(gold, stated, allow_set_relation_comp=True, timeout_seconds=None))

    return read, compare


def _parser() -> Any:
    """`math-verify`'s parser, which by default takes R for r, in a copy that does not."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    spec = find_spec("math_verify.parser")
    assert spec is not None
    assert spec.loader is not None
    parser: Any = module_from_spec(spec)
    spec.loader.exec_module(parser)
    exact = ConversionConfig(lowercase_symbols=False)
    parser.latex2sympy = partial(parser.latex2sympy, conversion_config=exact)
    return parser


def _tiny_and_different(gold: Any, stated: Any) -> bool:
    """Whether two tiny numbers differ that the engine's absolute tolerance takes for equal."""
    if not all(getattr(x, "is_number", False) and x.is_finite for x in (gold, stated)):
        return False
    a, b = (x.doit().evalf(20) for x in (gold, stated))
    size = max(abs(a), abs(b))
    return bool(0 < size < 1e-3) and bool(abs(a - b) > 1e-3 * size)


def _same_function(gold: list[Any], stated: list[Any]) -> bool:
    r"""Whether two terms agree wherever the gold one is real: `\sqrt{1/n}` and `1/\sqrt{n}`."""
    import sympy

    terms = gold[0], stated[0]
    if not all(isinstance(x, sympy.Expr) and x.free_symbols for x in terms):
        return False
    names = sorted(str(s) for s in terms[0].free_symbols)
    if names != sorted(str(s) for s in terms[1].free_symbols) or len(names) > 3:
        return False
    agreed = 0
    for shift in range(len(_POINTS)):
        at = {n: sympy.Rational(_POINTS[(shift + 3 * i) % 8]) for i, n in enumerate(names)}
        a, b = (t.subs({s: at[str(s)] for s in t.free_symbols}).evalf(30, chop=True) for t in terms)
        if not (a.is_Float or a.is_Integer):
            continue
        if not (b.is_Float or b.is_Integer) or abs(a - b) > 1e-20 * max(abs(a), 1):
            return False
        agreed += 1
    return agreed >= 3
