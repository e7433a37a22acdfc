"""Optimizers and schedules of a module's networks, built from what the user configured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lit_reason.errors import ConfigError, naming


def build_optimizer(
    module: Any, network: str, weights: Sequence[nn.Parameter] | None = None
) -> Optimizer:
    """The configured optimizer of a network.

    Args:
        module: With the factories of its optimizers.
        network: One of those that train.
        weights: What it steps; `None` takes the weights of the network.

    Raises:
        ConfigError: The optimizer refuses its settings, or one is infinite.
    """
    key = module.optimizer_key(network)
    with naming(key):
        stepped = module.weights(network) if weights is None else weights
        optimizer: Optimizer = module.optimizer_factories[network](stepped)
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise ConfigError(f"{key}.differentiable=true: no step is differentiated; leave it out")
        # one that is not torch's may take infinity for "no bound"
        for name in [*group] if of_torch(optimizer) else ["lr"]:
            if not _is_finite(value := group.get(name)):
                raise ConfigError(f"{key}.{name}={value}: must be finite")
    return optimizer


def build_schedule(module: Any, network: str, optimizer: Optimizer) -> Any:
    """The configured schedule of a network over its optimizer; `None` if it has none.

    Raises:
        ConfigError: The schedule refuses its settings.
    """
    factory = module.scheduler_factories[network]
    if factory is None:
        return None
    with naming(module.scheduler_key(network)):
        return factory(optimizer)


def of_torch(part: object) -> bool:
    """Whether an optimizer or a schedule is one of torch's own."""
    return f"{type(part).__module__}.".startswith("torch.optim.")


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor) and not value.ndim:
        value = value.item()
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
