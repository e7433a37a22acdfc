"""Turns the parser's messages into one line: the key, its value, what is wrong, a valid choice."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from lit_reason.errors import RAISED, ConfigError, said, users_frame
from lit_reason.given import (
    Settings,
    flags,
    leaves,
    locate,
    read_config,
    read_yaml_text,
    settings,
)

_KEY = re.compile(r"(?:Parser key|Key|key) [\"']([\w.]+)[\"']")
_UNKNOWN = re.compile(
    r"unrecognized arguments: --([\w.+-]+)|[Oo]ption '([\w.]+)' is not accepted"
    r"|[Kk]ey '([\w.]+)' is not expected|[Uu]nrecognized (?:options|keys?)\W+([\w.]+)"
    r"|does not accept option '([\w.]+)'"
)
_NULL = re.compile(r"Unable to load config '(?:null|None)'.*?[Kk]ey [\"']([\w.]+)[\"']")
_POSITIONAL = re.compile(r"unrecognized arguments: ([^-]\S*)")
_NO_VALUE = re.compile(r"argument --([\w.]+)(?:/\S+)?: expected one argument")
_REQUIRED = re.compile(r"arguments are required: (.*)")
_SUBCOMMAND = re.compile(r"argument subcommand: invalid choice: '(.*?)'")
_CLASS = re.compile(r"dot import path string: ([^\s;]+)|Expected a path but (\S+) either not acc")
_TYPE = re.compile(r"Expected an? <class '([\w.]+)'>")
_LITERAL = re.compile(r"typing\.Literal\[(.*?)\]")
_VALUE = re.compile(r"(?:Got|Given) value: (.*)")
_NO_MAPPING = re.compile(r"'(\w+)' object has no attribute 'keys'|Unable to load config [\"']")
_AMBIGUOUS = re.compile(r"Multiple subclasses with name .*?ambiguity: ([\w., ]+)\.")
_NO_CLASS = re.compile(r"Not a valid subclass|argument of type '\w+' is not iterable")
_CLASS_PATH = re.compile(r"Given value: Namespace\(class_path='([\w.]+)'")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_WITH_CLASS = re.compile(
    r"'(?:[\w.]+\.)?class_path' is not accepted|(?:Got|Given) value: .*'class_path'"
)
_NO_SUBCLASS = re.compile(r"Subclasses are disabled for \w+, thus '([\w.]+)'")
_WORDS = ("class_path", "init_args")  # under which a file names a class and gives its arguments
PRECISIONS = ("32-true", "32", "bf16-mixed")  # that do not round small updates away
OWN_PARTS = (  # what every run has anyway, or one that is timed
    "lit_reason.callbacks.summary",
    "lit_reason.checkpoints",
    "lit_reason.dry_run",
    "lit_reason.loggers",
    "lit_reason.peers",
    "lit_reason.record_config",
    "lit_reason.stopping",
)
_EXAMPLES = {"optimizer": "torch.optim.AdamW", "scheduler": "torch.optim.lr_scheduler.LinearLR"}


def explain(
    message: str, args: Sequence[str], types: dict[str, Any], foreign: dict[str, str] | None = None
) -> str:
    r"""One line for one parser error.

    Args:
        message: What jsonargparse says, often over several lines.
        args: The command line, to find the full key and the value there or in its files.
        types: Every key the parser knows, with its type.
        foreign: Keys that only another subcommand knows, with its name.

    Example:
        >>> explain('Parser key "size":\n  Expected a <class \'int\'>. Got value: x',
        ...         ["--data.size=x"], {"data.size": int})
        'data.size=x: expected int'
        >>> explain("unrecognized arguments: --data.siez=3", ["--data.siez=3"], {"data.size": int})
        'data.siez=3: no such key; did you mean data.size?'
    """
    text = "; ".join(line.strip(" -") for line in message.splitlines() if line.strip(" -"))
    given = settings(args)
    if misplaced := _misplaced(text, args):
        return misplaced
    unknown = _UNKNOWN.search(text)
    if unknown:
        key = next(k for k in unknown.groups() if k)
        key, value = locate(key.replace(".init_args.", "."), None, given)
        owner = (foreign or {}).get(".".join(key.split(".")[:2]))
        if owner:
            return f"{key}: belongs to the subcommand {owner}; run it, or give another --config"
        return _unknown_key(key, value, given, types)
    found = _KEY.search(text)
    if null := _NULL.search(text):
        return f"{null.group(1)}=null: cannot be null; leave it out for its defaults"
    if found is not None:
        return _wrong_value(found.group(1), text, given, types)
    return _other(text, given, _advice(args))


def _misplaced(text: str, args: Sequence[str]) -> str | None:
    """One line for what stands in a file beside the name of a class; `None` for another mistake."""
    unknown, found = _UNKNOWN.search(text), _KEY.search(text)
    part = next(k for k in unknown.groups() if k).split(".")[0] if unknown else None
    anything = _WITH_CLASS.search(text) is not None
    if not anything and part is None:
        return None
    within = found.group(1) if found else ""
    owners = [
        (key, content)
        for key, content in _classes_in(args)
        if f"{key}.".startswith(f"{within}." if within else "")
    ]
    for key, content in owners:
        beside = [name for name in content if name not in (*_WORDS, "dict_kwargs")]
        for name in (name for name in beside if anything or name == part):
            if word := difflib.get_close_matches(name, _WORDS, 1, 0.8):
                return f"{key}.{name}: no such key; did you mean {word[0]}?"
            taken = sorted(parameters([cls])) if inspect.isclass(cls := _class_in(content)) else []
            close = [] if name in taken else difflib.get_close_matches(name, taken, 1, 0.6)
            named = f", as {close[0]}" if close else ""
            where = _setting(f"{key}.{name}", content[name])
            return f"{where}: stands beside class_path; put it under init_args{named}"
    return None


def _class_in(content: dict[str, Any]) -> Any:
    """The class that a mapping names, if its module is imported."""
    return _loaded(str(content["class_path"]))


def _setting(key: str, value: Any) -> str:
    """A key with its value as a file writes it; without one that takes many words."""
    if isinstance(value, dict | list):
        return key
    written = {True: "true", False: "false", None: "null"}
    return f"{key}={written[value] if value is None or isinstance(value, bool) else value}"


def _classes_in(args: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping with a class in it, with its full key: of files and of the command line."""
    for name, value in flags(args):
        try:
            if name == "config":
                yield from _classes_below("", read_config(value))
            elif value.lstrip().startswith(("{", "[")):
                yield from _classes_below(name, read_yaml_text(value, name))
        except ConfigError:
            continue


