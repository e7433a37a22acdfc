"""What the user gave: the command line and the files it names, as keys with values."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from lit_reason.errors import ConfigError
from lit_reason.secrecy import HIDDEN, hidden_key, sounds_secret

Settings = list[tuple[str, str]]  # (full key, value) of everything given, in order

_HEAD = re.compile(r"([A-Za-z_]\w*)\.(\w+(?:\.\w+)*)(?:=([^:,]*))?(?=[:,])")
MOST = 100_000  # values that aliases may stand for
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


def check_local(key: str, folder: str | None) -> None:
    """Refuses an address where files are written by the system's own means.

    Raises:
        ConfigError: It is one.
    """
    if folder is not None and "://" in folder:
        raise ConfigError(f"{key}={folder}: is no folder of this machine; give one, and copy it")


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
    """Every (key, value) on the command line and in its files; files that fail are left out.

    Of a mapping on the command line there is also each key below it.
    """
    found: Settings = []
    for name, value in flags(args):
        if name == "config":
            try:
                found += leaves("", read_config(value))
            except ConfigError:
                continue
        else:
            found.append((name, value))
            if value.lstrip().startswith(("{", "[")):
                with suppress(ConfigError):
                    content = read_yaml_text(value, name)
                    found += [x for x in leaves(f"{name}.", content) if x != (name, str(content))]
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
        text = Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: not a text file; give a YAML file") from error
    except OSError as error:
        raise ConfigError(f"{key}: {error.strerror}; give a YAML file") from error
    return read_yaml_text(text, key)


def read_yaml_text(text: str, key: str) -> Any:
    """What a text in YAML holds, which anybody may have written.

    Args:
        text: The text.
        key: Where it comes from, for messages.

    Raises:
        ConfigError: It is not YAML, has a key twice, holds itself, or grows without measure.
    """
    try:
        loader = _UniqueKeys(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_nesting(key, node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"{key}: not valid YAML, it is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{key}: not valid YAML{_problem(text, error)}") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # not only the first: `!!bool` and dates may stand before what is none
        raise ConfigError(f"{key}: not valid YAML") from error


def _problem(text: str, error: yaml.MarkedYAMLError) -> str:
    """Where and what; only where, if it would repeat a part of a secret."""
    if error.problem_mark is None:
        return f": {error.problem}"
    line, column = error.problem_mark.line, error.problem_mark.column
    place = f" in line {line + 1}, column {column + 1}"
    near = " ".join(text.splitlines()[max(line - 1, 0) : line + 1])  # a value may stand below
    secret = any(sounds_secret(name) for name in re.findall(r"[\w.-]+", near))
    return f"{place}; quote the value" if secret else f"{place}: {error.problem}"


def _check_nesting(key: str, node: yaml.Node) -> None:
    """Refuses what is a part of itself, or would fill the memory with copies of its parts.

    Before anything is built: merged mappings are copied even then.
    """
    sizes: dict[int, tuple[int, int]] = {}  # of a node with all below it, and their depth

    def size(node: yaml.Node, above: tuple[yaml.Node, ...] = ()) -> tuple[int, int]:
        if any(node is outer for outer in above):
            raise ConfigError(f"{key}: an alias refers to itself; write it out")
        if id(node) not in sizes:
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            if isinstance(node, yaml.MappingNode):
                parts = [part for pair in node.value for part in pair]
            below = [size(part, (*above, node)) for part in parts]
            depth = 1 + max((depth for _, depth in below), default=-1)
            sizes[id(node)] = 1 + sum(count for count, _ in below), depth
        if len(above) + sizes[id(node)][1] > DEEPEST:
            raise ConfigError(f"{key}: not valid YAML, it is nested too deeply")
        return sizes[id(node)]

    count, _ = size(node)
    if count > max(MOST, len(sizes)):
        raise ConfigError(f"{key}: its aliases stand for {count:.0e} values; write out fewer")


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
        parts = value if isinstance(value, list) else []
        below = [leaf for part in parts if isinstance(part, dict) for leaf in leaves(prefix, part)]
        return [(prefix.rstrip("."), str(value)), *below]
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
    same = [
        (k, v) for k, v in close if v == class_name or (value is not None and same_value(v, value))
    ]
    ending = [(k, v) for k, v in close if not k.startswith(f"{name}.")]
    alone = bool(ending) and len({k for k, _ in close}) == 1  # not a mapping of several
    for chosen in (same, ending if value is None or alone else []):
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
    if message.startswith("trainer: "):
        return _of_trainer(message, given)
    head = _HEAD.match(message)
    if head is None or head.group(1) in _SECTIONS:
        return message
    owner, name, value = head.groups()
    if place is not None:
        if place.rpartition(".")[2].endswith(owner):
            return f"{place}.{name}" + message[head.end(2) :]
        given = [(k, v) for k, v in given if f"{k}.".startswith(f"{place}.")]
    ending = [(k, v) for k, v in given if k.endswith(f"{owner}.{name}")]
    same = [k for k, v in ending if value is not None and same_value(v, value)]
    parents = [f"{k}.{name}" for k, v in given if v.rpartition(".")[2] == owner]
    chosen = same or parents or [k for k, _ in ending]
    return chosen[-1] + message[head.end(2) :] if chosen else message


def _of_trainer(message: str, given: Settings) -> str:
    """What Lightning says of its settings, behind the first one that it names."""
    held = {key: value for key, value in given if key.startswith("trainer.")}
    words = re.findall(r"\w+", message)
    # Lightning takes it for the limits of training and validation
    limits = any(word.startswith("limit_") for word in words)
    names = [*words, *(["overfit_batches"] if limits else [])]
    key = next((f"trainer.{name}" for name in names if f"trainer.{name}" in held), None)
    if key == "trainer.overfit_batches":
        message = re.sub(r"limit_\w+", "overfit_batches", message)
    return message if key is None else f"{key}={held[key]}: {message.removeprefix('trainer: ')}"


def same_value(given: str, stated: str) -> bool:
    """Whether two texts stand for the same number, or are the same but for quotes."""
    try:
        numbers = float(given), float(stated)
        return numbers[0] == numbers[1] or all(map(math.isnan, numbers))
    except ValueError:
        return given.strip("'\"") == stated.strip("'\"")
