r"""Length terms of the reward."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_reason.functional._checks import (
    check_dim,
    check_numbers,
    check_positive,
    check_shape,
    check_values,
    fractional,
    outside,
    upcast,
    wide,
)


def soft_overlong(lengths: Tensor, max_length: int, cache: int) -> Tensor:
    r"""Soft overlong punishment: a ramp from 0 to -1 over the last tokens before the limit.

    .. math::
        R_{length}(y) = \mathrm{clip}\Big(
        \frac{(L_{max} - L_{cache}) - |y|}{L_{cache}},\ -1,\ 0\Big)

    DAPO (arXiv:2503.14476) Eq. 13 with :math:`L_{max}` = 20480 (the generation limit, not the
    16384 "expected" tokens) and :math:`L_{cache}` = 4096. Add it to the correctness reward
    *before* group normalisation.

    Args:
        lengths: Response tokens, the end token included, prompt and padding excluded.
        max_length: L_max, in tokens.
        cache: L_cache, the width of the ramp, in tokens.

    Shapes:
        lengths ``(*)``; returns ``(*)`` in [-1, 0], float32 (float64 for float64 input).

    Raises:
        ValueError: If `cache` is below 1 or above `max_length`, that is not finite, or a length is
            negative or not a whole number.

    Example:
        >>> soft_overlong(torch.tensor([6, 7, 10, 11]), max_length=10, cache=4)
        tensor([ 0.0000, -0.2500, -1.0000, -1.0000])
    """
    check_positive(max_length=max_length, cache=cache)
    if not 1 <= cache <= max_length:
        raise ValueError(f"`cache`={cache} must lie in [1, max_length={max_length}]")
    check_numbers(lengths=lengths)
    check_values(fractional(lengths=lengths), outside(0.0, math.inf, lengths=lengths))
    # 0 - x rather than -x: no "-0." for the responses that are not punished.
    return 0.0 - ((upcast(lengths) - (max_length - cache)) / cache).clamp(0.0, 1.0)


def kimi_length(lengths: Tensor, correct: Tensor) -> Tensor:
    r"""Kimi k1.5's length reward, relative to the other responses to the same prompt.

    .. math::
        \lambda_i = \tfrac12 - \frac{l_i - l_{min}}{l_{max} - l_{min}}, \qquad
        R_i = \lambda_i \text{ if correct, } \min(0, \lambda_i) \text{ otherwise}

    Kimi k1.5 (arXiv:2501.12599), length penalty; 0 for all if every length is the same.

    Args:
        lengths: Response tokens of *one* group.
        correct: The verdicts.

    Shapes:
        lengths ``(G,)``, correct ``(G,)`` bool; returns ``(G,)`` in [-0.5, 0.5], float32
        (float64 for float64 input).

    Raises:
        ValueError: If shapes differ, the group is empty, `correct` is not boolean, or a length is
            negative or not a whole number.

    Example:
        >>> kimi_length(torch.tensor([100, 200, 300]), torch.tensor([True, True, True]))
        tensor([ 0.5000,  0.0000, -0.5000])
    """
    check_dim(1, lengths=lengths)
    check_shape(lengths.shape, correct=correct)
    if correct.dtype != torch.bool or not len(lengths):
        raise ValueError(
            f"`correct` must be a non-empty bool tensor, got {correct.dtype} "
            f"of shape {tuple(correct.shape)}"
        )
    check_numbers(lengths=lengths)
    check_values(fractional(lengths=lengths), outside(0.0, math.inf, lengths=lengths))
    exact = lengths.to(wide(lengths))  # float32 would confuse neighbours above 2^24
    spread = exact.max() - exact.min()
    score = (0.5 - (exact - exact.min()) / spread.clamp(min=1)).to(upcast(lengths).dtype)
    score = torch.where(correct, score, score.clamp(max=0.0))
    return torch.where(spread > 0, score, torch.zeros_like(score))
