r"""Per-token losses: minimised, not aggregated, float32 or better.

Combine them with :mod:`lit_reason.functional.aggregation`. The importance ratio is
:math:`r_t = \exp(\log\pi_\theta - \log\pi_{old})`. Everything but the first argument of a loss is
a constant: no gradient flows into old log-probabilities, advantages, returns or the reference.

Nothing is masked here: put zeros where nothing counts first (``zero_outside``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_reason.functional._checks import (
    check_floats,
    check_number,
    check_shape,
    check_values,
    non_finite,
    upcast,
)

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±20 before exponentiation (e^20 = 4.9e8): float32 cannot overflow."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Importance ratio of a log-ratio clamped to ±20; nan for an infinite one.

    A clamp alone would make an ordinary number of what a diverged network says.

    Args:
        log_ratio: In nats.

    Shapes:
        ``(*)``; returns ``(*)``.

    Example:
        >>> bounded_exp(torch.tensor([0.0, 1.0, 90.0, float("inf")]))
        tensor([1.0000e+00, 2.7183e+00, 4.8517e+08,        nan])
    """
    bounded = _within(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return bounded.exp().masked_fill(log_ratio.isinf(), torch.nan)


def _within(x: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """A clamp with the gradient of `x` at the bounds; that of `clamp` differs between releases."""
    return torch.where(x > high, high, torch.where(x < low, low, x))


def _ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    return bounded_exp(upcast(logprobs) - upcast(old_logprobs.detach()))


def _check_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> None:
    check_shape(logprobs.shape, old_logprobs=old_logprobs, advantages=advantages)
    check_floats(logprobs=logprobs, old_logprobs=old_logprobs)
    check_number(clip_low=clip_low, clip_high=clip_high)
    if dual_clip is not None:
        check_number(1.0, dual_clip=dual_clip)
        if dual_clip == 1:
            raise ValueError(f"`dual_clip`={dual_clip} must be greater than 1")
    tensors = {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages}
    check_values(non_finite(**tensors))


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    r"""PPO's clipped policy loss, with separate bounds below and above.

    .. math::
        \ell_t = -\min\big(r_t \hat A_t,\ \mathrm{clip}(r_t, 1-\varepsilon_{low},
        1+\varepsilon_{high})\, \hat A_t\big)

    PPO (arXiv:1707.06347) Eq. 7; decoupled bounds are DAPO's Clip-Higher (arXiv:2503.14476)
    Eq. 8. With `dual_clip` = c (arXiv:1912.09729) the loss of a negative advantage is at most
    :math:`-c \hat A_t`. Log-ratios beyond ±20 are clamped: the loss stays finite, its gradient
    is zero there.

    Args:
        logprobs: Log-probabilities under the policy being trained, in nats.
        old_logprobs: Those under the policy that generated the data.
        advantages: Advantage of each token.
        clip_low: ε_low; the lower bound is ``1 - clip_low``.
        clip_high: ε_high; the upper bound is ``1 + clip_high``; inf disables it.
        dual_clip: c > 1, or None.

    Shapes:
        all tensors ``(*)``; returns ``(*)``.

    Raises:
        ValueError: If shapes differ, log-probabilities are not floating-point, a tensor is not
            finite, a bound is negative or nan, or `dual_clip` is not above 1.

    Example:
        >>> ratio = torch.tensor([1.25, 1.5, 0.7, 1.5, 0.7])
        >>> advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0])
        >>> clipped_surrogate(ratio.log(), torch.zeros(5), advantages, clip_high=0.28)
        tensor([-1.2500, -1.2800,  0.8000,  1.5000, -0.7000])
    """
    _check_surrogate(logprobs, old_logprobs, advantages, clip_low, clip_high, dual_clip)
    ratio = _ratio(logprobs, old_logprobs)
    advantages = upcast(advantages.detach())
    # chosen by the bounds, not by min, max and clamp, whose gradients at a tie differ
    bounded = torch.where((advantages > 0) & (ratio > 1 + clip_high), 1 + clip_high, ratio)
    bounded = torch.where((advantages < 0) & (ratio < 1 - clip_low), 1 - clip_low, bounded)
    loss = -advantages * bounded
    if dual_clip is None:
        return loss
    return torch.where((advantages < 0) & (ratio > dual_clip), -advantages * dual_clip, loss)


@torch.no_grad()
def clip_masks(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Where each bound of :func:`clipped_surrogate` removes the gradient.

    low: :math:`\hat A<0,\ r<1-\varepsilon_{low}`; high: :math:`\hat A>0,\ r>1+\varepsilon_{high}`;
    dual: :math:`\hat A<0,\ r>c`. The complement of the three is CISPO's mask
    :math:`M_{i,t}` (MiniMax-M1, arXiv:2506.13585). A ratio outside the bounds on the other side
    of the advantage is *not* clipped and is not counted.

    Args:
        logprobs: Log-probabilities under the policy being trained, in nats.
        old_logprobs: Those under the policy that generated the data.
        advantages: Advantage of each token.
        clip_low: ε_low.
        clip_high: ε_high.
        dual_clip: c > 1, or None.

    Shapes:
        all tensors ``(*)``; returns three ``(*)`` bool tensors (low, high, dual).

    Raises:
        ValueError: If shapes differ, log-probabilities are not floating-point, a tensor is not
            finite, a bound is negative or nan, or `dual_clip` is not above 1.

    Example:
        >>> ratio, advantages = torch.tensor([1.5, 0.7, 5.0]), torch.tensor([1.0, -1.0, -1.0])
        >>> low, high, dual = clip_masks(ratio.log(), torch.zeros(3), advantages, dual_clip=3.0)
        >>> low.tolist(), high.tolist()
        ([False, True, False], [True, False, False])
        >>> dual.tolist()
        [False, False, True]
    """
    _check_surrogate(logprobs, old_logprobs, advantages, clip_low, clip_high, dual_clip)
    ratio = _ratio(logprobs, old_logprobs)
    negative = advantages < 0
    low = negative & (ratio < 1 - clip_low)
    high = (advantages > 0) & (ratio > 1 + clip_high)
    dual = negative & (ratio > (float("inf") if dual_clip is None else dual_clip))
    return low, high, dual


def value_loss(
    values: Tensor,
    returns: Tensor,
    old_values: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    r"""Half the squared error of the critic, optionally clipped around its old prediction.

    .. math::
        \ell_t = \tfrac12 \max\big[(V - \hat R)^2,\
        (\mathrm{clip}(V, V_{old} - \epsilon_v, V_{old} + \epsilon_v) - \hat R)^2\big]

    VC-PPO (arXiv:2503.01491) Algorithm 1 and Open-Reasoner-Zero (arXiv:2503.24290) Eq. 2 without
    clipping; the maximum is the pessimistic form used by verl and TRL.

    Args:
        values: Current predictions V, in units of the reward.
        returns: Targets, likewise; the loss is in units of the reward squared.
        old_values: Predictions at rollout time; needed with `clip`.
        clip: ε_v, or None for the plain squared error.

    Shapes:
        all tensors ``(*)``; returns ``(*)``.

    Raises:
        ValueError: If shapes differ (of `old_values` too where `clip` is None), a tensor that is
            used is not finite, or `clip` is given without `old_values`, negative or nan.

    Example:
        >>> values, returns = torch.tensor([1.0, -0.5]), torch.tensor([0.9, 1.0])
        >>> value_loss(values, returns, old_values=torch.zeros(2), clip=0.2)
        tensor([0.2450, 1.1250])
    """
    if clip is not None:
        check_number(clip=clip)
        if old_values is None:
            raise ValueError(f"`clip`={clip} needs `old_values`")
    old = {} if old_values is None else {"old_values": old_values}
    check_shape(values.shape, values=values, returns=returns, **old)
    check_values(non_finite(values=values, returns=returns, **({} if clip is None else old)))
    values, returns = upcast(values), upcast(returns.detach())
    error = (values - returns).square()
    if clip is None or old_values is None:
        return 0.5 * error
    old_values = upcast(old_values.detach())
    clipped = _within(values, old_values - clip, old_values + clip)
    return 0.5 * torch.maximum(error, (clipped - returns).square())


def _log_ratio_to_reference(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    check_shape(logprobs.shape, ref_logprobs=ref_logprobs)
    check_floats(logprobs=logprobs, ref_logprobs=ref_logprobs)
    check_values(non_finite(logprobs=logprobs, ref_logprobs=ref_logprobs))
    return upcast(ref_logprobs.detach()) - upcast(logprobs)


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    r"""Unbiased estimate of the divergence, of either sign.

    :math:`k_1 = -d` with :math:`d = \log\pi_{ref} - \log\pi_\theta`, for tokens sampled from
    :math:`\pi_\theta` (Schulman, "Approximating KL divergence"). Its gradient has mean zero: use it
    in the reward, not as a loss.

    Args:
        logprobs: Log-probabilities under the policy, in nats.
        ref_logprobs: Those under the reference.

    Shapes:
        both ``(*)``; returns ``(*)``, in nats.

    Raises:
        ValueError: If the shapes differ, or a tensor is not floating-point or not finite.

    Example:
        >>> kl_k1(torch.tensor([-1.0]), torch.tensor([-1.5]))
        tensor([0.5000])
    """
    return -_log_ratio_to_reference(logprobs, ref_logprobs)


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    r"""Half the squared log-ratio.

    :math:`k_2 = d^2 / 2`, non-negative, biased as a value; its expected gradient is that of
    the divergence (Schulman, "Approximating KL divergence").

    Args:
        logprobs: Log-probabilities under the policy, in nats.
        ref_logprobs: Those under the reference.

    Shapes:
        both ``(*)``; returns ``(*)``, in nats.

    Raises:
        ValueError: If the shapes differ, or a tensor is not floating-point or not finite.

    Example:
        >>> kl_k2(torch.tensor([-1.0]), torch.tensor([-1.5]))
        tensor([0.1250])
    """
    return 0.5 * _log_ratio_to_reference(logprobs, ref_logprobs).square()


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    r"""Non-negative, unbiased estimate of the divergence.

    .. math:: k_3 = e^d - d - 1, \qquad d = \log\pi_{ref} - \log\pi_\theta

    GRPO's KL term (DeepSeekMath, arXiv:2402.03300, Eq. 4); its derivative by
    :math:`\log\pi_\theta` is :math:`1 - \pi_{ref}/\pi_\theta`. For :math:`d > 20` the
    exponential is continued by its tangent, so value and gradient stay finite (in float32 up to
    :math:`d = 10^{29}`), increasing and of the right sign; :math:`d \le 20` is exact.

    Args:
        logprobs: Log-probabilities under the policy, in nats.
        ref_logprobs: Those under the reference.

    Shapes:
        both ``(*)``; returns ``(*)``, in nats.

    Raises:
        ValueError: If the shapes differ, or a tensor is not floating-point or not finite.

    Example:
        >>> kl_k3(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, 1.0]))
        tensor([0.0000, 4.3891])
    """
    d = _log_ratio_to_reference(logprobs, ref_logprobs)
    exact = _within(d, -math.inf, LOG_RATIO_LIMIT)
    tangent = math.expm1(LOG_RATIO_LIMIT) * (d - LOG_RATIO_LIMIT)
    # one branch a token: at the limit itself the gradients of two clamps would add up
    return torch.expm1(exact) - exact + torch.where(d > LOG_RATIO_LIMIT, tangent, 0.0)


def nll(logprobs: Tensor) -> Tensor:
    r"""Negative log-likelihood of each token.

    :math:`\ell_t = -\log\pi_\theta(a_t|s_t)`: VAPO's language-model loss on correct responses
    (arXiv:2504.05118) Eq. 9; divide by the tokens of the correct responses, not by all.

    Args:
        logprobs: Log-probabilities under the policy, in nats.

    Shapes:
        ``(*)``; returns ``(*)``, in nats.

    Raises:
        ValueError: If the log-probabilities are not floating-point or not finite.

    Example:
        >>> nll(torch.tensor([-1.0, -0.5]))
        tensor([1.0000, 0.5000])
    """
    check_floats(logprobs=logprobs)
    check_values(non_finite(logprobs=logprobs))
    return -upcast(logprobs)
