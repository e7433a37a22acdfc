"""Signals to stop: the run ends with a checkpoint from which it continues bit for bit."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lit_reason.run_dir import CONFIG, newest_checkpoint, typed
from lit_reason.signals import Handlers, hand_back, set_handlers
from lit_reason.stages import Stage

TRAINING = ("fit", "cold_start")  # the subcommands that can be continued


class Stopped(BaseException):
    """A signal ended the run. No `Exception`, as no handler of errors should take it for one.

    Args:
        number: The signal.
        at_once: Without a checkpoint.
    """

    def __init__(self, number: int, at_once: bool = False) -> None:
        super().__init__(number)
        self.number, self.at_once = number, at_once
        self.done = self.command = ""  # what the new checkpoint holds, and what continues the run

    @property
    def exit_status(self) -> int:
        """As a shell has it for a process that the signal ended."""
        return 128 + self.number

    def message(self, subcommand: str, run_dir: str | None) -> str:
        """What to tell the user, in one line.

        Args:
            subcommand: What was stopped.
            run_dir: Folder of the run, whose newest checkpoint it continues from where there is no
                new one; `None` before it was chosen.
        """
        name = signal.Signals(self.number).name
        if subcommand not in TRAINING:
            return f"stopped by {name}"
        earlier = None if self.command or run_dir is None else newest_checkpoint(run_dir)
        command = self.command if earlier is None else continuing(subcommand, run_dir, earlier)
        when = f" after {self.done}" if self.done else ", without a new checkpoint"
        return f"stopped by {name}{when}" + (f"; continue with: {command}" if command else "")


def stop_in(error: BaseException) -> Stopped | None:
    """The signal behind what ended a run; `None` if it was none.

    Args:
        error: A `KeyboardInterrupt` stands for Ctrl-C, whoever raised it. Lightning makes an exit
            with status 1 of it.
    """
    told = error.__context__ if isinstance(error, SystemExit) else error
    if isinstance(told, KeyboardInterrupt):
        return Stopped(signal.SIGINT, at_once=True)
    return told if isinstance(told, Stopped) else None


def continuing(subcommand: str, run_dir: Any, checkpoint: str | Path) -> str:
    """The command that continues a run, for a shell.

    Example:
        >>> continuing("fit", "my run", "last")
        "python -m lit_reason fit --config 'my run/config.yaml' --ckpt_path last"
    """
    config, path = typed(f"{run_dir}/{CONFIG}"), typed(checkpoint)
    return f"python -m lit_reason {subcommand} --config {config} --ckpt_path {path}"


def take_over(handle: Callable[[int, Any], None]) -> Handlers:
    """Sets the handler of the signals that stop a run.

    Args:
        handle: It is not called in forked processes, to which a signal does what it does to others.

    Returns:
        The earlier handlers; none outside of the main thread, which cannot set any.
    """
    own = os.getpid()

    def handle_own(number: int, frame: Any) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if number == signal.SIGHUP:
            _leave_terminal()
        handle(number, frame)

    return set_handlers(handle_own)


def _leave_terminal() -> None:
    """Lets what is written to a terminal that is gone go nowhere, as it would raise."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Ends whatever goes on when a signal comes, until a run takes the signals over."""

    def stop(number: int, _: Any) -> None:
        raise Stopped(number, at_once=True)

    earlier = take_over(stop)
    try:
        yield
    finally:
        hand_back(earlier)


