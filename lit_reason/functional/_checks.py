"""Argument checks shared by the functional core; every message names the argument and its shape.

Shapes and dtypes are checked always. What a tensor *holds* is checked by `check_values`, once a
call, because reading it waits for the device; `unchecked_values` leaves that out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float32).max

_unchecked: ContextVar[bool] = ContextVar("unchecked", default=False)


@contextmanager
def unchecked_values() -> Iterator[None]:
    """Leave out the checks of what tensors hold; shapes, dtypes and settings are still checked.

    For a training step that tests its loss and gradients for nan itself, as `Learner` does: a
    step that is not finite is then skipped and counted, where an exception on one rank would leave
    the others waiting, and no check makes the host wait for the device.

    Example:
        >>> from lit_reason.functional import nll
        >>> with unchecked_values():
        ...     nll(torch.tensor([float("nan")]))
        tensor([nan])
    """
    token = _unchecked.set(True)
    try:
        yield
    finally:
        _unchecked.reset(token)


class Fault(NamedTuple):
    """Something that a tensor must not hold, and where it does."""

    name: str
    shape: torch.Size
    kind: str
    where: Tensor

    def __str__(self) -> str:
        return f"`{self.name}` of shape {tuple(self.shape)} has {int(self.where.sum())} {self.kind}"


def check_values(*faults: Iterable[Fault]) -> None:
    """Raise `ValueError` for the first fault that is found; waits for the device once.

    The faults are generators: inside `unchecked_values` nothing is computed.
    """
    if _unchecked.get():
        return
    found = list(chain(*faults))
    if not found:
        return
    device = found[0].where.device
    present = torch.stack([f.where.any().to(device) for f in found]).tolist()
    for fault in (f for f, there in zip(found, present, strict=True) if there):
        raise ValueError(str(fault))


def non_finite(mask: Tensor | None = None, **tensors: Tensor) -> Iterator[Fault]:
    """Faults: nan or inf (where `mask` is True, if given)."""
    for name, tensor in tensors.items():
        finite = torch.isfinite(tensor)
        bad = ~finite if mask is None else mask & ~finite
        yield Fault(name, tensor.shape, "non-finite value(s)", bad)


def outside(low: float, high: float, **tensors: Tensor) -> Iterator[Fault]:
    """Faults: numbers not in [low, high], nan among them."""
    for name, tensor in tensors.items():
        bad = ~((tensor >= low) & (tensor <= high))
        yield Fault(name, tensor.shape, f"value(s) outside [{low}, {high}]", bad)


def fractional(**tensors: Tensor) -> Iterator[Fault]:
    """Faults: numbers that count nothing, being fractions, infinite or nan."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            bad = ~torch.isfinite(tensor) | (tensor != tensor.floor())
            yield Fault(name, tensor.shape, "value(s) that are not whole numbers", bad)


def too_large(mask: Tensor | None = None, **tensors: Tensor) -> Iterator[Fault]:
    """Faults: nan, inf, and numbers beyond `squarable` (where `mask` is True, if given)."""
    for name, tensor in tensors.items():
        limit = squarable(tensor)
        bad = ~(upcast(tensor).abs() <= limit)
        bad = bad if mask is None else mask & bad
        yield Fault(name, tensor.shape, f"non-finite value(s), or beyond {limit:.0e}", bad)


def upcast(x: Tensor) -> Tensor:
    """Return `x` in float32, or unchanged if float64: no statistic is taken in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def wide(x: Tensor) -> torch.dtype:
    """Return the dtype in which sums over `x` are accumulated: float64 where the device has it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def squarable(x: Tensor) -> float:
    """Return the largest magnitude at which the variance of entries of `x` cannot overflow.

    Its centred squares are summed in `wide(x)`, up to 2^34 of them; what is left of it after
    centring has to fit into the type of the result.
    """
    result = torch.promote_types(x.dtype, torch.float32)
    return min(torch.finfo(wide(x)).max ** 0.5 / 2**17, torch.finfo(result).max / 2)


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_shape(shape: torch.Size, **tensors: Tensor) -> None:
    """Raise `ValueError` unless every named tensor has `shape` and is real."""
    check_real(**tensors)
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
    """Raise `ValueError` unless every named tensor has `ndim` dimensions and is real."""
    check_real(**tensors)
    for name, tensor in tensors.items():
        if tensor.ndim != ndim:
            raise ValueError(
                f"`{name}` must have {ndim} dimension(s), got shape {tuple(tensor.shape)}"
            )


def check_integers(**tensors: Tensor) -> None:
    """Raise `ValueError` unless every named tensor holds integers that torch can compare."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _INTEGERS:
            raise ValueError(
                f"`{name}` must hold integers, got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )


def check_ids(**tensors: Tensor) -> None:
    """Raise `ValueError` unless every named tensor is int64, as an index has to be."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.int64:
            raise ValueError(
                f"`{name}` must be int64, got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )


def check_floats(**tensors: Tensor) -> None:
    """Raise `ValueError` unless every named tensor holds floating-point numbers."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(
                f"`{name}` must hold floating-point numbers, got {tensor.dtype} "
                f"of shape {tuple(tensor.shape)}"
            )


def check_real(**tensors: Tensor) -> None:
    """Raise `ValueError` if a named tensor holds complex numbers."""
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise ValueError(
                f"`{name}` must hold real numbers, got {tensor.dtype} "
                f"of shape {tuple(tensor.shape)}"
            )


def check_numbers(**tensors: Tensor) -> None:
    """Raise `ValueError` if a named tensor holds truth values or complex numbers."""
    for name, tensor in tensors.items():
        if tensor.dtype == torch.bool or tensor.is_complex():
            raise ValueError(
                f"`{name}` must hold numbers, got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )


def check_group_ids(size: int, group_ids: Tensor) -> None:
    """Raise `ValueError` unless `group_ids` is an integer vector, one id a row, of some rows."""
    check_shape(torch.Size([size]), group_ids=group_ids)
    check_integers(group_ids=group_ids)
    if not size:
        raise ValueError(f"`group_ids` of shape {tuple(group_ids.shape)} holds no group")


def check_number(low: float = 0.0, high: float = math.inf, **settings: Any) -> None:
    """Raise `ValueError` unless `low <= value <= high` for every named setting; nan never is."""
    for name, value in settings.items():
        if not (_is_real(value) and low <= value <= high):
            raise ValueError(f"`{name}`={value} must be a number in [{low}, {high}]")
        if LARGEST < abs(value) < math.inf:
            raise ValueError(f"`{name}`={value} must be at most {LARGEST:.3g}, or inf")


def check_whole(low: int, high: int = 2**63 - 1, **settings: Any) -> None:
    """Raise `ValueError` unless every named setting is an integer in [low, high]."""
    for name, value in settings.items():
        if not (_is_real(value) and isinstance(value, Integral) and int(value) >= low):
            raise ValueError(f"`{name}`={value} must be a whole number of at least {low}")
        if int(value) > high:
            raise ValueError(f"`{name}`={value} must be a whole number of at most {high}")


def check_positive(high: float = LARGEST, **settings: Any) -> None:
    """Raise `ValueError` unless every named setting is above 0 and at most `high`."""
    for name, value in settings.items():
        if not (_is_real(value) and 0 < value <= high):
            raise ValueError(f"`{name}`={value} must be positive and at most {high:.3g}")
