"""Arguments that go with their class where a later file or flag names another one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from lit_reason.errors import ConfigWarning
from lit_reason.given import flags, leaves, settings

_RATE = re.compile(r"model\.((actor|critic)_)?optimizer\.lr")
_NOTHING = ("None", "null")  # a part that is left out has no settings, which surprises nobody


def drop_arguments(_: Any, former: Any, new: Any) -> None:
    """Takes the arguments of a class away where another one is named.

    The parser would keep those that the new class takes too, among them defaults that nobody set.

    Args:
        former: Class and arguments so far, as jsonargparse keeps them.
        new: Those that take their place.
    """
    if former and "init_args" in former and former["class_path"] != new["class_path"]:
        arguments = former["init_args"]
        (arguments if isinstance(arguments, dict) else vars(arguments)).clear()


def warn_of_dropped(config: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Warns of flags, and of learning rates, that went with the class they were given for.

    Arguments that a file gives a class are taken to go with it: a file of sizes that is laid over
    an algorithm replaces parts whole.

    Args:
        config: The configuration that came of it, as dicts.
        arguments: The command line.
    """
    given = [(_short(key), value) for key, value in settings(arguments)]
    last = {key: (place, value) for place, (key, value) in enumerate(given)}
    typed = {_short(name) for name, _ in flags(arguments)}
    present = {_short(key): value for key, value in leaves("", config)}
    for key, (place, value) in last.items():
        part = key.rpartition(".")[0]
        if key in typed or _RATE.fullmatch(key):
            named, name = last.get(part, (-1, ""))
            applies = key in present and _plain(present[key]) == _plain(value)
            below = any(other.startswith(f"{key}.") for other in present)
            if named > place and name not in _NOTHING and not applies and not below:
                now = f", it is {present[key]}" if key in present else ""
                warnings.warn(
                    f"{key}={value}: was given before {part}={name} and does not apply{now}; give "
                    "it after the class, or leave it out",
                    ConfigWarning,
                    stacklevel=1,
                )


def _short(key: str) -> str:
    return re.sub(r"\.(class_path$|init_args(?=\.))", "", key)


def _plain(value: str) -> list[str | float]:
    """A value without what differs between its spellings on a command line and in Python."""
    parts = re.sub(r"[\s'\"()\[\]]", "", value).lower().split(",")
    return [_number("none" if part == "null" else part) for part in parts]


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