class StopSignals(Callback):
    """Ends a run that is told to stop between two rollouts, after writing `last.ckpt`.

    A rollout that is being generated is given up, and generated again by the run that continues;
    one that trains, or an evaluation, is finished first. Several ranks always finish the rollout,
    because they must stop together. A second signal ends the run at once, and so does the first one
    in the evaluation after the last epoch, which loses nothing. In a cold start a step, of all the
    batches that it accumulates, stands for a rollout.

    Args:
        cold_start: The run is a cold start.
    """

    def __init__(self, cold_start: bool = False) -> None:
        self.subcommand, self.unit = ("cold_start", "step") if cold_start else ("fit", "rollout")
        self.asked = 0  # the signal
        self.may_interrupt = True  # nothing would be lost
        self.rollout, self.cursor = -1, 0
        self.earlier: Handlers = {}

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals over, from Lightning too, which would write no checkpoint."""
        if not self.earlier:
            self.earlier = take_over(self._handle)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets callbacks end a run, as `EarlyStopping` does, where the epoch ends.

        Lightning would cut the epoch and count it as a whole one, so that a run that continues
        goes on without the rest of it.
        """
        trainer.fit_loop.min_epochs = max(trainer.min_epochs or 0, trainer.current_epoch + 1)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins with the signals, if there was no sanity check, and in the middle of an epoch."""
        self.on_sanity_check_start(trainer, pl_module)
        self.on_train_epoch_start(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes them over for the evaluation after the last epoch too, unless it is not wanted."""
        if trainer.state.fn != TrainerFn.VALIDATING:
            return
        self.on_sanity_check_start(trainer, pl_module)
        self.rollout, self.may_interrupt = -1, True  # the last epoch has written its checkpoint
        if self._is_asked(trainer):
            raise Stopped(self.asked or signal.SIGTERM)

    def _handle(self, number: int, _: Any) -> None:
        again, self.asked = bool(self.asked), number
        if again or self.may_interrupt:
            raise Stopped(number, at_once=again)
        sys.stderr.write(
            f"{signal.Signals(number).name}: stopping when this {self.unit} has trained; "
            "once more stops now\n"
        )

    def on_stage(self, trainer: Any, stage: Stage) -> None:
        """Stops before a rollout; called by `enter_stage`."""
        if stage in ("rollout", "demonstrations"):
            if trainer.fit_loop._should_accumulate():
                return  # gradients of this step's earlier batches are in no checkpoint
            self._before_rollout(trainer)
            self.may_interrupt = trainer.world_size == 1
        elif stage != "scoring" and trainer.state.fn == TrainerFn.FITTING:
            self.may_interrupt &= trainer.sanity_checking

    def _before_rollout(self, trainer: Any) -> None:
        version = trainer.lightning_module.policy_version
        if version == self.rollout:  # a further round of the same rollout
            return
        self.rollout, self.cursor = version, trainer.datamodule.cursor
        # a run that continues after an evaluation goes past it in a turn without a rollout, which
        # Lightning counts as a step of the loggers
        trainer.fit_loop.epoch_loop._batches_that_stepped = version
        if self._is_asked(trainer):
            raise Stopped(self.asked or signal.SIGTERM)

    def _is_asked(self, trainer: Any) -> bool:
        """Whether any rank was told to stop."""
        asked = bool(self.asked)
        if trainer.world_size == 1:
            return asked
        return bool(trainer.strategy.reduce_boolean_decision(asked, all=False))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """From here on the update must end before the run may."""
        self.may_interrupt = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Writes the checkpoint of a run that was told to stop."""
        if not isinstance(exception, Stopped) or exception.at_once or self.rollout < 0:
            return
        trainer.datamodule.cursor = self.cursor  # type: ignore[attr-defined]
        kept: Any = trainer.checkpoint_callback
        if kept is None:
            return
        path = os.path.join(kept.dirpath, f"{kept.CHECKPOINT_NAME_LAST}.ckpt")
        # a callback that counts versions would leave a file alone that it does not know as its own
        kept.last_model_path = path
        with suppress(Stopped):  # a second signal, which leaves the earlier file
            trainer.save_checkpoint(path)
            exception.done = f"{self.rollout} {self.unit}s"
            exception.command = continuing(self.subcommand, trainer.default_root_dir, path)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Gives the signals back."""
        hand_back(self.earlier)
        self.earlier = {}
