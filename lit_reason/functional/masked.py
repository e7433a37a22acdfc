r"""Sums, means and variances over the valid entries of padded tensors.

One mask polarity everywhere: ``True`` means the entry counts. Whatever stands at a masked
position, nan and inf included, reaches neither a result nor a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from lit_reason.functional._checks import (
    Fault,
    check_mask,
    check_number,
    check_real,
    check_shape,
    check_values,
    check_whole,
    squarable,
    upcast,
    wide,
)

Reduce: TypeAlias = Callable[[Tensor], Tensor]
"""Sums a tensor elementwise over the data-parallel ranks and returns the total on every rank."""


def zero_outside(x: Tensor, mask: Tensor) -> Tensor:
    r"""Replace masked positions by zero, in float32 or better: :math:`m_i x_i`, with 0 · nan = 0.

    Apply it *before* a non-linear function if masked positions may hold nan or inf: masking only
    afterwards yields a finite value but a nan gradient (``0 * inf``).

    Args:
        x: Values.
        mask: True where the value counts.

    Shapes:
        x ``(*)``, mask ``(*)`` bool; returns ``(*)``.

    Raises:
        ValueError: If the mask is not boolean or the shapes differ.

    Example:
        >>> x = torch.tensor([1.0, float("nan")])
        >>> zero_outside(x, torch.tensor([True, False]))
        tensor([1., 0.])
    """
    check_real(x=x)
    check_mask(x.shape, mask=mask)
    x = upcast(x)
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    r"""Sum of the valid entries, :math:`\sum_i m_i x_i`.

    Args:
        x: Values; integers and half precision are summed in float32.
        mask: True where the value counts.
        dim: Dimension to reduce; all of them if None.

    Shapes:
        x ``(*)``, mask ``(*)`` bool; returns ``()`` or ``(*)`` without `dim`.

    Raises:
        ValueError: If the mask is not boolean, the shapes differ, or there is no such `dim`.

    Example:
        >>> x = torch.tensor([[1.0, 2.0, float("inf")]])
        >>> masked_sum(x, torch.tensor([[True, True, False]]))
        tensor(3.)
    """
    kept = zero_outside(x, mask)
    if dim is None:
        return kept.sum()
    check_whole(-(2**63), dim=dim)
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"`dim`={dim} is no dimension of `x`, of shape {tuple(x.shape)}")
    return kept.sum(dim)


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    r"""Mean of the valid entries, :math:`\sum_i m_i x_i / \max(\sum_i m_i, 1)`.

    Args:
        x: Values; integers and half precision are averaged in float32.
        mask: True where the value counts.
        dim: Dimension to reduce; all of them if None.

    Shapes:
        x ``(*)``, mask ``(*)`` bool; returns ``()`` or ``(*)`` without `dim`. Zero where nothing
        is valid.

    Raises:
        ValueError: If the mask is not boolean, the shapes differ, or there is no such `dim`.

    Example:
        >>> x = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
        >>> masked_mean(x, torch.tensor([[True, True], [False, False]]), dim=1)
        tensor([2., 0.])
    """
    total = masked_sum(x, mask, dim)
    count = mask.sum() if dim is None else mask.sum(dim)
    return total / count.clamp(min=1).to(total.dtype)


def _moments(
    x: Tensor, mask: Tensor, reduce: Reduce | None, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of centred squares of the valid entries over all ranks.

    Two reductions, the mean first: the one-pass form E[x^2] - E[x]^2 cancels. Every rank makes
    both calls, also one without a valid entry, so that no rank waits for another; and an entry that
    is not finite is refused on every rank, after the first.
    """
    acc = wide(x)
    kept = zero_outside(x, mask)
    limit = squarable(x)
    bad = (~(kept.abs() <= limit)).sum(dtype=acc)
    first = torch.stack([mask.sum(dtype=acc), kept.sum(dtype=acc), bad])
    count, total, bad = (reduce(first) if reduce else first).unbind()
    kind = f"non-finite value(s), or beyond {limit:.0e}, over all ranks"
    check_values([Fault(name, x.shape, kind, bad.long())])
    mean = total / count.clamp(min=1)
    squares = zero_outside(kept.to(acc) - mean, mask).square().sum()
    return count, mean, reduce(squares) if reduce else squares


def _is_constant(variance: Tensor, mean: Tensor, dtype: torch.dtype) -> Tensor:
    """True where a spread is no larger than the rounding error of data of this `dtype`."""
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    return variance <= (4 * eps * mean.abs()).square()


