"""What goes wrong on the user's side: errors that end a run in one line, warnings that do not."""

from __future__ import annotations

import sysconfig
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

    What no code of the user's had a part in keeps its traceback.

    Args:
        key: The key that names the part.
        part: The part.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if _is_users(frame.filename)]
        if not own and type(part).__module__.startswith("lit_reason."):
            raise
        # in the user's own file, rather than deep inside a library that it calls
        last = (own or frames)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        raise ConfigError(
            f"{key}: {type(part).__name__} raised {type(error).__name__}: {error} (at {place})"
        ) from error


def _is_users(file: str) -> bool:
    """Whether a source file belongs neither to this package nor to what is installed."""
    path = Path(file)
    return not (
        file.startswith("<")
        or path.is_relative_to(Path(__file__).parent)
        or path.is_relative_to(sysconfig.get_path("stdlib"))
        or {"site-packages", "dist-packages"} & set(path.parts)
    )
