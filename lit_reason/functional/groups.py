r"""Advantages relative to the other responses to the same prompt: GRPO, DAPO, Dr. GRPO."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lit_reason.functional._checks import (
    Fault,
    check_dim,
    check_group_ids,
    check_mask,
    check_number,
    check_values,
    check_whole,
    too_large,
    upcast,
    wide,
)
from lit_reason.functional.masked import zero_outside


def _group_sum(x: Tensor, index: Tensor, groups: int) -> Tensor:
    return x.new_zeros(groups).index_add(0, index, x)


@torch.no_grad()
def group_relative(
    rewards: Tensor,
    group_ids: Tensor,
    scale_by_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
    tolerance: float = 1e-6,
    group_size: int | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    r"""Rewards relative to the group of responses to the same prompt.

    .. math:: \hat A_i = \frac{R_i - \mathrm{mean}(R)}{\mathrm{std}(R) + \epsilon}

    GRPO (DeepSeekMath, arXiv:2402.03300, section 4.1.2), DAPO (arXiv:2503.14476) Eq. 9. Without
    `scale_by_std` it is Dr. GRPO's :math:`R_i - \mathrm{mean}(R)` (arXiv:2503.20783). The papers
    name neither the kind of deviation nor an epsilon; the defaults are verl's.

    A group whose rewards differ by no more than rounding carries no signal and gets exactly 0,
    as does a group of one.

    Args:
        rewards: One scalar per response; bools, ints and half precision are accepted.
        group_ids: Responses with equal ids form a group, in any order.
        scale_by_std: Divide by the group's standard deviation.
        ddof: 1 for the sample, 0 for the population standard deviation.
        eps: Added to the standard deviation.
        tolerance: Largest difference within a group, relative to ``max(1, max|R|)``, that
            counts as no difference.
        group_size: Number of responses that every group must have; None leaves sizes free.
        valid: False leaves a response out of its group's statistics and gives it 0; its reward is
            not read.

    Shapes:
        rewards ``(B,)``, group_ids ``(B,)`` int, valid ``(B,)`` bool; returns ``(B,)`` in float32
        (float64 for float64 input), in standard deviations, or without `scale_by_std` in units of
        the reward.

    Raises:
        ValueError: On wrong shapes, group ids that are not integers, no response at all, a reward
            that is not finite or too large to be squared (1e38 in float32, 1e149 in float64),
            groups not of `group_size`, or a setting that is negative, nan or, of `ddof` and
            `group_size`, no whole number.

    Example:
        >>> ids = torch.tensor([7, 7, 7, 7, 3])
        >>> group_relative(torch.tensor([1, 0, 0, 0, 1]), ids)
        tensor([ 1.5000, -0.5000, -0.5000, -0.5000,  0.0000])
    """
    check_dim(1, rewards=rewards)
    check_group_ids(len(rewards), group_ids)
    faults = [too_large(valid, rewards=rewards)]
    if group_size is not None:
        check_whole(1, group_size=group_size)
        faults.append(_other_sizes(group_ids, group_size))
    if valid is None:
        check_values(*faults)
        return _normalise(rewards, group_ids, scale_by_std, ddof, eps, tolerance)
    check_mask(rewards.shape, valid=valid)
    check_values(*faults)
    kept = rewards[valid], group_ids[valid]
    scaled = _normalise(*kept, scale_by_std, ddof, eps, tolerance)
    return scaled.new_zeros(rewards.shape).masked_scatter(valid, scaled)


def _other_sizes(group_ids: Tensor, size: int) -> Iterator[Fault]:
    """Fault: responses in groups that have more or fewer than `size`."""
    _, index, counts = torch.unique(group_ids, return_inverse=True, return_counts=True)
    wrong = counts[index] != size
    yield Fault("group_ids", group_ids.shape, f"response(s) in groups not of {size}", wrong)


def _normalise(
    rewards: Tensor,
    group_ids: Tensor,
    scale_by_std: bool,
    ddof: int,
    eps: float,
    tolerance: float,
) -> Tensor:
    """The computation of `group_relative`; of nothing it is nothing."""
    check_whole(0, ddof=ddof)
    check_number(eps=eps, tolerance=tolerance)
    unique, index = torch.unique(group_ids, return_inverse=True)
    x, groups = rewards.to(wide(rewards)), len(unique)
    size = _group_sum(torch.ones_like(x), index, groups)
    centred = x - (_group_sum(x, index, groups) / size)[index]
    flat = _is_degenerate(x, index, groups, tolerance)
    if scale_by_std:
        squares = _group_sum(centred.square(), index, groups)
        centred = centred / ((squares / (size - ddof).clamp(min=1)).sqrt() + eps)[index]
    return centred.masked_fill(flat[index], 0.0).to(upcast(rewards).dtype)


def _is_degenerate(x: Tensor, index: Tensor, groups: int, tolerance: float) -> Tensor:
    """True for groups whose largest and smallest reward are equal up to `tolerance`."""
    top = x.new_zeros(groups).scatter_reduce(0, index, x, "amax", include_self=False)
    bottom = x.new_zeros(groups).scatter_reduce(0, index, x, "amin", include_self=False)
    spread = top - bottom
    # an infinite reward is no reason for zeros: what follows from it is nan, and seen
    equal = spread <= tolerance * torch.maximum(top.abs(), bottom.abs()).clamp(min=1.0)
    return equal & spread.isfinite()


@torch.no_grad()
def group_relative_process(
    step_rewards: Tensor,
    step_mask: Tensor,
    mask: Tensor,
    group_ids: Tensor,
    scale_by_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
    tolerance: float = 1e-6,
) -> Tensor:
    r"""Process supervision: each token gets the normalised rewards of the steps still to end.

    .. math:: \hat A_{i,t} = \sum_{index(j) \ge t} \tilde r_i^{index(j)}

    DeepSeekMath (arXiv:2402.03300) section 4.1.3: all step rewards of a group are normalised
    together (:func:`group_relative`), index(j) is the position of the last token of step j.
    Steps of a response whose tokens are masked (overlong filtering) still enter the statistics.

    Args:
        step_rewards: Step rewards, read only where `step_mask` is True.
        step_mask: True at the last token of each step.
        mask: True at the tokens that get an advantage.
        group_ids: Responses with equal ids form a group.
        scale_by_std: Divide by the group's standard deviation.
        ddof: 1 for the sample, 0 for the population standard deviation.
        eps: Added to the standard deviation.
        tolerance: See :func:`group_relative`.

    Shapes:
        step_rewards ``(B, T)``, step_mask, mask ``(B, T)`` bool, group_ids ``(B,)`` int; returns
        ``(B, T)``, zero outside the mask, in the units of :func:`group_relative`.

    Raises:
        ValueError: On wrong shapes or dtypes, no response at all, a step reward that is not finite
            or too large to be squared (1e38 in float32, 1e149 in float64), or a setting that is
            negative, nan or, of `ddof`, no whole number.

    Example:
        >>> step_rewards = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
        >>> step_mask = torch.tensor([[False, True, True], [False, True, True]])
        >>> mask = torch.ones(2, 3, dtype=torch.bool)
        >>> group_relative_process(step_rewards, step_mask, mask, torch.tensor([0, 0]))
        tensor([[ 1.0000,  1.0000,  0.5000],
                [-1.0000, -1.0000,  0.5000]])
    """
    check_dim(2, step_rewards=step_rewards)
    check_mask(step_rewards.shape, step_mask=step_mask, mask=mask)
    check_group_ids(len(step_rewards), group_ids)
    check_values(too_large(step_mask, step_rewards=step_rewards))
    ids = group_ids[:, None].expand(step_mask.shape)[step_mask]
    scaled = _normalise(step_rewards[step_mask], ids, scale_by_std, ddof, eps, tolerance)
    steps = scaled.new_zeros(step_mask.shape).masked_scatter(step_mask, scaled)
    return zero_outside(steps.flip(1).cumsum(1).flip(1), mask)
