"""Argument checks shared by the functional core; every message names the argument and its shape."""

from __future__ import annotations

import torch
from torch import Tensor


def upcast(x: Tensor) -> Tensor:
    """Return `x` in float32, or unchanged if float64: no statistic is taken in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def wide(x: Tensor) -> torch.dtype:
    """Return the dtype in which sums over `x` are accumulated: float64 where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def check_shape(shape: torch.Size, **tensors: Tensor) -> None:
    """Raise `ValueError` unless every named tensor has `shape`."""
    for name, tensor in tensors.items():
        if tensor.shape != shape:
            raise ValueError(f"`{name}` has shape {tuple(tensor.shape)}, expected {tuple(shape)}")


def check_mask(shape: torch.Size, **masks: Tensor) -> None:
    """Raise `ValueError` unless every named mask is boolean and has `shape`."""
    for name, mask in masks.items():
        if mask.dtype != torch.bool:
            raise ValueError(
                f"`{name}` must be a bool tensor (True = counts), got {mask.dtype} "
                f"of shape {tuple(mask.shape)}"
            )
    check_shape(shape, **masks)


def check_dim(ndim: int, **tensors: Tensor) -> None:
    """Raise `ValueError` unless every named tensor has `ndim` dimensions."""
    for name, tensor in tensors.items():
        if tensor.ndim != ndim:
            raise ValueError(
                f"`{name}` must have {ndim} dimension(s), got shape {tuple(tensor.shape)}"
            )


def check_finite(mask: Tensor | None = None, **tensors: Tensor) -> None:
    """Raise `ValueError` if a named tensor holds nan or inf (where `mask` is True, if given)."""
    for name, tensor in tensors.items():
        bad = ~torch.isfinite(tensor)
        count = int((bad if mask is None else bad & mask).sum())
        if count:
            raise ValueError(
                f"`{name}` of shape {tuple(tensor.shape)} has {count} non-finite value(s)"
            )


def check_group_ids(size: int, group_ids: Tensor) -> None:
    """Raise `ValueError` unless `group_ids` is an integer vector with one id per row."""
    check_shape(torch.Size([size]), group_ids=group_ids)
    if group_ids.is_floating_point() or group_ids.is_complex() or group_ids.dtype == torch.bool:
        raise ValueError(f"`group_ids` must hold integers, got {group_ids.dtype}")


def check_range(name: str, value: float | Tensor, low: float, high: float) -> None:
    """Raise `ValueError` unless `low <= value <= high` (everywhere, if `value` is a tensor)."""
    inside = (value >= low) & (value <= high)
    if not bool(torch.as_tensor(inside).all()):
        shown = tuple(value.shape) if isinstance(value, Tensor) else value
        raise ValueError(f"`{name}` must lie in [{low}, {high}], got {shown}")
