r"""From per-token losses to one number that does not depend on how the batch is split.

An aggregation is a pair: weights ``(B, T)``, zero outside the mask, and a count ``()``. The loss is

.. math:: \mathcal L = \frac{\sum_{i,t} w_{i,t}\, \ell_{i,t}}{N}

and 0 for N = 0, with N the sum of the counts over all micro-batches and ranks of one optimiser
step. Build the pair once per mini-batch, before splitting it; all-reduce N once; slice the weights
with the micro-batches and *add* their losses. The mean of micro-batch means is another loss.
"""

from __future__ import annotations

import math
import sys
from typing import TypeAlias

import torch
from torch import Tensor

from lit_reason.functional._checks import (
    check_dim,
    check_group_ids,
    check_mask,
    check_number,
    check_positive,
    check_shape,
    check_values,
    non_finite,
    outside,
    upcast,
    wide,
)

WeightsAndCount: TypeAlias = tuple[Tensor, Tensor]
"""Weights ``(B, T)``, zero outside the mask, and the local count ``()``, both float32."""


def _row_lengths(mask: Tensor) -> Tensor:
    check_dim(2, mask=mask)
    check_mask(mask.shape, mask=mask)
    return mask.sum(1, dtype=torch.float32)


def token_weights(mask: Tensor) -> WeightsAndCount:
    r"""Every token of the mini-batch counts the same.

    :math:`w = m`, :math:`N = \sum_{i,t} m_{i,t}`: the token-level loss of DAPO (arXiv:2503.14476)
    Eq. 8 and VAPO (arXiv:2504.05118) Eq. 8, taken over the mini-batch.

    Args:
        mask: True at the tokens that train.

    Shapes:
        mask ``(B, T)`` bool; returns weights ``(B, T)`` and count ``()``.

    Raises:
        ValueError: If the mask is not boolean or not two-dimensional.

    Example:
        >>> weights, count = token_weights(torch.tensor([[True, False], [True, True]]))
        >>> weights, count
        (tensor([[1., 0.],
                [1., 1.]]), tensor(3.))
    """
    return (mask.float(), _row_lengths(mask).long().sum().float())


def sequence_weights(mask: Tensor) -> WeightsAndCount:
    r"""Every response counts the same, its tokens share its weight.

    :math:`w_{i,t} = m_{i,t} / |o_i|`, N = number of responses with a token: the
    :math:`\frac1G\sum_i\frac1{|o_i|}\sum_t` of GRPO (DeepSeekMath, arXiv:2402.03300) Eq. 3. A
    fully masked response counts in neither numerator nor denominator.

    Args:
        mask: True at the tokens that train.

    Shapes:
        mask ``(B, T)`` bool; returns weights ``(B, T)`` and count ``()``.

    Raises:
        ValueError: If the mask is not boolean or not two-dimensional.

    Example:
        >>> weights, count = sequence_weights(torch.tensor([[True, True], [False, False]]))
        >>> weights, count
        (tensor([[0.5000, 0.5000],
                [0.0000, 0.0000]]), tensor(1.))
    """
    lengths = _row_lengths(mask)
    return (mask / lengths.clamp(min=1)[:, None], (lengths > 0).float().sum())


def prompt_weights(mask: Tensor, group_ids: Tensor) -> WeightsAndCount:
    r"""Every prompt counts the same, all tokens of its responses share its weight.

    :math:`w_{i,t} = m_{i,t} / \sum_{j \in g(i)} |o_j|`, N = number of prompts with a token: DAPO
    (arXiv:2503.14476) Eq. 8 read literally, per prompt, then averaged over prompts. Compute it on
    the whole mini-batch: a prompt's share depends on all its responses in it.

    Args:
        mask: True at the tokens that train.
        group_ids: Responses with equal ids answer the same prompt.

    Shapes:
        mask ``(B, T)`` bool, group_ids ``(B,)`` int; returns weights ``(B, T)`` and count ``()``.

    Raises:
        ValueError: On wrong shapes, a mask that is not boolean, ids that are not integers, or no
            row at all.

    Example:
        >>> mask = torch.tensor([[True, True], [True, True], [True, False]])
        >>> weights, count = prompt_weights(mask, torch.tensor([4, 4, 9]))
        >>> weights, count
        (tensor([[0.2500, 0.2500],
                [0.2500, 0.2500],
                [1.0000, 0.0000]]), tensor(2.))
    """
    lengths = _row_lengths(mask)
    check_group_ids(len(mask), group_ids)
    unique, index = torch.unique(group_ids, return_inverse=True)
    tokens = lengths.new_zeros(len(unique)).index_add(0, index, lengths)
    return (mask / tokens[index].clamp(min=1)[:, None], (tokens > 0).float().sum())


