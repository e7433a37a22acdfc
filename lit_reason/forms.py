"""What a part of the user's returns must have the form that is expected of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_reason.errors import ConfigError


def require_tensor(
    what: str, value: object, shape: Sequence[int], dtype: torch.dtype | None = None
) -> None:
    """Refuses what a part of the user's made if it does not have the right form.

    Args:
        what: Begins the message: the key, and what it made.
        value: What was made.
        shape: What it should have.
        dtype: Likewise; `None` takes any.

    Raises:
        ConfigError: Not a tensor, or one of another shape or type.

    Example:
        >>> require_tensor("model.policy: the loss", torch.zeros(2), (2, 3))
        Traceback (most recent call last):
        lit_reason.errors.ConfigError: model.policy: the loss has shape (2,), expected (2, 3)
    """
    if not isinstance(value, Tensor):
        raise ConfigError(f"{what} is {value!r}, expected a tensor of shape {tuple(shape)}")
    if tuple(value.shape) != tuple(shape):
        raise ConfigError(f"{what} has shape {tuple(value.shape)}, expected {tuple(shape)}")
    if dtype is not None and value.dtype != dtype:
        raise ConfigError(f"{what} is of {value.dtype}, expected {dtype}")
