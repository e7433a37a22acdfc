"""Saves what `predict` generates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from lit_reason.batch import Prediction
from lit_reason.errors import ConfigError
from lit_reason.jsonl import append_rows
from lit_reason.tasks import Task


class PredictionWriter(BasePredictionWriter):
    """Writes every response of `predict` as one line of `RUN_DIR/predictions.jsonl`.

    With several ranks each writes its own `predictions_RANK.jsonl`. `scripts/rescore.py` reads
    them.
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
        prediction: Prediction,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Appends one batch."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        rows = prediction_rows(prediction, data.val_task, len(data.val_prompts))
        append_rows(self.path(trainer), rows)


def prediction_rows(prediction: Prediction, task: Task, problems: int) -> list[dict[str, Any]]:
    """The responses of a batch as plain values, without those that only fill up a shard.

    Args:
        prediction: What `predict_step` returned.
        task: Says what those need who judge the responses again.
        problems: Number of problems of the evaluation, which shows a file that was cut off.
    """
    rollout, logprobs = prediction
    lengths, rows, seen = rollout.lengths.tolist(), [], Counter[int]()
    for i, prompt in enumerate(rollout.prompts):
        group, verdict = int(rollout.group_ids[i]), rollout.verdicts[i]
        seen[group] += 1
        if rollout.prompt_index[i] < 0:
            continue
        rows.append(
            {
                "prompt_index": prompt.index,
                "sample": seen[group] - 1,
                "source": prompt.source,
                # as the model was asked: a chat's messages, or the text
                "prompt": prompt.text if prompt.messages is None else list(prompt.messages),
                "response": rollout.texts[i],
                "answer": verdict.answer,
                "gold": prompt.answer,
                "answer_format": task.answer_format,
                "scoring": task.scoring(prompt),
                "status": str(verdict.status),
                "correct": verdict.correct if task.judges else None,
                "reward": round(float(rollout.rewards[i]), 6) if rollout.scored[i] else None,
                "logprob": round(float(logprobs[i]), 5),
                "logprob_mean": round(float(logprobs[i]) / max(lengths[i], 1), 6),
                "length": lengths[i],
                "truncated": bool(rollout.truncated[i]),
                "rollout": rollout.policy_version,
                "problems": problems,
            }
        )
    return rows
