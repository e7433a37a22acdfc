"""Value pretraining as a stage of its own (VC-PPO §4.1): a critic that later runs start from."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from lit_reason.callbacks.value_warmup import ValueWarmup
from lit_reason.errors import ConfigError, ConfigWarning, warn_of_no_effect

MONITORED = "val/value/explained_variance"


class ValuePretraining(ValueWarmup):
    """Trains only the critic, for the whole run, and keeps the best one.

    The policy stays as it is, bit for bit, and keeps sampling fresh responses. The best critic is
    the one with the highest explained variance on held-out problems: VC-PPO found that pretraining
    for longer hurts. It is written to `RUN_DIR/critic`, and
    `model.backbone.critic_init=RUN_DIR/critic` starts another run from it, with a fresh optimizer.
    The run is as long as any other, `trainer.max_epochs * data.rollouts_per_epoch` rollouts, unless
    the explained variance stops rising.

    Args:
        patience: Validations without a rise after which the run ends; null never ends it early.
        min_delta: Least rise that counts.
        tokens: See `ValueWarmup`.
    """

    def __init__(
        self,
        patience: int | None = 3,
        min_delta: float = 0.005,
        tokens: Literal["all", "last"] = "all",
    ) -> None:
        super().__init__(1, tokens=tokens, save=True)
        if patience is not None and patience < 1:
            raise ConfigError(
                f"ValuePretraining.patience={patience}: must be at least 1, or null to never stop"
            )
        if not 0 <= min_delta < math.inf:
            raise ConfigError(f"ValuePretraining.min_delta={min_delta}: must be at least 0")
        self.rollouts = math.inf
        self.patience, self.min_delta = patience, min_delta
        self.best, self.waited = -math.inf, 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses a critic that does not exist, and a run that never looks at held-out problems."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            module: Any = pl_module
            clip = {"model.value.clip": getattr(module.value, "clip", None)}
            warn_of_no_effect("during value pretraining", clip)
        if stage != "fit" or self.patience is None:
            return
        every, epochs = trainer.check_val_every_n_epoch, trainer.max_epochs
        never = every is not None and epochs is not None and every > epochs > 0
        if trainer.limit_val_batches == 0 or never:
            warnings.warn(
                "callbacks: ValuePretraining cannot see when to stop, the run never validates; set "
                "trainer.check_val_every_n_epoch to at most trainer.max_epochs",
                ConfigWarning,
                stacklevel=2,
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps the critic if it is the best so far, and ends a run that no longer gets better."""
        module: Any = pl_module
        score = module.last_evaluation.get(MONITORED)
        if score is None or module.policy_version == 0:  # before training, nothing is worth keeping
            return
        if score > self.best + self.min_delta:
            self.best, self.waited = score, 0
            self._write(trainer, module, explained_variance=f"{score:.4f}")
            return
        self.waited += 1
        if self.patience is not None and self.waited >= self.patience:
            trainer.should_stop = True
            rank_zero_info(
                f"value pretraining ends after {module.policy_version} rollouts: the explained "
                f"variance on held-out problems has not risen above {self.best:.3f} in "
                f"{self.waited} validations"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the critic of a run that never validated."""
        if self.best == -math.inf and not Path(trainer.default_root_dir, "critic").exists():
            self._write(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on after a resumption."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `state_dict`."""
        self.best, self.waited = state_dict["best"], state_dict["waited"]
