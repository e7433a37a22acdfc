"""Refuses Trainer settings that cannot work, before any class is built."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BaseFinetuning,
    BasePredictionWriter,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    ProgressBar,
    SpikeDetection,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lit_reason.errors import (
    STILL,
    ConfigError,
    ConfigWarning,
    require_float32,
    warn_of_no_effect,
)
from lit_reason.explain import PRECISIONS, class_hint
from lit_reason.run_dir import newest_checkpoint, typed
from lit_reason.sharding import FSDP2, NAME

SHARDED = ("fsdp", "deepspeed", "modelparallel")
FORKED = ("notebook", "fork", "spawn")
SEEDS = 2**32
OF_STEPS = (
    BackboneFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
)
# what each subcommand reads; as the others stand in files that serve all of them, they are looked
# for on the command line only
STAGES = {
    "fit": "train",
    "validate": "val",
    "test": "test",
    "predict": "predict",
    "cold_start": "train",
}
# what no subcommand reads, and why; and what those of reinforcement learning alone do
UNREAD = {
    "default_root_dir": "the folder of the run is run_dir",
    "sync_batchnorm": "no network has batch norm",
    "use_distributed_sampler": "the loaders share problems out themselves",
    "reload_dataloaders_every_n_epochs": "the loaders hold nothing that could be read again",
    "enable_autolog_hparams": "every logger is given the configuration",
    "model_registry": "checkpoints stay in RUN_DIR/checkpoints",
}
OF_EVALUATIONS = (
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "check_val_every_n_epoch",
    "val_check_interval",
    "num_sanity_val_steps",
    "inference_mode",
)
# beginnings of the hooks of a callback that a subcommand never calls
TRAINING = ("on_fit_", "on_train_", "on_sanity_", "on_before_", "on_after_", "on_save_", "on_load_")
VALIDATION, TEST, PREDICTION = "on_validation_", "on_test_", "on_predict_"
NEVER_CALLED = {
    "fit": (TEST, PREDICTION),
    "cold_start": (VALIDATION, TEST, PREDICTION),
    "validate": (*TRAINING, TEST, PREDICTION),
    "test": (*TRAINING, VALIDATION, PREDICTION),
    "predict": (*TRAINING, VALIDATION, TEST),
}


def check_sections(config: Any, names: Sequence[str]) -> None:
    """Refuses a section that is null, as nothing could be built from it.

    Raises:
        ConfigError: The first such section.
    """
    for name in names:
        if config.get(name) is None:
            raise ConfigError(f"{name}=null: cannot be null; leave it out for its defaults")


def check_seed(seed: Any) -> None:
    """Refuses seeds that NumPy does not take.

    Raises:
        ConfigError: Negative, or above 2^32 - 1.
    """
    if isinstance(seed, int) and not 0 <= seed < SEEDS:
        raise ConfigError(f"seed_everything={seed}: must lie in [0, {SEEDS - 1}]")


def usable_threads(threads: int) -> int:
    """Threads to run on: no more than there are processors, with a warning.

    Raises:
        ConfigError: Below 1.
    """
    if threads < 1:
        raise ConfigError(f"threads={threads}: must be at least 1, or null")
    most = os.cpu_count() or 1
    if threads > most:
        text = f"threads={threads}: this machine has {most} processors, and {most} are used"
        warnings.warn(text, ConfigWarning, stacklevel=2)
    return min(threads, most)


def check_precision(trainer: Any) -> None:
    """Refuses precisions that would round rewards, advantages or small updates away.

    Raises:
        ConfigError: Neither 32-true nor bf16-mixed.
    """
    precision = trainer.get("precision")
    if precision is not None and str(precision) not in PRECISIONS:
        raise ConfigError(
            f"trainer.precision={precision}: not available, half precision rounds rewards, "
            "advantages and small updates away; choose 32-true or bf16-mixed"
        )


def check_manual_optimization(trainer: Any) -> None:
    """Refuses Trainer settings that manual optimization cannot honour.

    Raises:
        ConfigError: The first such setting.
    """
    clip, accumulate = trainer.get("gradient_clip_val"), trainer.get("accumulate_grad_batches", 1)
    if clip is not None:
        raise ConfigError(
            f"trainer.gradient_clip_val={clip}: not available, each network is clipped on its own; "
            f"set model.update.max_grad_norm={clip}"
        )
    if accumulate != 1:
        raise ConfigError(
            f"trainer.accumulate_grad_batches={accumulate}: not available; "
            "set model.update.micro_batch_size to the responses that fit into memory"
        )
    if trainer.get("gradient_clip_algorithm") is not None:
        raise ConfigError(
            f"trainer.gradient_clip_algorithm={trainer.gradient_clip_algorithm}: would have no "
            "effect, gradients are clipped by norm; set model.update.max_grad_norm"
        )
    if trainer.get("min_steps") is not None:
        raise ConfigError(
            f"trainer.min_steps={trainer.min_steps}: would count the steps of every optimizer; set "
            "trainer.min_epochs"
        )
    if trainer.get("max_steps", -1) != -1:
        raise ConfigError(
            f"trainer.max_steps={trainer.max_steps}: would count the steps of every optimizer; set "
            "trainer.max_epochs and data.rollouts_per_epoch"
        )


def check_strategy(trainer: Any) -> None:
    """Refuses strategies that shard weights otherwise than FSDP2.

    Raises:
        ConfigError: With the strategy and those that work.
    """
    strategy = trainer.get("strategy")
    name = str(getattr(strategy, "class_path", strategy)).rpartition(".")[2]
    if any(word in name.lower() for word in FORKED):
        raise ConfigError(
            f"trainer.strategy={name}: trains in copies of this process, which then knows nothing "
            "of the run; choose ddp"
        )
    if name not in (NAME, FSDP2.__name__) and any(word in name.lower() for word in SHARDED):
        raise ConfigError(
            f"trainer.strategy={name}: shards the weights, and ranks that stop generating at "
            f"different lengths would wait for each other; choose {NAME}, or ddp"
        )


def check_numbers(trainer: Any) -> None:
    """Refuses numbers that Lightning takes without a word, and runs without any files.

    Raises:
        ConfigError: The first such setting.
    """
    if trainer.get("barebones"):
        raise ConfigError(
            "trainer.barebones=true: leaves out the metrics that a run is for; set "
            "trainer.enable_checkpointing, enable_progress_bar or enable_model_summary to false"
        )
    for key, least in {"min_epochs": 0, "max_epochs": -1, "num_sanity_val_steps": -1}.items():
        value = trainer.get(key)
        if value is not None and value < least:
            raise ConfigError(f"trainer.{key}={value}: must be at least {least}")
    interval = trainer.get("val_check_interval")
    if isinstance(interval, float) and interval > 1:
        raise ConfigError(
            f"trainer.val_check_interval={interval}: must be a whole number, or a share up to 1.0"
        )


def _seconds(key: str, time: Any) -> float | None:
    """Seconds of a time as Lightning reads it."""
    try:
        return Timer(time).time_remaining()
    except (TypeError, ValueError, OverflowError, MisconfigurationException) as error:
        raise ConfigError(
            f"{key}={time}: is no time; write DD:HH:MM:SS, as 00:12:00:00, or null"
        ) from error


def _check_time(limit: Any) -> None:
    """Refuses a limit of time that Lightning cannot read, or that has passed at the start."""
    if limit is None:
        return
    left = _seconds("trainer.max_time", limit)
    if left is not None and left <= 0:
        raise ConfigError(
            f"trainer.max_time={limit}: nothing would be trained; raise it, or run `validate` "
            "instead"
        )


def check_length(trainer: Any, batches_per_epoch: int) -> None:
    """Refuses runs that train on nothing, and evaluations that never come.

    Args:
        trainer: Settings of the Trainer.
        batches_per_epoch: Length of an epoch.

    Raises:
        ConfigError: The first such setting.
    """
    for key in ("max_epochs", "limit_train_batches"):
        if trainer.get(key) == 0:
            raise ConfigError(
                f"trainer.{key}=0: nothing would be trained; raise it, or run `validate` instead"
            )
    _check_time(trainer.get("max_time"))
    for key in ("check_val_every_n_epoch", "log_every_n_steps"):
        value = trainer.get(key)
        if value is not None and value < 1:
            raise ConfigError(f"trainer.{key}={value}: must be at least 1")
    interval = trainer.get("val_check_interval")
    counted = interval is None or isinstance(interval, int | float)
    above = interval if counted else _seconds("trainer.val_check_interval", interval)
    if above is not None and above <= 0:
        raise ConfigError(f"trainer.val_check_interval={interval}: must be above 0, or null")
    least, most = trainer.get("min_epochs"), trainer.get("max_epochs")
    if least is not None and most is not None and 0 < most < least:
        raise ConfigError(f"trainer.min_epochs={least}: above trainer.max_epochs={most}; lower it")
    by_epoch = trainer.get("check_val_every_n_epoch") is not None
    if by_epoch and type(interval) is int and interval > batches_per_epoch:
        raise ConfigError(
            f"trainer.val_check_interval={interval}: above the {batches_per_epoch} rollouts of an "
            "epoch; lower it, or count over epochs with trainer.check_val_every_n_epoch=null"
        )


def check_clipping(trainer: Any) -> None:
    """Refuses bounds of a cold start's gradients that are none; 0 and null are no bound.

    Warns of one that clips everything, and of a way to clip where nothing is clipped.

    Args:
        trainer: Settings of the Trainer.

    Raises:
        ConfigError: A negative number, or one that float32 does not hold.
    """
    key, clip = "trainer.gradient_clip_val", trainer.get("gradient_clip_val")
    require_float32(key, clip or None, ", or null", unbounded=True)
    if clip and clip < STILL:
        text = f"{key}={clip}: clips every gradient to nothing; choose 1, or null"
        warnings.warn(text, ConfigWarning, stacklevel=2)
    if not clip:
        way = {"trainer.gradient_clip_algorithm": trainer.get("gradient_clip_algorithm")}
        warn_of_no_effect(f"without {key}", way)


def warn_of_unused(
    subcommand: str, trainer: Any, flags: Mapping[str, str], defaults: Mapping[str, Any]
) -> None:
    """Refuses an evaluation of nothing, and warns of settings that the subcommand does not read.

    Args:
        subcommand: The one that runs.
        trainer: Settings of the Trainer.
        flags: The command line.
        defaults: Of every key.

    Raises:
        ConfigError: No batch would be evaluated.
    """
    own = STAGES[subcommand]
    if own != "train" and trainer.get(f"limit_{own}_batches") == 0:
        raise ConfigError(f"trainer.limit_{own}_batches=0: nothing would be evaluated; raise it")
    for name, why in UNREAD.items():
        for key, value in _given([name], trainer, flags, defaults).items():
            text = f"{key}={value}: has no effect; {why}; leave it out"
            warnings.warn(text, ConfigWarning, stacklevel=2)
    if subcommand == "cold_start":
        given = _given(OF_EVALUATIONS, trainer, flags, defaults)
        warn_of_no_effect("on cold_start, which evaluates nothing", given, "its default")
        return
    read = {own, "val"} if own == "train" else {own}
    others = {f"trainer.limit_{stage}_batches" for stage in STAGES.values() if stage not in read}
    warn_of_no_effect(f"on {subcommand}", {k: v for k, v in flags.items() if k in others})


def _given(
    names: Iterable[str], trainer: Any, flags: Mapping[str, str], defaults: Mapping[str, Any]
) -> dict[str, object]:
    """Settings of the Trainer that the user gave.

    In a file only what is no default counts: the `config.yaml` of a run holds every key.
    """
    found = {}
    for name in names:
        key = f"trainer.{name}"
        if key in flags or trainer.get(name) != defaults.get(key):
            found[key] = flags.get(key, trainer.get(name))
    return found


def check_acting(
    subcommand: str, callbacks: Iterable[object], names: Mapping[int, str], flags: Mapping[str, str]
) -> None:
    """Warns of callbacks that the subcommand never calls.

    Those of another subcommand stand in files that serve all of them, so that of them only what the
    command line names is warned of.

    Args:
        subcommand: The one that runs.
        callbacks: All that were configured.
        names: Keys of those that have one, by their `id`.
        flags: The command line.

    Raises:
        ConfigError: One is a base class of Lightning's, as which the parser takes an empty mapping.
    """
    for callback in callbacks:
        key, kind = names.get(id(callback), "trainer.callbacks"), type(callback)
        if kind in (BaseFinetuning, BasePredictionWriter):
            raise ConfigError(
                f"{key}={kind.__name__}: is a base class of others, which say what it does; give "
                "one of your own, or leave it out"
            )
        if kind is Callback:
            hint = class_hint(key, Callback)
            given = flags.get(key, kind.__name__)
            raise ConfigError(f"{key}={given}: names no class that does anything; {hint}")
        hooks = _hooks(callback)
        called = [name for name in hooks if not name.startswith(NEVER_CALLED[subcommand])]
        if called or isinstance(callback, ProgressBar) or (hooks and key not in flags):
            continue
        where = f"on {subcommand}" if hooks else "as it has no hook"
        text = f"{key}={kind.__name__}: has no effect {where}; leave it out"
        warnings.warn(text, ConfigWarning, stacklevel=2)


def _hooks(callback: object) -> list[str]:
    """Names of the hooks through which a callback acts."""
    foreign = not type(callback).__module__.startswith(("lightning.", "lit_reason."))
    # known ones only prepare in `setup` what another hook does, and keep of it what it needs
    generic = ["setup", "teardown", "state_dict", "load_state_dict"] if foreign else []
    names = [name for name in dir(Callback) if name.startswith("on_")]
    own = [
        name
        for name in [*names, *generic]
        if name in vars(callback) or getattr(type(callback), name) is not getattr(Callback, name)
    ]
    return [*own, *(["on_stage"] if hasattr(callback, "on_stage") else [])]


def check_callbacks(callbacks: Mapping[str, object]) -> None:
    """Refuses callbacks of rollouts in a cold start, which has none.

    And those of Lightning's that look for attributes of a module that this one has not.

    Raises:
        ConfigError: The first such callback.
    """
    for name, callback in callbacks.items():
        if isinstance(callback, BackboneFinetuning | LearningRateFinder):
            raise ConfigError(
                f"callbacks.{name}={type(callback).__name__}: reads attributes that the module of "
                "cold_start has not; leave it out, and set model.optimizer.lr"
            )
        if type(callback).__module__.startswith("lit_reason.callbacks."):
            raise ConfigError(
                f"callbacks.{name}={type(callback).__name__}: acts on rollouts, and cold_start has "
                "none; remove it"
            )


def check_steps(callbacks: Iterable[object], names: Mapping[int, str]) -> None:
    """Refuses callbacks of Lightning that act on the steps of an optimizer that Lightning takes.

    Args:
        callbacks: All that were configured.
        names: Keys of those that have one, by their `id`.

    Raises:
        ConfigError: The first such callback.
    """
    for callback in callbacks:
        if isinstance(callback, OF_STEPS):
            key = names.get(id(callback), "trainer.callbacks")
            hint = "leave it out"
            if isinstance(callback, StochasticWeightAveraging):
                hint = "EMAWeightAveraging averages weights after each rollout"
            raise ConfigError(
                f"{key}={type(callback).__name__}: acts on steps that Lightning takes, and the "
                f"module takes those of a rollout itself; {hint}"
            )


def check_distinct(callbacks: Iterable[object], names: Mapping[int, str]) -> None:
    """Refuses two callbacks of one of the package's classes, which act on the same files or masks.

    Args:
        callbacks: All that were configured.
        names: Keys of those that have one, by their `id`.

    Raises:
        ConfigError: The first that is there twice.
    """
    seen: dict[type, str] = {}
    for callback in callbacks:
        kind = type(callback)
        key = names.get(id(callback), "trainer.callbacks")
        if kind.__module__.startswith("lit_reason.callbacks.") and kind in seen:
            raise ConfigError(
                f"{key}={kind.__name__}: {seen[kind]} is one already; set one of them to null"
            )
        seen[kind] = key


def check_checkpoint(path: str | None, run_dir: str | None = None) -> None:
    """Refuses a checkpoint that does not exist or was not written to its end.

    Args:
        path: As given.
        run_dir: Folder of the run, where `last` is looked for.

    Raises:
        ConfigError: The path names no file or folder, or a file that is no checkpoint.
    """
    if path is not None and (path == "best" or not path):
        raise ConfigError(
            f"ckpt_path={path}: name the file; checkpoints are in RUN_DIR/checkpoints"
        )
    if path == "last":
        _check_last(run_dir)
    if path == "hpc" and not (run_dir and [*Path(run_dir).glob("hpc_ckpt_*")]):
        raise ConfigError(
            f"ckpt_path=hpc: run_dir={run_dir} holds no hpc_ckpt_N.ckpt, which Lightning's "
            "SLURMEnvironment writes; name another file, or last"
        )
    if path is None or path in ("last", "hpc"):
        return
    if not Path(path).exists():
        raise ConfigError(f"ckpt_path={path}: no such file; checkpoints are in RUN_DIR/checkpoints")
    if Path(path).is_dir():
        raise ConfigError(f"ckpt_path={path}: is a folder; name a file of RUN_DIR/checkpoints")
    if not is_zipfile(path):
        raise ConfigError(
            f"ckpt_path={path}: not a checkpoint, or one whose writing was interrupted; others are "
            "in RUN_DIR/checkpoints"
        )


def _check_last(run_dir: str | None) -> None:
    """Refuses a run without a `last.ckpt`, and names what there is."""
    if run_dir is None:
        raise ConfigError("ckpt_path=last: of which run? give --run_dir=RUN_DIR too")
    newest = newest_checkpoint(run_dir)
    if newest is not None and newest.name.startswith("last"):
        return
    what, hint = "checkpoint", "give the folder of the run as --run_dir"
    if newest is not None:
        what, hint = "last.ckpt", f"the newest is --ckpt_path={typed(newest)}"
    raise ConfigError(f"ckpt_path=last: run_dir={run_dir} holds no {what}; {hint}")
