"""Entropy of the policy over the sampled tokens."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_reason.batch import Experience, RolloutBatch
from lit_reason.errors import require_parts
from lit_reason.functional import masked_sum, relative_position


class EntropyMonitor(Callback):
    """Logs the entropy in nats: mean, by verdict, and by relative position in the response.

    Keys: `entropy`, `entropy/correct`, `entropy/wrong`, `entropy/position_1` (the first part of
    the response) to `entropy/position_N`. It is that of the policy that generated the rollout,
    before the update.

    Args:
        positions: N, equal parts into which a response is cut, at most 1000; 0 leaves positions
            out.
    """

    def __init__(self, positions: int = 4) -> None:
        require_parts("EntropyMonitor", least=0, positions=positions)
        self.positions = positions

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Asks the module to compute entropies."""
        pl_module.monitor_entropy = True  # type: ignore[assignment]

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        """Logs what `Experience.entropy` holds."""
        module: Any = pl_module
        experience: Experience = outputs["experience"]
        masks = self.masks(experience.rollout)
        assert experience.entropy is not None
        sums = torch.stack([masked_sum(experience.entropy, m) for m in masks.values()])
        counts = torch.stack([m.sum() for m in masks.values()]).to(sums)
        if module.reduce is not None:
            sums, counts = module.reduce(sums), module.reduce(counts)
        for name, total, count in zip(masks, sums, counts, strict=True):
            if count:  # a rollout may hold no correct response, on all ranks together
                shown = name == "entropy"
                self.log(  # type: ignore[attr-defined]
                    name, total / count, prog_bar=shown, batch_size=len(batch)
                )

    def masks(self, rollout: RolloutBatch) -> dict[str, Tensor]:
        """The tokens that each logged mean is over."""
        mask = rollout.policy_mask & ~rollout.critic_only[:, None]
        right = rollout.right[:, None]
        masks = {
            "entropy": mask,
            "entropy/correct": mask & (right == 1),
            "entropy/wrong": mask & (right == 0),
        }
        part = relative_position(mask, max(self.positions, 1))
        for i in range(self.positions):
            masks[f"entropy/position_{i + 1}"] = mask & (part == i)
        return masks
