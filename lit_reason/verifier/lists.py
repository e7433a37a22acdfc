"""Answers of several parts, in the one form that the engine compares."""

from __future__ import annotations

import re

_CONNECTIVE = r"(?:\\text\{\s*(?:or|and|,)\s*\}|(?<![a-zA-Z\\])(?:or|and)(?![a-zA-Z]))"
_SEPARATOR = re.compile(rf"[,;]|{_CONNECTIVE}")
_TOKEN = re.compile(rf"{_SEPARATOR.pattern}|\\.|[()\[\]{{}}]", re.DOTALL)
_NAMED = re.compile(r"(\\?[a-zA-Z]+)((?:_(?:\w|\{\w+\}))?)\s*=\s*([^=]+)")
_TUPLE = re.compile(r"\(.*,.*\)")
_POINT = re.compile(r"[A-Z]\s*=?\s*(\([^()]+,[^()]+\))")
_SET = re.compile(r"([^={]*=\s*)?\\\{(.*)\\\}", re.DOTALL)
_BOTH = re.compile(r"\\[pm]m(?![a-zA-Z])")
_QUAD = r"\s*\\q?quad(?![a-zA-Z])\s*"
_CONNECTED_BY_QUADS = re.compile(rf"(?:{_QUAD})?({_CONNECTIVE})(?:{_QUAD})?")
_SEPARATING_QUAD = re.compile(rf"(?<=[^\s,;]){_QUAD}(?=-?\d|\\?[a-zA-Z]+(?:_\w|_\{{\w+\}})?\s*=)")


def parts(text: str) -> list[str]:
    r"""What stands between commas, semicolons, `or` and `and` outside of brackets.

    Example:
        >>> parts("x = (1,2), 3"), parts(r"1 \text{ or } 2"), parts(r"\{1,2\}")
        (['x = (1,2)', '3'], ['1', '2'], ['\\{1,2\\}'])
    """
    found, depth, read = [], 0, 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if _SEPARATOR.fullmatch(token):
            if depth == 0:
                found.append(text[read : match.start()].strip())
                read = match.end()
        elif token[-1] in "([{":
            depth += 1
        elif token[-1] in ")]}":
            depth = max(depth - 1, 0)
    return [*found, text[read:].strip()]


def with_commas(text: str) -> str:
    r"""`text` with a comma where only a wide space stands between two values.

    Example:
        >>> with_commas(r"a=5\quad b=6"), with_commas(r"x=1 \quad\text{or}\quad x=2")
        ('a=5, b=6', 'x=1 \\text{or} x=2')
        >>> with_commas(r"5\quad\text{cm}")
        '5\\quad\\text{cm}'
    """
    if "quad" not in text:
        return text
    return _SEPARATING_QUAD.sub(", ", _CONNECTED_BY_QUADS.sub(r" \1 ", text))


def both_signs(text: str) -> str:
    r"""`text` with both values of each part that holds one `\pm`.

    Example:
        >>> both_signs(r"\frac{3\pm\sqrt5}{2}"), both_signs(r"\{\pm 1, 3\}")
        ('\\frac{3+\\sqrt5}{2},\\frac{3-\\sqrt5}{2}', '\\{+ 1,- 1,3\\}')
        >>> both_signs(r"\pm 1\pm 2")
        '\\pm 1\\pm 2'
    """
    if not _BOTH.search(text):
        return text
    if match := _SET.fullmatch(text):
        return rf"{match[1] or ''}\{{{both_signs(match[2])}\}}"
    values = []
    for part in parts(text):
        if len(_BOTH.findall(part)) == 1:
            values += [_BOTH.sub(sign, part) for sign in "+-"]
        else:
            values.append(part)
    return ",".join(values)


def by_name(gold: str, stated: str) -> tuple[str, str]:
    """Both as tuples of values in the order of their names, if one has several names.

    The names that `gold` leaves open are those of coordinates, in the order of the alphabet; the
    label of a point says nothing.

    Example:
        >>> by_name("a=1, b=2", "b=2 and a=1"), by_name("a=1, b=2", "2, 1")
        (('(1,2)', '(1,2)'), ('(1,2)', '(2,1)'))
        >>> by_name("x=1, x=2", "2, 1"), by_name("(1,2)", "y=1, x=2")
        (('x=1, x=2', '2, 1'), ('(1,2)', '(2,1)'))
        >>> by_name("(1,2)", "P(1,2)")
        ('(1,2)', '(1,2)')
    """
    names, other = _named(gold), _named(stated)
    if names is None:
        if other is not None and not _are_indexed(list(other), gold):
            order = sorted(other, key=lambda name: (name[0] == "\\", name))
            return _tuple(parts(_inside(gold))), _tuple([other[name] for name in order])
        point = _POINT.fullmatch(stated)
        return gold, point[1] if point and _TUPLE.fullmatch(gold) else stated
    if other is not None and names.keys() == other.keys():
        return _tuple(list(names.values())), _tuple([other[name] for name in names])
    if "=" in stated:
        return gold, stated
    return _tuple(list(names.values())), _tuple(parts(_inside(stated)))


def _named(text: str) -> dict[str, str] | None:
    found = [_NAMED.fullmatch(part) for part in parts(text)]
    names = {m[1] + m[2]: m[3] for m in found if m is not None}
    return names if len(found) == len(names) > 1 else None


def _are_indexed(names: list[str], gold: str) -> bool:
    """Whether `x_1` and `x_2` number the values of a list, which has no order."""
    return len({name.partition("_")[0] for name in names}) == 1 and not _TUPLE.fullmatch(gold)


def _inside(text: str) -> str:
    return text[1:-1] if _TUPLE.fullmatch(text) else text


def _tuple(values: list[str]) -> str:
    return f"({','.join(values)})"
