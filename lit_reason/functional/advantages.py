r"""Advantages: from rewards (and a critic) to one number per response token.

Time is 0-based: ``values[:, t]`` is the value of the state *before* response token ``t`` was
chosen, the state after the last token is terminal and worth 0 unless bootstrapped.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from lit_reason.functional._checks import (
    check_dim,
    check_floats,
    check_mask,
    check_number,
    check_numbers,
    check_positive,
    check_shape,
    check_values,
    fractional,
    non_finite,
    outside,
    upcast,
)
from lit_reason.functional.masked import zero_outside
from lit_reason.functional.tokens import last_token


def outcome_to_tokens(rewards: Tensor, mask: Tensor) -> Tensor:
    r"""Put each response's scalar reward on its last token.

    :math:`r_t = R\,\mathbb 1[t = T-1]`, the outcome term of DeepSeekMath (arXiv:2402.03300) Eq. 2.

    Args:
        rewards: One scalar per response; what is returned has the same unit.
        mask: True at the response's tokens, whatever the padding side.

    Shapes:
        rewards ``(B,)``, mask ``(B, T)`` bool; returns ``(B, T)``. A row without tokens stays
        all zero.

    Raises:
        ValueError: On wrong shapes, a mask that is not boolean, or a non-finite reward.

    Example:
        >>> mask = torch.tensor([[True, True, False], [False, False, False]])
        >>> outcome_to_tokens(torch.tensor([1.0, 5.0]), mask)
        tensor([[0., 1., 0.],
                [0., 0., 0.]])
    """
    check_dim(2, mask=mask)
    check_mask(mask.shape, mask=mask)
    check_shape(mask.shape[:1], rewards=rewards)
    check_values(non_finite(rewards=rewards))
    return zero_outside(rewards[:, None].expand(mask.shape), last_token(mask))


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float = 1.0,
    lam: float | Tensor = 1.0,
    bootstrap: Tensor | None = None,
) -> Tensor:
    r"""Generalised advantage estimation.

    .. math::
        \hat A_t = \sum_{l=0}^{T-t-1} (\gamma\lambda)^l \delta_{t+l}, \qquad
        \delta_t = r_t + \gamma V(s_{t+1}) - V(s_t)

    GAE (arXiv:1506.02438) Eq. 16, VAPO (arXiv:2504.05118) Eq. 3. The sums run over valid tokens
    only: masked positions (padding on any side, tool output in between) are skipped, as if
    the row had been compressed first. Value targets are ``gae(...) + values``; VC-PPO's decoupled
    GAE (arXiv:2503.01491) calls this twice, with its own `lam` for policy and critic.

    Args:
        rewards: Reward of each token.
        values: Value of the state before each token; as all but γ and λ in units of the reward.
        mask: True at the tokens that are actions.
        gamma: Discount in [0, 1].
        lam: Trace decay in [0, 1], one for all rows or one per row (VAPO's length-adaptive λ).
        bootstrap: Value of the state after each row's last token; None treats it as terminal.
            Set it to 0 in rows which ended by themselves.

    Shapes:
        rewards, values ``(B, T)``, mask ``(B, T)`` bool, lam scalar or ``(B,)``, bootstrap
        ``(B,)``; returns ``(B, T)`` in float32 (float64 for float64 input), without gradient,
        zero outside the mask.

    Raises:
        ValueError: On wrong shapes, a mask that is not boolean, gamma or lam outside [0, 1], or
            a non-finite reward or value at a valid token.

    Example:
        >>> rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.5, 0.6]])
        >>> mask = torch.ones(1, 3, dtype=torch.bool)
        >>> gae(rewards, values, mask)
        tensor([[0.8000, 0.5000, 0.4000]])
        >>> gae(rewards, values, mask, lam=0.95)
        tensor([[0.7560, 0.4800, 0.4000]])
    """
    check_dim(2, rewards=rewards)
    check_shape(rewards.shape, values=values)
    check_mask(rewards.shape, mask=mask)
    check_number(0.0, 1.0, gamma=gamma)
    dtype = torch.promote_types(upcast(rewards).dtype, upcast(values).dtype)
    rows, device = rewards.shape[:1], rewards.device
    after = torch.zeros(rows, dtype=dtype, device=device) if bootstrap is None else bootstrap
    check_shape(rows, bootstrap=after)
    dtype = torch.promote_types(dtype, after.dtype)
    faults = [non_finite(mask, rewards=rewards, values=values), non_finite(bootstrap=after)]
    if isinstance(lam, Tensor):
        check_shape(rows if lam.ndim else lam.shape, lam=lam)
        faults.append(outside(0.0, 1.0, lam=lam))
    else:
        check_number(0.0, 1.0, lam=lam)
    check_values(*faults)
    lam = torch.as_tensor(lam, dtype=dtype, device=device)
    rewards, values = (zero_outside(x, mask).to(dtype) for x in (rewards, values))
    ahead = _look_ahead(rewards, values, mask, gamma, gamma * lam, gamma * after.to(dtype))
    return (rewards + ahead).sub_(values).masked_fill_(~mask, 0.0)


def _look_ahead(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, decay: Tensor, after: Tensor
) -> Tensor:
    r"""What the λ-return G adds to each reward.

    :math:`\gamma[(1-\lambda) V(s_{t+1}) + \lambda G_{t+1}]`. With λ = 1 no value enters, so that
    the target is the reward-to-go whatever the critic says.

    An affine recursion backwards over time, one fused operation a step for all rows; a masked step
    carries its state over. Time comes first meanwhile, so that each step reads contiguous memory.
    """
    decay = decay[:, None] if decay.ndim else decay
    term = decay * rewards + (gamma - decay) * values
    state = torch.cat([term[:, 1:], after[:, None]], 1).t().contiguous()
    factor = torch.where(mask, decay, 1.0).t().contiguous()
    rows, factors = state.unbind(), factor.unbind()
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(factors[t + 1], rows[t + 1])
    return state.t()


def length_adaptive_lambda(lengths: Tensor, alpha: float, lambda_min: float = 0.0) -> Tensor:
    r"""VAPO's trace decay that grows with the response's length.

    .. math:: \lambda(l) = 1 - \frac1{\alpha l}, \qquad \textstyle\sum_{t\ge0}\lambda^t = \alpha l

    VAPO (arXiv:2504.05118) Eq. 4-5 with :math:`\alpha = 0.05`, clamped to
    ``[lambda_min, 1)``: the formula is negative for :math:`l < 1/\alpha`. The terminal
    reward reaches the first token with weight about :math:`e^{-1/\alpha}` at every length.

    Args:
        lengths: Number of response tokens of each row.
        alpha: Effective horizon as a share of the length, > 0.
        lambda_min: Smallest value returned, in [0, 1).

    Shapes:
        lengths ``(*)``; returns ``(*)`` in float32 (float64 for float64 input).

    Raises:
        ValueError: If `alpha` is not positive and finite, `lambda_min` not in [0, 1), or a
            length is negative or not a whole number.

    Example:
        >>> length_adaptive_lambda(torch.tensor([10, 40, 100, 1000]), alpha=0.05)
        tensor([0.0000, 0.5000, 0.8000, 0.9800])
    """
    check_positive(sys.float_info.max, alpha=alpha)
    check_number(0.0, math.nextafter(1.0, 0.0), lambda_min=lambda_min)
    check_numbers(lengths=lengths)
    check_values(fractional(lengths=lengths), outside(0.0, math.inf, lengths=lengths))
    lengths = upcast(lengths)
    below_one = 1.0 - torch.finfo(lengths.dtype).eps
    lam = 1.0 - 1.0 / (alpha * lengths)
    return torch.where(lengths > 0, lam, 0.0).clamp(min=lambda_min, max=below_one)


@torch.no_grad()
def kl_penalised_rewards(
    token_rewards: Tensor, logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, coef: float
) -> Tensor:
    r"""Token rewards minus the k1 estimate of the divergence from the reference.

    .. math:: r_t \leftarrow r_t - \beta\,(\log\pi(o_t|\cdot) - \log\pi_{ref}(o_t|\cdot))

    DeepSeekMath (arXiv:2402.03300) Eq. 2; :math:`\pi` is the policy that generated the response,
    so the term is a constant of the update.

    Args:
        token_rewards: Reward of each token.
        logprobs: Log-probabilities under the policy at rollout time, in nats.
        ref_logprobs: Those under the reference.
        mask: True at response tokens.
        coef: β, in units of the reward per nat.

    Shapes:
        all tensors ``(B, T)``, mask bool; returns ``(B, T)``, zero outside the mask.

    Raises:
        ValueError: On wrong shapes, a mask that is not boolean, log-probabilities that are not
            floating-point, non-finite valid entries, or a `coef` that is negative or not finite.

    Example:
        >>> rewards, old, mask = torch.eye(2)[1:], -torch.ones(1, 2), torch.ones(1, 2) > 0
        >>> kl_penalised_rewards(rewards, old, torch.zeros(1, 2), mask, coef=0.1)
        tensor([[0.1000, 1.1000]])
    """
    check_dim(2, token_rewards=token_rewards)
    check_shape(token_rewards.shape, logprobs=logprobs, ref_logprobs=ref_logprobs)
    check_floats(logprobs=logprobs, ref_logprobs=ref_logprobs)
    check_mask(token_rewards.shape, mask=mask)
    check_number(0.0, sys.float_info.max, coef=coef)
    check_values(
        non_finite(mask, token_rewards=token_rewards, logprobs=logprobs, ref_logprobs=ref_logprobs)
    )
    kl = upcast(logprobs) - upcast(ref_logprobs)
    return zero_outside(upcast(token_rewards) - coef * kl, mask)
