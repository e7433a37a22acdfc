"""Checkpoint files: written whole or not at all, read without trust, and checked for damage."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.files import PARTIAL, save_tensors
from lit_reason.plain import check_plain
from lit_reason.restored import CHANGED
from lit_reason.run_dir import chosen_run_dir

# of the state of a `ModelCheckpoint`, which removes the files that better ones replace
NAMED_FILES = ("best_model_path", "kth_best_model_path", "last_model_path")


class Checkpoints(TorchCheckpointIO):
    """Lightning's checkpoint files, replaced atomically and loaded as plain data.

    Lightning moves its file over from the folder for temporary files, which is a copy when that is
    another file system. Paths with a protocol, as `s3://`, are left to it.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Writes a checkpoint.

        Raises:
            ConfigError: It holds more than plain data; the earlier file is as it was.
            OSError: The disk is full or the folder is read-only; the same.
        """
        check_plain(checkpoint)
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        run_dir = chosen_run_dir()  # in a folder of others a partial file may be one of theirs
        if run_dir and Path(path).resolve().is_relative_to(Path(run_dir).resolve()):
            for left in Path(path).parent.glob(f".*.ckpt{PARTIAL}"):  # by a run that was killed
                left.unlink(missing_ok=True)
        save_tensors(checkpoint, Path(path))

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, _: storage, weights_only: Any = None
    ) -> dict[str, Any]:
        """Reads a checkpoint; only a user who says `weights_only=false` gets more than plain data.

        Raises:
            ConfigError: The file is damaged, or holds what is no plain data.
        """
        if "://" not in str(path):
            check_whole(Path(path))
        safe = weights_only is not False
        if not safe:
            warnings.warn(
                "weights_only=false: the checkpoint may run code; leave it out, or take only one "
                "whose writer you trust",
                ConfigWarning,
                stacklevel=1,
            )
        with refusing(path):
            return super().load_checkpoint(path, map_location, weights_only=safe)


@contextmanager
def refusing(path: Any) -> Iterator[None]:
    """Turns what `torch.load` says of a file that it cannot read into one line.

    Args:
        path: The file.

    Raises:
        ConfigError: With the path, and what torch said.
    """
    try:
        yield
    except (pickle.UnpicklingError, EOFError, KeyError, RuntimeError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"ckpt_path={path}: not loaded, it is damaged or holds more than plain data "
            f"({first:.120}); take another of RUN_DIR/checkpoints"
        ) from error


def check_whole(path: Path) -> None:
    """Compares every part of a checkpoint file with its checksum, which torch does not.

    Args:
        path: The file; a folder, of a sharded checkpoint, is not looked into.

    Raises:
        ConfigError: A part was changed after it was written.
    """
    if not path.is_file():
        return
    try:
        with ZipFile(path) as file:
            damaged = file.testzip()
    except (BadZipFile, EOFError, NotImplementedError) as error:
        raise ConfigError(
            f"ckpt_path={path}: cannot be read ({error or 'its end is missing'}), the file was cut "
            "off or damaged; take another of RUN_DIR/checkpoints"
        ) from error
    if damaged:
        raise ConfigError(
            f"ckpt_path={path}: {damaged} is not as it was written, the file was damaged or "
            "changed; take another of RUN_DIR/checkpoints"
        )


def keep_own_files(trainer: Any, states: dict[str, Any]) -> None:
    """Lets callbacks take over the names of files of this run alone, as they remove them later.

    Args:
        trainer: Its callbacks are set up and not restored yet.
        states: Of the callbacks, as the checkpoint holds them; those with names are replaced.

    Raises:
        ConfigError: A name is of another place.
    """
    kept = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
    for callback in kept:
        former = getattr(callback, "former_key", callback.state_key)
        if former in states and former not in {c.state_key for c in kept}:
            states.setdefault(callback.state_key, states.pop(former))
        if callback.state_key in states:
            folder, suffix = str(callback.dirpath), callback.FILE_EXTENSION
            there = partial(callback.file_exists, trainer=trainer)
            state = own_files(states[callback.state_key], folder, suffix, there)
            states[callback.state_key] = ranked(state, callback.mode)


def own_files(state: Any, folder: str, suffix: str, there: Callable[[str], bool]) -> dict[str, Any]:
    """The state of a `ModelCheckpoint`, its files those of the same names in a folder.

    The folder may have moved since, or be another run's that begins from the checkpoint. A file
    that is not there is none of the best, or a run without it would wait for a better score.

    Args:
        state: As the checkpoint holds it.
        folder: Where the callback writes.
        suffix: How its files end.
        there: Whether a file exists.

    Example:
        >>> saved = {"dirpath": "old", "best_model_path": "old/best.ckpt"}
        >>> own_files(saved, "new", ".ckpt", there=bool)
        {'dirpath': 'new', 'best_model_path': 'new/best.ckpt', ...}

    Raises:
        ConfigError: A file lies elsewhere, or is no checkpoint.
    """
    best = state.get("best_k_models", {}) if isinstance(state, dict) else None
    if not isinstance(best, dict):
        raise ConfigError(f"ckpt_path: holds no state of ModelCheckpoint; {CHANGED}")
    written = state.get("dirpath", folder)

    def own(name: str, path: Any) -> str:
        moved = _moved(path, written, folder, suffix) if path != "" else ""
        if moved is None:
            raise ConfigError(
                f"ckpt_path: its {name} is {path!r:.80}, no {suffix} file of {folder}; {CHANGED}"
            )
        return moved

    named = {name: own(name, state.get(name, "")) for name in NAMED_FILES}
    best = {own("best_k_models", path): score for path, score in best.items()}
    kept = {path: score for path, score in best.items() if path and there(path)}
    return {**state, **named, "dirpath": folder, "best_k_models": kept}


def ranked(state: dict[str, Any], mode: str) -> dict[str, Any]:
    """The state of a `ModelCheckpoint` with the best and the worst of the files that it keeps.

    Args:
        state: With the scores of its files, of which some that it once kept may be gone.
        mode: `"max"` where a higher score is better, or `"min"`.

    Example:
        >>> scores = {"a.ckpt": torch.tensor(0.5), "b.ckpt": torch.tensor(0.7)}
        >>> ranked({"best_k_models": scores}, "max")["kth_best_model_path"]
        'a.ckpt'

    Raises:
        ConfigError: A score is no number.
    """
    scores = state["best_k_models"]
    for path, score in scores.items():
        if not (isinstance(score, torch.Tensor) and score.numel() == 1):
            raise ConfigError(f"ckpt_path: the score of {path} is {score!r:.40}; {CHANGED}")
    if not scores:
        return state
    ends = min(scores, key=scores.__getitem__), max(scores, key=scores.__getitem__)
    worst, best = ends if mode == "max" else ends[::-1]
    return {
        **state,
        "kth_best_model_path": worst,
        "kth_value": scores[worst],
        "best_model_path": best,
        "best_model_score": scores[best],
    }


def _moved(path: Any, written: Any, folder: str, suffix: str) -> str | None:
    """A file's path in another folder than the one it was written in; `None` if it may be no other.

    It is empty for a file of a third folder, which runs that moved twice name.
    """
    if not (isinstance(path, str) and isinstance(written, str) and path.endswith(suffix)):
        return None
    if ".." in path.removeprefix(written).split("/"):
        return None
    if not PurePath(path).is_relative_to(written):
        return ""
    moved = os.path.join(folder, PurePath(path).relative_to(written))
    # a link may lead anywhere, and so may the folder itself
    inside = "://" in folder or Path(moved).resolve().is_relative_to(Path(folder).resolve())
    return moved if inside else None


def standard_checkpoints(reinforcement: bool) -> list[ModelCheckpoint]:
    """Keeps the last epoch's state and, of a run that validates, that of the best validation.

    Args:
        reinforcement: The run counts rollouts and evaluates held-out problems.
    """
    name = "rollout_{rollout:05.0f}" if reinforcement else "{epoch:05d}"
    kept: list[ModelCheckpoint] = [LastCheckpoint(name)]
    if reinforcement:
        kept.append(BestCheckpoint())
    return kept


class LastCheckpoint(ModelCheckpoint):
    """Keeps the state at the end of the last epoch, whenever the run validates.

    Args:
        filename: As of `ModelCheckpoint`.
    """

    def __init__(self, filename: str) -> None:
        super().__init__(
            filename=filename,
            auto_insert_metric_name=False,
            save_last=True,
            # Lightning would wait for a validation, which may come only every so many epochs
            save_on_train_epoch_end=True,
            # or last-v1.ckpt would be the newest in a folder whose last.ckpt another run wrote
            enable_version_counter=False,
        )
        self.name = filename

    @property
    def former_key(self) -> str:
        """That of its parent, under which earlier runs have its state."""
        own = type(self).__qualname__
        return self.state_key.replace(own, ModelCheckpoint.__qualname__, 1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves, also after an epoch of which every update was skipped."""
        self._last_global_step_saved = -1  # Lightning saves nothing while this stands still
        # an epoch that a run continues at its end, as from the best checkpoint, logs no rollout
        version: Any = pl_module.policy_version
        self.filename = self.name.replace("{rollout:05.0f}", f"{version:05d}")
        super().on_train_epoch_end(trainer, pl_module)


class BestCheckpoint(ModelCheckpoint):
    """Keeps the state with the best held-out accuracy, or reward where nothing is judged.

    It is written when a validation ends, so that the score is that of the weights.
    Where the policy never trains, a callback names what changes: `ValuePretraining.monitored`.
    """

    def __init__(self) -> None:
        super().__init__(
            filename="best_{rollout:05.0f}",
            auto_insert_metric_name=False,
            monitor="val/accuracy",
            mode="max",
            save_on_train_epoch_end=False,
            enable_version_counter=False,
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Finds out what to follow."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        named = [c.monitored for c in callbacks if hasattr(c, "monitored")]
        of_policy = "val/accuracy" if data.val_task.judges else "val/reward"
        self.monitor = named[0] if named else of_policy
        super().setup(trainer, pl_module, stage)
