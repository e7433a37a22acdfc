"""What of the states of optimizers and schedules in a checkpoint cannot come from a run."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Adafactor, Optimizer

from lit_reason.errors import ConfigError
from lit_reason.networks import broken_weight
from lit_reason.optimizers import build_optimizer, build_schedule, naming_step, of_torch
from lit_reason.restored import CHANGED, MOST, count, is_plain, steps_taken

# sums and means of squares and of magnitudes, counts, and step sizes; of torch's optimizers
NEVER_NEGATIVE = {
    *("step", "step_size", "eta", "mu", "mu_product", "sum", "exp_avg_sq", "max_exp_avg_sq"),
    *("exp_inf", "square_avg", "acc_delta", "row_var", "col_var", "variance"),
}
ROUNDED = 1e-9  # of its first value, by which a rate that a schedule takes to 0 may miss it


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
    check_moments(module, states, steps_taken(module, checkpoint))
    noted = checkpoint.get("moments")
    if noted is None:  # older ones do not say
        return
    if not isinstance(noted, dict):
        raise ConfigError(f"ckpt_path: its moments are {noted!r:.40}, not a dict; {CHANGED}")
    for network, number in note_moments(module, states).items():
        if count(noted, network) != number:
            raise ConfigError(
                f"ckpt_path: holds moments of {number} weights of the {network}, and "
                f"{noted[network]} were written; {CHANGED}"
            )


def note_moments(module: Any, states: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Weights of each network that have moments: none before its first step, and maybe not all.

    Args:
        module: With its networks built.
        states: Of its optimizers; on ranks that write nothing they may be empty.
    """
    held = [len(state.get("state", ())) for state in states]
    return dict(zip(module.trained, held, strict=False))


