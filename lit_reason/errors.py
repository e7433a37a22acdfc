"""What goes wrong on the user's side: errors that end a run in one line, warnings that do not."""

from __future__ import annotations

import math
import sys
import sysconfig
import traceback
import warnings
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lit_reason.secrecy import masked

SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # normal numbers of float32
STILL = 1e-12  # a learning rate or a gradient below moves no weight in float32
COUNTED = 2**63 - 1
RESPONSES = 2**20  # of a rollout or an evaluation's batch; those of the papers hold some thousands
PARTS = 1000  # into which a callback cuts something; each is a number to log, or a point of a curve
SEEDS = range(-(2**63), 2**64 - 1)  # that torch takes, as does one more than each
LONGEST = 1e6  # seconds; sockets and timers of the system count to little more than twice as many


class ConfigError(ValueError):
    """A setting that cannot work. The message names the key, its value and a valid choice."""


# what a part that the user wrote may raise; `sys.exit` in it must not look like the end of a run
RAISED = (Exception, SystemExit, GeneratorExit, CancelledError)
OWN = "lit_reason."  # modules whose exceptions say enough: a `ConfigError`, the end by a signal


class ConfigWarning(UserWarning):
    """A setting that has no effect, or one that is known to spoil a run."""


def require_at_least_one(owner: str, **values: int | None) -> None:
    """Refuses counts below 1, or beyond those of a tensor; `None` stands for a default.

    Raises:
        ConfigError: The first such count, as `owner.name`.
    """
    for name, value in values.items():
        if value is not None and value < 1:
            raise ConfigError(f"{owner}.{name}={value}: must be at least 1")
        if value is not None and value > COUNTED:
            raise ConfigError(f"{owner}.{name}={value}: must be at most {COUNTED}")


def require_parts(owner: str, least: int = 1, **values: int) -> None:
    """Refuses numbers of parts that are too many to tell apart, and would only end the memory.

    Raises:
        ConfigError: The first such number, as `owner.name`, or one below `least`.
    """
    for name, value in values.items():
        if not least <= value <= PARTS:
            bound = f"least {least}" if value < least else f"most {PARTS}"
            raise ConfigError(f"{owner}.{name}={value}: must be at {bound}")


def require_seed(key: str, seed: int) -> None:
    """Refuses seeds that torch does not take.

    Raises:
        ConfigError: Such a seed.
    """
    if seed not in SEEDS:
        raise ConfigError(f"{key}={seed}: must lie in [{SEEDS[0]}, {SEEDS[-1]}], for example 0")


def require_room(**values: int) -> None:
    """Refuses so many responses at once that they could only end the memory.

    Args:
        **values: Settings of the data module, whose product the responses are.

    Raises:
        ConfigError: They are too many.

    Example:
        >>> require_room(groups_per_rollout=10**20, group_size=4)
        Traceback (most recent call last):
        lit_reason.errors.ConfigError: data.groups_per_rollout=100000000000000000000 * \
data.group_size=4: must be at most 1048576 responses at once; lower one
    """
    if math.prod(values.values()) > RESPONSES:
        made = " * ".join(f"data.{name}={value}" for name, value in values.items())
        raise ConfigError(f"{made}: must be at most {RESPONSES} responses at once; lower one")


def require_float32(key: str, value: float | None, fix: str, unbounded: bool = False) -> None:
    """Refuses a positive number that is 0 or infinite among tensors in float32.

    Args:
        key: Where it is set.
        value: The number; `None` stands for a default.
        fix: Ends the message.
        unbounded: Infinity is welcome, as a bound that bounds nothing.

    Raises:
        ConfigError: Such a number, nan, or one that is not positive.

    Example:
        >>> require_float32("model.value.clip", 1e300, ", or null")
        Traceback (most recent call last):
        lit_reason.errors.ConfigError: model.value.clip=1e+300: must be from 1.2e-38 to 3.4e+38, \
which float32 holds, or null
    """
    if value is None or SMALLEST <= value <= LARGEST or (unbounded and value == math.inf):
        return
    held = f"from {SMALLEST:.1e} to {LARGEST:.1e}, which float32 holds"
    raise ConfigError(f"{key}={value}: must be {held if value > 0 else 'above 0'}{fix}")


def require_seconds(key: str, value: float, example: str) -> None:
    """Refuses a time limit that is none, or more than the system's timers count.

    Raises:
        ConfigError: Such a limit.
    """
    if not 0 < value <= LONGEST:
        limits = f"above 0 and at most {LONGEST:.0e} seconds"
        raise ConfigError(f"{key}={value}: must be a time {limits}, say {example}")


def warn_of_no_effect(why: str, settings: Mapping[str, object], off: str = "null") -> None:
    """Warns of settings that nothing reads.

    Args:
        why: Ends the sentence "has no effect ...".
        settings: Full keys with what was given for them; `None` stands for nothing.
        off: What to set them to instead.
    """
    given = [
        masked(f"{key}={value}" if isinstance(value, int | float | str) else key)
        for key, value in settings.items()
        if value is not None
    ]
    if given:
        have, them = ("has", "it") if len(given) == 1 else ("have", "them")
        warnings.warn(
            f"{', '.join(given)}: {have} no effect {why}; set {them} to {off}",
            ConfigWarning,
            stacklevel=3,
        )


