r"""Mathematics as it is typed without TeX: `2pi`, `sqrt(3)`, `1.5*10^-3`."""

from __future__ import annotations

import re

# what is set as words, or is a command, stays; a longer word is no name of a function
_NAME = re.compile(
    r"\\(?:text\w*|mathrm|mbox|operatorname)\{[^{}]*\}|\\[a-zA-Z]+"
    r"|(?<![a-zA-Z])(pi|theta|alpha|beta|gamma|lambda|ln|log|exp|sqrt|infinity|inf"
    r"|(?:arc)?(?:sin|cos|tan)|cot|sec|csc)(?![a-zA-Z])"
)
_TEX = {"infinity": "infty", "inf": "infty"}
_ROOT = re.compile(r"\\sqrt ?(\d+|[a-zA-Z](?![a-zA-Z]))")
_SIGNED_POWER = re.compile(r"\^(-(?:\d+(?:\.\d+)?|[a-zA-Z]))")
_POWER = re.compile(r"(?<=[\w)}])\*\*(?=[\w({-])")
_TIMES_TEN = re.compile(r"(?<=\d) ?[xX] ?(?=10\^)")
_FACTORIAL = re.compile(r"(?<=\d)!(?==)")  # 3!=6 is no inequality of numbers
_BRACKET = re.compile(r"\\sqrt ?\(|(?<![\\a-zA-Z])(?:abs|cbrt)\(|[()]")
_OPENED = {"\\": (r"\sqrt{", "}"), "a": ("|", "|"), "c": (r"\sqrt[3]{", "}"), "(": ("(", ")")}


def in_tex(text: str) -> str:
    r"""`text` with names, roots and powers as TeX has them.

    Example:
        >>> in_tex("2pi/3"), in_tex("ln 2"), in_tex("sqrt(3(x+1))"), in_tex("sqrt3")
        ('2\\pi/3', '\\ln 2', '\\sqrt{3(x+1)}', '\\sqrt{3}')
        >>> in_tex("1.5 x 10^-3"), in_tex("x**2"), in_tex("3!=6"), in_tex("spin")
        ('1.5\\times 10^{-3}', 'x^2', '3! =6', 'spin')
    """
    text = _FACTORIAL.sub("! ", _TIMES_TEN.sub(r"\\times ", _POWER.sub("^", text)))
    text = _SIGNED_POWER.sub(r"^{\1}", _NAME.sub(_command, text))
    return _ROOT.sub(r"\\sqrt{\1}", _braced(text))


def _command(match: re.Match[str]) -> str:
    name = match[1]
    return match[0] if name is None else f"\\{_TEX.get(name, name)}"


def _braced(text: str) -> str:
    """`text` with braces or bars in place of the parentheses of a root or a modulus."""
    written: list[str] = []
    closing: list[str] = []
    read = 0
    for match in _BRACKET.finditer(text):
        if match[0] == ")":
            if not closing:
                return text
            spelled = closing.pop()
        else:
            spelled, closed_by = _OPENED[match[0][0]]
            closing.append(closed_by)
        written += [text[read : match.start()], spelled]
        read = match.end()
    return text if closing else "".join(written) + text[read:]
