"""The `LightningCLI`: named callbacks, run folders and one-line errors. No reinforcement learning.

Classes are imported here so that a configuration can name them without their module.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NoReturn, Optional, Union

import torch
import yaml
from jsonargparse import _typehints
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar, Timer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import (
    Logger,
    TensorBoardLogger,  # noqa: F401
    WandbLogger,  # noqa: F401
)
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from transformers.utils.logging import disable_progress_bar

from lit_reason import __version__, aggregation, filters, objectives, rewards, tasks  # noqa: F401
from lit_reason.backbones import Bundled, Pretrained, Scratch  # noqa: F401
from lit_reason.callbacks import (
    CriticMonitor,
    PredictionWriter,
    ReasonProgressBar,
    RunSummary,
    ValuePretraining,
)
from lit_reason.checkpoints import Checkpoints, standard_checkpoints
from lit_reason.checks import check_sizes, warn_of_demonstrations, warn_of_frozen_policy
from lit_reason.cold_start import ColdStart, Demonstrations
from lit_reason.data import RolloutDataModule
from lit_reason.dropped import drop_arguments, warn_of_dropped
from lit_reason.dry_run import Stopwatch, report
from lit_reason.engines import VLLMEngine, VLLMServer  # noqa: F401
from lit_reason.errors import (
    ConfigError,
    ConfigWarning,
    build_placed,
    call_ending_no_loop,
    place_of,
    printable,
    renaming_warnings,
    users_mistake,
)
from lit_reason.explain import check_own_parts, explain, import_fault, parameters
from lit_reason.given import (
    FAMILIES,
    check_local,
    check_nul,
    check_secrets,
    flags,
    full_key,
    leaves,
    read_configs,
    settings,
)
from lit_reason.lists import as_list
from lit_reason.loggers import MetricsFile
from lit_reason.lora import LoRA  # noqa: F401
from lit_reason.mappings import check_forms
from lit_reason.module import ReasonModule
from lit_reason.nulls import check_nulls, without_dropped
from lit_reason.peers import PeerWatch, ended_peer
from lit_reason.reasons import reason_of
from lit_reason.record_config import RecordConfig
from lit_reason.recorded import Recorded  # noqa: F401
from lit_reason.run_dir import (
    check_copy,
    choose_run_dir,
    chosen_run_dir,
    give_back,
    newest_checkpoint,
)
from lit_reason.secrecy import masked
from lit_reason.stopping import StopSignals, stop_in, stopping_at_once
from lit_reason.trainer_checks import (
    check_acting,
    check_callbacks,
    check_checkpoint,
    check_clipping,
    check_distinct,
    check_length,
    check_manual_optimization,
    check_numbers,
    check_precision,
    check_sections,
    check_seed,
    check_steps,
    check_strategy,
    usable_threads,
    warn_of_unused,
)

Sections = dict[str, type]
REASON: Sections = {"model": ReasonModule, "data": RolloutDataModule}
COLD_START: Sections = {"model": ColdStart, "data": Demonstrations}


_typehints.discard_init_args_on_class_path_change = drop_arguments
# the default of `Timer.interval` is an enum although its type is a string
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, x: dumper.represent_data(x.value))


class ReasonParser(LightningArgumentParser):
    """A parser whose errors are one line that names the key, its value and a valid choice."""

    arguments: ClassVar[list[str]] = []  # of this process, for messages
    keys: ClassVar[dict[str, Any]] = {}  # of the subcommand, with their types
    defaults: ClassVar[dict[str, Any]] = {}  # of the same keys
    foreign: ClassVar[dict[str, str]] = {}  # keys of the other kind of subcommand, with its name

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # an abbreviated key would be taken for the one it begins
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the message without the usage text, and exits with 2."""
        reason = None if ex is None or isinstance(ex, ConfigError) else users_mistake(ex)
        line = reason or explain(message, self.arguments, self.keys, self.foreign)
        given = settings(self.arguments)
        sys.stderr.write(f"error: {printable(masked(full_key(line, given), given))}\n")
        self.exit(2)


