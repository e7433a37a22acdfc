"""Overlong filtering (DAPO §3.4): truncated responses do not train."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_reason.batch import RolloutBatch


class OverlongFilter(Callback):
    """Masks truncated responses out of the policy loss, numerator and denominator.

    Their rewards stay in the statistics of their group. Logs `overlong/masked`, the share of
    responses masked.

    Args:
        critic: Also mask them out of the value loss.
    """

    def __init__(self, critic: bool = True) -> None:
        self.critic = critic

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        """Edits the masks before the update reads them."""
        batch.loss_mask &= ~batch.truncated[:, None]
        if self.critic:
            batch.value_mask &= ~batch.truncated[:, None]
        share: Any = batch.of_policy.truncated.float().mean()
        distributed = trainer.world_size > 1
        self.log(  # type: ignore[attr-defined]
            "overlong/masked", share, batch_size=len(batch), sync_dist=distributed
        )
