"""What a checkpoint must hold for a run to go on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Adafactor

from lit_reason.errors import ConfigError

CHANGED = "it was changed, or written by something else; take another of RUN_DIR/checkpoints"


def count(checkpoint: Mapping[str, Any], name: str) -> int:
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
    value = checkpoint.get(name)
    if type(value) is not int or value < 0:
        raise ConfigError(f"ckpt_path: its {name} is {value!r:.40}, expected a count; {CHANGED}")
    return value


def require_parts(checkpoint: Mapping[str, Any], data: object, continues: bool) -> None:
    """Refuses a checkpoint without weights, or from which a part of a run would begin anew.

    Args:
        checkpoint: As it was read.
        data: The data module; `None` if the run has none.
        continues: The run trains, rather than evaluates.

    Raises:
        ConfigError: The first part that is missing.
    """
    if not isinstance(checkpoint.get("state_dict"), dict):
        raise ConfigError(f"ckpt_path: holds no state_dict; {CHANGED}")
    if not continues:
        return
    wanted = {
        "loops": "the epoch",
        "policy_version": "the number of rollouts",
        "optimizer_states": "the states of optimizers",
        "lr_schedulers": "the states of schedules",
    }
    if data is not None:
        wanted[type(data).__qualname__] = "the place in the problems"
    for name, what in wanted.items():
        if name not in checkpoint:
            raise ConfigError(
                f"ckpt_path: holds no {name}, {what} to go on from; take another of "
                "RUN_DIR/checkpoints, or start a new run from an exported policy"
            )


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
    for network, saved in zip(module.trained, states, strict=False):
        weights = module.weights(network)
        optimizer = module.optimizer_factories[network](weights)
        like_weights = type(optimizer).__module__.startswith("torch.optim.") and not isinstance(
            optimizer, Adafactor
        )
        for i, entries in saved["state"].items():
            if not (type(i) is int and 0 <= i < len(weights) and isinstance(entries, dict)):
                raise ConfigError(
                    f"ckpt_path: holds a state of the {network}'s weight {i!r:.40}, and there are "
                    f"{len(weights)}; {CHANGED}"
                )
            moments = {k: tuple(v.shape) for k, v in entries.items() if isinstance(v, Tensor)}
            for name, shape in moments.items() if like_weights else ():
                if shape and shape != tuple(weights[i].shape):
                    raise ConfigError(
                        f"ckpt_path: its {name} of the {network}'s weight {i} has shape {shape}, "
                        f"not {tuple(weights[i].shape)}; {CHANGED}"
                    )


def _is_state(state: Any) -> bool:
    return isinstance(state, dict) and isinstance(state.get("state"), dict)