class ReasonTrainer(Trainer):
    """Lightning's `Trainer`, whose step is a rollout where a rollout takes many optimizer steps.

    `ModelCheckpoint.every_n_train_steps` and the `{step}` of a file's name count by it.
    """

    @property
    def global_step(self) -> int:
        """Rollouts of a `ReasonModule`; steps of all optimizers in a cold start."""
        module = self.strategy.lightning_module
        return module.policy_version if isinstance(module, ReasonModule) else super().global_step


class ReasonCLI(LightningCLI):
    """`LightningCLI` with named callbacks and a run folder."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The one that was asked for, because preparing the parser of each takes a while."""
        known = LightningCLI.subcommands()
        asked = "fit" if ReasonParser.arguments[:1] == ["cold_start"] else None
        asked = asked or next(iter(ReasonParser.arguments), "")
        return {asked: known[asked]} if asked in known else known

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds `--callbacks` and `--run_dir`."""
        parser.add_argument(
            "--callbacks",
            type=dict[str, Optional[Callback]],  # noqa: UP045 (jsonargparse shows it)
            default={},
            help="Named callbacks, in the order in which they act; null drops one.",
        )
        parser.add_argument(
            "--run_dir",
            type=Optional[str],  # noqa: UP045
            default=None,
            help="Folder of the run; null takes the first free of runs/000, runs/001, ... "
            "A folder that holds a run is only continued, with --ckpt_path.",
        )
        parser.add_argument(
            "--threads",
            type=Optional[int],  # noqa: UP045
            default=None,
            help="CPU threads of each process; null leaves the choice to torch. A small model is "
            "faster on one.",
        )
        parser.add_argument(
            "--dry_run",
            type=Union[bool, int],  # noqa: UP007 (as for Optional)
            default=False,
            help="true prints what a run will need in memory and time, and ends; a number also "
            "runs so many rollouts, without validation or files, and prints what they took.",
        )
        ReasonParser.keys = {
            a.dest: getattr(a, "_typehint", None)
            for a in parser._actions
            if not a.dest.endswith("help")
        }
        actions: list[Any] = parser._actions
        ReasonParser.defaults = {a.dest: a.default for a in actions}
        for action in actions:
            if build := getattr(action, "instantiate_classes", None):
                action.instantiate_classes = partial(build_placed, build, action.dest)

    @property
    def asked(self) -> str:
        """The subcommand of the command line, of which Lightning knows `cold_start` as `fit`."""
        return "cold_start" if self.model_class is ColdStart else str(self.subcommand)

    def _parse_ckpt_path(self) -> None:
        """Nothing: Lightning would load the whole checkpoint for hyper-parameters it lacks."""

    def _dump_config(self) -> None:
        """Nothing: Lightning would dump it for hyper-parameters that nobody saves."""
        self.config_dump: dict[str, Any] = {}

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses, and refuses the seed before Lightning sets it."""
        check_forms(ReasonParser.arguments, ReasonParser.keys, ReasonParser.defaults)
        super().parse_arguments(parser, args)
        check_seed(self.config[self.config["subcommand"]].get("seed_everything"))

    def before_instantiate_classes(self) -> None:
        """Refuses what cannot work before any class is built."""
        config = self.config[self.subcommand]
        check_nul(leaves("", config.as_dict()))
        check_secrets(config.as_dict())
        check_sections(config, ("model", "data", "trainer"))
        check_own_parts(config.as_dict(), ReasonParser.keys)
        self._check_nulls(config)
        if config.get("threads") is not None:
            torch.set_num_threads(usable_threads(config.threads))
        check_precision(config.trainer)
        check_numbers(config.trainer)
        warn_of_dropped(config.as_dict(), ReasonParser.arguments)
        if self.model_class is ReasonModule:
            check_manual_optimization(config.trainer)
            check_strategy(config.trainer)
        else:
            check_clipping(config.trainer)
        if self.subcommand == "fit":
            data = config.data
            check_length(
                config.trainer, data.get("rollouts_per_epoch") or data.get("batches_per_epoch")
            )
        given = dict(flags(ReasonParser.arguments))
        warn_of_unused(self.asked, config.trainer, given, ReasonParser.defaults)
        if config.dry_run is not False:
            self._prepare_dry_run(config)
        path = self._checkpoint(config)
        check_local("run_dir", config.run_dir)
        config.run_dir = choose_run_dir(config.run_dir, str(self.subcommand), path)
        for logger in as_list(config.trainer.get("logger")):
            arguments = getattr(logger, "init_args", None)
            if arguments is not None and arguments.get("save_dir") == ".":
                arguments.save_dir = config.run_dir

    def _checkpoint(self, config: Any) -> str | None:
        """The checkpoint to read, after a look at it."""
        path, writes = config.get("ckpt_path"), self.subcommand in ("fit", "predict")
        if path == "last" or (path and writes):
            check_copy(ReasonParser.arguments, config.run_dir)
        check_checkpoint(path, config.run_dir)
        if path == "last":
            # Lightning takes the newest of all callbacks that write checkpoints, if there is any
            own = Path(config.run_dir, "checkpoints", "last.ckpt")
            config.ckpt_path = str(own if own.exists() else newest_checkpoint(config.run_dir))
        return path

    def _check_nulls(self, config: Any) -> None:
        """Refuses null where it means nothing, and takes the parts out that are dropped."""
        sections = {"model": self.model_class, "data": self.datamodule_class, "callbacks": None}
        plain = config.as_dict()
        for section, cls in sections.items():
            check_nulls(section, cls, plain.get(section))
        given = settings(ReasonParser.arguments)
        for family in FAMILIES:
            if isinstance(config.get(family), dict):
                config[family] = without_dropped(family, config[family], given)
        if config.data.get("val_task", 0) is None:
            text = "data.val_task=null: evaluation uses the training problems; name a task"
            warnings.warn(f"{text} of held-out ones", ConfigWarning, stacklevel=1)

    def instantiate_classes(self) -> None:
        """Builds model, data and trainer; refuses sizes before other ranks are started."""
        super().instantiate_classes()
        if isinstance(self.model, ReasonModule):
            callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
            given = dict(flags(ReasonParser.arguments))
            warn_of_demonstrations(self.datamodule, given)
            if self.subcommand == "fit":
                check_sizes(self.model, self.datamodule)
            stage = next((c for c in callbacks if isinstance(c, ValuePretraining)), None)
            if self.subcommand == "fit" and stage is not None:
                watched = any(isinstance(c, CriticMonitor) for c in callbacks)
                continued = bool(self._get(self.config, "ckpt_path"))
                warn_of_frozen_policy(self.model, stage, watched, given, continued)

    def _prepare_dry_run(self, config: Any) -> None:
        """Leaves nothing of a run but its rollouts."""
        if self.subcommand != "fit" or self.model_class is not ReasonModule:
            raise ConfigError(f"dry_run={config.dry_run}: only `fit` is estimated; leave it out")
        if config.dry_run is not True:
            if config.dry_run < 1:
                raise ConfigError(
                    f"dry_run={config.dry_run}: must be true, or how many rollouts to time"
                )
            config.data.rollouts_per_epoch = config.dry_run
        self.scratch = TemporaryDirectory(prefix="lit_reason_")
        config.run_dir, config.ckpt_path = self.scratch.name, None
        config.trainer.max_epochs, config.trainer.logger = 1, False
        config.trainer.limit_val_batches = config.trainer.num_sanity_val_steps = 0
        config.trainer.enable_checkpointing = config.trainer.enable_model_summary = False

    def before_fit(self) -> None:
        """Prints the estimate of a dry run, which may end here."""
        dry_run = self._get(self.config, "dry_run")
        if not dry_run:
            return
        for line in report(self.model, self.datamodule, self.trainer):
            rank_zero_only(print)(line)
        if dry_run is True:
            raise SystemExit(0)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds the named callbacks, the progress bar, the summary and `metrics.csv`."""
        config = self._get(self.config_init, "trainer")
        run_dir = self._get(self.config, "run_dir")
        callbacks = self._get(self.config_init, "callbacks") or {}  # null drops all
        if self.model_class is ColdStart:
            check_callbacks(callbacks)
        named = list(callbacks.values())
        given = [*as_list(config.get("callbacks")), *named]
        keys = {id(part): f"callbacks.{name}" for name, part in callbacks.items()}
        check_distinct(given, keys)
        check_acting(self.asked, given, keys, dict(flags(ReasonParser.arguments)))
        if self.model_class is ReasonModule:
            check_steps(given, keys)
        kwargs |= {
            "default_root_dir": run_dir,
            "callbacks": [
                *self._first(),
                *self._checkpoints(config),  # before those of the user's: stops write its last.ckpt
                *given,
                *self._standard_callbacks(config, given),
            ],
            "max_time": None,  # see _standard_callbacks
            "logger": self._loggers(config.get("logger"), run_dir),
            "plugins": self._plugins(as_list(config.get("plugins"))),
        }
        for part in [*given, *as_list(config.get("logger"))]:
            end_no_loop(part)
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (TypeError, ValueError, RuntimeError, MisconfigurationException) as error:
            raise ConfigError(f"trainer: {error}") from error
        everything: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        for record in (c for c in everything if isinstance(c, RecordConfig)):
            record.named = callbacks
        return trainer

    def after_fit(self) -> None:
        """Evaluates the final weights if the last epoch did not, and prints the summary."""
        trainer: Any = self.trainer
        watch = next((c for c in trainer.callbacks if isinstance(c, Stopwatch)), None)
        if watch is not None:
            for line in watch.lines(self.model.policy_version):
                rank_zero_only(print)(line)
            return
        summary = next((c for c in trainer.callbacks if isinstance(c, RunSummary)), None)
        if summary is None or trainer.fast_dev_run or isinstance(self.model, ColdStart):
            return
        if trainer.enable_validation and summary.validated != self.model.policy_version:
            # a checkpoint of the end of a batch, with nothing left to train, is a step behind
            trainer.fit_loop.epoch_loop._batches_that_stepped = self.model.policy_version
            trainer.validate(self.model, self.datamodule, verbose=False)
        summary.show(trainer)
        model: Any = self.model
        trains = {"actor": model.phase == "joint", "critic": model.value is not None}
        for name, shown in {"actor": "policy", "critic": "critic"}.items():
            if trains[name] and name not in model.stepped:
                warnings.warn(
                    f"none of the {model.policy_version} rollouts trained the {shown}: see "
                    f"update/skipped_{name}, update/nonfinite_{name}, groups/kept and "
                    "reward/unscored in metrics.csv",
                    ConfigWarning,
                    stacklevel=1,
                )

    def _first(self) -> list[Callback]:
        """What must know of an update, or of an error, before any other callback acts on it."""
        stops = [StopSignals(self.model_class is ColdStart)] if self.subcommand == "fit" else []
        dry = [Stopwatch()] if self._get(self.config, "dry_run") else []
        return [PeerWatch(), *stops, *dry]

    def _standard_callbacks(self, config: Any, given: list[Callback]) -> list[Callback]:
        added: list[Callback] = [RunSummary()]
        if self.subcommand == "predict" and not any(isinstance(c, PredictionWriter) for c in given):
            added.append(PredictionWriter())
        wants_bar = config.get("enable_progress_bar") is not False
        if wants_bar and not any(isinstance(c, ProgressBar) for c in given):
            added.append(ReasonProgressBar())
        limit = config.get("max_time")
        if limit is not None and not any(isinstance(c, Timer) for c in given):
            # Lightning's own ends in the middle of an epoch, and takes that for a whole one
            added.append(Timer(limit, interval="epoch"))
        return added

    def _checkpoints(self, config: Any) -> list[Callback]:
        """Those that a run continues from, also beside a `ModelCheckpoint` of the user's own."""
        off = config.get("enable_checkpointing") is False
        return [] if off else [*standard_checkpoints(self.model_class is ReasonModule)]

    def _plugins(self, given: list[Any]) -> list[Any]:
        own = any(isinstance(plugin, CheckpointIO) for plugin in given)
        return given if own else [*given, Checkpoints()]

    def _loggers(self, given: Any, run_dir: str) -> Any:
        if given is False or self.subcommand != "fit":
            return given or False
        return [MetricsFile(run_dir), *(x for x in as_list(given) if x is not True)]