def check_moments(module: Any, states: Any, steps: int) -> None:
    """Refuses moments that are none of their weights, with which an update fails or goes astray.

    Args:
        module: With its networks built.
        states: Of its optimizers, as the checkpoint holds them.
        steps: Those that all optimizers have taken together.

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
        optimizer, kinds = _kinds(module, network)
        of_weights = keeps_moments(optimizer)
        names: set[str] = set()
        for i, entries in saved["state"].items():
            if not (type(i) is int and 0 <= i < len(weights) and isinstance(entries, dict)):
                raise ConfigError(
                    f"ckpt_path: holds a state of the {network}'s weight {i!r:.40}, and there are "
                    f"{len(weights)}; {CHANGED}"
                )
            if not of_torch(optimizer) or isinstance(optimizer, LBFGS):
                continue
            names = names or (set(entries) if of_weights else set())
            whole = {**dict.fromkeys(names, "missing"), **entries}
            shape = tuple(weights[i].shape) if of_weights else None
            if fault := _state_fault(whole, shape, kinds, steps):
                name, why = fault
                raise ConfigError(
                    f"ckpt_path: its {name} of the {network}'s weight {i} {why}; {CHANGED}"
                )


def keeps_moments(optimizer: Optimizer) -> bool:
    """Whether the state of an optimizer is numbers, and tensors of the shape of each weight."""
    return of_torch(optimizer) and not isinstance(optimizer, Adafactor | LBFGS)


def _kinds(module: Any, network: str) -> tuple[Optimizer, dict[str, bool]]:
    """A configured optimizer, and what of its state is one number, as a step of a copy shows."""
    weight = nn.Parameter(torch.zeros(2, 3))
    optimizer = build_optimizer(module, network, [weight])
    if not keeps_moments(optimizer):
        return optimizer, {"step": True}
    for group in optimizer.param_groups:
        group.update(dict.fromkeys({"fused", "capturable", "differentiable"} & {*group}, False))
    weight.grad = torch.zeros_like(weight)
    with naming_step(module.optimizer_key(network)):
        optimizer.step()
    state = {k: v for k, v in optimizer.state[weight].items() if v is not None}
    return optimizer, {k: not getattr(v, "ndim", 0) for k, v in state.items()}


def _state_fault(
    entries: Mapping[str, Any],
    shape: tuple[int, ...] | None,
    kinds: Mapping[str, bool],
    steps: int,
) -> tuple[str, str] | None:
    """The first moment of a weight of this shape that is none, and what is wrong with it."""
    for name, moment in sorted(entries.items()):
        either = (shape, ()) if name not in kinds else ()
        shapes = either or (() if kinds[name] else shape,)
        why = _fault(moment, shapes, name in NEVER_NEGATIVE)
        if not why and name == "step" and moment is not None and float(moment) > steps:
            why = f"is {float(moment)}, and its run has taken {steps} steps"
        if why:
            return name, why
    return None


def _fault(
    moment: object, shapes: Sequence[tuple[int, ...] | None], never_negative: bool
) -> str | None:
    """What is wrong with a moment that has one of these shapes; `None` stands for any."""
    if moment is None:  # a momentum that has not begun
        return None
    if isinstance(moment, bool) or not isinstance(moment, Tensor | int | float):
        return f"is {moment!r:.40}, no number"
    if isinstance(moment, int):
        moment = float(max(min(moment, MOST), -MOST))
    values = torch.as_tensor(moment)
    if None not in shapes and tuple(values.shape) not in shapes:
        return f"has shape {tuple(values.shape)}, not {shapes[0]}"
    return _numbers_fault(values, never_negative)


def _numbers_fault(values: Tensor, never_negative: bool) -> str | None:
    """What is wrong with the numbers of a moment."""
    if not is_plain(values):
        return "is no plain tensor"
    whole = values.ndim == 0 and values.dtype != torch.bool and not values.is_complex()
    if not (values.is_floating_point() or whole):  # counts are whole numbers in some versions
        return f"is {values.dtype}, no floating numbers"
    if bool(values.isnan().any()):
        return "is nan"
    if not bool(values.isfinite().all()):
        return "is infinite"
    return "is negative" if never_negative and bool((values < 0).any()) else None


def _is_state(state: Any) -> bool:
    return isinstance(state, dict) and isinstance(state.get("state"), dict)


def settle_groups(module: Any, states: Sequence[Mapping[str, Any]]) -> None:
    """Refuses settings of optimizers that are none; to be called if the optimizers are the same.

    What no schedule moves is set to what the configuration says.

    Args:
        module: With its networks built.
        states: Of its optimizers, as the checkpoint holds them.

    Raises:
        ConfigError: The first such setting.
    """
    for network, saved in zip(module.trained, states, strict=True):
        optimizer = build_optimizer(module, network)
        fresh = optimizer.state_dict()["param_groups"]
        schedule = _unused_schedule(module, network, optimizer)
        noted = optimizer.state_dict()["param_groups"]
        given = saved.get("param_groups")
        groups = given if isinstance(given, list) else []
        held = [group.get("params") if isinstance(group, dict) else None for group in groups]
        if held != [group["params"] for group in fresh]:
            raise ConfigError(
                f"ckpt_path: its param_groups of the {network} are not of its weights; {CHANGED}"
            )
        for group, own, new in zip(groups, fresh, noted, strict=True):
            wanted = {**own, "initial_lr": own["lr"]} if "lr" in own else own
            for name in [name for name in wanted if name in group or name == "lr"]:
                if not _alike(group.get(name), wanted[name]):
                    raise ConfigError(
                        f"ckpt_path: its {name} of the {network} is "
                        f"{group.get(name)!r:.40}; {CHANGED}"
                    )
            if of_torch(optimizer):
                _check_accepted(type(optimizer), group, network)
                moved = {"params", *_moved(schedule, new)}
                group.update({k: v for k, v in new.items() if k not in moved})


def _unused_schedule(module: Any, network: str, optimizer: Optimizer) -> Any:
    """The configured schedule over an optimizer that takes no step; `None` if it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it takes none
        return build_schedule(module, network, optimizer)


def _moved(schedule: Any, group: Mapping[str, Any]) -> set[str]:
    """What a schedule may move of the settings of an optimizer."""
    if schedule is None:
        return set()
    if not of_torch(schedule):
        return {k for k, v in group.items() if not (v is None or isinstance(v, bool))}
    parts = getattr(schedule, "_schedulers", [])
    cycled = {"momentum", "betas"} if getattr(schedule, "cycle_momentum", False) else set()
    return {"lr"}.union(cycled, *(_moved(part, group) for part in parts))


