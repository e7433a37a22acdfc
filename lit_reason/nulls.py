"""Refuses null where a class does not take it: the parser lets it through."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, get_type_hints

from lit_reason.errors import ConfigError


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