def build(args: list[str]) -> LightningCLI:
    """Parses the arguments and runs the subcommand."""
    common: dict[str, Any] = {
        "args": args,
        "auto_configure_optimizers": False,
        "trainer_class": ReasonTrainer,
        "save_config_callback": RecordConfig,
        "parser_class": ReasonParser,
        "parser_kwargs": {"prog": "lit_reason", "version": __version__},
    }
    if args[0] == "cold_start":
        ReasonParser.foreign = foreign_keys("fit", REASON, COLD_START)
        common["args"] = ["fit", *args[1:]]
        return ReasonCLI(ColdStart, Demonstrations, seed_everything_default=0, **common)
    ReasonParser.foreign = foreign_keys("cold_start", COLD_START, REASON)
    return ReasonCLI(
        ReasonModule,
        RolloutDataModule,
        seed_everything_default=0,
        trainer_defaults={"log_every_n_steps": 1, "num_sanity_val_steps": -1},
        **common,
    )


def end_no_loop(part: object) -> None:
    """Wraps the hooks of a callback or a logger, a `StopIteration` in which would end an epoch."""
    base = next((kind for kind in (Callback, Logger) if isinstance(part, kind)), None)
    if base is None or type(part).__module__.startswith(("lightning.", "lit_reason.")):
        return
    for name in dir(base):
        own = getattr(type(part), name)
        if not name.startswith("_") and inspect.isfunction(own) and own is not getattr(base, name):
            setattr(part, name, partial(call_ending_no_loop, getattr(part, name)))


