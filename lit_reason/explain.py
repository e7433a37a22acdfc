"""Turns the parser's messages into one line: the key, its value, what is wrong, a valid choice."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

_KEY = re.compile(r"(?:Parser key|Key|key) [\"']([\w.]+)[\"']")
_UNKNOWN = re.compile(
    r"unrecognized arguments: --([\w.+-]+)|Option '([\w.]+)' is not accepted"
    r"|[Kk]ey '([\w.]+)' is not expected|[Uu]nrecognized (?:options|keys?)\W+([\w.]+)"
)
_CLASS = re.compile(r"dot import path string: (\S+)")
_TYPE = re.compile(r"Expected an? <class '([\w.]+)'>")
_VALUE = re.compile(r"(?:Got|Given) value: (.*)")


def explain(message: str, args: Sequence[str], types: dict[str, Any]) -> str:
    """One line for one parser error.

    Args:
        message: What jsonargparse says, often over several lines.
        args: The command line, to find the full key and the value.
        types: Every key the parser knows, with its type.

    Example:
        >>> explain('Parser key "size":\\n  Expected a <class \\'int\\'>. Got value: x',
        ...         ["--data.size=x"], {"data.size": int})
        'data.size=x: expected int'
        >>> explain("unrecognized arguments: --data.siez=3", ["--data.siez=3"], {"data.size": int})
        'data.siez=3: no such key; did you mean data.size?'
    """
    text = "; ".join(line.strip(" -") for line in message.splitlines() if line.strip(" -"))
    unknown = _UNKNOWN.search(text)
    if unknown:
        key = next(k for k in unknown.groups() if k)
        return _unknown_key(*_locate(key, args), types)
    found = _KEY.search(text)
    if found is None:
        return text
    key, value = _locate(found.group(1), args)
    stated = _VALUE.search(text)
    value = value or (stated.group(1).split(";")[0] if stated else "")
    where = f"{key}={value}" if value else key
    if "is abstract" in text:
        return f"{where}: name its class first; put --config before flags that change parts of it"
    missing = _CLASS.search(text)
    if missing:
        choices = ", ".join(_class_names(types.get(found.group(1)))) or "a known class"
        name = missing.group(1).rstrip(";")
        return f"{where}: no class {name}; choose one of {choices}, or the dotted path of your own"
    expected = [t for t in dict.fromkeys(_TYPE.findall(text)) if t != "NoneType"]
    if expected:
        return f"{where}: expected {' or '.join(expected)}"
    return re.sub(r"^(?:Parser )?[Kk]ey \"[\w.]+\":;? ?", f"{where}: ", text)


def nested_reason(message: str) -> str | None:
    """What a component said of its own arguments, from the parser's report of a failed union.

    Example:
        >>> nested_reason("Does not validate against any of the Union subtypes\\nErrors:\\n"
        ...               "  - rollouts=0: must be at least 1\\n  - Expected a <class 'NoneType'>")
        'rollouts=0: must be at least 1'
    """
    if "Does not validate against any of the Union subtypes" not in message:
        return None
    known = ("Expected a", "Does not validate", "Subtypes", "Errors", "Given value")
    lines = [line.strip(" -") for line in message.splitlines()]
    reasons = [line for line in lines if line and not line.startswith(known)]
    return reasons[0] if reasons else None


def _locate(key: str, args: Sequence[str]) -> tuple[str, str]:
    """The full key and value of the argument that ends in `key`."""
    for arg in reversed(args):
        name, _, value = arg.removeprefix("--").partition("=")
        if arg.startswith("--") and (name == key or name.endswith(f".{key}")):
            return name, value
    return key, ""


def _unknown_key(key: str, value: str, types: dict[str, Any]) -> str:
    parent, _, last = key.rpartition(".")
    names = {*types, *(f"{parent}.{p}".lstrip(".") for p in _parameters(types.get(parent)))}
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    siblings = sorted(n for n in names if n.rpartition(".")[0] == parent and n != key)
    if close:
        hint = f"did you mean {close[0]}?"
    elif siblings:
        hint = f"choose one of {', '.join(siblings)}"
    else:
        hint = f"see --help for the keys beside {last!r}"
    return f"{key}={value}: no such key; {hint}" if value else f"{key}: no such key; {hint}"


def _bases(hint: Any) -> Iterable[type]:  # noqa: ANN401
    if inspect.isclass(hint) and hint is not type(None):
        yield hint
    for part in get_args(hint):
        yield from _bases(part)


def _subclasses(base: type) -> Iterable[type]:
    if base.__module__ != "builtins":
        yield base
        for child in base.__subclasses__():
            yield from _subclasses(child)


def _class_names(hint: Any) -> list[str]:  # noqa: ANN401
    classes = {c for base in _bases(hint) for c in _subclasses(base)}
    return sorted(
        c.__name__
        for c in classes
        if not inspect.isabstract(c)
        and c.__module__.startswith("lit_reason")
        and c.__module__ != "lit_reason.cli"
    )


def _parameters(hint: Any) -> set[str]:  # noqa: ANN401
    classes = {c for base in _bases(hint) for c in _subclasses(base)}
    return {p for c in classes for p in inspect.signature(c.__init__).parameters if p != "self"}
