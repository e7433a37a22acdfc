"""Turns the parser's messages into one line: the key, its value, what is wrong, a valid choice."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml

from lit_reason.errors import ConfigError

Settings = list[tuple[str, str]]  # (full key, value) of everything given, in order

_KEY = re.compile(r"(?:Parser key|Key|key) [\"']([\w.]+)[\"']")
_UNKNOWN = re.compile(
    r"unrecognized arguments: --([\w.+-]+)|[Oo]ption '([\w.]+)' is not accepted"
    r"|[Kk]ey '([\w.]+)' is not expected|[Uu]nrecognized (?:options|keys?)\W+([\w.]+)"
    r"|does not accept option '([\w.]+)'"
)
_POSITIONAL = re.compile(r"unrecognized arguments: ([^-]\S*)")
_NO_VALUE = re.compile(r"argument --([\w.]+): expected one argument")
_REQUIRED = re.compile(r"arguments are required: (.*)")
_SUBCOMMAND = re.compile(r"argument subcommand: invalid choice: '(.*?)'")
_CLASS = re.compile(r"dot import path string: ([^\s;]+)|Expected a path but (\S+) either not acc")
_TYPE = re.compile(r"Expected an? <class '([\w.]+)'>")
_LITERAL = re.compile(r"typing\.Literal\[(.*?)\]")
_VALUE = re.compile(r"(?:Got|Given) value: (.*)")
_EXAMPLES = {"optimizer": "torch.optim.AdamW", "scheduler": "torch.optim.lr_scheduler.LinearLR"}


def explain(message: str, args: Sequence[str], types: dict[str, Any]) -> str:
    r"""One line for one parser error.

    Args:
        message: What jsonargparse says, often over several lines.
        args: The command line, to find the full key and the value there or in its files.
        types: Every key the parser knows, with its type.

    Example:
        >>> explain('Parser key "size":\n  Expected a <class \'int\'>. Got value: x',
        ...         ["--data.size=x"], {"data.size": int})
        'data.size=x: expected int'
        >>> explain("unrecognized arguments: --data.siez=3", ["--data.siez=3"], {"data.size": int})
        'data.siez=3: no such key; did you mean data.size?'
    """
    text = "; ".join(line.strip(" -") for line in message.splitlines() if line.strip(" -"))
    given = settings(args)
    unknown = _UNKNOWN.search(text)
    if unknown:
        key = next(k for k in unknown.groups() if k)
        return _unknown_key(*_locate(key, None, given), given, types)
    found = _KEY.search(text)
    return _other(text) if found is None else _wrong_value(found.group(1), text, given, types)


def _other(text: str) -> str:
    """Messages without a key of the configuration."""
    if match := _POSITIONAL.search(text):
        return f"{match.group(1)}: not an option; write --KEY=VALUE"
    if match := _NO_VALUE.search(text):
        return f"{match.group(1)}: no value given; write --{match.group(1)}=VALUE"
    if match := _SUBCOMMAND.search(text):
        known = "fit, validate, test, predict, cold_start"
        return f"subcommand {match.group(1)}: does not exist; choose one of {known}"
    if match := _REQUIRED.search(text):
        keys = ", ".join(key.split(".", 1)[-1] for key in match.group(1).split(", "))
        return f"{keys}: not set; start from --config=configs/quickstart.yaml, or set it"
    return text


def _wrong_value(name: str, text: str, given: Settings, types: dict[str, Any]) -> str:
    missing, stated = _CLASS.search(text), _VALUE.search(text)
    value = stated.group(1).split(";")[0] if stated else None
    class_name = (missing.group(1) or missing.group(2)) if missing else None
    key, value = _locate(name, value, given, class_name)
    where = f"{key}={value}" if value else key
    if "is abstract" in text:
        return f"{where}: name its class first; put --config before flags that change parts of it"
    named = _TYPE.findall(text)
    expected = [t for t in dict.fromkeys(named) if t != "NoneType"]
    literal = _LITERAL.search(text)
    if literal:
        return f"{where}: choose one of {literal.group(1).replace(chr(39), '')}"
    if class_name and (not expected or _named_classes(_nearest(key, types))):
        return f"{key}={class_name}: no class {class_name}; {_class_hint(key, types)}"
    if expected:
        null = ", or null" if "NoneType" in named else ""
        return f"{where}: expected {' or '.join(expected)}{null}"
    return re.sub(r"^(?:Parser )?[Kk]ey \"[\w.]+\":;? ?", f"{where}: ", text)


def _class_hint(key: str, types: dict[str, Any]) -> str:
    choices = ", ".join(c.__name__ for c in _named_classes(_nearest(key, types)))
    if choices:
        return f"choose one of {choices}, or the dotted path of your own"
    example = next((v for k, v in _EXAMPLES.items() if key.endswith(k)), "my_file.MyClass")
    return f"give the dotted path of a class, for example {example}"


def nested_reason(message: str) -> str | None:
    r"""What a component said of its own arguments, from the parser's report of a failed union.

    Example:
        >>> nested_reason("Does not validate against any of the Union subtypes\nErrors:\n"
        ...               "  - rollouts=0: must be at least 1\n  - Expected a <class 'NoneType'>")
        'rollouts=0: must be at least 1'
    """
    if "Does not validate against any of the Union subtypes" not in message:
        return None
    known = ("Expected a", "Does not validate", "Subtypes", "Errors", "Given value")
    lines = [line.strip(" -") for line in message.splitlines()]
    reasons = [line for line in lines if line and not line.startswith(known)]
    return reasons[0] if reasons else None


# --- what was given -------------------------------------------------------------------------------


def settings(args: Sequence[str]) -> Settings:
    """Every (key, value) on the command line and in its files; files that fail are left out."""
    found: Settings = []
    for name, value in _flags(args):
        if name == "config":
            try:
                found += _leaves("", read_config(value))
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
    for name, value in _flags(args):
        if name == "config":
            read_config(value)


def read_config(file: str) -> dict[str, Any]:
    """One configuration file.

    Raises:
        ConfigError: See `read_configs`.
    """
    try:
        content = yaml.load(Path(file).read_text(encoding="utf-8"), _UniqueKeys)
    except UnicodeDecodeError as error:
        raise ConfigError(f"config={file}: not a text file; give a YAML file") from error
    except OSError as error:
        raise ConfigError(f"config={file}: {error.strerror}; give a YAML file") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"config={file}: not valid YAML{place}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config={file}: not valid YAML") from error
    if not isinstance(content, dict):
        held = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise ConfigError(f"config={file}: {held}; it must map keys to values, as model: ...")
    return content


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would silently take the second."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value} stands twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _flags(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of `--name=value` and `--name value`."""
    for i, arg in enumerate(args):
        if not arg.startswith("--"):
            continue
        name, equals, value = arg[2:].partition("=")
        if not equals and i + 1 < len(args) and not args[i + 1].startswith("--"):
            value = args[i + 1]
        yield {"c": "config"}.get(name, name), value


