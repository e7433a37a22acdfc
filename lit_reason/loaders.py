"""What Lightning iterates over: rollouts to train on, judged responses to held-out problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from lit_reason.batch import RolloutBatch
from lit_reason.errors import blaming
from lit_reason.scores import answer_classes
from lit_reason.stages import enter_stage

if TYPE_CHECKING:
    from lit_reason.data import RolloutDataModule


class RolloutLoader:
    """Yields rollouts of the current policy.

    It has a length: Lightning prefetches one batch from a loader without one, and every rollout
    would come from the weights before the last update.
    """

    def __init__(self, data: RolloutDataModule) -> None:
        self.data = data

    def __len__(self) -> int:
        return self.data.rollouts_per_epoch

    def __iter__(self) -> Iterator[RolloutBatch]:
        for _ in range(len(self)):
            yield self.data.rollout()


class EvaluationLoader:
    """Yields judged responses to the held-out problems, the same sampling seeds each time."""

    def __init__(self, data: RolloutDataModule) -> None:
        self.data = data
        self.rank, self.world = data.shard()

    def __len__(self) -> int:
        return -(-self._longest_share() // self.data.val_groups_per_batch)

    def __iter__(self) -> Iterator[RolloutBatch]:
        for index in range(len(self)):
            yield self.batch(index)

    def batch(self, index: int) -> RolloutBatch:
        """Judged responses to one batch of held-out problems."""
        data, size = self.data, self.data.val_groups_per_batch
        share = data.val_prompts[self.rank :: self.world][index * size : (index + 1) * size]
        # every rank generates as often as the others; what only fills up is not counted
        real = len(share)
        wanted = min(size, self._longest_share() - index * size)
        share = share + [data.val_prompts[0]] * (wanted - real)
        enter_stage(data.trainer, "validation")
        seed = data.sampling_seed(-1, index)
        groups = data.sample_groups(
            share, data.val_task, data.val_samples, data.val_sampling, seed, data.val_rewards
        )
        rollout = RolloutBatch.from_groups(
            groups,
            pad_id=data.backbone.tokenizer.pad_token_id,
            temperature=data.val_sampling.temperature,
            policy_version=data.engine.module.policy_version,
        )
        rollout.prompt_index[real * data.val_samples :] = -1
        with blaming("data.val_task", data.val_task):
            classes = answer_classes([g.verdicts for g in groups], data.val_task.same_answers)
        rollout.answer_ids = torch.tensor([number for group in classes for number in group])
        return rollout

    def _longest_share(self) -> int:
        """Held-out problems of the rank that has most; rank 0 is one that does."""
        return len(range(0, len(self.data.val_prompts), self.world))