def foreign_keys(subcommand: str, of: Sections, own: Sections) -> dict[str, str]:
    """Keys that only the classes of another subcommand take, each with the subcommand's name."""
    return {
        f"{section}.{key}": subcommand
        for section, cls in of.items()
        for key in parameters([cls]) - parameters([own[section]])
    }


def run(args: list[str]) -> LightningCLI:
    """`build`, with the user's mistakes reported in one line and exit status 2."""
    quiet_lightning()
    ReasonParser.arguments = args
    try:
        with stopping_at_once():
            read_configs(args)
            given = settings(args)
            with renaming_warnings(lambda text, at: masked(full_key(text, given, at), given)):
                return build(args)
    except BaseException as error:
        if stopped := stop_in(error):
            if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
                last = dict(settings(args))
                continues = last.get("ckpt_path", "None") not in ("None", "null", "")
                named = last.get("run_dir") if continues else None
                message = stopped.message(args[0], chosen_run_dir() or named)
                sys.stderr.write(f"{message}\n")
            raise SystemExit(stopped.exit_status) from None
        reason = ended_peer() or import_fault(error, settings(args)) or reason_of(error)
        if reason is None:
            raise
        given = settings(args)
        line = masked(full_key(reason, given, place_of(error)), given)
        sys.stderr.write(f"error: {printable(line)}\n")
        raise SystemExit(2) from None
    finally:
        give_back()


