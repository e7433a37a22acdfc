"""The configuration of a run: written, kept in its checkpoints, compared on continuing."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only

from lit_reason.errors import ConfigWarning, printable
from lit_reason.loggers import write_row_in_advance
from lit_reason.origin import warn_of_reference
from lit_reason.overrides import (
    Changes,
    apply_changes,
    changed_schedules,
    changes,
    check_changes,
    check_state,
)
from lit_reason.restored import batches
from lit_reason.restored_callbacks import check_callback_states, settle_callbacks
from lit_reason.restored_states import settle_groups, settle_schedules
from lit_reason.run_dir import claim
from lit_reason.secrecy import without_secrets


class RecordConfig(SaveConfigCallback):
    """Writes `RUN_DIR/config.yaml` and gives the configuration to loggers that take one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "save_to_log_dir": False})
        self.changed: Changes = {}
        self.compared = False  # with the configuration of the run that is continued
        self.begun = False
        self.named: dict[str, Callback] = {}  # callbacks of the configuration

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Nothing yet: a run that is refused in set-up must not leave a file behind."""

    def state_dict(self) -> dict[str, Any]:
        """The configuration, with which a run that continues compares its own."""
        return {"config": self.text}

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Writes what a run that continues will not log again, before the checkpoint is there."""
        write_row_in_advance(trainer)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Finds what differs from the run that wrote the checkpoint, and refuses what cannot be."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        own = checkpoint["callbacks"].get(self.state_key)
        recorded = own.get("config") if isinstance(own, dict) else None
        if isinstance(recorded, str):
            self.changed, self.compared = changes(recorded, self.text), True
            check_changes(self.changed)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        check_callback_states(callbacks, checkpoint["callbacks"])
        settle_callbacks(self.named, callbacks, checkpoint["callbacks"], self.changed)
        states = checkpoint["optimizer_states"]
        warn_of_reference(checkpoint, getattr(pl_module, "origin", {}))
        settle_groups(pl_module, states)
        check_state(pl_module, states, self.changed)
        anew = changed_schedules(pl_module, self.changed)
        settle_schedules(pl_module, checkpoint["lr_schedulers"], batches(checkpoint), anew)

    @cached_property
    def text(self) -> str:
        """The configuration as YAML, which every checkpoint holds, without secrets.

        And without what says of one command where to begin and how far to trust it: the same
        command with another folder is another run.
        """
        config = self.config.clone()
        for key in ("ckpt_path", "weights_only"):
            config[key] = None
        return without_secrets(self.parser.dump(config, skip_none=False))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Claims the folder of a run that starts anew."""
        if not trainer.ckpt_path:
            self._begin(trainer, pl_module)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the configuration of a run that continues, once everything is restored."""
        self._begin(trainer, pl_module)

    on_fit_end = on_sanity_check_start  # of a run with nothing left to train

    @rank_zero_only
    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the configuration once, and says what changed in it."""
        if self.begun:
            return
        self.begun = True
        if trainer.ckpt_path and not self.compared:
            warnings.warn(
                f"ckpt_path={trainer.ckpt_path}: does not say with which configuration it was "
                "written, so nothing tells what has changed; compare with RUN_DIR/config.yaml",
                ConfigWarning,
                stacklevel=1,
            )
        self.save_config(trainer, pl_module, "fit")
        for key, (old, new) in self.changed.items():
            print(printable(f"changed on resuming: {key}={new}, was {old}"))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes changed settings of optimizers and schedules apply."""
        self._begin(trainer, pl_module)
        if self.changed:
            apply_changes(pl_module, self.changed)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Writes the file and tells the loggers."""
        text = self.text
        claim(trainer.default_root_dir, text, resumed=bool(trainer.ckpt_path))
        for logger in trainer.loggers:
            if not isinstance(logger, CSVLogger):
                logger.log_hyperparams(yaml.safe_load(text))
