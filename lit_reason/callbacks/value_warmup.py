"""Value warm-up (VC-PPO's value pretraining, VAPO's 50 steps): the critic learns first."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lit_reason.batch import RolloutBatch
from lit_reason.critics import CRITIC_FILE, RM, notes_of, save_critic
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.functional import last_token


class ValueWarmup(Callback):
    """Trains only the critic for exactly `rollouts` rollouts, then both networks.

    The policy stays as it is and keeps sampling fresh responses; the critic's targets are
    Monte-Carlo returns (λ = 1) without value clipping. The phase is a function of the rollout
    counter, so that a resumed run continues in the right one.

    Args:
        rollouts: N, rollouts that train the critic alone.
        reset_optimizer: Start the joint phase with fresh moments of the critic's optimizer.
        save: Write the critic to `RUN_DIR/critic` when the warm-up ends;
            `model.backbone.critic_init=RUN_DIR/critic` starts another run from it.
        tokens: "all" regresses the return at every token. "last" does so at the last one only, as
            a reward model is trained: the critic then means nothing at the tokens before, which is
            the value-initialisation bias that VC-PPO (§3.1) describes. For studying the collapse.
            `model.backbone.critic_init=rm` sets "last".
    """

    def __init__(
        self,
        rollouts: int,
        reset_optimizer: bool = True,
        save: bool = False,
        tokens: Literal["all", "last"] = "all",
    ) -> None:
        if rollouts < 1:
            raise ConfigError(
                f"{type(self).__name__}.rollouts={rollouts}: must be at least 1; leave the "
                "callback out for none"
            )
        self.rollouts: float = rollouts
        self.reset_optimizer, self.save, self.tokens = reset_optimizer, save, tokens

    @property
    def actor_waits(self) -> float:
        """Rollouts that step neither the actor nor its schedule."""
        return self.rollouts

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses to warm up a critic that does not exist, and two callbacks that set the phase."""
        module: Any = pl_module
        every: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        setting = [type(c).__name__ for c in every if isinstance(c, ValueWarmup)]
        if len(setting) > 1:
            raise ConfigError(
                f"callbacks: {' and '.join(setting)} would both set the phase; keep one of them"
            )
        if stage == "fit" and module.value is None:
            raise ConfigError(
                f"callbacks: {type(self).__name__} has no critic to train in this configuration; "
                "leave it out, or set model.value and a model.advantage that uses it"
            )
        if stage == "fit":
            if module.backbone.critic_init == RM:
                self.tokens = "last"
            self._warn_if_policy_never_trains(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets the engine refuse the run while its folder is free: later a folder is claimed."""
        data = getattr(trainer, "datamodule", None)
        if data is not None:
            data.engine.check()

    def _warn_if_policy_never_trains(self, trainer: Any) -> None:
        data = getattr(trainer, "datamodule", None)
        total = (trainer.max_epochs or 0) * data.rollouts_per_epoch if data is not None else 0
        nothing_kept = self.save and 0 < total < self.rollouts < math.inf
        if nothing_kept or (not self.save and 0 < total <= self.rollouts):
            so = "no critic is kept and the policy" if nothing_kept else "the policy"
            warnings.warn(
                f"ValueWarmup.rollouts={self.rollouts}: the run has {total} rollouts, "
                f"so {so} does not train; lower it, or raise trainer.max_epochs",
                ConfigWarning,
                stacklevel=2,
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        """Sets `module.phase` for this rollout."""
        module: Any = pl_module
        module.phase = "value_warmup" if module.policy_version < self.rollouts else "joint"
        if module.phase == "value_warmup" and self.tokens == "last":
            batch.value_mask &= last_token(batch.policy_mask)
        if module.policy_version == self.rollouts and self.reset_optimizer:
            module.optimizers()[module.trained.index("critic")].optimizer.state.clear()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        """Writes the critic after the last warm-up rollout, which may be the last of the run."""
        module: Any = pl_module
        ended = module.phase == "value_warmup" and module.policy_version == self.rollouts
        if ended and self.save:
            self._write(trainer, module)

    def closing(self, trainer: Trainer) -> str | None:
        """A line for the end of a run that kept a critic; `RunSummary` prints it."""
        file = self._folder(trainer) / CRITIC_FILE
        if not self.save or not file.is_file():
            return None
        notes = notes_of(file)
        known = ""
        for name, where in (
            ("explained_variance", ""),
            ("explained_variance_last", ", last token"),
        ):
            if name in notes:
                known = f" (explained variance {notes[name]} on held-out problems{where})"
        return (
            f"kept the critic of rollout {notes['rollouts']}{known}; start from it with "
            f"--model.backbone.critic_init={file.parent}"
        )

    def _folder(self, trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir, "critic")

    def _write(self, trainer: Trainer, module: Any, **notes: str) -> None:
        if "critic" not in module.stepped:
            rank_zero_warn(
                f"callbacks: {type(self).__name__} keeps no critic, as it took no step in "
                f"{module.policy_version} rollouts: see update/skipped_critic and "
                "reward/unscored in metrics.csv",
                category=ConfigWarning,
            )
            return
        notes |= {"rollouts": str(module.policy_version)}
        save_critic(module.critic, self._folder(trainer), module.backbone.tokenizer, **notes)
