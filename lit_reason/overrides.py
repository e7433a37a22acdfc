"""What a resumed run is given that differs from the run it continues, and making it apply."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
import yaml
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_reason.critics import FRESH
from lit_reason.errors import ConfigError
from lit_reason.given import leaves
from lit_reason.optimizers import build_optimizer, check_rates, naming_settings
from lit_reason.restored import CHANGED
from lit_reason.restored_states import keeps_moments

Changes = dict[str, tuple[str, str]]  # key -> (earlier value, present value)

# what decides nothing but how networks begin, and is read in no later part of a run
START = re.compile(r"model\.backbone(\.base)?(\.(seed|name|critic_init))?")
STATEFUL = re.compile(r"model\.((actor|critic)_)?(optimizer|scheduler)")
NOTHING = ("None", "unset")
OF_THE_COMMAND = ("ckpt_path", "run_dir", "config", "weights_only")


def changes(earlier: str, present: str) -> Changes:
    """The keys whose values differ.

    Args:
        earlier: Text of the configuration that wrote the checkpoint.
        present: Text of the one that reads it.

    Example:
        >>> changes("data: {seed: 1, group_size: 2}", "data: {seed: 1, group_size: 4}")
        {'data.group_size': ('2', '4')}

    Raises:
        ConfigError: The earlier text is no configuration.
    """
    try:
        before = yaml.load(earlier, _WithoutAliases)
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError):
        before = None  # YAML does not catch what a value like `!!int ''` raises
    if not isinstance(before, dict):
        raise ConfigError(f"ckpt_path: the configuration that it holds is none; {CHANGED}")
    old, new = (dict(leaves("", content)) for content in (before, yaml.safe_load(present)))
    _write_out(old, new)
    _write_out(new, old)
    return {
        key: (old.get(key, "unset"), new.get(key, "unset"))
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and key not in OF_THE_COMMAND
    }


def _write_out(mine: dict[str, str], other: dict[str, str]) -> None:
    """Adds the critic's optimizer where only the other side has one that is not the actor's."""
    actors, critics = "model.actor_optimizer", "model.critic_optimizer"
    if mine.get(critics, "unset") in NOTHING and other.get(critics, "unset") not in NOTHING:
        own = {k: v for k, v in mine.items() if k == actors or k.startswith(f"{actors}.")}
        mine |= {k.replace(actors, critics, 1): v for k, v in own.items()}


class _WithoutAliases(yaml.SafeLoader):
    """Refuses aliases: `config.yaml` is written without, and a few fill the memory."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError
        return super().compose_node(parent, index)


def check_changes(changed: Changes) -> None:
    """Refuses what could not apply: another optimizer, schedule or start of the networks.

    Raises:
        ConfigError: The first such change.
    """
    for key, (old, new) in changed.items():
        if START.fullmatch(key) and not _is_moved(key, old, new):
            raise ConfigError(
                f"{key}={new}: the networks began with {old} and go on from the checkpoint; set it "
                "to that, or start a new run"
            )
        if not STATEFUL.fullmatch(key) or (old in NOTHING and new in NOTHING):
            continue
        given = "null" if new in NOTHING else new
        has, back = f"holds the state of {old}", "continue with that"
        if old in NOTHING:
            has, back = "was written without one", "set it to null"
        raise ConfigError(
            f"{key}={given}: the checkpoint {has}; {back}, or start a new run from an exported "
            "policy"
        )


