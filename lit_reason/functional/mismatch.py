r"""What to do about tokens that were drawn from another distribution than the trainer's.

An engine with kernels, precision or weights of its own gives a token another probability than the
trainer does, and the policy gradient of its samples is biased.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from lit_reason.functional._checks import (
    check_dim,
    check_floats,
    check_mask,
    check_positive,
    check_shape,
    check_values,
    non_finite,
    upcast,
)
from lit_reason.functional.losses import bounded_exp
from lit_reason.functional.masked import zero_outside

Level: TypeAlias = Literal["token", "sequence"]
"""Whether each token has a ratio of its own, or each response one."""
Cut: TypeAlias = Literal["truncate", "mask"]
"""Whether ratios above the cap become the cap, or 0."""


@torch.no_grad()
def importance_weights(
    logprobs: Tensor,
    sampled_logprobs: Tensor,
    mask: Tensor,
    cap: float = 2.0,
    level: Level = "token",
    cut: Cut = "truncate",
) -> Tensor:
    r"""Truncated or masked importance weights of tokens that an engine drew.

    .. math:: w = \min(\rho, C) \quad\text{or}\quad w = \rho\,[\rho \le C], \qquad
              \rho_t = \frac{\pi(o_t)}{\mu(o_t)}, \quad \rho = \prod_t \rho_t

    π is the trainer's policy at the time of the rollout, μ the engine's. Truncation is Ionides'
    (2008), with a bias that falls and a variance that grows with C; by tokens it is the correction
    of Yao et al. (2025), "Your efficient RL framework secretly brings you off-policy RL training".
    TRL's ``vllm_importance_sampling_mode`` names the same four. Log-ratios are clamped to ±20.

    Args:
        logprobs: Log-probabilities of the trainer, before the update, in nats.
        sampled_logprobs: Those of the engine, in nats.
        mask: True at the tokens that were sampled.
        cap: C.
        level: ``"token"`` weighs each token by its own ratio, ``"sequence"`` all tokens of a
            response by the product.
        cut: ``"truncate"`` or ``"mask"``.

    Shapes:
        all tensors ``(B, T)``, mask bool; returns ``(B, T)``, without gradient, 0 outside the mask.

    Raises:
        ValueError: On wrong shapes, a mask that is not boolean, log-probabilities that are not
            floating-point or not finite at a sampled token, a cap that is not positive and finite,
            or an unknown `level` or `cut`.

    Example:
        >>> logprobs, mask = torch.tensor([[0.1, 2.0]]), torch.ones(1, 2, dtype=torch.bool)
        >>> importance_weights(logprobs, torch.zeros(1, 2), mask)
        tensor([[1.1052, 2.0000]])
        >>> importance_weights(logprobs, torch.zeros(1, 2), mask, cut="mask")
        tensor([[1.1052, 0.0000]])
        >>> importance_weights(logprobs, torch.zeros(1, 2), mask, cap=9.0, level="sequence")
        tensor([[8.1662, 8.1662]])
    """
    check_dim(2, logprobs=logprobs)
    check_shape(logprobs.shape, sampled_logprobs=sampled_logprobs)
    check_mask(logprobs.shape, mask=mask)
    check_floats(logprobs=logprobs, sampled_logprobs=sampled_logprobs)
    check_positive(cap=cap)
    if level not in ("token", "sequence"):
        raise ValueError(f"`level` must be 'token' or 'sequence', got {level!r}")
    if cut not in ("truncate", "mask"):
        raise ValueError(f"`cut` must be 'truncate' or 'mask', got {cut!r}")
    check_values(non_finite(mask, logprobs=logprobs, sampled_logprobs=sampled_logprobs))
    log_ratio = zero_outside(upcast(logprobs) - upcast(sampled_logprobs), mask)
    if level == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    ratio = bounded_exp(log_ratio)
    over = ratio.clamp(max=cap) if cut == "truncate" else ratio.masked_fill(ratio > cap, 0.0)
    return zero_outside(over, mask)
