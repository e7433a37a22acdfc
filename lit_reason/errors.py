"""What goes wrong on the user's side: errors that end a run in one line, warnings that do not."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ConfigError(ValueError):
    """A setting that cannot work. The message names the key, its value and a valid choice."""


class ConfigWarning(UserWarning):
    """A setting that has no effect, or one that is known to spoil a run."""


def require_at_least_one(owner: str, **values: int | None) -> None:
    """Refuses counts below 1; `None` stands for a default.

    Raises:
        ConfigError: The first such count, as `owner.name`.
    """
    for name, value in values.items():
        if value is not None and value < 1:
            raise ConfigError(f"{owner}.{name}={value}: must be at least 1")


@contextmanager
def blaming(key: str, part: object) -> Iterator[None]:
    """Turns an exception in a part that the user wrote into one line: what was raised, and where.

    A part of this package keeps its traceback: what it raises is not the user's mistake.

    Args:
        key: The key that names the part.
        part: The part.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        module = type(part).__module__
        if module.startswith("lit_reason."):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        source = getattr(sys.modules.get(module), "__file__", None)
        # in the user's own file, rather than deep inside a library that it calls
        frame = [f for f in frames if f.filename == source][-1:] or frames[-1:]
        place = f"{Path(frame[0].filename).name}:{frame[0].lineno}"
        raise ConfigError(
            f"{key}: {type(part).__name__} raised {type(error).__name__}: {error} (at {place})"
        ) from error
