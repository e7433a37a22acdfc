"""Value pretraining as a stage of its own (VC-PPO §4.1): a critic that later runs start from."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lit_reason.callbacks.value_warmup import ValueWarmup
from lit_reason.critics import CRITIC_FILE, notes_of
from lit_reason.dry_run import Stopwatch
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
        min_delta: Least rise that patience counts; the best critic is kept whatever its lead.
        tokens: See `ValueWarmup`; with "last" the best critic is the best at the last token.
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
        self.best = self.risen = -math.inf  # highest score; the one that patience waits to exceed
        self.waited = 0
        self.diverged = False  # at the last validation

    @property
    def monitored(self) -> str:
        """The score of held-out problems that decides which critic is best."""
        return MONITORED if self.tokens == "all" else f"{MONITORED}_last"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses a critic that does not exist, and a run without problems to judge it by."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        module: Any = pl_module
        clip = {"model.value.clip": getattr(module.value, "clip", None)}
        warn_of_no_effect("during value pretraining", clip)
        data: Any = getattr(trainer, "datamodule", None)
        if data is not None and data.val_task is data.task:
            raise ConfigError(
                "data.val_task=null: ValuePretraining keeps the critic that predicts best on "
                "problems it has not seen; name a task of held-out ones"
            )
        if data is not None:
            _warn_of_other_sampling(data)
        if self.patience is not None:
            self._warn_if_blind(trainer)

    def _warn_if_blind(self, trainer: Trainer) -> None:
        every, epochs = trainer.check_val_every_n_epoch, trainer.max_epochs
        why = None
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(callback, Stopwatch) for callback in callbacks):
            return  # a dry run
        if trainer.limit_val_batches == 0:
            why = "trainer.limit_val_batches=0: the run never validates; leave it out"
        elif every is not None and epochs is not None and every > epochs > 0:
            why = (
                f"trainer.check_val_every_n_epoch={every}: the run has {epochs} epochs and never "
                f"validates; choose at most {epochs}"
            )
        if why is not None:
            text = f"{why}, or ValuePretraining cannot see when to stop"
            warnings.warn(text, ConfigWarning, stacklevel=3)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives up the critic of a later rollout than the one that a run is taken back to."""
        module: Any = pl_module
        file = self._folder(trainer) / CRITIC_FILE
        resumed = trainer.is_global_zero and bool(trainer.ckpt_path) and file.is_file()
        later = resumed and int(notes_of(file)["rollouts"]) > module.policy_version
        if not trainer.strategy.broadcast(later):
            return
        rank_zero_warn(
            f"{file}: is of a later rollout than {module.policy_version}, from which the run goes "
            "on; it is removed, and the best critic is looked for from here on",
            category=ConfigWarning,
        )
        self.best = self.risen = -math.inf
        if trainer.is_global_zero:
            file.unlink()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps the critic if it is the best so far, and ends a run that no longer gets better."""
        module: Any = pl_module
        score = module.last_evaluation.get(self.monitored)
        if trainer.state.fn != TrainerFn.FITTING or score is None:
            return
        # before training nothing is worth keeping, and on resuming it has been looked at already
        if trainer.sanity_checking or "critic" not in module.stepped:
            return
        bias = module.last_evaluation.get("val/value/bias", 0.0)
        self.diverged = score == -math.inf or not math.isfinite(bias)
        if why := _says_nothing(score, self.diverged):
            rank_zero_warn(f"{self.monitored}={score}: {why}", category=ConfigWarning)
            return
        if score > self.best:
            self.best = score
            self._write(trainer, module, **{self.monitored.rpartition("/")[2]: f"{score:.4f}"})
        if score > self.risen + self.min_delta:
            self.risen, self.waited = score, 0
            return
        self.waited += 1
        if self.patience is not None and self.waited >= self.patience:
            trainer.should_stop = True
            rank_zero_info(
                f"value pretraining ends after {module.policy_version} rollouts: the explained "
                f"variance on held-out problems has not risen above {self.risen:.3f} by "
                f"{self.min_delta} in {self.waited} validations"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the critic of a run that never validated, or got no better in another folder."""
        folder = self._folder(trainer)
        if (folder / CRITIC_FILE).exists():
            return
        if self.diverged:
            rank_zero_warn(
                "callbacks: ValuePretraining keeps no critic, as it has diverged; lower "
                "model.critic_optimizer.lr",
                category=ConfigWarning,
            )
            return
        if self.best > -math.inf:
            rank_zero_warn(
                f"callbacks: ValuePretraining keeps the last critic in {folder}; the best one, of "
                f"{self.best:.4f} on held-out problems, is in the folder of the run that the "
                "checkpoint is from",
                category=ConfigWarning,
            )
        self._write(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on after a resumption."""
        return {"best": self.best, "risen": self.risen, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `state_dict`."""
        self.best, self.waited = state_dict["best"], state_dict["waited"]
        self.risen = state_dict.get("risen", self.best)


def _says_nothing(score: float, diverged: bool) -> str | None:
    """Why a score says nothing of a critic, and what to do."""
    if diverged:
        return "the critic has diverged; lower model.critic_optimizer.lr"
    if math.isnan(score):
        return (
            "no response to a held-out problem trains the critic, so that this validation says "
            "nothing; raise data.val_sampling.max_new_tokens, or take OverlongFilter out"
        )
    if score == 0:  # exactly: a critic that has taken a step is never that useless
        return (
            "all responses to held-out problems earn the same, so that this validation says "
            "nothing; give data.val_task more problems, or others"
        )
    return None


def _warn_of_other_sampling(data: Any) -> None:
    """The critic learns what responses of `data.sampling` earn."""
    own = vars(data.sampling)
    other = [f"{k}={v}" for k, v in vars(data.val_sampling).items() if v != own[k]]
    if other:
        warnings.warn(
            f"data.val_sampling.{', '.join(other)}: ValuePretraining would judge the critic on "
            "responses that are drawn otherwise than those it learns from; set "
            "data.val_sampling=null",
            ConfigWarning,
            stacklevel=3,
        )
