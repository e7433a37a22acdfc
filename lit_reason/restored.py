"""What a checkpoint must hold for a run to go on where it stopped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Adafactor, Optimizer

from lit_reason.errors import ConfigError
from lit_reason.networks import broken_weight
from lit_reason.optimizers import build_optimizer, of_torch

CHANGED = "it was changed, or written by something else; take another of RUN_DIR/checkpoints"
MOST = 2**63  # no run counts that far
OF_DATA = {"RolloutDataModule": "fit", "Demonstrations": "cold_start"}
START = {
    "fit": "start from its policy, which scripts/export_hf.py writes",
    "cold_start": "start from its RUN_DIR/policy, with --model.backbone=Pretrained",
}
PROGRESS = ("epoch_progress", "epoch_loop.batch_progress")


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
    if value < trained or (value > trained and not more):
        raise ConfigError(
            f"ckpt_path: its {name} is {value}, and its loops have trained on {trained} batches; "
            f"{CHANGED}"
        )
    return value


def check_numbers(module: Any, checkpoint: Mapping[str, Any]) -> None:
    """Refuses weights and moments from which no run could go on.

    Args:
        module: With its networks built.
        checkpoint: With all its parts.

    Raises:
        ConfigError: The first such number.
    """
    if broken := broken_weight(checkpoint["state_dict"]):
        raise ConfigError(
            f"ckpt_path: holds weights that are not finite, the first in {broken}; take an earlier "
            "one of RUN_DIR/checkpoints"
        )
    states = checkpoint["optimizer_states"]
    check_moments(module, states)
    noted = checkpoint.get("moments")  # older ones do not say
    for network, number in note_moments(module, states).items():
        if isinstance(noted, dict) and noted.get(network) != number:
            raise ConfigError(
                f"ckpt_path: holds moments of {number} weights of the {network}, and "
                f"{noted.get(network)!r:.40} were written; {CHANGED}"
            )


def note_moments(module: Any, states: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Weights of each network that have moments: none before its first step, and maybe not all.

    Args:
        module: With its networks built.
        states: Of its optimizers; on ranks that write nothing they may be empty.
    """
    held = [len(state.get("state", ())) for state in states]
    return dict(zip(module.trained, held, strict=False))


def check_moments(module: Any, states: Any) -> None:
    """Refuses moments of another shape than their weights, which fail in the middle of an update.

    Args:
        module: With its networks built.
        states: Of its optimizers, as the checkpoint holds them.

    Raises:
        ConfigError: The first such moment, or something that is no state.
    """
    if not isinstance(states, list) or not all(_is_state(state) for state in states):
        raise ConfigError(f"ckpt_path: its optimizer_states are no states of optimizers; {CHANGED}")
    if len(states) != len(module.trained):
        raise ConfigError(
            f"ckpt_path: holds the states of {len(states)} optimizers, and this configuration "
            f"trains {' and '.join(module.trained)}; give the one it was written with, "
            "RUN_DIR/config.yaml, or take another of RUN_DIR/checkpoints"
        )
    for network, saved in zip(module.trained, states, strict=True):
        weights = module.weights(network)
        known = keeps_moments(build_optimizer(module, network))
        names: set[str] = set()
        for i, entries in saved["state"].items():
            if not (type(i) is int and 0 <= i < len(weights) and isinstance(entries, dict)):
                raise ConfigError(
                    f"ckpt_path: holds a state of the {network}'s weight {i!r:.40}, and there are "
                    f"{len(weights)}; {CHANGED}"
                )
            names = names or set(entries)
            for name in sorted(names | set(entries)) if known else ():
                if why := _fault(entries.get(name, "missing"), tuple(weights[i].shape)):
                    raise ConfigError(
                        f"ckpt_path: its {name} of the {network}'s weight {i} {why}; {CHANGED}"
                    )


def keeps_moments(optimizer: Optimizer) -> bool:
    """Whether the state of an optimizer is numbers, and tensors of the shape of each weight."""
    return of_torch(optimizer) and not isinstance(optimizer, Adafactor | LBFGS)


def _fault(moment: object, shape: tuple[int, ...]) -> str | None:
    """What is wrong with a moment of a weight of this shape."""
    if moment is None:  # a momentum that has not begun
        return None
    if not isinstance(moment, Tensor | int | float):
        return f"is {moment!r:.40}, no number"
    if not isinstance(moment, Tensor):
        return "is nan" if math.isnan(moment) else None
    if moment.ndim and tuple(moment.shape) != shape:
        return f"has shape {tuple(moment.shape)}, not {shape}"
    return "is nan" if bool(moment.isnan().any()) else None


def _is_state(state: Any) -> bool:
    return isinstance(state, dict) and isinstance(state.get("state"), dict)


def check_groups(module: Any, states: Sequence[Mapping[str, Any]]) -> None:
    """Refuses settings of optimizers that are none; to be called if the optimizers are the same.

    Args:
        module: With its networks built.
        states: Of its optimizers, as the checkpoint holds them.

    Raises:
        ConfigError: The first such setting.
    """
    for network, saved in zip(module.trained, states, strict=True):
        fresh = build_optimizer(module, network).param_groups
        given = saved.get("param_groups")
        groups = given if isinstance(given, list) else []
        held = [_weights_of(group) for group in groups]
        if held != [len(group["params"]) for group in fresh]:
            raise ConfigError(
                f"ckpt_path: its param_groups of the {network} are not of its weights; {CHANGED}"
            )
        for group, own in zip(groups, fresh, strict=True):
            wanted = {**own, "initial_lr": own["lr"]} if "lr" in own else own
            for name in [name for name in wanted if name in group and name != "params"]:
                if not _alike(group[name], wanted[name]):
                    raise ConfigError(
                        f"ckpt_path: its {name} of the {network} is {group[name]!r:.40}; {CHANGED}"
                    )


def check_schedules(module: Any, states: Any) -> None:
    """Refuses states of other schedules; to be called if the schedules are the same.

    Args:
        module: With its schedules.
        states: Of its schedules, as the checkpoint holds them.

    Raises:
        ConfigError: There are more or fewer, or something is no state.
    """
    scheduled = [n for n in module.trained if module.scheduler_factories[n] is not None]
    whole = isinstance(states, list) and all(isinstance(state, dict) for state in states)
    if not whole or len(states) != len(scheduled):
        raise ConfigError(
            f"ckpt_path: its lr_schedulers are not the states of {len(scheduled)} schedules; "
            f"{CHANGED}"
        )
    for state in states:
        if "last_epoch" in state:
            count(state, "last_epoch")


def _weights_of(group: Any) -> int | None:
    """How many weights a group of settings is of."""
    weights = group.get("params") if isinstance(group, dict) else None
    return len(weights) if isinstance(weights, list) else None


def _alike(value: Any, like: Any) -> bool:
    """Whether a setting is of the kind of another: a switch, a finite number, or some of them."""
    if like is None or isinstance(like, bool):
        return value is None or isinstance(value, bool | int | float)
    if isinstance(like, int | float | Tensor):
        number = isinstance(value, int | float) or (isinstance(value, Tensor) and not value.ndim)
        return number and math.isfinite(value)
    if isinstance(like, list | tuple):
        whole = isinstance(value, list | tuple) and len(value) == len(like)
        return whole and all(_alike(v, w) for v, w in zip(value, like, strict=True))
    return True
