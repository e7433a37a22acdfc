"""The folder of a run: chosen, claimed, and given back if the run never starts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from lit_reason.errors import ConfigError
from lit_reason.files import take_lock, write_text
from lit_reason.given import flags, read_config

RUN_DIR_VARIABLE = "LIT_REASON_RUN_DIR"
CONFIG = "config.yaml"
# set by whatever starts the processes of a run, before Lightning knows them
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")


def choose_run_dir(run_dir: str | None, subcommand: str, ckpt_path: str | None) -> str:
    """The folder of the run.

    Args:
        run_dir: As configured; `None` takes the first free of runs/000, runs/001, ...
        subcommand: Only `fit` writes a new run.
        ckpt_path: Checkpoint that the run continues from.

    Raises:
        ConfigError: `fit` would write over an earlier run, or into one that is under way, or cannot
            write.
    """
    if run_dir == "":
        raise ConfigError("run_dir=: names no folder; give one, or leave it out for runs/000, ...")
    first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    new = first and subcommand == "fit"
    try:
        if run_dir is None:
            # ranks that rank 0 started find its choice in the environment
            inherited = None if first else os.environ.get(RUN_DIR_VARIABLE)
            run_dir = inherited or str(_first_free(Path("runs"), make=new))
        if new:
            Path(run_dir).mkdir(parents=True, exist_ok=True)
            hold(run_dir)
            if not _continues(run_dir, ckpt_path) and Path(run_dir, CONFIG).exists():
                raise _holds_a_run(run_dir)
    except OSError as error:
        raise ConfigError(
            f"run_dir={run_dir or 'runs'}: cannot be written ({error.strerror}); choose another "
            "--run_dir"
        ) from error
    os.environ[RUN_DIR_VARIABLE] = run_dir
    return run_dir


def hold(run_dir: str) -> None:
    """Locks the folder for this process, which holds one at most.

    The kernel gives it back when the process ends, also after a kill.

    Args:
        run_dir: A folder that exists.

    Raises:
        ConfigError: Another process holds it.
        OSError: It cannot be opened.
    """
    let_go()
    if any(os.environ.get(name, "").strip("0") for name in RANKS):
        return  # the first process of the first node holds it for all
    descriptor = os.open(run_dir, os.O_RDONLY)
    _held.append(descriptor)
    if not take_lock(descriptor):
        let_go()
        raise ConfigError(
            f"run_dir={run_dir}: a run is under way in it; wait until it ends or stop it, or "
            "choose another --run_dir"
        )


def let_go() -> None:
    """Closes what `hold` opened."""
    while _held:
        os.close(_held.pop())


_held: list[int] = []
os.register_at_fork(after_in_child=let_go)  # a child may outlive the run


def check_copy(args: Sequence[str], run_dir: str | None) -> None:
    """Refuses to continue, with the `config.yaml` of a copied or moved folder, the original.

    The file names the folder that it was written in, and a relative one depends on where it is
    read.

    Args:
        args: The command line, whose `run_dir` is the user's word.
        run_dir: As configured.

    Raises:
        ConfigError: The file comes from a folder with checkpoints of its own, and names another.
    """
    given = list(flags(args))
    if run_dir is None or any(name == "run_dir" for name, _ in given):
        return
    for file in (Path(value) for name, value in given if name == "config"):
        beside = newest_checkpoint(str(file.parent)) is not None and file.name == CONFIG
        same = file.parent.resolve() == Path(run_dir).resolve()
        if beside and not same and read_config(str(file)).get("run_dir") == run_dir:
            other = (
                f", or --run_dir={typed(run_dir)} for the other" if Path(run_dir).is_dir() else ""
            )
            raise ConfigError(
                f"run_dir={run_dir}: is what config={file} names, which lies in another folder "
                f"with checkpoints; give --run_dir={typed(file.parent)} for the run in it{other}"
            )


def _continues(run_dir: str, ckpt_path: str | None) -> bool:
    """Whether the checkpoint is one of the run in the folder, and not of another run."""
    if not ckpt_path or ckpt_path in ("last", "best", "hpc"):
        return bool(ckpt_path)
    written = Path(os.path.abspath(ckpt_path)).is_relative_to(os.path.abspath(run_dir))
    # the folder, or checkpoints in it, may be links
    return written or Path(ckpt_path).resolve().is_relative_to(Path(run_dir).resolve())


def claim(run_dir: str, config: str, resumed: bool) -> None:
    """Writes `config.yaml`, which makes the folder that of this run.

    Args:
        run_dir: The folder.
        config: Text of the configuration.
        resumed: The run continues the one in the folder.

    Raises:
        ConfigError: Another run has claimed the folder meanwhile.
        OSError: The disk is full; the folder is as it was.
    """
    path = Path(run_dir, CONFIG)
    if not resumed:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.touch(exist_ok=False)  # of two runs that start now one takes the folder
        except FileExistsError as error:
            raise _holds_a_run(run_dir) from error
    try:
        write_text(path, config)
    except OSError:
        if not resumed:  # nothing is there that would have to be continued
            path.unlink(missing_ok=True)
        raise


def chosen_run_dir() -> str | None:
    """The folder chosen last; `None` if there is none."""
    return os.environ.get(RUN_DIR_VARIABLE)


def give_back() -> None:
    """Forgets the folder chosen last, and removes it if nothing was written into it."""
    let_go()
    chosen = os.environ.pop(RUN_DIR_VARIABLE, None)
    if chosen and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        with suppress(OSError):  # it is missing, or holds something
            Path(chosen).rmdir()


def newest_checkpoint(run_dir: str) -> Path | None:
    """What a run continues from: its newest last.ckpt, or else the newest of the others.

    Args:
        run_dir: The folder of the run.
    """
    folder = Path(run_dir, "checkpoints")
    for pattern in ("last*.ckpt", "*.ckpt"):
        found = [path for path in folder.glob(pattern) if not path.name.startswith(".")]
        if found:
            return max(found, key=lambda path: path.stat().st_mtime)
    return None


def typed(path: str | Path) -> str:
    """A path as one types it into a shell, where it is no option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def _holds_a_run(run_dir: str) -> ConfigError:
    newest = newest_checkpoint(run_dir)
    if newest is not None:
        hint = f"continue it with --ckpt_path={typed(newest)}"
    else:
        hint = (
            "if no run is under way in it remove the folder: it holds no checkpoint to go on from"
        )
    return ConfigError(
        f"run_dir={run_dir}: already holds a run; choose another --run_dir, or {hint}"
    )


def _first_free(parent: Path, make: bool) -> Path:
    """The first of 000, 001, ... under `parent`; made at once, as another run may start now."""
    for i in count():
        folder = parent / f"{i:03d}"
        if folder.exists():
            continue
        if not make:
            return folder
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable")