def _is_moved(key: str, old: str, new: str) -> bool:
    """Whether two values may name the same start: of a class elsewhere, or of a folder now gone."""
    if key.endswith("critic_init") and old not in FRESH:
        return True
    return "unset" in (old, new) or _last(old) == _last(new)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def check_state(module: Any, states: Sequence[dict[str, Any]], changed: Changes) -> None:
    """Refuses settings of an optimizer that need a state which the checkpoint does not hold.

    One step of the smallest weight that has a state, on a copy, as only the optimizer knows what it
    will look for. Of optimizers that are not torch's it is taken only where a setting has changed.

    Args:
        module: With its networks built.
        states: Of the optimizers, as the checkpoint holds them.
        changed: Of the whole configuration.

    Raises:
        ConfigError: The first such setting.
    """
    for network, saved in zip(module.trained, states, strict=True):
        mine = _of_optimizer(module, network, changed)
        weights = module.weights(network)
        held = {i: s for i, s in saved["state"].items() if s and isinstance(i, int)}
        if not held:
            continue
        first = min(held, key=lambda i: weights[i].numel())
        weight = nn.Parameter(torch.zeros(weights[first].shape, dtype=weights[first].dtype))
        weight.grad = torch.zeros_like(weight)
        optimizer = build_optimizer(module, network, [weight])
        if isinstance(optimizer, LBFGS) or not (mine or keeps_moments(optimizer)):
            continue
        (group,) = [group for group in saved["param_groups"] if first in group["params"]]
        own = optimizer.state_dict()["param_groups"]
        # of another device than this copy's
        off = dict.fromkeys({"fused", "capturable"} & {*group}, False)
        groups = [{**(new if mine else group), **off, "params": new["params"]} for new in own]
        state = {0: deepcopy(held[first])}  # torch would step the tensors of the checkpoint
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        try:
            optimizer.step()
        except KeyError as error:
            if not mine:
                raise ConfigError(
                    f"ckpt_path: holds no {error} of the {network}, which its optimizer needs; "
                    f"{CHANGED}"
                ) from error
            key, (old, new) = next(iter(mine.items()))
            raise ConfigError(
                f"{key}={new}: needs {error}, which the checkpoint of a run with {old} does not "
                f"hold; set it to {old}, or start a new run from an exported policy"
            ) from error


def apply_changes(module: Any, changed: Changes) -> None:
    """Gives optimizers and schedules their new settings, which Lightning restores from the file.

    Args:
        module: With optimizers and schedules restored.
        changed: Of the whole configuration; keys of other parts act without help.
    """
    for optimizer, network in zip(module.trainer.optimizers, module.trained, strict=True):
        if network not in changed_schedules(module, changed):
            continue
        of_schedule = module.scheduler_key(network)
        fresh = build_optimizer(module, network)
        renew(optimizer, fresh)
        for config in module.trainer.lr_scheduler_configs:
            if config.scheduler.optimizer is optimizer:
                factory = module.scheduler_factories[network]
                with naming_settings(of_schedule, "choose other arguments"):
                    config.scheduler = replay(factory, optimizer, steps_of(config.scheduler))
                check_rates(of_schedule, config.scheduler)


def renew(optimizer: Optimizer, fresh: Optimizer) -> None:
    """Gives an optimizer the settings of another over the same weights, and leaves it its state.

    Args:
        optimizer: The one to change.
        fresh: As a new run would build it, before a schedule.
    """
    for group, new in zip(optimizer.param_groups, fresh.param_groups, strict=True):
        weights = group["params"]
        group.clear()  # also of what the earlier schedule noted
        group.update({**new, "params": weights})
    # torch moves the step counts to where `fused` and `capturable` look for them
    optimizer.load_state_dict(optimizer.state_dict())


def replay(
    factory: Callable[[Optimizer], LRScheduler], optimizer: Optimizer, steps: int
) -> LRScheduler:
    """A schedule that stands where one from the start of the run would stand.

    Most schedules make the next rate from the present one, so that new settings alone would go on
    from the rate that the old ones had led to.

    Args:
        factory: Builds the schedule.
        optimizer: With the rates before any schedule; it gets those of the schedule.
        steps: Those the run has taken.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps of the schedule before any of the optimizer
        schedule = factory(optimizer)
        for _ in range(steps):
            schedule.step()
    return schedule


def steps_of(schedule: Any) -> int:
    """Steps that a schedule has taken; a `ChainedScheduler` does not count, its parts do."""
    counted = schedule if hasattr(schedule, "last_epoch") else schedule._schedulers[0]
    return int(counted.last_epoch)


def changed_schedules(module: Any, changed: Changes) -> list[str]:
    """Networks whose schedules are made anew, as `apply_changes` does."""
    return [
        n
        for n in module.trained
        if _of_optimizer(module, n, changed) or _below(changed, module.scheduler_key(n))
    ]


def _of_optimizer(module: Any, network: str, changed: Changes) -> Changes:
    """The changes of a network's optimizer, also where it has none of its own any more."""
    keys = {module.optimizer_key(network), f"model.{network}_optimizer"}
    return {k: v for key in sorted(keys) for k, v in _below(changed, key).items()}


def _below(changed: Changes, key: str) -> Changes:
    """The changes below a key."""
    return {k: v for k, v in changed.items() if k.startswith(f"{key}.")}
