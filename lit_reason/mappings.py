"""Refuses values where settings belong, and empty mappings where a class belongs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any

from lit_reason.errors import ConfigError
from lit_reason.explain import bases, class_hint, effective, is_family
from lit_reason.given import FAMILIES, flags, read_config, settings


def check_forms(args: Sequence[str], types: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Refuses forms that the parser lets through, and that nothing can be built from.

    Args:
        args: Command line, for what it and its files hold.
        types: Known keys with their types.
        defaults: The same keys with their defaults.

    Raises:
        ConfigError: A value where settings of their own belong, or an empty mapping where no class
            is named.
    """
    left = effective([(k, v) for k, v in settings(args) if v.strip() != "{}"])
    for key, value in _held(args, types):
        inner = next((name for name in types if name.startswith(f"{key}.")), None)
        if inner and value is not None and not isinstance(value, dict):
            raise ConfigError(
                f"{key}={value!s:.80}: expected settings of their own, for example {inner}"
            )
        if key in FAMILIES and isinstance(value, dict):
            for name in (name for name, part in value.items() if part == {}):
                hint = class_hint(f"{key}.{name}", types[key])
                raise ConfigError(f"{key}.{name}={{}}: names no class; {hint}")
        unnamed = left.get(key, "null") in ("null", "None") and defaults.get(key) is None
        if value == {} and unnamed and not inner and _is_class(types[key]):
            raise ConfigError(f"{key}={{}}: names no class; {class_hint(key, types[key])}")


def _is_class(hint: Any) -> bool:
    """Whether a class has to be named for a type; of a dataclass the settings are enough."""
    classes = [c for c in bases(hint) if c.__module__ != "builtins"]
    return bool(classes) and not is_family(hint) and not any(is_dataclass(c) for c in classes)


def _held(args: Sequence[str], types: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What files hold at the known keys, and the empty mappings among the flags."""
    for name, value in flags(args):
        if name == "config":
            yield from _inside("", read_config(value), types)
        elif name in types and value.strip() == "{}":
            yield name, {}


def _inside(prefix: str, content: dict[str, Any], types: dict[str, Any]) -> Iterator[Any]:
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key in types:
            yield key, value
            if isinstance(value, dict):
                yield from _inside(f"{key}.", value, types)