def quiet_lightning() -> None:
    """Silences warnings of Lightning and its libraries about what is meant to be so."""
    for message in (
        r".*in eval mode at the start of training.*",  # the reference
        r".*does not have many workers.*",  # the loader generates; it cannot have workers
        r".*isinstance\(treespec, LeafSpec\).*",  # inside Lightning, with torch 2.13
        r".*Checkpoint directory .* exists and is not empty.*",  # a resumed run
        r"The dirpath has changed from",  # an evaluation elsewhere, which writes no checkpoint
        r".*LightningCLI's args parameter is intended.*",
        r"Using ModelCheckpoint with manual optimization",  # weights after the update are meant
        r".*Couldn't infer the batch indices.*",  # predictions carry their own
        r".*your dataloader is not resumable.*",  # the data module keeps the place
        r"[\s\S]*was deprecated in v4",  # jsonargparse calls inside Lightning
        r"[\s\S]*only one JsonargparseDeprecationWarning",
    ):
        warnings.filterwarnings("ignore", message=message)
    disable_progress_bar()  # of transformers: loading a model is not what the bar is for
    for name in ("utilities.rank_zero", "trainer.connectors.checkpoint_connector"):
        logging.getLogger(f"lightning.pytorch.{name}").addFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    """No advertisement, no second word on Ctrl-C, and none on files that reads as if of loading."""
    message = record.getMessage()
    unwanted = ("litlogger", "Detected KeyboardInterrupt", "`weights_only` was not set")
    return not any(part in message for part in unwanted)
