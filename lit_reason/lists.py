"""One value or several: Lightning and the command line give either."""

from __future__ import annotations

from typing import Any


def as_list(value: Any) -> list[Any]:
    """The list itself, nothing for `None`, else a list of the one value.

    Example:
        >>> as_list(None), as_list(3), as_list([3, 4])
        ([], [3], [3, 4])
    """
    return value if isinstance(value, list) else [] if value is None else [value]
