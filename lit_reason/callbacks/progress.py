"""A progress bar that says what the run is doing."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar

from lit_reason.stages import Stage


class ReasonProgressBar(TQDMProgressBar):
    """Lightning's bar, counting rollouts, with the phase and the stage in front.

    The stage is rollout, scoring or update; the phase is joint or value_warmup.

    Args:
        refresh_rate: Rollouts between two redraws of the metrics; 0 disables the bar.
        leave: Keep the bar of each finished epoch on the screen.
    """

    def __init__(self, refresh_rate: int = 1, leave: bool = False) -> None:
        super().__init__(refresh_rate=refresh_rate, leave=leave)

    def on_stage(self, trainer: Trainer, stage: Stage) -> None:
        """Redraws the description; called by `enter_stage`."""
        unseen = stage in ("validation", "demonstrations")
        if self.is_disabled or self._train_progress_bar is None or unseen:
            return
        if trainer.sanity_checking or trainer.validating:
            return
        module: Any = trainer.lightning_module
        phase = "" if module.phase == "joint" else f"{module.phase} · "
        epoch = f"Epoch {trainer.current_epoch}"
        self.train_progress_bar.set_description_str(f"{epoch} · {phase}{stage}", refresh=True)

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Starts the epoch's bar with its name."""
        super().on_train_epoch_start(trainer, *_)
        self.train_progress_bar.set_description_str(f"Epoch {trainer.current_epoch}")

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """Metrics without the run's version number."""
        items = super().get_metrics(trainer, pl_module)
        items.pop("v_num", None)
        return items
