"""Scores of held-out problems: verdicts of the policy, values of the critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lit_reason.advantages import monte_carlo_returns
from lit_reason.annotation import token_rewards
from lit_reason.batch import RolloutBatch
from lit_reason.errors import ConfigWarning
from lit_reason.metrics import GroupMetrics
from lit_reason.networks import policy_outputs, values_and_after
from lit_reason.scores import Samples, why_nothing_is_right
from lit_reason.sharding import gathered
from lit_reason.value_metrics import ValueMetrics

if TYPE_CHECKING:
    from lit_reason.module import ReasonModule


class Evaluator:
    """Counts over the batches of one evaluation, on all ranks.

    Args:
        module: Whose policy and critic are evaluated.
    """

    def __init__(self, module: ReasonModule) -> None:
        self.module = module
        self.metrics: dict[str, GroupMetrics] = {}  # by stage
        self.value_metrics: dict[str, ValueMetrics] = {}
        self.warned_of_zero = False

    def update(self, rollout: RolloutBatch, stage: str) -> None:
        """Counts the verdicts, and compares the critic's values with what followed.

        Args:
            rollout: Judged responses to held-out problems.
            stage: "val" or "test".
        """
        data: Any = self.module.trainer.datamodule  # type: ignore[attr-defined]
        device = self.module.device
        if stage not in self.metrics:
            metric = GroupMetrics(data.val_samples, data.val_pass_k, data.val_sources)
            self.metrics[stage] = metric.to(device)
        self.metrics[stage].update(Samples.of(rollout, data.val_samples, data.val_sources))
        if self.module.critic is not None:
            if stage not in self.value_metrics:
                self.value_metrics[stage] = ValueMetrics().to(device)
            self.value_metrics[stage].update(*self._values_and_returns(rollout))

    def finish(self, stage: str) -> dict[str, float]:
        """All metrics of the stage over all ranks, under the keys that loggers get."""
        # the next evaluation may be of other data
        values = self.metrics.pop(stage).compute()
        if stage in self.value_metrics:
            of_critic = self.value_metrics.pop(stage).compute()
            values |= {f"value/{name}": value for name, value in of_critic.items()}
        if values.get("accuracy") == 0 and not self.warned_of_zero:
            self.warned_of_zero = True
            rank_zero_warn(why_nothing_is_right(stage, values), category=ConfigWarning)
        # as loggers get them
        return {f"{stage}/{k}": torch.tensor(v).item() for k, v in values.items()}

    def response_logprobs(self, rollout: RolloutBatch) -> Tensor:
        """(B,) log-probability of each response at temperature 1, in nats."""
        logprobs = rollout.rewards.new_zeros(len(rollout))
        chunk = self.module.logprob_chunk
        with gathered(self.module.actor):  # ranks may run different numbers of micro-batches
            for rows in self._micro_batches(rollout):
                outputs = policy_outputs(self.module.actor, rollout[rows], 1.0, "none", chunk)
                logprobs[rows] = outputs.logprobs.sum(dim=1)
        return logprobs

    def _values_and_returns(self, rollout: RolloutBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What `ValueMetrics.update` is given: values and returns without what fills up a shard.

        The returns are the Monte-Carlo returns that value pretraining regresses on, but for a KL
        penalty: its passes would double the time, and it is 0 while the policy is the reference.
        """
        rollout = rollout[(rollout.prompt_index >= 0).nonzero().squeeze(1)]
        values = torch.zeros_like(rollout.token_rewards)
        end = values.new_zeros(len(rollout))
        with gathered(self.module.critic):
            for rows in self._micro_batches(rollout):
                values[rows], end[rows] = values_and_after(self.module.critic, rollout[rows])
        estimator, mask = self.module.advantage, rollout.policy_mask
        after = torch.where(rollout.truncated, end, 0.0) if estimator.bootstraps else None
        rewards = token_rewards(rollout, {}, kl_in_reward=0.0)
        returns = monte_carlo_returns(rewards, mask, estimator.gamma, after)
        return values, returns, mask, rollout.value_mask

    def _micro_batches(self, rollout: RolloutBatch) -> list[Tensor]:
        rows = torch.arange(len(rollout), device=rollout.rewards.device)
        return self.module.update.micro_batches(rollout, rows)
