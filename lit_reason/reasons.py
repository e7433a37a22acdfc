"""What exceptions that end a command mean to its user, each in one line."""

from __future__ import annotations

import traceback
from pathlib import Path

import lightning
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lit_reason.errors import ConfigError, users_mistake
from lit_reason.explain import nested_reason

LIGHTNING = Path(lightning.__file__).parent


def in_constructor(error: BaseException) -> str | None:
    """`users_mistake` of what the parser caught while it built a class of the user's."""
    chain: list[BaseException] = [error]
    while nearer := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(nearer)
    return next((line for e in reversed(chain) if (line := users_mistake(e))), None)


def reason_of(error: BaseException) -> str | None:
    """The one line to show for an exception; `None` for one that deserves its traceback.

    An exit that code of the user's asked for has one too: it is no end of a run, whatever its
    status.
    """
    if isinstance(error, ConfigError | FloatingPointError):
        return str(error)
    if (mistake := users_mistake(error)) or not isinstance(error, Exception):  # as after --help
        return mistake
    if fault := _checkpoint_fault(error):
        return fault
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MisconfigurationException | ValueError | TypeError):
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        if Path(raised_in).is_relative_to(LIGHTNING):
            return f"trainer: {str(error).strip().splitlines()[0]}"
    if not isinstance(error, ValueError) or (nested := nested_reason(str(error))) is None:
        return None
    return in_constructor(error) or nested


def _checkpoint_fault(error: Exception) -> str | None:
    """Why a checkpoint was not made or not taken; `None` if it was neither."""
    frames = traceback.extract_tb(error.__traceback__)
    functions = {f.name for f in frames if Path(f.filename).name == "checkpoint_connector.py"}
    if "dump_checkpoint" in functions and isinstance(error, AttributeError | TypeError):
        return f"trainer: a part has a state that no checkpoint holds ({error}); choose another"
    return _misfit(error) if functions else None


def _misfit(error: Exception) -> str:
    """Why a run cannot continue from a checkpoint."""
    reason = next(iter(str(error).strip().splitlines()), "")
    if "max_epochs" in reason:
        return f"trainer.max_epochs: {reason} Raise it to continue"
    if not isinstance(error, RuntimeError):  # which torch raises where weights do not fit
        return (
            f"ckpt_path: is damaged, or no checkpoint of a run ({type(error).__name__}: "
            f"{reason:.120}); take another of RUN_DIR/checkpoints"
        )
    return (
        f"ckpt_path: does not fit this configuration ({reason}); give the configuration it was "
        "written with, RUN_DIR/config.yaml"
    )
