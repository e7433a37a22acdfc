"""What a resumed run is given that differs from the run it continues, and making it apply."""

from __future__ import annotations

from typing import Any

import torch
import yaml
from torch import nn

from lit_reason.errors import ConfigError
from lit_reason.given import leaves

Changes = dict[str, tuple[str, str]]  # key -> (earlier value, present value)

OF_THE_COMMAND = ("ckpt_path", "run_dir", "config", "weights_only")


def changes(earlier: str, present: str) -> Changes:
    """The keys whose values differ.

    Args:
        earlier: Text of the configuration that wrote the checkpoint.
        present: Text of the one that reads it.

    Example:
        >>> changes("data: {seed: 1, group_size: 2}", "data: {seed: 1, group_size: 4}")
        {'data.group_size': ('2', '4')}
    """
    old, new = (dict(leaves("", yaml.safe_load(text))) for text in (earlier, present))
    return {
        key: (old.get(key, "unset"), new.get(key, "unset"))
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and key not in OF_THE_COMMAND
    }


def check_changes(changed: Changes) -> None:
    """Refuses another optimizer or schedule, which could not go on from the state of the old one.

    Raises:
        ConfigError: The first such change.
    """
    for network in ("actor", "critic"):
        for part in ("optimizer", "scheduler"):
            key = f"model.{network}_{part}"
            if key in changed:
                old, new = changed[key]
                raise ConfigError(
                    f"{key}={new}: the checkpoint holds the state of {old}; continue with that, "
                    "or start a new run from an exported policy"
                )


def apply_changes(module: Any, changed: Changes) -> None:
    """Gives optimizers and schedules their new settings, which Lightning restores from the file.

    Args:
        module: With optimizers and schedules restored.
        changed: Of the whole configuration; keys of other parts act without help.
    """
    for number, network in enumerate(module.trained):
        factory = module.optimizer_factories[network]
        shared = factory is module.optimizer_factories["actor"]
        names = _names(changed, f"model.{'actor' if shared else network}_optimizer.")
        fresh = factory([nn.Parameter(torch.zeros(1))])
        optimizer = module.trainer.optimizers[number]
        for name in names & set(fresh.param_groups[0]):
            for group in optimizer.param_groups:
                _set(group, name, fresh.param_groups[0][name])
        _apply_to_schedule(module, network, optimizer, fresh, changed)


def _names(changed: Changes, prefix: str) -> set[str]:
    """The last part of the changed keys below a prefix."""
    return {k.removeprefix(prefix).split(".")[0] for k in changed if k.startswith(prefix)}


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    if name != "lr":
        group[name] = value
        return
    start = group.get("initial_lr", group["lr"])
    # as far along its schedule as it was
    group["lr"] = group["lr"] * value / start if start else value
    if "initial_lr" in group:
        group["initial_lr"] = value


def _apply_to_schedule(
    module: Any, network: str, optimizer: Any, fresh: Any, changed: Changes
) -> None:
    factory = module.scheduler_factories[network]
    scheduled = [c.scheduler for c in module.trainer.lr_scheduler_configs]
    mine = [s for s in scheduled if s.optimizer is optimizer]
    if factory is None or not mine:
        return
    (schedule,) = mine
    schedule.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    pattern = factory(fresh)
    for name in _names(changed, f"model.{network}_scheduler."):
        setattr(schedule, name, getattr(pattern, name))
