"""Overlong filtering (DAPO §3.4): truncated responses do not train."""

from __future__ import annotations

import warnings
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_reason.batch import RolloutBatch
from lit_reason.errors import ConfigWarning, warn_of_no_effect
from lit_reason.rewards import SoftOverlong


class OverlongFilter(Callback):
    """Masks truncated responses out of the policy loss, numerator and denominator.

    Their rewards stay in the statistics of their group. Logs `overlong/masked`, the share of
    responses masked.

    Args:
        critic: Also mask them out of the value loss.
    """

    def __init__(self, critic: bool = True) -> None:
        self.critic = critic

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Warns of a punishment that reaches no truncated response, and of what nothing reads."""
        module: Any = pl_module
        if stage == "fit" and module.value is None and not self.critic:
            warn_of_no_effect("without a critic", {"OverlongFilter.critic": self.critic}, "true")
        data: Any = getattr(trainer, "datamodule", None)
        for name, term in getattr(data, "rewards", {}).items():
            if stage == "fit" and isinstance(term, SoftOverlong):
                warnings.warn(
                    f"data.rewards.{name}=SoftOverlong: its largest punishment is that of "
                    "truncated responses, which callbacks: OverlongFilter keeps out of the loss; "
                    "set one of the two to null",
                    ConfigWarning,
                    stacklevel=2,
                )

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

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """The critic is judged by responses of the kind that it learns from."""
        if self.critic:
            batch.value_mask &= ~batch.truncated[:, None]

    on_test_batch_start = on_validation_batch_start