def _leaves(prefix: str, value: Any) -> Settings:
    if not isinstance(value, dict):
        return [(prefix.rstrip("."), str(value))]
    if "class_path" in value:
        inner = value.get("init_args") or {}
        return [(prefix.rstrip("."), str(value["class_path"])), *_leaves(prefix, inner)]
    return [leaf for key, part in value.items() for leaf in _leaves(f"{prefix}{key}.", part)]


def _locate(
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


# --- what there is --------------------------------------------------------------------------------


def _unknown_key(key: str, value: str, given: Settings, types: dict[str, Any]) -> str:
    parent, _, last = key.rpartition(".")
    chosen = next((v.rpartition(".")[2] for k, v in reversed(given) if k == parent), None)
    classes = _named_classes(_nearest(parent, types))
    owners = [c for c in classes if c.__name__ == chosen] or classes
    beside = {n for n in types if n.rpartition(".")[0] == parent}
    siblings = sorted({*beside, *(f"{parent}.{p}".lstrip(".") for p in _parameters(owners))})
    close = difflib.get_close_matches(key, siblings, 1, 0.6)
    close = close or difflib.get_close_matches(key, types, 1, 0.6)
    if close:
        hint = f"did you mean {close[0]}?"
    elif siblings:
        hint = f"choose one of {', '.join(siblings)}"
    else:
        hint = f"see --help for the keys beside {last!r}"
    return f"{key}={value}: no such key; {hint}" if value else f"{key}: no such key; {hint}"


def _nearest(key: str, types: dict[str, Any]) -> Any:
    """The type of `key`, or of the closest key above it that the parser knows."""
    while key and key not in types:
        key = key.rpartition(".")[0]
    return types.get(key)


def _bases(hint: Any) -> Iterable[type]:
    if inspect.isclass(hint) and hint is not type(None):
        yield hint
    for part in get_args(hint):
        if not isinstance(part, list):
            yield from _bases(part)


def _subclasses(base: type) -> Iterable[type]:
    if base.__module__ != "builtins":
        yield base
        children: list[type] = base.__subclasses__()
        for child in children:
            yield from _subclasses(child)


def _named_classes(hint: Any) -> list[type]:
    """The classes that a configuration may name for `hint`."""
    classes = {c for base in _bases(hint) for c in _subclasses(base)}
    modules = ("lit_reason.", "lightning.pytorch.loggers.")
    hidden = ("lit_reason.cli", "lit_reason.loggers", "lightning.pytorch.loggers.logger")
    named = [
        c
        for c in classes
        if not inspect.isabstract(c)
        and c.__module__.startswith(modules)
        and c.__module__ not in hidden
    ]
    return sorted(named, key=lambda c: c.__name__)


def _parameters(classes: Iterable[type]) -> set[str]:
    found = (inspect.signature(c.__init__).parameters for c in classes)  # type: ignore[misc]
    return {p for parameters in found for p in parameters if p != "self"}
