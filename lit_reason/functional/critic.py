r"""What an advantage is made of, and how far ahead it looks: diagnostics of a critic."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_reason.functional._checks import (
    Fault,
    check_dim,
    check_number,
    check_numbers,
    check_shape,
    check_values,
    fractional,
    outside,
    upcast,
    wide,
)
from lit_reason.functional.advantages import gae
from lit_reason.functional.masked import Reduce, zero_outside


@torch.no_grad()
def advantage_parts(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float = 1.0,
    lam: float | Tensor = 1.0,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The part of each advantage that the rewards make, and the part that the critic makes.

    .. math::
        \hat A_t = \underbrace{\sum_l (\gamma\lambda)^l r_{t+l}}_{\hat A^{reward}_t} +
        \underbrace{\sum_l (\gamma\lambda)^l (\gamma V(s_{t+l+1}) - V(s_{t+l}))}_{\hat A^{value}_t}

    GAE (arXiv:1506.02438) Eq. 16 is linear in rewards and values together, so it is the sum of the
    advantages with all values 0 and with all rewards 0. The second part holds the baseline
    :math:`-V(s_t)` too, and is nothing else for λ = 1.

    Args:
        rewards: As in :func:`gae`, in any unit, which the result has too.
        values: Likewise.
        mask: Likewise.
        gamma: Likewise.
        lam: Likewise.
        bootstrap: Likewise; it belongs to the critic's part.

    Shapes:
        As in :func:`gae`; returns two tensors ``(B, T)``, zero outside the mask, whose sum is what
        :func:`gae` returns.

    Raises:
        ValueError: As :func:`gae`.

    Example:
        >>> rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.5, 0.6]])
        >>> mask = torch.ones(1, 3, dtype=torch.bool)
        >>> advantage_parts(rewards, values, mask, lam=0.5)
        (tensor([[0.2500, 0.5000, 1.0000]]), tensor([[ 0.2000, -0.2000, -0.6000]]))
    """
    of_rewards = gae(rewards, torch.zeros_like(upcast(values)), mask, gamma, lam)
    of_values = gae(torch.zeros_like(upcast(rewards)), values, mask, gamma, lam, bootstrap)
    return of_rewards, of_values


def reward_share(
    from_rewards: Tensor, from_values: Tensor, mask: Tensor, reduce: Reduce | None = None
) -> Tensor:
    r"""Share of the advantages' size that comes from the rewards, not from the critic.

    .. math::
        \frac{\sum_i |\hat A^{reward}_i|}{\sum_i |\hat A^{reward}_i| + \sum_i |\hat A^{value}_i|}

    With the parts of :func:`advantage_parts`. λ = 0.95 leaves :math:`0.95^{T-t}` of a terminal
    reward at token t (VC-PPO, arXiv:2503.01491, "reward signal decay"); the smaller the share, the
    more a policy learns from what the critic says, right or wrong.

    Args:
        from_rewards: The rewards' part, in any unit; the result has none.
        from_values: The critic's part, in that unit.
        mask: True where the token counts.
        reduce: Sums a tensor over ranks; None in a single process.

    Shapes:
        from_rewards, from_values ``(*)``, mask ``(*)`` bool; returns ``()`` float32 (float64 for
        float64 input). 0 where both parts are.

    Raises:
        ValueError: If the mask is not boolean, the shapes differ, or a valid entry is not finite.

    Example:
        >>> mask = torch.ones(2, dtype=torch.bool)
        >>> reward_share(torch.tensor([0.5, 1.0]), torch.tensor([0.1, -0.4]), mask)
        tensor(0.7500)
    """
    parts = {"from_rewards": from_rewards.detach(), "from_values": from_values.detach()}
    check_shape(from_rewards.shape, from_rewards=from_rewards, from_values=from_values)
    sums, bad = [], []
    for part in parts.values():
        kept, acc = zero_outside(part, mask), wide(part)
        sums.append(kept.abs().sum(dtype=acc))
        bad.append((~torch.isfinite(kept)).sum(dtype=acc))
    numbers = torch.stack(sums + bad)
    rewards, values, *bad = (reduce(numbers) if reduce else numbers).unbind()
    # refused on every rank alike, and after the reduction, so that no rank waits for another
    kind = "non-finite value(s), over all ranks"
    faults = (Fault(n, from_rewards.shape, kind, b.long()) for n, b in zip(parts, bad, strict=True))
    check_values(faults)
    total = rewards + values
    share = rewards / total.masked_fill(total == 0, 1.0)
    return share.to(torch.promote_types(upcast(from_rewards).dtype, upcast(from_values).dtype))


def effective_horizon(lengths: Tensor, lam: float | Tensor, gamma: float = 1.0) -> Tensor:
    r"""How many tokens ahead an advantage looks, at most as many as there are.

    .. math:: h = \min\left(l, \frac1{1 - \gamma\lambda}\right), \qquad
              \textstyle\sum_{t\ge0}(\gamma\lambda)^t = \frac1{1 - \gamma\lambda}

    The sum of the weights of GAE's TD errors, with which VAPO (arXiv:2504.05118, Eq. 4) sets λ:
    with its length-adaptive λ and γ = 1, h = α l. What is further away reaches a token
    through the critic alone.

    Args:
        lengths: Number of response tokens of each row.
        lam: Trace decay in [0, 1], one for all rows or one per row.
        gamma: Discount in [0, 1].

    Shapes:
        lengths ``(B,)``, lam scalar or ``(B,)``; returns ``(B,)``, in tokens, float32 (float64 for
        float64 input).

    Raises:
        ValueError: If lam or gamma lies outside [0, 1], lam has another shape, or a length is
            negative or not a whole number.

    Example:
        >>> effective_horizon(torch.tensor([5, 100]), 0.75)
        tensor([4., 4.])
        >>> effective_horizon(torch.tensor([5, 100]), 1.0)
        tensor([  5., 100.])
    """
    check_dim(1, lengths=lengths)
    check_numbers(lengths=lengths)
    check_number(0.0, 1.0, gamma=gamma)
    faults = [fractional(lengths=lengths), outside(0.0, math.inf, lengths=lengths)]
    if isinstance(lam, Tensor):
        check_shape(lengths.shape if lam.ndim else lam.shape, lam=lam)
        faults.append(outside(0.0, 1.0, lam=lam))
    else:
        check_number(0.0, 1.0, lam=lam)
    check_values(*faults)
    lengths = upcast(lengths)
    missing = 1.0 - gamma * torch.as_tensor(lam, dtype=lengths.dtype, device=lengths.device)
    return torch.minimum(lengths, 1.0 / missing)  # 1 / 0 is infinite: as far as there are tokens