def constant_weights(mask: Tensor, length: float) -> WeightsAndCount:
    r"""Token sums divided by a constant, averaged over responses.

    :math:`w_{i,t} = m_{i,t} / L`, N = number of responses with a token: Dr. GRPO
    (arXiv:2503.20783), where L is the generation budget, so that long wrong answers are not
    diluted by their length.

    Args:
        mask: True at the tokens that train.
        length: L > 0, in tokens.

    Shapes:
        mask ``(B, T)`` bool; returns weights ``(B, T)`` and count ``()``.

    Raises:
        ValueError: If the mask is not boolean or not two-dimensional, or `length` is not
            positive and finite.

    Example:
        >>> weights, count = constant_weights(torch.tensor([[True, True], [True, False]]), 4)
        >>> weights, count
        (tensor([[0.2500, 0.2500],
                [0.2500, 0.0000]]), tensor(2.))
    """
    check_positive(length=length)
    check_number(1e-30, length=length)  # its inverse is a weight in float32
    lengths = _row_lengths(mask)
    return (mask.float() / length, (lengths > 0).float().sum())


def aggregate(loss: Tensor, weights: Tensor, count: Tensor | float) -> Tensor:
    r"""Weighted sum over a (micro-)batch, divided by the global count.

    :math:`\sum w\,\ell / N`, of which GRPO (arXiv:2402.03300) Eq. 3 and DAPO
    (arXiv:2503.14476) Eq. 8 are cases. Losses at weight 0 are replaced before multiplying, so a
    nan there reaches neither the value nor the gradient of `loss`; one that counts makes the sum
    nan, for the caller to notice. With a count of 0 the result is 0 and still attached to the
    graph, so gradient hooks fire on every rank.

    Args:
        loss: Per-token losses.
        weights: Weights from one of the ``*_weights`` functions, possibly sliced.
        count: Their count, summed over the micro-batches and ranks of the optimiser step. Under
            DDP, which averages gradients, multiply the result by the number of ranks.

    Shapes:
        loss, weights ``(*)``, count ``()``; returns ``()``.

    Raises:
        ValueError: If the shapes differ, a weight is not finite, or the count is negative or not
            finite.

    Example:
        >>> loss = torch.tensor([[1.0, 1.0, 9.0], [4.0, 9.0, 9.0]])
        >>> mask = torch.tensor([[True, True, False], [True, False, False]])
        >>> weights, count = token_weights(mask)
        >>> aggregate(loss[:1], weights[:1], count) + aggregate(loss[1:], weights[1:], count)
        tensor(2.)
    """
    check_shape(loss.shape, loss=loss, weights=weights)
    if not isinstance(count, Tensor):
        check_number(0.0, sys.float_info.max, count=count)
        count = torch.tensor(count, dtype=wide(loss), device=loss.device)
    check_shape(torch.Size(), count=count)
    finite = non_finite(weights=weights, count=count)
    check_values(finite, outside(0.0, math.inf, count=count))
    loss = upcast(loss)
    counted = (weights != 0) & (count > 0)
    kept = torch.where(counted, loss, torch.zeros((), dtype=loss.dtype, device=loss.device))
    total = (kept * weights).sum()
    return (total / torch.where(count > 0, count, 1)).to(total.dtype)