def _check_accepted(kind: type[Optimizer], group: Mapping[str, Any], network: str) -> None:
    """Refuses numbers that an optimizer of torch's would not be built with."""
    taken = inspect.signature(kind).parameters
    numbers: dict[str, Any] = {
        k: v.item() if isinstance(v, Tensor) else v
        for k, v in group.items()
        if k in taken and k != "params" and v is not None and not isinstance(v, bool)
    }
    rates = [float(group[name]) for name in ("lr", "initial_lr") if name in group]
    for rate in rates:
        least = -ROUNDED * abs(rates[-1])
        lr = {"lr": 0.0 if least <= rate < 0 else rate}
        try:
            kind([nn.Parameter(torch.zeros(1, 1))], **{**numbers, **lr})
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"ckpt_path: its settings of the {network}'s optimizer are none ({error}); "
                f"{CHANGED}"
            ) from error


def settle_schedules(module: Any, states: Any, trained: int, changed: Sequence[str] = ()) -> None:
    """Refuses states of other schedules; to be called if the schedules are the same.

    Arguments of torch's schedules, which none of them moves, are set to those of the configuration.

    Args:
        module: With its schedules.
        states: Of its schedules, as the checkpoint holds them.
        trained: Batches so far, after each of which a schedule is stepped at most once.
        changed: Networks whose schedules have other settings now, and are made anew from the count
            of their steps.

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
    for network, state in zip(scheduled, states, strict=True):
        fresh = _unused_schedule(module, network, build_optimizer(module, network))
        _settle(fresh, state, trained, network in changed)


def _settle(schedule: Any, state: Any, trained: int, changed: bool) -> None:
    """The same for one schedule and those that it is made of."""
    if not isinstance(state, dict):
        raise ConfigError(f"ckpt_path: its lr_schedulers hold {state!r:.40}, no state; {CHANGED}")
    own = schedule.state_dict()
    if "last_epoch" in own:
        _check_counter(state, "last_epoch", min(own["last_epoch"], 0), trained)
    if of_torch(schedule):
        for part, held in _parts(schedule, state, changed):
            _settle(part, held, trained, changed)
        _settle_entries(schedule, state, own, changed)


def _settle_entries(schedule: Any, state: Any, own: Mapping[str, Any], changed: bool) -> None:
    """The same for what one of torch's own schedules holds beside the count of its steps."""
    arguments = inspect.signature(type(schedule)).parameters
    for name in state.keys() - {"last_epoch", "_schedulers"}:
        if name in own.keys() & arguments:
            state[name] = own[name]
        elif name in own:
            _check_entry(state, name, own[name], changed)
        elif hasattr(schedule, name):  # it would take the place of a method
            raise ConfigError(f"ckpt_path: its lr_schedulers hold a {name!r:.40}; {CHANGED}")


def _check_entry(state: Mapping[str, Any], name: str, own: Any, changed: bool) -> None:
    """Refuses what a schedule of torch's with these settings does not hold."""
    if type(own) is int:
        _check_counter(state, name, min(own, 0), MOST)
    elif not changed and not _alike(state[name], own):
        raise ConfigError(f"ckpt_path: its {name} of a schedule is {state[name]!r:.40}; {CHANGED}")


def _parts(schedule: Any, state: Mapping[str, Any], changed: bool) -> list[tuple[Any, Any]]:
    """The schedules that one is made of, each with its state."""
    parts, held = getattr(schedule, "_schedulers", []), state.get("_schedulers", [])
    many = len(held) if isinstance(held, list) else -1
    if many != len(parts) and not (changed and 0 < many < len(parts)):
        raise ConfigError(
            f"ckpt_path: its lr_schedulers are not the states of {len(parts)} parts of a schedule; "
            f"{CHANGED}"
        )
    return list(zip(parts, held, strict=False))


def _check_counter(state: Mapping[str, Any], name: str, least: int, most: int) -> None:
    value = state.get(name)
    if type(value) is not int or not least <= value <= most:
        bound = "" if most == MOST else f" of at most {most}, its batches"
        raise ConfigError(
            f"ckpt_path: its {name} is {value!r:.40}, expected a count{bound}; {CHANGED}"
        )


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
    return isinstance(value, type(like))