def printable(text: str) -> str:
    r"""A text in one line, in which nothing acts on the terminal and nothing is secret.

    Example:
        >>> printable("a\n\x1b[2Jb http://me:secret@host api_key=secret")
        'a \\x1b[2Jb http://…@host api_key=…'
    """
    return visible(masked(" ".join(text.splitlines())))


def visible(text: str) -> str:
    r"""A text with its lines and tabs, in which other control characters are written out.

    Example:
        >>> visible("a\n\x00b")
        'a\n\\x00b'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def said(error: BaseException) -> str:
    """What an exception says; nothing where not even that can be asked, as a class may be wrong."""
    try:
        return str(error)
    except Exception:
        return ""


_places: list[str] = []  # of the parts at work, the innermost last


@contextmanager
def placed(key: str) -> Iterator[None]:
    """Notes which part an error or a warning comes from; none knows where it was configured.

    Args:
        key: The key that names the part. Of several around one another the innermost counts.
    """
    _places.append(key)
    try:
        yield
    except BaseException as error:
        if place_of(error) is None:
            error.__dict__["place"] = key
        raise
    finally:
        _places.pop()


def place_of(error: BaseException) -> str | None:
    """The key of the part that an error comes from; `None` if nobody has noted it."""
    return error.__dict__.get("place")


@contextmanager
def renaming_warnings(rename: Callable[[str, str | None], str]) -> Iterator[None]:
    """Shows what warns of settings with other words.

    Args:
        rename: (message, key of the part at work) -> message.
    """
    show = warnings.showwarning

    def shown(message: Any, category: Any, *rest: Any) -> None:
        if issubclass(category, ConfigWarning):
            message = category(rename(str(message), _places[-1] if _places else None))
        show(message, category, *rest)

    warnings.showwarning = shown  # type: ignore[assignment]
    try:
        yield
    finally:
        if warnings.showwarning is shown:
            warnings.showwarning = show


def build_placed(build: Callable[[Any], Any], key: str, value: Any) -> Any:
    """Builds what stands at a key. A function of its own, as parsers are pickled."""
    with placed(key):
        return build(value)


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Puts the key before what a library says of the settings it was built with."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {error}") from error


@contextmanager
def blaming(key: str, part: object) -> Iterator[None]:
    """Turns an exception in a part that the user wrote into one line: what was raised, and where.

    What no code of the user's had a part in keeps its traceback.

    Args:
        key: The key that names the part.
        part: The part.
    """
    try:
        with placed(key):
            yield
        if getattr(sys.stdout, "closed", False):
            raise ConfigError(f"{key}: {type(part).__name__} closed stdout; leave it open")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if type(error).__module__.startswith(OWN):
            raise
        own, exits = users_frame(error), isinstance(error, SystemExit)
        if own is None and not exits and type(part).__module__.startswith(OWN):
            raise
        place = f" (at {own[1]})" if own else ""
        raise ConfigError(
            f"{key}: {type(part).__name__} raised {type(error).__name__}: {said(error)}{place}"
        ) from error


@contextmanager
def ending_no_loop() -> Iterator[None]:
    """Makes an error of a `StopIteration`, which Lightning takes for the end of its loop."""
    try:
        yield
    except StopIteration as error:
        raise ConfigError(users_mistake(error) or f"a part raised StopIteration {error}") from error


def call_ending_no_loop(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a method of the user's in a loop. A function of its own, as callbacks are pickled."""
    with ending_no_loop():
        return method(*args, **kwargs)


@contextmanager
def in_one_line() -> Iterator[None]:
    """Ends a script with one line and exit status 2 for what its user can mend."""
    try:
        yield
    except ConfigError as error:
        line = str(error)
    except OSError as error:
        if not error.filename or not error.strerror:
            raise
        line = f"{error.filename}: {error.strerror}"
    else:
        return
    sys.stderr.write(f"error: {printable(line)}\n")
    raise SystemExit(2)


def users_mistake(error: BaseException) -> str | None:
    """One line for an exception in a method of a class of the user's; `None` for any other."""
    own = users_frame(error)
    if own is None or own[0] == "<module>":
        return None
    return f"{own[0]}: {type(error).__name__}: {said(error)} (at {own[1]})"


def users_frame(error: BaseException) -> tuple[str, str] | None:
    """(`Class.method`, `file:line`) of the last code of the user's that an exception went through.

    It is looked for below the function that caught the exception.
    """
    below = list(traceback.walk_tb(error.__traceback__))[1:]
    own = [step for step in below if _is_users(step[0].f_code.co_filename)]
    if not own:
        return None
    frame, line = own[-1]
    return frame.f_code.co_qualname, f"{Path(frame.f_code.co_filename).name}:{line}"


def _is_users(file: str) -> bool:
    """Whether a source file belongs neither to this package nor to what is installed.

    Compiled code names its source as it was where it was compiled, as `pyarrow/error.pxi`.
    """
    path = Path(file)
    if not (path.is_absolute() and path.suffix == ".py") and not path.exists():
        return False
    return not (
        file.startswith("<")
        or path.is_relative_to(Path(__file__).parent)
        or path.is_relative_to(sysconfig.get_path("stdlib"))
        or {"site-packages", "dist-packages"} & set(path.parts)
    )
