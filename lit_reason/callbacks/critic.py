"""What the critic knows, where in a response it knows it, and what advantages are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from lit_reason.batch import Experience, RolloutBatch
from lit_reason.diagnostics import Grid, check_grid, diagnose
from lit_reason.errors import ConfigError
from lit_reason.jsonl import append_rows, drop_from

CURVES = "critic.jsonl"


class CriticMonitor(Callback):
    """Logs how well the critic predicts, and writes its curves to `RUN_DIR/critic.jsonl`.

    Keys: `value/explained_variance_1` (the first part of the response) to
    `value/explained_variance_N`, `value/bias`, `value/td_variance`, `advantage/reward_share` and
    `gae/horizon`. One row of the file a rollout: mean value and mean advantage along correct and
    wrong responses, explained variance along the response, calibration bins, and λ by length. All
    are of the critic before the update, while it learns alone and afterwards.
    `scripts/critic_report.py` draws them.

    None of the numbers of parts and points may be above 1000.

    Args:
        positions: N, equal parts into which a response is cut.
        points: Points of the curves along a response.
        low: Lower end of the calibration bins, in units of the return.
        high: Upper end.
        bins: Number of calibration bins.
        length_bins: Number of bins of λ by length.
    """

    def __init__(
        self,
        positions: int = 4,
        points: int = 20,
        low: float = -1.0,
        high: float = 1.0,
        bins: int = 10,
        length_bins: int = 8,
    ) -> None:
        self.grid = Grid(positions, points, low, high, bins, length_bins)
        for wrong in check_grid(self.grid):
            raise ConfigError(f"CriticMonitor.{wrong}")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses to watch a critic that does not exist."""
        module: Any = pl_module
        if stage == "fit" and module.value is None:
            raise ConfigError(
                "callbacks: CriticMonitor has no critic to watch in this configuration; leave it "
                "out, or set model.value and a model.advantage that uses it"
            )

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drops rows of rollouts that a resumed run will generate again."""
        module: Any = pl_module
        drop_from(Path(trainer.default_root_dir, CURVES), module.policy_version)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        """Logs and writes what the rollout says."""
        module: Any = pl_module
        experience: Experience = outputs["experience"]
        longest = experience.rollout.lengths.max()
        if module.reduce is not None:
            longest = trainer.strategy.reduce(longest, reduce_op="max")
        found = diagnose(experience, module.advantage.gamma, int(longest), self.grid, module.reduce)
        scalars = {
            k: torch.tensor(v, device=batch.rewards.device) for k, v in found.scalars.items()
        }
        self.log_dict(scalars, batch_size=len(batch))  # type: ignore[attr-defined]
        self._write(trainer, batch.policy_version, experience.phase, found.curves)

    @rank_zero_only
    def _write(self, trainer: Trainer, rollout: int, phase: str, curves: dict[str, Any]) -> None:
        row = {"rollout": rollout, "phase": phase, **curves}
        append_rows(Path(trainer.default_root_dir, CURVES), [row])
