"""Saves what `predict` generates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from lit_reason.batch import RolloutBatch
from lit_reason.callbacks.samples import append_rows, describe_rows
from lit_reason.errors import ConfigError


class PredictionWriter(BasePredictionWriter):
    """Writes every response of `predict` as one line of `RUN_DIR/predictions.jsonl`.

    With several ranks each writes its own `predictions_RANK.jsonl`.
    """

    def __init__(self) -> None:
        super().__init__("batch")

    def path(self, trainer: Trainer) -> Path:
        """The file of this rank."""
        suffix = f"_{trainer.global_rank}" if trainer.world_size > 1 else ""
        return Path(trainer.default_root_dir, f"predictions{suffix}.jsonl")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses to overwrite earlier predictions, before anything is generated."""
        super().setup(trainer, pl_module, stage)
        if stage == "predict" and self.path(trainer).exists():
            raise ConfigError(
                f"run_dir={trainer.default_root_dir}: already holds {self.path(trainer).name}; "
                "choose another --run_dir, or move the file away"
            )

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: RolloutBatch,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Appends one batch."""
        module: Any = pl_module
        valid = prediction[prediction.prompt_index >= 0]
        append_rows(self.path(trainer), describe_rows(valid, module.backbone.tokenizer))
