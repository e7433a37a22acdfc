"""What the user gave: the command line and the files it names, as keys with values."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lit_reason.errors import ConfigError
from lit_reason.secrecy import HIDDEN, hidden_key

Settings = list[tuple[str, str]]  # (full key, value) of everything given, in order

_HEAD = re.compile(r"([A-Za-z_]\w*)\.(\w+(?:\.\w+)*)(?:=([^:,]*))?(?=[:,])")
DEEPEST = 100  # lists and mappings in one another
_SECTIONS = ("model", "data", "trainer", "callbacks")

FAMILIES = ("callbacks", "model.terms", "data.rewards")  # keys that hold named parts


def check_nul(given: Settings) -> None:
    """Refuses the byte that no path may hold, and that YAML writes as a letter after a backslash.

    Raises:
        ConfigError: The first value with it.
    """
    for key, value in given:
        if "\0" in value:
            raise ConfigError(f"{key}={value}: holds a null byte; remove it")


def check_secrets(config: Mapping[str, Any]) -> None:
    """Refuses what stands for a secret in the `config.yaml` of a run.

    Args:
        config: As dicts.

    Raises:
        ConfigError: The first key of one.
    """
    key = hidden_key(config)
    if key is not None:
        raise ConfigError(
            f"{key}={HIDDEN}: config.yaml keeps no secrets; give it again, as --{key}=..., or let "
            "the part read it from the environment"
        )


def settings(args: Sequence[str]) -> Settings:
    """Every (key, value) on the command line and in its files; files that fail are left out."""
    found: Settings = []
    for name, value in flags(args):
        if name == "config":
            try:
                found += leaves("", read_config(value))
            except ConfigError:
                continue
        else:
            found.append((name, value))
    return found


def read_configs(args: Sequence[str]) -> None:
    """Reads every file that the arguments name, for its mistakes.

    Raises:
        ConfigError: A file is missing, is not YAML, or does not map keys to values.
    """
    for name, value in flags(args):
        if name == "config":
            read_config(value)


def read_config(file: str) -> dict[str, Any]:
    """One configuration file.

    Raises:
        ConfigError: See `read_configs`.
    """
    key = f"config={file}"
    content = read_yaml(key, file)
    if not isinstance(content, dict):
        held = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise ConfigError(f"{key}: {held}; it must map keys to values, as model: ...")
    _check_keys(file, "", content)
    return content


def read_yaml(key: str, file: str | Path) -> Any:
    """What a YAML file holds.

    Args:
        key: What names the file, for messages.
        file: The file.

    Raises:
        ConfigError: It is missing, is not YAML, has a key twice, or holds itself.
    """
    try:
        content = yaml.load(Path(file).read_text(encoding="utf-8"), _UniqueKeys)
        if isinstance(content, dict | list):
            _check_nesting(key, content)
        return content
    except RecursionError:
        raise ConfigError(f"{key}: not valid YAML, it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: not a text file; give a YAML file") from error
    except OSError as error:
        raise ConfigError(f"{key}: {error.strerror}; give a YAML file") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{key}: not valid YAML{place}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: not valid YAML") from error


def _check_nesting(key: str, value: Any, above: tuple[Any, ...] = ()) -> None:
    """Refuses a list or a mapping that is a part of itself, or of very many others."""
    if any(value is outer for outer in above):
        raise ConfigError(f"{key}: an alias refers to itself; write it out")
    if len(above) > DEEPEST:
        raise ConfigError(f"{key}: not valid YAML, it is nested too deeply")
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            _check_nesting(key, part, (*above, value))


def _check_keys(file: str, prefix: str, content: dict[Any, Any]) -> None:
    """Refuses what YAML allows and no configuration means."""
    for key, value in content.items():
        if not isinstance(key, str):
            raise ConfigError(f"config={file}: the key {prefix}{key} is no text; quote it")
        if value is None and key in ("class_path", "init_args"):
            raise ConfigError(f"config={file}: {prefix}{key} is empty; fill it, or remove the line")
        if isinstance(value, dict):
            _check_keys(file, f"{prefix}{key}.", value)


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would silently take the second.

    And one that is a list or a mapping, as `{{NAME}}` of a template that was not filled.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A value, which a number of thousands of digits or a date in month 13 is not."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            problem = f"no value: {str(error).split(';')[0]}"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a key is a list or a mapping; quote it", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value} stands twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def flags(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of `--name=value` and `--name value`."""
    for i, arg in enumerate(args):
        if not arg.startswith("--"):
            continue
        name, equals, value = arg[2:].partition("=")
        if not equals and i + 1 < len(args) and not args[i + 1].startswith("--"):
            value = args[i + 1]
        yield {"c": "config"}.get(name, name), value


def leaves(prefix: str, value: Any) -> Settings:
    """Every key below a prefix, with its value as text; a class stands under its own key."""
    if not isinstance(value, dict):
        return [(prefix.rstrip("."), str(value))]
    if "class_path" in value:
        inner = value.get("init_args") or {}
        rest = {k: v for k, v in value.items() if k not in ("class_path", "init_args")}
        named = (prefix.rstrip("."), str(value["class_path"]))
        return [named, *leaves(prefix, inner), *leaves(prefix, rest)]
    return [leaf for key, part in value.items() for leaf in leaves(f"{prefix}{key}.", part)]


def locate(
    name: str, value: str | None, given: Settings, class_name: str | None = None
) -> tuple[str, str]:
    """The full key and the value of what the parser calls `name`."""
    close = [
        (k, v) for k, v in given if k == name or k.endswith(f".{name}") or k.startswith(f"{name}.")
    ]
    same = [(k, v) for k, v in close if v in (value, class_name)]
    ending = [(k, v) for k, v in close if not k.startswith(f"{name}.")]
    for chosen in (same, ending if value is None else []):
        if chosen:
            return chosen[-1]
    return name, value or ""


def full_key(message: str, given: Settings, place: str | None = None) -> str:
    """Writes the key at the head of a message as the user gave it.

    A component knows its own name, but not the place it was configured at.

    Args:
        message: It begins with a key.
        given: What the user gave.
        place: Key of the part that the message comes from; `None` looks for one that fits, which
            two parts with equal settings both do.

    Example:
        >>> given = [("data.val_task", "PlanCount"), ("data.val_task.limit", "0")]
        >>> full_key("task.limit=0: must be at least 1", given)
        'data.val_task.limit=0: must be at least 1'
        >>> full_key("Correctness.weight=0: no effect", [("data.rewards.right", "Correctness")])
        'data.rewards.right.weight=0: no effect'
        >>> full_key("task.limit=0: must be at least 1", given, "data.task")
        'data.task.limit=0: must be at least 1'
    """
    head = _HEAD.match(message)
    if head is None or head.group(1) in _SECTIONS:
        return message
    owner, name, value = head.groups()
    if place is not None:
        if place.rpartition(".")[2].endswith(owner):
            return f"{place}.{name}" + message[head.end(2) :]
        given = [(k, v) for k, v in given if f"{k}.".startswith(f"{place}.")]
    ending = [(k, v) for k, v in given if k.endswith(f"{owner}.{name}")]
    same = [k for k, v in ending if value is not None and _same(v, value)]
    parents = [f"{k}.{name}" for k, v in given if v.rpartition(".")[2] == owner]
    chosen = same or parents or [k for k, _ in ending]
    return chosen[-1] + message[head.end(2) :] if chosen else message


def _same(given: str, stated: str) -> bool:
    try:
        return float(given) == float(stated)
    except ValueError:
        return given.strip("'\"") == stated.strip("'\"")
