"""From a rollout to an experience: log-probs, values, token rewards, advantages and returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_reason.advantages import check_advantages
from lit_reason.batch import Experience, RolloutBatch
from lit_reason.errors import ConfigError, blaming
from lit_reason.functional import gae, kl_penalised_rewards, outcome_to_tokens
from lit_reason.networks import Entropy, values_and_after
from lit_reason.statistics import mismatch

if TYPE_CHECKING:
    from lit_reason.module import ReasonModule


def annotate(
    module: ReasonModule, rollout: RolloutBatch, micro_batches: Sequence[Tensor]
) -> tuple[Experience, dict[str, Tensor]]:
    """Log-probs, values, advantages and returns of a rollout under the current weights.

    Called by `ReasonModule.annotate`, without gradients and checks of values.

    Args:
        module: Its networks score the rollout, its estimator makes the advantages.
        rollout: B responses.
        micro_batches: Row indices; those of the first epoch, so that the first importance ratio
            is exactly 1 where the trainer computes old log-probs.

    Returns:
        The experience, and the (B,) quantities that the estimator describes.

    Raises:
        ConfigError: `old_logprobs` is "engine", and the engine gave none.
    """
    columns = _columns(module, rollout, micro_batches)
    rewards = token_rewards(rollout, columns, module.kl_in_reward)
    values, end = columns.get("values"), columns.pop("after", None)
    estimator, mask = module.advantage, rollout.policy_mask
    bootstraps = end is not None and estimator.bootstraps
    after = [torch.where(rollout.truncated, end, 0.0)] if bootstraps else []  # type: ignore[arg-type]
    estimator.policy_trains = module.phase == "joint"
    with blaming("model.advantage", estimator):
        estimated = estimator(rollout, rewards, values, *after)
        check_advantages(estimator, estimated, rewards, values, *after)
    advantages, returns, extra = estimated
    if module.phase == "value_warmup" and values is not None:
        # Monte-Carlo targets, whatever λ_critic the joint phase uses (VC-PPO)
        returns = gae(rewards, values, mask, estimator.gamma, 1.0, *after) + values
    experience = Experience(
        rollout=rollout,
        advantages=advantages,
        returns=returns,
        rewards=rewards,
        lam=extra.get("gae/lambda"),
        after=after[0] if after else None,
        phase=module.phase,
        **columns,
    )
    return experience, extra


def compare(
    module: ReasonModule, experience: Experience, micro_batches: Sequence[Tensor]
) -> dict[str, Tensor]:
    """`mismatch` of the rollout, or of each 16th response where old log-probs are the engine's.

    Args:
        module: Its actor has not been updated yet.
        experience: What `annotate` made.
        micro_batches: Row indices of the first epoch.
    """
    rollout, old = experience.rollout, experience.old_logprobs
    if module.old_logprobs == "trainer" or old is None:
        return mismatch(rollout, old)
    rows = torch.cat([*micro_batches, torch.zeros(1, dtype=torch.long)])[::16]
    some = rollout[rows.to(rollout.rewards.device)]
    return mismatch(some, module.score(module.actor, some).logprobs)


def token_rewards(rollout: RolloutBatch, columns: dict[str, Tensor], kl_in_reward: float) -> Tensor:
    """(B, T) rewards: the outcome at the last token, per-token terms, and the KL penalty.

    Args:
        rollout: B responses.
        columns: `old_logprobs` and `ref_logprobs`, (B, T) each, where there is a penalty.
        kl_in_reward: Its β; 0 is none.
    """
    mask = rollout.policy_mask
    rewards = outcome_to_tokens(rollout.rewards, mask) + rollout.token_rewards
    if kl_in_reward:
        logprobs, ref = columns["old_logprobs"], columns["ref_logprobs"]
        rewards = kl_penalised_rewards(rewards, logprobs, ref, mask, kl_in_reward)
    return rewards


def _columns(
    module: ReasonModule, rollout: RolloutBatch, micro_batches: Sequence[Tensor]
) -> dict[str, Tensor]:
    """What the networks say of all rows, (B, ...) each."""
    columns: dict[str, Tensor] = {}
    only = rollout.critic_only.nonzero().squeeze(1)
    for rows in [*micro_batches, *module.in_step(module.update.micro_batches(rollout, only))]:
        rows = rows.to(rollout.rewards.device)
        for name, value in _scored(module, rollout[rows]).items():
            shape = (len(rollout), *value.shape[1:])
            columns.setdefault(name, value.new_zeros(shape))[rows] = value
    return columns


def _scored(module: ReasonModule, micro: RolloutBatch) -> dict[str, Tensor]:
    """What the networks say of some rows, as far as somebody asks for it."""
    scored: dict[str, Tensor | None] = {}
    of_policy = module.phase == "joint" and not bool(micro.critic_only.all())
    if of_policy or module.kl_in_reward or module.monitor_entropy:
        scored |= _of_actor(module, micro)
        if module.reference is not None:
            scored["ref_logprobs"] = module.score(module.reference, micro).logprobs
    if module.critic is not None:
        scored["values"], scored["after"] = values_and_after(module.critic, micro)
    return {name: value for name, value in scored.items() if value is not None}


def _of_actor(module: ReasonModule, micro: RolloutBatch) -> dict[str, Tensor | None]:
    """Old log-probs and entropy: of a forward pass, or where they can be, of the engine."""
    mode: Entropy = "detached" if module.monitor_entropy else "none"
    if module.old_logprobs == "trainer":
        outputs = module.score(module.actor, micro, mode)
        return {"old_logprobs": outputs.logprobs, "entropy": outputs.entropy}
    if micro.sampled_logprobs is None:
        raise ConfigError(
            "model.old_logprobs=engine: data.engine returns no log-probs; let it set "
            "Response.logprobs, or choose trainer"
        )
    entropy = micro.sampled_entropy
    if module.monitor_entropy and entropy is None:
        entropy = module.score(module.actor, micro, mode).entropy
    return {"old_logprobs": micro.sampled_logprobs, "entropy": entropy}