def _classes_below(key: str, content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(content, list):
        for part in content:
            yield from _classes_below(key, part)
    if not isinstance(content, dict):
        return
    if "class_path" in content:
        yield key, content
    for name, part in content.items():
        inner = key if name == "init_args" else f"{key}.{name}".lstrip(".")
        yield from _classes_below(inner, part)


def _advice(args: Sequence[str]) -> str:
    """What to do about a setting that is missing."""
    if any(arg.startswith(("--config", "-c")) for arg in args):
        return "set it"
    start = "cold_start" if args[:1] == ["cold_start"] else "quickstart"
    return f"start from --config=configs/{start}.yaml, or set it"


def _other(text: str, given: Settings, advice: str) -> str:
    """Messages without a key of the configuration."""
    if match := _POSITIONAL.search(text):
        return f"{match.group(1)}: not an option; write --KEY=VALUE"
    if match := _NO_VALUE.search(text):
        return f"{match.group(1)}: no value given; write --{match.group(1)}=VALUE"
    if match := _SUBCOMMAND.search(text):
        known = "fit, validate, test, predict, cold_start"
        return f"subcommand {match.group(1)}: does not exist; choose one of {known}"
    if match := _NO_SUBCLASS.search(text):
        key = next((key for key, value in given if value == match.group(1)), "class_path")
        return f"{key}={match.group(1)}: no class can be named here; give the settings themselves"
    if match := _REQUIRED.search(text):
        names = match.group(1).split(", ")
        nulls = [k for k, v in given if v == "null" and k.rpartition(".")[2] in names]
        if nulls:
            return f"{nulls[-1]}=null: cannot be null"
        keys = ", ".join(_whose(key.split(".", 1)[-1], given) for key in names)
        return f"{keys}: not set; {advice}"
    return text


def _loaded(path: str) -> Any:
    """What a dotted path or the short name of a part stands for; `None` for nothing."""
    module, _, name = path.rpartition(".")
    if module:
        return getattr(sys.modules.get(module), name, None)
    parts = (m for n, m in list(sys.modules.items()) if n.startswith("lit_reason."))
    return next((getattr(m, name) for m in parts if hasattr(m, name)), None)


def _whose(argument: str, given: Settings) -> str:
    """The full key of an argument that a class among the settings needs and did not get."""
    left = effective(given)
    for key, value in left.items():
        cls = _loaded(value)
        if f"{key}.{argument}" in left or not inspect.isclass(cls):
            continue
        taken = inspect.signature(cls.__init__).parameters.get(argument)  # type: ignore[misc]
        if taken is not None and taken.default is taken.empty:
            return f"{key}.{argument}"
    return argument


def effective(given: Settings) -> dict[str, str]:
    """What is left of settings in layers: another class takes the arguments of the earlier away."""
    left: dict[str, str] = {}
    for key, value in given:
        if left.get(key, value) != value:
            left = {k: v for k, v in left.items() if not k.startswith(f"{key}.")}
        left[key] = value
    return left


def _wrong_value(name: str, text: str, given: Settings, types: dict[str, Any]) -> str:
    missing, stated = _CLASS.search(text), _VALUE.search(text)
    value = stated.group(1).split(";")[0] if stated else None
    class_name = (missing.group(1) or missing.group(2)) if missing else None
    key, value = locate(name, value, given, class_name)
    where = f"{key}={value}" if value else key
    if "is abstract" in text:
        return _abstract(key, value or class_name or "", given, types)
    hint = _type_of(key, given, types)
    reason = (
        _wrong_choice(key, text)
        or _left_out(key, class_name, hint)
        or _wrong_form(key, value, text, given, types)
        or _wrong_class(key, value, class_name, text, _type_of(key, given, types))
        or _wrong_type(text, value)
    )
    if reason:
        shown = f"{key}={class_name}" if class_name and not value else where
        return reason if reason.startswith(key) else f"{shown}: {reason}"
    return re.sub(r"^(?:Parser )?[Kk]ey \"[\w.]+\":;? ?", f"{where}: ", text)


def _wrong_choice(key: str, text: str) -> str | None:
    """Another word than those that may stand there, or one that stands for several classes."""
    if ambiguous := _AMBIGUOUS.search(text):
        return f"several classes have this name; choose one of {ambiguous.group(1)}"
    if key == "trainer.precision":
        return f"choose one of {', '.join(PRECISIONS)}"
    if words := _LITERAL.findall(text):
        known = [word.strip("' ") for literal in words for word in literal.split(",")]
        known += ["true", "false"] if "bool" in _expected(text) else []
        return f"choose one of {', '.join(dict.fromkeys(known))}"
    return None


def _left_out(key: str, class_name: str | None, hint: Any) -> str | None:
    if class_name != "null":
        return None
    return f"{key}=null: cannot be left out; {class_hint(key, hint)}"


def _wrong_form(
    key: str, value: str, text: str, given: Settings, types: dict[str, Any]
) -> str | None:
    """A value where settings of their own belong, or the other way round."""
    arguments = [k for k, _ in given if k.startswith(f"{key}.") and ".init_args." in k]
    if is_family(types.get(key)) and value.startswith("{'init_args.") and arguments:
        return _unknown_key(arguments[-1], dict(given)[arguments[-1]], given, types)
    if is_family(types.get(key)):
        return f"holds parts under names of their own; write {key}.NAME={value or 'CLASS'}"
    if not _NO_MAPPING.search(text):
        return None
    if "Problem with given class_path" in text:
        return f"{key}.init_args={value}: expected a mapping of arguments to values"
    inner = next((name for name in types if name.startswith(f"{key}.")), None)
    return f"expected settings of their own, for example {inner}" if inner else None


def _wrong_class(key: str, value: str, class_name: str | None, text: str, hint: Any) -> str | None:
    """Something that names no class which fits."""
    if _NO_CLASS.search(text):
        return f"names no class; {class_hint(key, hint)}"
    if class_name is None and value and _DOTTED.fullmatch(value) and _named_classes(hint):
        class_name = value
    if class_name and (not _expected(text) or _named_classes(hint)):
        return f"{key}={class_name}: {_class_fault(class_name, hint)}; {class_hint(key, hint)}"
    return None


def _expected(text: str) -> list[str]:
    return [t for t in dict.fromkeys(_TYPE.findall(text)) if t != "NoneType"]


def _wrong_type(text: str, value: str = "") -> str | None:
    expected = _expected(text)
    if "float" in expected and value.strip("'\"+-").lower() in ("nan", "inf"):  # words in YAML
        return "expected a number"
    null = ", or null" if "NoneType" in _TYPE.findall(text) else ""
    return f"expected {' or '.join(expected)}{null}" if expected else None


def _abstract(key: str, value: str, given: Settings, types: dict[str, Any]) -> str:
    """A class that cannot be built was named, or none where only its arguments were given."""
    nameless = [k for k, _ in given if k.startswith(f"{key}.") and "." in k[len(key) + 1 :]]
    nameless = [k for k in nameless if k.rpartition(".")[0] not in dict(given)]
    if nameless:
        return _unknown_key(nameless[-1], dict(given)[nameless[-1]], given, types)
    if dict(given).get(key) == value:
        return f"{key}={value}: is abstract; {class_hint(key, _type_of(key, given, types))}"
    return f"{key}: name its class first; put --config before flags that change parts of it"


def _class_fault(path: str, hint: Any) -> str:
    """Why `path` names no class that fits."""
    module, _, name = path.rpartition(".")
    if not module:
        return f"no class {path}"
    try:
        found = getattr(importlib.import_module(module), name, None)
    except RAISED as error:
        return f"module {module} cannot be imported ({type(error).__name__}: {said(error)})"
    wanted = " or ".join(b.__name__ for b in bases(hint) if b.__module__ != "builtins")
    if found is None:
        return f"module {module} has no {name}"
    return (
        f"{name} is not a subclass of {wanted}" if inspect.isclass(found) else f"{name} is no class"
    )


def check_own_parts(config: Mapping[str, Any], types: dict[str, Any]) -> None:
    """Refuses callbacks and loggers that the command line adds itself.

    Args:
        config: As dicts.
        types: Every key the parser knows, with its type.

    Raises:
        ConfigError: The first such part.
    """
    for section in ("callbacks", "trainer"):
        for key, value in leaves(f"{section}.", config.get(section) or {}):
            cls = _loaded(value) if "." in value else None
            if inspect.isclass(cls) and cls.__module__ in OWN_PARTS:
                hint = class_hint(key, _type_of(key, [], types))
                raise ConfigError(f"{key}={cls.__name__}: is a part of the run itself; {hint}")


def class_hint(key: str, hint: Any) -> str:
    """Which classes may be named at a key of this type."""
    choices = ", ".join(c.__name__ for c in _named_classes(hint))
    if choices:
        return f"choose one of {choices}, or the dotted path of your own"
    example = next((v for k, v in _EXAMPLES.items() if key.endswith(k)), "my_file.MyClass")
    return f"give the dotted path of a class, for example {example}"


def import_fault(error: BaseException, given: Settings) -> str | None:
    """One line for an exception that a file of the user's raised when it was imported.

    Args:
        error: The exception.
        given: Where the class that it holds may have been named.
    """
    where, place = users_frame(error) or ("", "")
    if isinstance(error, SyntaxError):
        where, place = "<module>", f"{Path(error.filename or '').name}:{error.lineno}"
    if where != "<module>":
        return None
    stem = place.rpartition(".py:")[0]
    named = next((f"{k}={v}" for k, v in given if v.split(".")[-2:-1] == [stem]), place)
    return f"{named}: module {stem} cannot be imported ({type(error).__name__}: {said(error)})"


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
    if not reasons:
        return None
    path = _CLASS_PATH.search(message)
    module, _, name = path.group(1).rpartition(".") if path else ("lit_reason", "", "")
    # the package's own parts name their keys, a part of the user's may say anything
    of_user = not module.startswith("lit_reason") and not reasons[0].startswith(name)
    return f"{name}.__init__: {reasons[0]}" if of_user else reasons[0]


# --- what there is --------------------------------------------------------------------------------


def _unknown_key(key: str, value: str, given: Settings, types: dict[str, Any]) -> str:
    key = key.replace(".init_args.", ".")  # which may be left out
    where = f"{key}={value}" if value else key
    if key.endswith(".class_path"):
        return f"{where}: no class can be named here; see --help for the keys there"
    if misspelt := re.search(r"(?:^|\.)((?:init_|class_)\w+)", key):
        # beside class_path, as the parser knows it before it looks into the class
        word = difflib.get_close_matches(misspelt[1], ("init_args", "class_path"), 1, 0.6)
        owner = _owner(misspelt[1], given)
        if word:
            return f"{owner}: no such key; did you mean {word[0]}?"
    parent, _, last = key.rpartition(".")
    family, _, member = parent.rpartition(".")
    if is_family(types.get(family)):
        members = sorted({k for k, _ in given if k.rpartition(".")[0] == family})
        if parent not in members:
            close = difflib.get_close_matches(parent, members, 1, 0.6) or members
            hint = f"did you mean {close[0]}.{last}?" if close else "name its class first"
            return f"{where}: {family} has no {member}; {hint}"
    owners = _chosen_classes(parent, given, types)
    beside = {n for n in types if n.rpartition(".")[0] == parent}
    siblings = sorted({*beside, *(f"{parent}.{p}".lstrip(".") for p in parameters(owners))})
    close = difflib.get_close_matches(key, siblings, 1, 0.6)
    close = close or difflib.get_close_matches(key, types, 1, 0.6)
    if close:
        hint = f"did you mean {close[0]}?"
    elif siblings:
        hint = f"choose one of {', '.join(siblings)}"
    else:
        hint = f"see --help for the keys beside {last!r}"
    return f"{where}: no such key; {hint}"


def _owner(part: str, given: Settings) -> str:
    """The full key up to `part`, as it was given."""
    found = next((k for k, _ in given if part in k.split(".")), part)
    names = found.split(".")
    return ".".join(names[: names.index(part) + 1])


def is_family(hint: Any) -> bool:
    """Whether a key holds named parts, like `callbacks`."""
    return get_origin(hint) is dict or any(get_origin(part) is dict for part in get_args(hint))


def _chosen_classes(key: str, given: Settings, types: dict[str, Any]) -> list[type]:
    """The class that was given for `key`, or else all that could have been."""
    classes = _named_classes(_type_of(key, given, types))
    chosen = next((v.rpartition(".")[2] for k, v in reversed(given) if k == key), None)
    return [c for c in classes if c.__name__ == chosen] or classes


def _type_of(key: str, given: Settings, types: dict[str, Any]) -> Any:
    """The type of `key`, looked up in the classes chosen above it where the parser has none."""
    if key in types or not key:
        return types.get(key)
    parent, _, last = key.rpartition(".")
    above = _type_of(parent, given, types)
    if is_family(above):
        return above
    hints = [get_type_hints(c.__init__) for c in _chosen_classes(parent, given, types)]  # type: ignore[misc]
    return next((h[last] for h in hints if last in h), None)


def bases(hint: Any) -> Iterable[type]:
    """The classes in a type."""
    if inspect.isclass(hint) and hint is not type(None):
        yield hint
    for part in get_args(hint):
        if not isinstance(part, list):
            yield from bases(part)


def _subclasses(base: type) -> Iterable[type]:
    if base.__module__ != "builtins":
        yield base
        children: list[type] = base.__subclasses__()
        for child in children:
            yield from _subclasses(child)


def _named_classes(hint: Any) -> list[type]:
    """The classes that a configuration may name for `hint`."""
    classes = {c for base in bases(hint) for c in _subclasses(base)}
    modules = ("lit_reason.", "lightning.pytorch.loggers.")
    hidden = (*OWN_PARTS, "lit_reason.cli", "lightning.pytorch.loggers.logger")
    named = [
        c
        for c in classes
        if not inspect.isabstract(c)
        and c.__module__.startswith(modules)
        and c.__module__ not in hidden
    ]
    return sorted(named, key=lambda c: c.__name__)


def parameters(classes: Iterable[type]) -> set[str]:
    """Names of the arguments that the classes take."""
    found = (inspect.signature(c.__init__).parameters for c in classes)  # type: ignore[misc]
    return {p for parameters in found for p in parameters if p != "self"}
