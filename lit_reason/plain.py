"""Whether a checkpoint holds nothing but plain data, so that it is read again without trust."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from lit_reason.errors import ConfigError


def check_plain(checkpoint: dict[str, Any]) -> None:
    """Refuses to write what `torch.load(weights_only=True)` would refuse to read.

    Args:
        checkpoint: What is to be written; tensors are not looked into.

    Raises:
        ConfigError: The first part that is more than plain data, as the state of a callback.

    Example:
        >>> check_plain({"callbacks": {"Best": {"seen": object()}}})
        Traceback (most recent call last):
        lit_reason.errors.ConfigError: trainer: callbacks.Best.seen in the state of the run is a ...
    """
    if _is_read_again(checkpoint):
        return
    path: list[str] = []
    part: Any = checkpoint
    while (inner := next(_beyond(part), None)) is not None:
        path.append(str(inner[0]))
        part = inner[1]
    kind = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
    raise ConfigError(
        f"trainer: {'.'.join(path)} in the state of the run is a {kind}, which is not read again "
        "from a checkpoint without running code; let the state hold numbers, texts, lists and "
        "tensors"
    )


def _beyond(part: Any) -> Iterator[tuple[Any, Any]]:
    """The entries of a dict or a list that are more than plain data, with their keys."""
    entries: Iterable[tuple[Any, Any]] = part.items() if isinstance(part, dict) else ()
    if isinstance(part, list | tuple):
        entries = enumerate(part)
    return ((key, value) for key, value in entries if not _is_read_again(value))


def _is_read_again(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(_without_tensors(value), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError):  # also of what cannot be written
        return False
    return True


def _without_tensors(value: Any) -> Any:
    """The same with nothing for each tensor, whose numbers need no look."""
    if type(value) is dict:
        return {key: _without_tensors(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_without_tensors, value))
    return None if isinstance(value, Tensor) else value
