"""The advantage estimators that a config can name."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lit_reason.batch import RolloutBatch
from lit_reason.errors import ConfigError, ConfigWarning, require_float32
from lit_reason.forms import require_tensor
from lit_reason.functional import (
    Reduce,
    gae,
    group_relative,
    group_relative_process,
    length_adaptive_lambda,
    masked_whiten,
    zero_outside,
)


class Advantages(NamedTuple):
    """What an estimator returns.

    Attributes:
        advantages: (B, T) float32, 0 on padding.
        returns: (B, T) float32, the critic's targets; `None` without a critic.
        stats: (B,) float32 quantities to log as mean, minimum and maximum over responses.
    """

    advantages: Tensor
    returns: Tensor | None
    stats: dict[str, Tensor]


def check_advantages(
    estimator: AdvantageEstimator, estimated: Advantages, rewards: Tensor, *given: Tensor | None
) -> None:
    """Refuses what an estimator must not return.

    Args:
        estimator: Named in the message.
        estimated: What it returned.
        rewards: What it was given.
        given: The same of values and what follows the last token, where there are some.

    Raises:
        ConfigError: A part is missing or has another shape, or is not finite though all that was
            given is.
    """
    key = f"model.advantage={type(estimator).__name__}"
    if not isinstance(estimated, Advantages):
        raise ConfigError(
            f"{key}: returned a {type(estimated).__name__}, expected Advantages(advantages, "
            "returns, stats)"
        )
    by_token = {"advantages": estimated.advantages}
    if estimator.needs_critic:
        by_token["returns"] = estimated.returns  # type: ignore[assignment]
    expected = {name: (value, rewards.shape) for name, value in by_token.items()}
    expected |= {f"stats[{k!r}]": (v, rewards.shape[:1]) for k, v in estimated.stats.items()}
    for name, (value, shape) in expected.items():
        require_tensor(f"{key}: {name}", value, shape)
    tensors = [rewards, *(x for x in given if x is not None)]
    if all(bool(x.isfinite().all()) for x in tensors):
        bad = next((n for n, v in by_token.items() if not bool(v.isfinite().all())), None)
        if bad:
            raise ConfigError(f"{key}: {bad} are not finite, though rewards and values are")


def monte_carlo_returns(
    rewards: Tensor, mask: Tensor, gamma: float, after: Tensor | None = None
) -> Tensor:
    """What followed each token, whatever λ a critic learns with.

    Args:
        rewards: (B, T) of the tokens.
        mask: (B, T) bool: the policy sampled the token.
        gamma: Discount γ.
        after: (B,) what the state after the last token counts as; `None` is 0.

    Returns:
        (B, T) float32.

    Example:
        >>> rewards = torch.tensor([[0.0, 0.0, 1.0]])
        >>> monte_carlo_returns(rewards, torch.ones(1, 3, dtype=torch.bool), gamma=0.5)
        tensor([[0.2500, 0.5000, 1.0000]])
    """
    return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0, after)


class AdvantageEstimator(ABC):
    """Base class of advantage estimators.

    Attributes:
        needs_critic: The module builds a critic and passes its values.
        gamma: Discount γ, also of the Monte-Carlo returns that value warm-up regresses on.
        bootstraps: A truncated response ends in a state with a value, not in a terminal one; the
            estimator is then also given `after`.
        policy_trains: Its advantages train the policy now; set by the module.
        reduce: Sums a tensor over data-parallel ranks; set by the module, `None` on one process.
    """

    needs_critic: ClassVar[bool] = False
    gamma: float = 1.0
    bootstraps: bool = False
    policy_trains: bool = True
    reduce: Reduce | None = None

    @abstractmethod
    def __call__(self, rollout: RolloutBatch, rewards: Tensor, values: Tensor | None) -> Advantages:
        """Estimates the advantage of every sampled token.

        Args:
            rollout: B responses in groups.
            rewards: (B, T) float32: the outcome reward on the last sampled token, plus per-token
                terms, minus the KL penalty if one is configured.
            values: (B, T) float32: V(s_t) before each sampled token; `None` without a critic.

        Where `bootstraps` is set there is a fourth argument, `after`: (B,) float32, V of the state
        after the last token of truncated responses, 0 for those that ended.
        """


class GAE(AdvantageEstimator):
    r"""Generalised advantage estimation, decoupled and length-adaptive on request.

    .. math:: A_t = \sum_l (\gamma\lambda)^l \delta_{t+l}, \quad
              \delta_t = R_t + \gamma V(s_{t+1}) - V(s_t)

    The critic's targets are A^{λ_critic} + V, the policy's advantages A^{λ_policy} (VC-PPO). With
    `alpha`, λ_policy = 1 - 1/(α l) for a response of l tokens (VAPO Eq. 5).

    Args:
        gamma: Discount γ.
        lam_policy: λ of the policy's advantages; null is 0.95 where `alpha` is null too.
        lam_critic: λ of the critic's targets; 1 is the Monte-Carlo return.
        alpha: α of the length-adaptive λ; null uses `lam_policy`.
        lambda_min: Lower bound of the length-adaptive λ. The formula is negative for l < 1/α.
        whiten: Give advantages mean 0 and variance 1 over the training tokens of the rollout; "std"
            divides by the deviation only, so that every advantage keeps its sign. Targets never
            change.
        truncation: What a response without an end token ends in: a "terminal" state worth 0, as in
            every published implementation, or "bootstrap", a state worth what the critic says,
            γ V(s_T) on top of its reward. `OverlongFilter` drops such responses.
    """

    needs_critic = True

    def __init__(
        self,
        gamma: float = 1.0,
        lam_policy: float | None = None,
        lam_critic: float = 1.0,
        alpha: float | None = None,
        lambda_min: float = 0.0,
        whiten: bool | Literal["std"] = False,
        truncation: Literal["terminal", "bootstrap"] = "terminal",
    ) -> None:
        if alpha is not None and lam_policy is not None:
            warnings.warn(
                f"model.advantage.lam_policy={lam_policy}: has no effect, alpha={alpha} makes "
                "λ_policy follow the length; set one of the two to null",
                ConfigWarning,
                stacklevel=2,
            )
        lam_policy = 0.95 if lam_policy is None else lam_policy
        unit = {
            "gamma": gamma,
            "lam_policy": lam_policy,
            "lam_critic": lam_critic,
            "lambda_min": lambda_min,
        }
        for name, value in unit.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"model.advantage.{name}={value}: must lie in [0, 1]")
        if lambda_min == 1:
            raise ConfigError(
                "model.advantage.lambda_min=1: must be below 1; set alpha=null, lam_policy=1"
            )
        require_float32("model.advantage.alpha", alpha, ", or null to use lam_policy")
        if alpha is None and lambda_min > 0:
            raise ConfigError(
                f"model.advantage.lambda_min={lambda_min}: bounds the length-adaptive λ only; "
                "set model.advantage.alpha, or lambda_min to 0"
            )
        self.gamma, self.lam_policy, self.lam_critic = gamma, lam_policy, lam_critic
        self.alpha, self.lambda_min, self.whiten = alpha, lambda_min, whiten
        self.bootstraps = truncation == "bootstrap"
        self.warned_of_clamp = False

    def __call__(
        self,
        rollout: RolloutBatch,
        rewards: Tensor,
        values: Tensor | None,
        after: Tensor | None = None,
    ) -> Advantages:
        """See `AdvantageEstimator.__call__`."""
        assert values is not None
        mask = rollout.policy_mask
        lam = self.policy_lambda(rollout)
        advantages = gae(rewards, values, mask, self.gamma, lam, after)
        targets = gae(rewards, values, mask, self.gamma, self.lam_critic, after)
        returns = zero_outside(targets + values, mask)
        if self.whiten:
            advantages = masked_whiten(
                advantages, rollout.loss_mask, self.whiten != "std", reduce=self.reduce
            )
        return Advantages(advantages, returns, {"gae/lambda": lam})

    def policy_lambda(self, rollout: RolloutBatch) -> Tensor:
        """(B,) float32: λ_policy of each response."""
        lengths = rollout.policy_mask.sum(dim=1)
        if self.alpha is None:
            return torch.full(lengths.shape, self.lam_policy, device=lengths.device)
        lam = length_adaptive_lambda(lengths, self.alpha, self.lambda_min)
        self._warn_of_clamp(lengths, lam)
        return lam

    def _warn_of_clamp(self, lengths: Tensor, lam: Tensor) -> None:
        """Once: λ says nothing of the length where it is held at its bound."""
        lengths, lam = lengths[lengths > 0], lam[lengths > 0]
        share = float((lam <= self.lambda_min).float().mean())
        if share > 0.5 and self.policy_trains and not self.warned_of_clamp:
            self.warned_of_clamp = True
            median = float(lengths.float().median())
            needed = 1 / ((1 - self.lambda_min) * median)
            alone = ", whose tokens learn from the critic's next value alone"
            rank_zero_warn(
                f"model.advantage.alpha={self.alpha}: λ_policy is held at lambda_min="
                f"{self.lambda_min} for {share:.0%} of the responses"
                f"{'' if self.lambda_min else alone}; responses are {median:.0f} tokens long "
                f"(median), choose alpha well above {needed:.2g}",
                category=ConfigWarning,
            )


class GroupRelative(AdvantageEstimator):
    """Rewards normalised within the group of responses to one prompt (GRPO §4.1.2-3).

    Unscored responses are no part of their group; a group of one has advantage 0.

    With per-token reward terms (process supervision) all step rewards of a group are normalised
    together and a token's advantage is the sum of those at or after it.

    Args:
        scale_by_std: Divide by the group's standard deviation; false is Dr. GRPO.
    """

    def __init__(self, scale_by_std: bool = True) -> None:
        self.scale_by_std = scale_by_std

    def __call__(self, rollout: RolloutBatch, rewards: Tensor, values: Tensor | None) -> Advantages:
        """See `AdvantageEstimator.__call__`."""
        mask, ids, scored = rollout.policy_mask, rollout.group_ids, rollout.scored
        if bool(rollout.step_mask.any()):
            steps = rollout.step_mask & scored[:, None]
            advantages = group_relative_process(rewards, steps, mask, ids, self.scale_by_std)
        else:
            # a response without a token of the policy has no place for its reward, but has one
            outcomes = torch.where(mask.any(dim=1), rewards.sum(dim=1), rollout.rewards)
            scores = group_relative(outcomes, ids, self.scale_by_std, valid=scored)
            advantages = zero_outside(scores[:, None].expand_as(rewards), mask)
        zero = (advantages == 0).all(dim=1).float()
        return Advantages(advantages, None, {"advantage/zero_fraction": zero})
