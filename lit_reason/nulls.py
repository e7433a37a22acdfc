"""Refuses null where it means nothing: for an argument that needs a value, or a part not there."""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from typing import Any, get_type_hints

from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.given import Settings


def check_nulls(key: str, cls: Any, values: Any) -> None:
    """Looks for null in the arguments of a class, and of the classes that they name.

    Args:
        key: Full key of the values, for the message.
        cls: The class that takes them; `None` if they are named parts.
        values: The parsed configuration, as dictionaries.

    Raises:
        ConfigError: An argument is null that has no default of null and no optional type.

    Example:
        >>> from lit_reason.advantages import GAE
        >>> check_nulls("model.advantage", GAE, {"alpha": None})
        >>> check_nulls("model.advantage", GAE, {"gamma": None})
        Traceback (most recent call last):
        lit_reason.errors.ConfigError: model.advantage.gamma=null: cannot be null; expected float
    """
    if not isinstance(values, dict):
        return
    if isinstance(values.get("class_path"), str):
        module, _, name = values["class_path"].rpartition(".")
        named = getattr(importlib.import_module(module), name, None)
        check_nulls(key, named, values.get("init_args"))
        return
    types = {} if cls is None else _required(cls)
    for name, value in values.items():
        full = f"{key}.{name}"
        if value is None and name in types:
            raise ConfigError(f"{full}=null: cannot be null; expected {_shown(types[name])}")
        hint = types.get(name)
        check_nulls(full, hint if inspect.isclass(hint) else None, value)


def without_dropped(family: str, parts: dict[str, Any], given: Settings) -> dict[str, Any]:
    """The parts that are left when those that are null are dropped.

    Args:
        family: Key of named parts, like `callbacks`.
        parts: The parsed parts, by name.
        given: What the user gave, in order.

    Warns of a part that no layer names: off it is, but a misspelt name would change nothing.

    Example:
        >>> given = [("callbacks.entropy", "EntropyMonitor"), ("callbacks.entropy", "null")]
        >>> without_dropped("callbacks", {"entropy": None, "samples": 3}, given)
        {'samples': 3}
    """
    prefix = f"{family}."
    named = {
        key.removeprefix(prefix).split(".")[0]
        for key, value in given
        if key.startswith(prefix) and value not in ("null", "None")
    }
    for name in (name for name, part in parts.items() if part is None and name not in named):
        close = difflib.get_close_matches(name, sorted(named), 1, 0.6)
        hint = f"did you mean {prefix}{close[0]}?" if close else f"there is {_listed(named)}"
        text = f"{prefix}{name}=null: has no effect, there is no such part to drop; {hint}"
        warnings.warn(text, ConfigWarning, stacklevel=2)
    return {name: part for name, part in parts.items() if part is not None}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _required(cls: type) -> dict[str, Any]:
    """Types of the arguments that cannot be null."""
    try:
        hints = get_type_hints(cls.__init__)  # type: ignore[misc]
    except (NameError, TypeError):  # annotations of the user's own that cannot be resolved
        return {}
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    return {
        name: hint
        for name, hint in hints.items()
        if name in parameters
        and parameters[name].default is not None
        and "None" not in str(hint)
        and hint is not Any
    }


def _shown(hint: Any) -> str:
    return hint.__name__ if inspect.isclass(hint) else str(hint).replace("typing.", "")
