"""What a checkpoint must hold for a run to go on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_reason.errors import ConfigError

CHANGED = "it was changed, or written by something else; take another of RUN_DIR/checkpoints"
MOST = 2**63  # no run counts that far
OF_DATA = {"RolloutDataModule": "fit", "Demonstrations": "cold_start"}
START = {
    "fit": "start from its policy, which scripts/export_hf.py writes",
    "cold_start": "start from its RUN_DIR/policy, with --model.backbone=Pretrained",
}
PROGRESS = ("epoch_progress", "epoch_loop.batch_progress")
A_BATCH = 2**31  # more than any batch raises a number by


def count(checkpoint: object, name: str) -> int:
    """A number of things so far.

    Args:
        checkpoint: The state that holds it.
        name: Its key.

    Raises:
        ConfigError: It is missing, or no such number.

    Example:
        >>> count({"cursor": "x"}, "cursor")
        Traceback (most recent call last):
        lit_reason.errors.ConfigError: ckpt_path: its cursor is 'x', expected a count; it was ...
    """
    value = checkpoint.get(name) if isinstance(checkpoint, Mapping) else None
    if type(value) is not int or not 0 <= value < MOST:
        raise ConfigError(f"ckpt_path: its {name} is {value!r:.40}, expected a count; {CHANGED}")
    return value


def numbers(state: Mapping[str, Any], name: str) -> dict[str, float]:
    """Numbers by their names.

    Args:
        state: What holds them.
        name: Its key.

    Raises:
        ConfigError: Something else stands there.
    """
    value = state.get(name)
    if not isinstance(value, dict) or any(type(x) not in (int, float) for x in value.values()):
        raise ConfigError(f"ckpt_path: its {name} is {value!r:.40}, expected numbers; {CHANGED}")
    return value


def networks(checkpoint: Mapping[str, Any], trained: Sequence[str]) -> set[str]:
    """The networks that have taken a step.

    Args:
        checkpoint: Older ones do not say, so that all have.
        trained: Those that may have.

    Raises:
        ConfigError: Others are named.
    """
    value = checkpoint.get("stepped", list(trained))
    if not isinstance(value, list) or not all(x in ("actor", "critic") for x in value):
        raise ConfigError(f"ckpt_path: its stepped is {value!r:.40}, no networks; {CHANGED}")
    return set(value)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is one number after the other, which all of a run's are.

    Args:
        tensor: Any.
    """
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_quantized)


def require_parts(
    checkpoint: Mapping[str, Any], data: object, continues: bool, **counts: str
) -> None:
    """Refuses a checkpoint without weights, or from which a part of a run would begin anew.

    Args:
        checkpoint: As it was read.
        data: The data module; `None` if the run has none.
        continues: The run trains, rather than evaluates.
        **counts: Further parts that the module needs, with what they are.

    Raises:
        ConfigError: The first part that is missing.
    """
    if not isinstance(checkpoint.get("state_dict"), dict):
        raise ConfigError(f"ckpt_path: holds no state_dict; {CHANGED}")
    if not continues:
        return
    own = type(data).__qualname__
    _check_subcommand(checkpoint, own)
    wanted = {
        "loops": "the epoch",
        **counts,
        "optimizer_states": "the states of optimizers",
        "lr_schedulers": "the states of schedules",
        "callbacks": "the states of callbacks",
    }
    if data is not None:
        wanted[own] = "the place in the problems"
    for name, what in wanted.items():
        if name not in checkpoint:
            raise ConfigError(
                f"ckpt_path: holds no {name}, {what} to go on from; take another of "
                "RUN_DIR/checkpoints, or start a new run from an exported policy"
            )
    for name in ("loops", "callbacks"):
        if not isinstance(checkpoint[name], dict):
            held = type(checkpoint[name]).__name__
            raise ConfigError(f"ckpt_path: its {name} are a {held}, not a dict; {CHANGED}")


def _check_subcommand(checkpoint: Mapping[str, Any], own: str) -> None:
    """Refuses a checkpoint of the other kind of training, which its data module tells."""
    other = next((name for name in OF_DATA if name in checkpoint and name != own), None)
    if own in OF_DATA and own not in checkpoint and other is not None:
        raise ConfigError(
            f"ckpt_path: is a checkpoint of `{OF_DATA[other]}`, and this is `{OF_DATA[own]}`; "
            f"continue it with `{OF_DATA[other]}`, or {START[OF_DATA[other]]}"
        )


def batches(checkpoint: Mapping[str, Any]) -> int:
    """Batches that the loops of a checkpoint have trained on.

    Args:
        checkpoint: With its loops.

    Raises:
        ConfigError: They do not say.
    """
    loops = checkpoint["loops"].get("fit_loop")
    for name in PROGRESS:
        part = loops.get(name) if isinstance(loops, dict) else None
        for span in ("current", "total"):
            counted = part.get(span) if isinstance(part, dict) else None
            if not isinstance(counted, dict):
                raise ConfigError(f"ckpt_path: its loops hold no {name}.{span}; {CHANGED}")
            for key in {*counted, "processed"}:
                count(counted, key)
    return count(loops[PROGRESS[1]]["total"], "processed")


def require_count(state: object, name: str, trained: int, more: bool = False) -> int:
    """A number that batches raise by 1 each.

    Args:
        state: What holds it.
        name: Its key.
        trained: Batches so far.
        more: A batch may raise it by more.

    Raises:
        ConfigError: It is no such number.
    """
    value = count(state, name)
    if not trained <= value <= (trained * A_BATCH if more else trained):
        raise ConfigError(
            f"ckpt_path: its {name} is {value}, and its loops have trained on {trained} batches; "
            f"{CHANGED}"
        )
    return value


def steps_taken(module: Any, checkpoint: Mapping[str, Any]) -> int:
    """Steps of all optimizers together, after a look at every number of the loops.

    Args:
        module: With its trainer, whose loops the checkpoint restores.
        checkpoint: With its loops.

    Raises:
        ConfigError: A part of the loops is none, or they have counted other steps.
    """
    trained, loops = batches(checkpoint), checkpoint["loops"]["fit_loop"]
    _check_progress(loops, module.trainer.fit_loop.state_dict(), "fit_loop")
    if module.automatic_optimization:
        counter = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    else:
        counter = loops["epoch_loop.manual_optimization.optim_step_progress"]
    taken, counted = count(checkpoint, "global_step"), count(counter["total"], "completed")
    if taken != counted or taken > trained * A_BATCH:
        raise ConfigError(
            f"ckpt_path: its global_step is {taken}, and its loops have counted {counted} steps in "
            f"{trained} batches; {CHANGED}"
        )
    return taken


def _check_progress(held: Any, fresh: Mapping[str, Any], name: str) -> None:
    """Refuses parts of the loops that are unlike those which Lightning would begin with."""
    if not isinstance(held, dict):
        raise ConfigError(f"ckpt_path: its {name} is {held!r:.40}, not a dict; {CHANGED}")
    for key, like in fresh.items():
        if isinstance(like, dict):
            _check_progress(held.get(key), like, key)
        elif not isinstance(like, bool):
            count(held, key)
