"""Values that sound secret: in no message, no file of a run and no logger."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

HIDDEN = "…"  # stands for a secret
_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")  # of an address, with a password
# names with such a part, but for tokens of text
_PART = r"secret|passw|passphrase|credential|(?:api|access|private|auth)[_-]?key|authorization"
_OF_TEXT = r"(?:pad|eos|bos|unk|sep|cls|mask|image|stop|per|end|start|first|last|next)_token\b"
_NAME = rf"(?:[\w.-]*?(?:{_PART})[\w.-]*|(?!(?:[\w-]*\.)*{_OF_TEXT})[\w.-]*?token(?:\.[\w.-]+)?)"
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_SECRET = re.compile(
    # key=value to where a message goes on; 'key': 'value'; and {key: value}
    rf"((?<![\w.-]){_NAME}=)(?:{_QUOTED}|(?!['\"]).*?(?=: |; |$)|.*$)"
    rf"|((?P<q>['\"]){_NAME}(?P=q)\s*:\s*)(?:{_QUOTED}|[^,}}\]]+)"
    rf"|([{{,]\s*{_NAME}:\s)(?:{_QUOTED}|[^,}}]+)",
    re.I,
)
_SECRET_KEY = re.compile(_NAME, re.I)
_QUERY = re.compile(rf"(?<=[?&])({_NAME})=[^&#\s]+", re.I)  # of an address
SHORTEST = 4  # letters of a secret that is looked for in texts; fewer stand in any word


def masked(text: str, given: Iterable[tuple[str, str]] = ()) -> str:
    """A text in which the values of keys that sound secret, and users in addresses, are not told.

    Args:
        text: One line.
        given: Keys with their values, which are found also where no key stands before them.

    Example:
        >>> masked("engine.token=a, b: no such key; {'password': 'c'}; max_tokens=3")
        "engine.token=…: no such key; {'password': …}; max_tokens=3"
        >>> masked("Got value: a bc", [("engine.password", "a bc")])
        'Got value: …'
    """
    for key, value in given:
        if len(value) >= SHORTEST and _SECRET_KEY.fullmatch(key):
            text = text.replace(value, HIDDEN)
    return _SECRET.sub(lambda m: f"{m[1] or m[2] or m[4]}{HIDDEN}", _USER.sub(HIDDEN, text))


def without_secrets(text: str) -> str:
    r"""A configuration as it is written down: with `HIDDEN` for texts under keys that sound secret.

    Args:
        text: As YAML; returned as it is if it has no secret.

    Example:
        >>> without_secrets("url: http://me:pw@host\nengine: {api_key: abc, max_tokens: 3}")
        'url: http://…@host\nengine:\n  api_key: …\n  max_tokens: 3\n'
    """
    content = yaml.safe_load(text)
    found = list(_secrets(content))
    for parent, key, hidden in found:
        parent[key] = hidden
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if found else text


def hidden_key(config: Any) -> str | None:
    """The key of the first value that `without_secrets` took out; `None` if it took none.

    Args:
        config: As lists and dicts.

    Example:
        >>> hidden_key({"engine": {"token": "…"}})
        'engine.token'
    """
    if isinstance(config, dict | list):
        for name, value in _items(config):
            hides = isinstance(value, str) and HIDDEN in value
            if hides and (value == HIDDEN or "://" in value):
                return str(name)
            below = hidden_key(value)
            if below is not None:
                return f"{name}.{below}"
    return None


def _secrets(content: Any, key: str = "") -> Iterator[tuple[Any, Any, str]]:
    """(list or dict, place in it, what to write there) of each secret."""
    if not isinstance(content, dict | list):
        return
    for name, value in _items(content):
        # what is called like a secret may be a part, whose arguments are none
        full = "" if name == "init_args" else f"{key}.{name}".lstrip(".")
        if not isinstance(value, str):
            yield from _secrets(value, full)
        elif value and name != "class_path" and _SECRET_KEY.fullmatch(full):
            yield content, name, HIDDEN
        elif "://" in value:
            told = _QUERY.sub(rf"\1={HIDDEN}", _USER.sub(HIDDEN, value))
            if told != value:
                yield content, name, told


def _items(content: dict[Any, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    return list(content.items() if isinstance(content, dict) else enumerate(content))
