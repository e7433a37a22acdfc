"""The states of callbacks that a run continues with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch import Callback
from torch import Tensor

from lit_reason.errors import ConfigError
from lit_reason.overrides import Changes
from lit_reason.restored import CHANGED

_KNOWN = ("lightning.pytorch.", "lit_reason.")  # whose states have one form
_NAMES = {bool: "true or false", int: "a number", float: "a number", str: "a text"}


def check_callback_states(callbacks: Iterable[Callback], states: Mapping[str, Any]) -> None:
    """Refuses states of Lightning's and the package's callbacks that are of another form.

    They are compared with those of callbacks that have done nothing yet.

    Args:
        callbacks: Those of the run.
        states: Of the checkpoint.

    Raises:
        ConfigError: The first entry that is no such value.
    """
    for callback in callbacks:
        held = states.get(callback.state_key)
        if held is not None and type(callback).__module__.startswith(_KNOWN):
            _check(f"state of {type(callback).__name__}", held, callback.state_dict())


def _check(name: str, held: Any, fresh: Any) -> None:
    if isinstance(fresh, dict) and isinstance(held, dict):
        for key in fresh.keys() & held.keys():
            _check(f"{key} in the {name}", held[key], fresh[key])
    elif fresh is not None and not _is_like(held, fresh):
        wanted = _NAMES.get(type(fresh), f"a {type(fresh).__name__}")
        raise ConfigError(f"ckpt_path: {name} is {held!r:.40}, expected {wanted}; {CHANGED}")


def _is_like(held: Any, fresh: Any) -> bool:
    if isinstance(fresh, Tensor):
        return isinstance(held, Tensor) and held.numel() == fresh.numel()
    number = isinstance(fresh, int | float) and not isinstance(fresh, bool)
    return type(held) in ((int, float) if number else (type(fresh),))


def settle_callbacks(
    named: Mapping[str, Callback],
    others: Iterable[Callback],
    states: Mapping[str, Any],
    changed: Changes,
) -> None:
    """Lets settings of callbacks that were changed apply, where the state holds them too.

    As `EarlyStopping` keeps its `patience`, which it would take from the checkpoint.

    Args:
        named: Those with a key of their own, by name.
        others: Those in `trainer.callbacks`.
        states: Of the checkpoint; what has changed is replaced.
        changed: Of the whole configuration.
    """
    for key in changed:
        part, _, name = key.rpartition(".")
        family, _, own = part.partition(".")
        holders = [named[own]] if family == "callbacks" and own in named else []
        for callback in others if part == "trainer.callbacks" else holders:
            state = states.get(callback.state_key)
            if isinstance(state, dict) and name in state and hasattr(callback, name):
                state[name] = getattr(callback, name)