def masked_whiten(
    x: Tensor,
    mask: Tensor,
    shift_mean: bool = True,
    ddof: int = 0,
    eps: float = 1e-8,
    reduce: Reduce | None = None,
) -> Tensor:
    r"""Whiten the valid entries over the batch of all ranks.

    .. math:: \tilde x_i = (x_i - \bar x) / \sqrt{\mathrm{Var}(x) + \epsilon}

    Batch-level advantage normalisation (PPO, arXiv:1707.06347, as practised; Open-Reasoner-Zero,
    arXiv:2503.24290, section 2). Without `shift_mean` it is a pure scaling, :math:`x / \sigma`.

    Args:
        x: Values, usually advantages.
        mask: True where the value counts.
        shift_mean: Subtract the mean. False divides by the deviation only.
        ddof: 0 for the population variance, 1 for the sample variance; the divisor is 1 or more.
        eps: Added to the variance, under the root.
        reduce: Sums a tensor over ranks; None in a single process.

    Shapes:
        x ``(*)``, mask ``(*)`` bool; returns ``(*)``, without unit, zero outside the mask. All zero
        if fewer than two entries are valid (over all ranks) or all valid entries are equal.

    Raises:
        ValueError: If the mask is not boolean, the shapes differ, a valid entry is not finite or
            too large to be squared (1e38 in float32, 1e149 in float64), or a setting is negative,
            nan or, of `ddof`, no whole number.

    Example:
        >>> x, mask = torch.tensor([1.0, 3.0, 5.0, 100.0]), torch.tensor([True, True, True, False])
        >>> masked_whiten(x, mask)
        tensor([-1.2247,  0.0000,  1.2247,  0.0000])
        >>> masked_whiten(x, mask, ddof=1)
        tensor([-1.,  0.,  1.,  0.])
        >>> masked_whiten(x, mask, shift_mean=False)
        tensor([0.6124, 1.8371, 3.0619, 0.0000])
    """
    check_whole(0, ddof=ddof)
    check_number(eps=eps)
    count, mean, squares = _moments(x, mask, reduce, "x")
    variance = squares / (count - ddof).clamp(min=1)
    constant = _is_constant(variance, mean, x.dtype)
    # 1 in place of a variance of 0, whose root has no gradient
    scale = torch.rsqrt(variance.masked_fill(constant, 1.0) + eps).masked_fill(constant, 0.0)
    kept = zero_outside(x, mask).to(mean.dtype)
    scaled = (kept - mean if shift_mean else kept) * scale
    return zero_outside(scaled, mask).to(upcast(x).dtype)


def explained_variance(
    values: Tensor, returns: Tensor, mask: Tensor, reduce: Reduce | None = None
) -> Tensor:
    r"""Share of the variance of the returns that the critic explains.

    .. math:: \mathrm{EV} = 1 - \mathrm{Var}(R - V) / \mathrm{Var}(R)

    1 is perfect, 0 no better than a constant, negative worse. Blind to a constant bias: watch
    the mean of :math:`R - V` as well. Defined as 0.0 where the returns do not vary, or by so little
    (1e-150) that their variance is 0 in float64: nothing can be explained then. The criterion for
    ending value pretraining in VC-PPO (arXiv:2503.01491, section 4.1).

    Args:
        values: Critic predictions V, in any unit; the result has none.
        returns: Value targets R, in that unit.
        mask: True where the token counts.
        reduce: Sums a tensor over ranks; None in a single process.

    Shapes:
        values, returns ``(*)``, mask ``(*)`` bool; returns ``()`` float32 (float64 for float64
        input), -inf if it is less than that can hold.

    Raises:
        ValueError: If the mask is not boolean, the shapes differ, or a valid entry is not finite or
            too large to be squared (1e38 in float32, 1e149 in float64).

    Example:
        >>> returns = torch.tensor([1.0, -1.0, 1.0, -1.0])
        >>> mask = torch.ones(4, dtype=torch.bool)
        >>> explained_variance(0.5 * returns, returns, mask)
        tensor(0.7500)
        >>> explained_variance(returns, torch.ones(4), mask)
        tensor(0.)
    """
    check_shape(returns.shape, returns=returns, values=values)
    returns, values = upcast(returns.detach()), upcast(values.detach())
    # The count enters both variances alike, so their ratio is that of the sums of squares.
    count, mean, total = _moments(returns, mask, reduce, "returns")
    _, _, residual = _moments(returns - values, mask, reduce, "values")
    constant = _is_constant(total / count.clamp(min=1), mean, returns.dtype)
    ratio = residual / total.masked_fill(constant, 1.0)
    return torch.where(constant, 0.0, 1.0 - ratio).to(returns.dtype)
