"""What a rollout and its update look like in numbers: one value a key, the same on every rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_reason.batch import RolloutBatch
from lit_reason.functional import kl_k3, masked_mean, zero_outside


def describe(rollout: RolloutBatch, extra: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics of this rank's rollout.

    Args:
        rollout: B responses.
        extra: (B,) quantities of the advantage estimator, described by mean, minimum and maximum.
    """
    lengths = rollout.lengths.float()
    stats = {
        "reward": rollout.rewards[rollout.scored].mean(),
        "reward/unscored": 1 - rollout.scored.float().mean(),
        "accuracy": _accuracy(rollout),
        "response_length": lengths.mean(),
        "response_length_max": lengths.max(),
        "response_length_min": lengths.min(),
        "truncated": rollout.truncated.float().mean(),
        **{k: torch.tensor(v, device=lengths.device) for k, v in rollout.stats.items()},
    }
    for key, value in extra.items():
        value = value.float()
        stats[f"{key}_mean"] = value.mean()
        stats[f"{key}_min"], stats[f"{key}_max"] = value.min(), value.max()
    return stats


def mismatch(rollout: RolloutBatch, logprobs: Tensor | None) -> dict[str, Tensor]:
    """How far the engine's log-probs of this rank's tokens are from the trainer's.

    Empty where one of them is unknown.

    Args:
        rollout: B responses.
        logprobs: (B, T), the trainer's before the update.
    """
    if rollout.sampled_logprobs is None or logprobs is None:
        return {}
    mask = rollout.policy_mask & ~rollout.critic_only[:, None]
    sampled = rollout.sampled_logprobs
    apart = zero_outside((logprobs - sampled).abs(), mask)
    return {
        "mismatch/logprob": masked_mean(apart, mask),
        "mismatch/logprob_max": apart.max(),
        "mismatch/ratio": masked_mean((logprobs - sampled).exp(), mask),
        "mismatch/kl": masked_mean(kl_k3(sampled, logprobs), mask),
    }


def _accuracy(rollout: RolloutBatch) -> Tensor:
    """Share of right responses; nan if nothing is right or wrong."""
    return rollout.right[rollout.right >= 0].float().mean()


def over_ranks(stats: dict[str, Tensor], strategy: Any, device: torch.device) -> dict[str, Tensor]:
    """Minima and maxima over the ranks of keys that end so, means of all others.

    A reward that is nan, as no response of the rank has one, is left out of the mean.

    Args:
        stats: The same keys on every rank.
        strategy: Lightning's strategy, which reduces.
        device: Where it reduces.
    """
    reduced: dict[str, Tensor] = {}
    for op in ("mean", "min", "max"):
        keys = [k for k in stats if _across_ranks(k) == op]
        values = torch.stack([stats[k].float() for k in keys]) if keys else torch.zeros(0)
        rewards = torch.tensor([k.startswith("reward") for k in keys], dtype=torch.bool)
        missing = rewards & values.cpu().isnan()
        known = (~missing).float().to(device)
        total = strategy.reduce(values.to(device).masked_fill(known == 0, 0.0), reduce_op=op)
        if op == "mean":
            total = total / strategy.reduce(known, reduce_op=op)
        reduced |= dict(zip(keys, total, strict=True))
    return reduced


def average(steps: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean over optimizer steps of each statistic, over the steps that have it."""
    keys = dict.fromkeys(key for step in steps for key in step)
    return {k: torch.stack([s[k].float() for s in steps if k in s]).mean() for k in keys}


def forget_logged(trainer: Any) -> None:
    """Drops what was logged of the batch before.

    Lightning keeps a value until the end of the epoch, and would write it again for a batch that
    logs none of its own. To be called before any callback can log of the next batch.

    Args:
        trainer: It trains, evaluates or predicts.
    """
    if not trainer.training:
        return
    for item in trainer.fit_loop._results.values():
        if item.is_tensor and not item.meta.on_epoch:
            item.reset()


def _across_ranks(key: str) -> str:
    return next((op for op in ("min", "max") if key.endswith(f"_{op}")), "mean")
