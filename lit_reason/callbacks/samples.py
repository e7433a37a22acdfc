"""A table of prompts, responses, rewards and verdicts to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from lit_reason.batch import RolloutBatch
from lit_reason.errors import require_at_least_one
from lit_reason.jsonl import append_rows, drop_from

COLUMNS = ("rollout", "prompt", "response", "reward", "correct", "truncated", "length")


class SampleTable(Callback):
    """Writes a few rows of a rollout to `RUN_DIR/samples.jsonl` and, with W&B, to a table.

    Args:
        every_n_rollouts: Rollouts between two tables.
        rows: Responses a table; they are spread evenly over the rollout.
    """

    def __init__(self, every_n_rollouts: int = 10, rows: int = 8) -> None:
        require_at_least_one("SampleTable", every_n_rollouts=every_n_rollouts, rows=rows)
        self.every_n_rollouts, self.rows = every_n_rollouts, rows

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drops rows of rollouts that a resumed run will generate again."""
        module: Any = pl_module
        drop_from(Path(trainer.default_root_dir, "samples.jsonl"), module.policy_version)

    @rank_zero_only
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        """Writes the table when it is due."""
        if batch.policy_version % self.every_n_rollouts:
            return
        module: Any = pl_module
        table = describe_rows(batch, module.backbone.tokenizer, self.rows)
        append_rows(Path(trainer.default_root_dir, "samples.jsonl"), table)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                data = [[row[c] for c in COLUMNS] for row in table]
                logger.log_table("samples", columns=list(COLUMNS), data=data)


def describe_rows(batch: RolloutBatch, tokenizer: Any, rows: int) -> list[dict[str, Any]]:
    """`rows` of a rollout as plain values, spread evenly; all of it if it has no more."""
    step = max(len(batch) // rows, 1)
    return [_describe_row(batch, tokenizer, i) for i in range(0, len(batch), step)[:rows]]


def _describe_row(batch: RolloutBatch, tokenizer: Any, i: int) -> dict[str, Any]:
    prompt = batch.prompt_ids[i][batch.prompt_mask[i]].tolist()
    return {
        "rollout": batch.policy_version,
        # as the model read it, with the template around the problem
        "prompt": tokenizer.decode(prompt, skip_special_tokens=True),
        "response": batch.texts[i],
        "reward": round(float(batch.rewards[i]), 6),
        "correct": {1: True, 0: False}.get(int(batch.right[i])),
        "truncated": bool(batch.truncated[i]),
        "length": int(batch.lengths[i]),
    }
