"""Values that sound secret: in no message, no file of a run and no logger."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import yaml

HIDDEN = "…"  # stands for a secret
PROBE = "secret-1"  # what every rule takes for a secret
# of an address, with a password, which may hold an @ or a slash
_USER = re.compile(
    # a port is no password
    r"(?<=:/)(?P<slash>/*)"
    r"(?P<secret>[^\s/'\"]{1,256}|[^\s/:@'\"]{1,256}:(?!\d{1,5}/)[^\s@'\"]{0,256})(?=@)"
)
_CREDENTIAL = re.compile(r"\b((?:[Bb]earer|BEARER|Basic)\s+)[^\s'\",;)\]}]+")  # of a header
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # in camelCase
# the parts of a key are looked at one by one, in small letters, with _ between words
_PART = re.compile(
    r"(?:secret|passw(?:or[dt]|d)?|passphrase|pwd|credential|authorization"
    r"|(?:api|access|private|auth|ssh|secret)_?key(?:_?id)?"
    r"|(?<![a-z])(?:account|aes|anthropic|azure|comet|decryption|deploy|encryption|google|hf|hmac"
    r"|hub|license|master|mistral|neptune|openai|service|session|shared|signing|subscription"
    r"|wandb)_?key"
    r"|(?:access|api|auth|bearer|bot|csrf|github|hf|hub|login|oauth|personal|refresh|service"
    r"|session|wandb)_?token)s?\d*(?![a-z])"
    r"|(?:db|ftp|login|proxy|smtp|user)_?pass$"
    r"|(?:cookies?|(?<![a-z])(?:auth|bearer|jwt))(?:_(?:data|header|string|text|value))?\d*$"
)
# of names that say something else about a secret: how many there are, or where one is looked up
_DESCRIBED = re.compile(
    r"^(?:max|min|n|num|total)_|_(?:columns?|count|dir|directory|env|field|file|filename|folder"
    r"|format|length|limit|loss|name|names|path|policy|prompt|reward|size|template|type|weight)$"
)
_TOKEN = re.compile(r"token\d*(?:_(?:string|text|value))?$")
_OF_TEXT = re.compile(
    r"(?:^|_)(?:added|answer|assistant|begin|blank|bos|cls|control|delimiter|end|eod|eom|eos|eot"
    r"|extra|fim|first|im_end|im_start|image|last|mask|max|middle|min|newline|next|pad|per|prefix"
    r"|role|sep|separator|space|special|split|start|step|stop|suffix|system|text|think|thinking"
    r"|tool|turn|unk)_?token"
)
# one secret a name; as a single word they are those of a text, `all` or `last`
_TOKENS = re.compile(r"(?:^|\.)tokens\.")
_KEY_OF = re.compile(r"\.(?=key$)")  # api.key
_FAMILY = re.compile(r"^-*(?:callbacks|data\.rewards|model\.terms)\.\w+")  # names that users choose
_QUERIED = re.compile(r"(?:code|key|sig(?:nature)?)$", re.I)  # of an address
_MARK = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")  # of a text, as </s>
_WORD = re.compile(r"(?:true|false|null|none)$", re.I)
COUNT = 3  # digits of a number that is no secret
VOCABULARY = 6  # and of one that may name a token of text
_KEY = re.compile(r"(?:(?P<q>['\"])(?P<quoted>[\w.-]+)(?P=q)|(?<![\w.-])(?P<bare>[\w.-]+))\s*[=:]")
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
# what stands behind key=, to where a message goes on; 'key': ; {key: ; and key: among words
_AFTER_EQUALS = re.compile(
    r"(?:\{[^}]*\}+|\[[^\]]*\]+)(?=: |; |$)"
    rf"|(?:{_QUOTED})(?![\w'\"])|(?!['\"]).*?(?=: |; |$)|.*$"
)
_IN_ADDRESS = re.compile(r"[^&#\s'\"]*?(?=: |; |[&#\s'\"]|$)")
_IN_MAPPING = re.compile(rf"\s*(?:{_QUOTED}|\[[^\]]*\]?|\{{[^}}]*\}}?|[^,}}\]]+)")
_IN_WORDS = re.compile(rf" ?(?:{_QUOTED}|(?:bearer|basic) \S+|\S{{4,}})", re.I)
_SEVERAL = re.compile(r"\s*(?:\[\s*['\"A-Za-z][^\]]*\]?|\{[^}]*\}?)")
_ALL = re.compile(r".*")
_FLAG_AND_VALUE = re.compile(
    r"(?<![\w-])(?P<before>--(?P<name>[\w.-]+)['\"]?,?\s+['\"]?)(?!-)(?P<secret>[^\s'\",\]]{4,})"
)
_NAME_AND_VALUE = re.compile(
    rf"(?P<before>name['\"]?: ['\"]?(?P<name>[\w.-]+)['\"]?, ['\"]?value['\"]?: )"
    rf"(?P<secret>{_QUOTED}|[^\s,}}]+)"
)
_DOTTED = re.compile(r"(?:key|token|password|pwd|secret|authorization|cookie)$", re.I)
_OURS = ("model.", "data.", "trainer.", "callbacks.")  # how the keys of messages begin
# what values carry: ?name= of an address; NAME=; --name= and --name ; name: of a header; Bearer
_QUERY = re.compile(r"(?<=[?&#;])(?P<name>[\w.-]+)=(?P<secret>[^&#;\s'\"]+)")
_NAMED = (
    re.compile(r"(?<![\w.?&#-])(?P<name>[A-Za-z_][\w.-]*)=(?P<secret>[^\s;'\"]+)"),
    re.compile(r"(?<![\w-])--(?P<name>[\w.-]+)[ =]\s*(?!-)(?P<secret>[^\s'\"]+)"),
    re.compile(
        r"(?<![\w.-])(?P<name>(?i:authorization|cookie)|[A-Za-z]+(?:-[A-Za-z]+)+)\s*:\s*"
        r"(?P<secret>(?:(?i:bearer|basic|token)\s+)?[^\s'\",]+)"
    ),
)
_NAMED_ALONE = (  # of whole texts
    re.compile(r"\s*--(?P<name>[\w.-]+)=(?P<secret>.+)", re.S),
    re.compile(r"\s*(?P<name>[\w-]+)\s*:\s*(?P<secret>[^\s{}]+)\s*"),
    re.compile(r"\s*(?P<name>(?i:(?:proxy-)?authorization|(?:set-)?cookie))\s*:\s*(?P<secret>.+)"),
)
_BEARER = re.compile(r"\b(?i:bearer)\s+(?P<secret>(?=[^\s'\",]*\d)[^\s'\",]{6,})")
_SCHEME = re.compile(
    r"\s*(?:(?i:bearer)\s+(?=\S)|"
    # Basic arithmetic is no credential
    r"(?i:basic|token)\s+(?=\S*[\d=+/._-]|\S*[a-z][A-Z]))(?P<secret>\S+)\s*"
)
_REFERENCE = re.compile(r"\$\{?[A-Z_][A-Z0-9_]*\}?|\{\w*\}.*")  # to the environment; of a template
SHORTEST = 4  # letters of a secret that is looked for in texts; fewer stand in any word
LONGEST = 20_000  # letters of a message that are shown


def sounds_secret(name: str) -> bool:
    """Whether what stands under a name, which may be a full key, is not to be told.

    Example:
        >>> [sounds_secret(name) for name in ("data.engine.token", "x-api-key", "eos_token")]
        [True, True, False]
        >>> [sounds_secret(name) for name in ("dbPassword", "passwordless", "password_column")]
        [True, False, False]
    """
    words = _HUMP.sub("_", _KEY_OF.sub("_", name)).lower().replace("-", "_")
    return any(map(_part_sounds_secret, words.split(".")))


def _sounds_given(key: str) -> bool:
    """`sounds_secret` of a key that was given, in which users choose the names of some parts."""
    own = _FAMILY.sub("", key)
    return sounds_secret(own) or _TOKENS.search(own) is not None


def _part_sounds_secret(words: str) -> bool:
    if _DESCRIBED.search(words):
        return False
    if _PART.search(words):
        return True
    return _TOKEN.search(words) is not None and _OF_TEXT.search(words) is None


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
        for secret in _secrets(key, value):
            text = text.replace(secret, HIDDEN)
    if len(text) > LONGEST:
        text = text[:LONGEST] + HIDDEN
    text = _CREDENTIAL.sub(rf"\1{HIDDEN}", _USER.sub(rf"\g<slash>{HIDDEN}", text))
    for pattern in (_FLAG_AND_VALUE, _NAME_AND_VALUE):
        text = pattern.sub(_without_value, text)
    told, place = [], 0
    while key_found := _KEY.search(text, place):
        told.append(text[place : key_found.end()])
        place = key_found.end()
        kind = _value_behind(key_found)
        hidden = kind.match(text, place) if kind else None
        if hidden and hidden[0] and not _WORD.match(hidden[0].strip()):
            space = " " if hidden[0].startswith(" ") else ""
            told.append(f"{space}{HIDDEN}")
            place = hidden.end()
    return "".join([*told, text[place:]])


def _secrets(key: str, value: str) -> list[str]:
    """What of a value that was given is looked for in a message."""
    secret = _sounds_given(key)
    found = [value] if secret else [value[a:b] for a, b in _carried(value)]
    if value[:1] in ("[", "{") and (secret or _TOKENS.search(f"{key}.")):
        found += re.findall(r"[^\s\[\]{},:'\"]+", value)
    return [x for x in found if len(x) >= SHORTEST and not _is_ordinary(key, x)]


def _without_value(found: re.Match[str]) -> str:
    """A name, and its value if that is not secret."""
    secret = _sounds_given(found["name"]) and not _WORD.match(found["secret"])
    return f"{found['before']}{HIDDEN}" if secret else found[0]


def _value_behind(key: re.Match[str]) -> re.Pattern[str] | None:
    """What to hide behind a key; `None` hides nothing."""
    name, text = key["quoted"] or key["bare"], key.string
    before = text[: key.start()].rstrip(" ")[-1:]
    equals = key[0].endswith("=")
    secret = _sounds_given(name)
    queried = text[max(key.start() - 1, 0) : key.start()] in tuple("?&#;")
    if equals and queried and (secret or _QUERIED.match(name)):
        return _IN_ADDRESS
    if not secret:
        return _SEVERAL if _TOKENS.search(f"{name}.") else None
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
    r"""A configuration as it is written down: with `HIDDEN` for what is not to be told.

    That is what stands under keys that sound secret, or what values themselves carry, as headers
    and addresses do. The default of a class is no secret, as its source holds it.

    Args:
        text: As YAML; returned as it is if it has no secret.

    Example:
        >>> without_secrets("url: http://me:pw@host\nengine: {api_key: abc, max_tokens: 3}")
        'url: http://…@host\nengine:\n  api_key: …\n  max_tokens: 3\n'
    """
    content = yaml.safe_load(text)
    found = _hide(content)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if found else text


def command_without_secrets(words: Sequence[str]) -> list[str]:
    """A command as it is written down.

    Example:
        >>> command_without_secrets(["fit", "--a.token=x", "--url=http://me:pw@host", "--pwd", "y"])
        ['fit', '--a.token=…', '--url=http://…@host', '--pwd', '…']
    """
    told, behind = [], ""  # the flag before, whose value a word without one may be
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else (behind, "", word)
        behind = "" if equals or not word.startswith("--") else word
        if flag == word:
            told.append(word)
        else:
            shown = setting_without_secrets(flag.removeprefix("--"), value)
            told.append(f"{flag}={shown}" if equals else shown)
    return told


def setting_without_secrets(key: str, value: str) -> str:
    """The value of a key of the command line, which may be a mapping, as it is written down.

    Example:
        >>> setting_without_secrets("data.engine", "{class_path: Mine, init_args: {token: abc}}")
        '{class_path: Mine, init_args: {token: …}}'
    """
    key = _FAMILY.sub("", key)
    content: Any = value
    with suppress(yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError):
        content = yaml.safe_load(value)
    whole = {key: content}
    if isinstance(content, dict | list) and value.lstrip()[:1] in ("{", "["):
        if not _hide(whole):
            return value
        flow: Any = {"default_flow_style": True, "allow_unicode": True, "width": sys.maxsize}
        return yaml.safe_dump(whole[key], sort_keys=False, **flow).strip()
    if isinstance(content, int | float):  # a count is no secret
        return HIDDEN if _written(key, content) == HIDDEN else value
    return str(_written(key, value))


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
        if not isinstance(value, str) or HIDDEN not in value:
            continue
        if _written(within, value.replace(HIDDEN, PROBE)) == value:
            return key
    return None


def _hide(content: Any) -> bool:
    """Replaces every secret in lists and dicts; whether there was one."""
    found = False
    for parent, name, _, within in _places(content):
        written = _written(within, parent[name])
        found |= written is not parent[name]
        parent[name] = written
    return found


def _written(key: str, value: Any) -> Any:
    """A value as it is written down; the same object if it is no secret."""
    if value is None or isinstance(value, bool) or key.rpartition(".")[2] == "class_path":
        return value
    if sounds_secret(key) or _TOKENS.search(key):
        return value if _is_ordinary(key, value) or value == HIDDEN else HIDDEN
    if isinstance(value, str):
        for start, end in reversed(_carried(value)):
            value = value[:start] + HIDDEN + value[end:]
    return value


def _is_ordinary(key: str, value: Any) -> bool:
    """Whether a value is no secret even under a key that sounds so: a count, or a mark of text."""
    if isinstance(value, str):
        of_text = "token" in key.lower() and _MARK.fullmatch(value) is not None
        return of_text or value == "" or _WORD.match(value) is not None
    digits = VOCABULARY if "token" in key.lower() else COUNT
    return isinstance(value, int | float) and len(str(value)) <= digits


def _carried(value: str) -> list[tuple[int, int]]:
    """Where secrets begin and end in a text that says itself what they are."""
    found = [x for pattern in _NAMED for x in pattern.finditer(value)]
    found += [x for pattern in _NAMED_ALONE if (x := pattern.fullmatch(value))]
    found = [x for x in found if _sounds_given(x["name"])]
    if "://" in value:
        found += _USER.finditer(value)
        queried = _QUERY.finditer(value)
        found += [x for x in queried if sounds_secret(x["name"]) or _QUERIED.match(x["name"])]
    found += _BEARER.finditer(value)
    found += [x for x in [_SCHEME.fullmatch(value)] if x]
    return _merged([x.span("secret") for x in found if not _REFERENCE.fullmatch(x["secret"])])


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, of which none overlap."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _places(
    content: Any, key: str = "", within: str = "", ordinary: frozenset[str] = frozenset()
) -> Iterator[tuple[Any, Any, str, str]]:
    """(list or dict, place in it, key, key within the innermost part) of each single value."""
    if not isinstance(content, dict | list):
        return
    items = content.items() if isinstance(content, dict) else enumerate(content)
    before: Any = None
    for name, value in list(items):
        if name in ordinary:
            continue
        full = f"{key}.{name}".lstrip(".")
        # what is called like a secret may be a part, whose arguments are none
        inner = "" if name == "init_args" else f"{within}.{name}".lstrip(".")
        if isinstance(content, list):
            inner = f"{within}.{before[2:]}" if _is_flag(before) and not _is_flag(value) else inner
        elif name == "value" and isinstance(content.get("name"), str):
            inner = f"{within}.{content['name']}"
        before = value
        if not isinstance(value, dict | list):
            yield content, name, full, inner
        else:
            known = _defaults(content, value) if name == "init_args" else frozenset()
            yield from _places(value, full, inner, known)


def _is_flag(word: Any) -> bool:
    """Whether an element of a command takes the next one as its value."""
    return isinstance(word, str) and word.startswith("--") and "=" not in word


def _defaults(part: Any, arguments: Any) -> frozenset[str]:
    """The arguments that are as the class of a part has them by default.

    Args:
        part: With its `class_path`. Of a class that is not imported nothing is known: what only
            reads a text must not import one.
        arguments: Those of the part.
    """
    if not (isinstance(part, dict) and isinstance(arguments, dict)):
        return frozenset()
    held: Any = None
    names = str(part.get("class_path")).split(".")
    for i in range(len(names) - 1, 0, -1):
        if held := sys.modules.get(".".join(names[:i])):
            for name in names[i:]:
                # not `getattr`, with which a module may import
                held = getattr(held, "__dict__", {}).get(name)
            break
    found: dict[str, str] = {}
    bases = reversed(held.__mro__) if isinstance(held, type) else [held]
    for base in bases:
        with suppress(TypeError, ValueError):
            call: Any = base.__dict__.get("__init__") if isinstance(base, type) else base
            for name, argument in inspect.signature(call).parameters.items():
                found.pop(name, None)
                if argument.default is not argument.empty:
                    default = argument.default
                    found[name] = str(list(default) if isinstance(default, tuple) else default)
    return frozenset(n for n, x in arguments.items() if n in found and found[n] == str(x))
