"""Values that sound secret: in no message, no file of a run and no logger."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

HIDDEN = "…"  # stands for a secret
# of an address, with a password, which may hold a slash
_USER = re.compile(
    # a port is no password
    r"(:/+)(?:[^\s/@'\"]{1,256}|[^\s/:@'\"]{1,256}:(?!\d{1,5}/)[^\s@'\"]{0,256})(?=@)"
)
_CREDENTIAL = re.compile(r"\b((?:[Bb]earer|BEARER|Basic)\s+)[^\s'\",;)\]}]+")  # of a header
# names with such a part, but for tokens of text
_PART = re.compile(
    r"secret|passw|pwd|passphrase|credential|cookie|authorization"
    r"|(?:api|access|private|auth|ssh)[._-]?key",
    re.I,
)
_TOKEN = re.compile(r"token(?:\.|$)", re.I)
_OF_TEXT = re.compile(
    r"(?:^|[._])(?:pad|eos|bos|unk|sep|cls|mask|image|stop|per|end|start|first|last|next|step|think"
    r"|answer|tool|turn)_token\b",
    re.I,
)
_SIGNATURE = re.compile(r"sig(?:nature)?$", re.I)  # of an address
_KEY = re.compile(r"(?:(?P<q>['\"])(?P<quoted>[\w.-]+)(?P=q)|(?<![\w.-])(?P<bare>[\w.-]+))\s*[=:]")
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
# what stands behind key=, to where a message goes on; 'key': ; {key: ; and key: among words
_AFTER_EQUALS = re.compile(rf"(?:{_QUOTED})(?![\w'\"])|(?!['\"]).*?(?=: |; |$)|.*$")
_IN_ADDRESS = re.compile(r"[^&#\s'\"]*?(?=: |; |[&#\s'\"]|$)")
_IN_MAPPING = re.compile(rf"\s*(?:{_QUOTED}|[^,}}\]]+)")
_IN_WORDS = re.compile(rf" ?(?:{_QUOTED}|(?:bearer|basic) \S+|\S{{4,}})", re.I)
_ALL = re.compile(r".*")
_OURS = ("model.", "data.", "trainer.", "callbacks.")  # how the keys of messages begin
_DOTTED = re.compile(r"(?:key|token|password|pwd|secret|authorization|cookie)$", re.I)
_QUERY = re.compile(r"(?<=[?&])([\w.-]+)=[^&#\s]+")  # of an address
SHORTEST = 4  # letters of a secret that is looked for in texts; fewer stand in any word
LONGEST = 20_000  # letters of a message that are shown


def sounds_secret(name: str) -> bool:
    """Whether what stands under a name, which may be a full key, is not to be told.

    Example:
        >>> [sounds_secret(name) for name in ("data.engine.token", "x-api-key", "eos_token")]
        [True, True, False]
    """
    if _PART.search(name):
        return True
    return _TOKEN.search(name) is not None and _OF_TEXT.search(name) is None


def masked(text: str, given: Iterable[tuple[str, str]] = ()) -> str:
    """A text in which the values of keys that sound secret, and users in addresses, are not told.

    Args:
        text: One line; of a very long one the beginning is returned.
        given: Keys with their values, which are found also where no key stands before them.

    Example:
        >>> masked("engine.token=a, b: no such key; {'password': 'c'}; max_tokens=3")
        "engine.token=…: no such key; {'password': …}; max_tokens=3"
        >>> masked("401 for Authorization: Bearer abcd")
        '401 for Authorization: …'
        >>> masked("Got value: a bc", [("engine.password", "a bc")])
        'Got value: …'
    """
    for key, value in given:
        if len(value) >= SHORTEST and sounds_secret(key):
            text = text.replace(value, HIDDEN)
    if len(text) > LONGEST:
        text = text[:LONGEST] + HIDDEN
    text = _CREDENTIAL.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}", text))
    told, place = [], 0
    while key_found := _KEY.search(text, place):
        told.append(text[place : key_found.end()])
        place = key_found.end()
        kind = _value_behind(key_found)
        hidden = kind.match(text, place) if kind else None
        if hidden and hidden[0]:
            space = " " if hidden[0].startswith(" ") else ""
            told.append(f"{space}{HIDDEN}")
            place = hidden.end()
    return "".join([*told, text[place:]])


def _value_behind(key: re.Match[str]) -> re.Pattern[str] | None:
    """What to hide behind a key; `None` hides nothing."""
    name, text = key["quoted"] or key["bare"], key.string
    before = text[: key.start()].rstrip(" ")[-1:]
    equals = key[0].endswith("=")
    if equals and before in ("?", "&") and (sounds_secret(name) or _SIGNATURE.search(name)):
        return _IN_ADDRESS
    if not sounds_secret(name):
        return None
    spaced = text[key.end() : key.end() + 1].isspace()
    if equals:
        return _IN_WORDS if key["quoted"] or spaced else _AFTER_EQUALS
    if key["quoted"] or (before in ("{", ",") and spaced):
        return _IN_MAPPING
    # not of messages of ours, nor of files, as in token.py:1234 or runs/token: cannot be written
    if name.startswith(_OURS) or before == "/" or ("." in name and not _DOTTED.search(name)):
        return None
    return _ALL if name.lower().endswith("cookie") else _IN_WORDS


def without_secrets(text: str) -> str:
    r"""A configuration as it is written down: with `HIDDEN` for texts under keys that sound secret.

    Args:
        text: As YAML; returned as it is if it has no secret.

    Example:
        >>> without_secrets("url: http://me:pw@host\nengine: {api_key: abc, max_tokens: 3}")
        'url: http://…@host\nengine:\n  api_key: …\n  max_tokens: 3\n'
    """
    content = yaml.safe_load(text)
    found = False
    for parent, name, _, within in _places(content):
        written = _written(within, parent[name])
        found |= written != parent[name]
        parent[name] = written
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if found else text


def hidden_key(config: Any) -> str | None:
    """The key of the first value that `without_secrets` wrote for another; `None` if there is none.

    Args:
        config: As lists and dicts.

    Example:
        >>> hidden_key({"stop": "…", "engine": {"token": "…"}})
        'engine.token'
    """
    for parent, name, key, within in _places(config):
        value = parent[name]
        if HIDDEN in value and _written(within, value.replace(HIDDEN, "secret")) == value:
            return key
    return None


def _written(key: str, value: str) -> str:
    """A text as it is written down."""
    if value and key.rpartition(".")[2] != "class_path" and sounds_secret(key):
        return HIDDEN
    if "://" in value:
        return _QUERY.sub(_without_value, _USER.sub(rf"\1{HIDDEN}", value))
    return value


def _places(content: Any, key: str = "", within: str = "") -> Iterator[tuple[Any, Any, str, str]]:
    """(list or dict, place in it, key, key within the innermost part) of each text."""
    if not isinstance(content, dict | list):
        return
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for name, value in list(items):
        full = f"{key}.{name}".lstrip(".")
        # what is called like a secret may be a part, whose arguments are none
        inner = "" if name == "init_args" else f"{within}.{name}".lstrip(".")
        if isinstance(value, str):
            yield content, name, full, inner
        else:
            yield from _places(value, full, inner)


def _without_value(parameter: re.Match[str]) -> str:
    """A parameter of an address, without its value if that is secret."""
    name = parameter[1]
    secret = sounds_secret(name) or _SIGNATURE.search(name)
    return f"{name}={HIDDEN}" if secret else parameter[0]