def token_mean(loss: Tensor, mask: Tensor) -> Tensor:
    r"""Mean over all valid tokens: :func:`token_weights` on a batch that is not split.

    :math:`\frac{1}{\sum_i |o_i|} \sum_i \sum_t \ell_{i,t}`, DAPO (arXiv:2503.14476) Eq. 8 and VAPO
    (arXiv:2504.05118) Eq. 8.

    Args:
        loss: Per-token losses.
        mask: True at the tokens that train.

    Shapes:
        loss ``(B, T)``, mask ``(B, T)`` bool; returns ``()``.

    Raises:
        ValueError: If the mask is not boolean or the shapes differ.

    Example:
        >>> mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
        >>> token_mean(torch.tensor([[1.0, 1.0, 0, 0], [0, 0, 0, 0]]), mask)
        tensor(0.3333)
    """
    check_shape(loss.shape, loss=loss)
    check_mask(loss.shape, mask=mask)
    return aggregate(loss, *token_weights(mask))


def sequence_mean(loss: Tensor, mask: Tensor) -> Tensor:
    r"""Mean over responses of each one's token mean: :func:`sequence_weights`, batch not split.

    :math:`\frac1G \sum_i \frac{1}{|o_i|} \sum_t \ell_{i,t}`, GRPO (DeepSeekMath, arXiv:2402.03300)
    Eq. 3.

    Args:
        loss: Per-token losses.
        mask: True at the tokens that train.

    Shapes:
        loss ``(B, T)``, mask ``(B, T)`` bool; returns ``()``.

    Raises:
        ValueError: If the mask is not boolean or the shapes differ.

    Example:
        >>> mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
        >>> sequence_mean(torch.tensor([[1.0, 1.0, 0, 0], [0, 0, 0, 0]]), mask)
        tensor(0.5000)
    """
    check_shape(loss.shape, loss=loss)
    check_mask(loss.shape, mask=mask)
    return aggregate(loss, *sequence_weights(mask))


def prompt_mean(loss: Tensor, mask: Tensor, group_ids: Tensor) -> Tensor:
    r"""Mean over prompts of each one's token mean: :func:`prompt_weights`, batch not split.

    :math:`\frac1P \sum_q \frac{1}{\sum_{i \in q} |o_i|} \sum_{i \in q} \sum_t \ell_{i,t}`, DAPO
    (arXiv:2503.14476) Eq. 8 for each prompt.

    Args:
        loss: Per-token losses.
        mask: True at the tokens that train.
        group_ids: Responses with equal ids answer the same prompt.

    Shapes:
        loss ``(B, T)``, mask ``(B, T)`` bool, group_ids ``(B,)`` int; returns ``()``.

    Raises:
        ValueError: On wrong shapes, a mask that is not boolean, ids that are not integers, or no
            row at all.

    Example:
        >>> mask = torch.tensor([[True, True], [True, False], [True, False]])
        >>> loss = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
        >>> prompt_mean(loss, mask, torch.tensor([0, 0, 1]))
        tensor(0.5000)
    """
    check_shape(loss.shape, loss=loss)
    check_mask(loss.shape, mask=mask)
    return aggregate(loss, *prompt_weights(mask, group_ids))


def constant_mean(loss: Tensor, mask: Tensor, length: float) -> Tensor:
    r"""Mean over responses of token sum / constant: :func:`constant_weights`, batch not split.

    :math:`\frac1G \sum_i \frac1L \sum_t \ell_{i,t}`, Dr. GRPO (arXiv:2503.20783).

    Args:
        loss: Per-token losses.
        mask: True at the tokens that train.
        length: Constant divisor of each response's sum, in tokens.

    Shapes:
        loss ``(B, T)``, mask ``(B, T)`` bool; returns ``()``.

    Raises:
        ValueError: If the mask is not boolean, the shapes differ, or `length` is not
            positive and finite.

    Example:
        >>> mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
        >>> constant_mean(torch.tensor([[1.0, 1.0, 0, 0], [0, 0, 0, 0]]), mask, length=10)
        tensor(0.1000)
    """
    check_shape(loss.shape, loss=loss)
    check_mask(loss.shape, mask=mask)
    return aggregate(loss, *constant_weights(mask, length))
