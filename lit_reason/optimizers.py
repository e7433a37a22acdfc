"""Optimizers and schedules of a module's networks, built from what the user configured."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lit_reason.errors import STILL, ConfigError, ConfigWarning, naming, users_frame
from lit_reason.peers import COLLECTIVE

ELSEWHERE = ("CUDA", *COLLECTIVE)


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
        if group.get("maximize"):
            raise ConfigError(
                f"{key}.maximize=true: climbs the loss, and so trains for what it punishes; set it "
                "to false"
            )
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


def warn_of_standstill(key: str, network: str, optimizer: Optimizer) -> None:
    """Warns of learning rates with which no weight moves."""
    rates: list[Any] = [g.get("lr") for g in optimizer.param_groups]  # None where it sets its own
    if all(rate is not None and rate < STILL for rate in rates):
        text = f"{key}.lr={float(rates[0]):g}: the {network} never changes; choose a rate above"
        warnings.warn(f"{text} {STILL:g}", ConfigWarning, stacklevel=2)


@contextmanager
def naming_step(key: str, reached: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Puts the key of an optimizer before what its step raises, as one that takes no such tensors.

    Args:
        key: The key.
        reached: Whether the optimizer had begun; what it waits for names itself.
    """
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        own = isinstance(error, ConfigError) or users_frame(error) is not None
        # of devices and of other ranks, which no argument mends, some are of classes of their own
        other = type(error).__module__ != "builtins" or any(x in str(error) for x in ELSEWHERE)
        if own or other or not reached():
            raise
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raised = f"{type(error).__name__}: {first.rstrip('.')}"
        raise ConfigError(
            f"{key}: its step raised {raised}; choose other arguments, or torch.optim.AdamW"
        ) from error


def of_torch(part: object) -> bool:
    """Whether an optimizer or a schedule is one of torch's own."""
    return f"{type(part).__module__}.".startswith("torch.optim.")


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor) and not value.ndim:
        value = value.item()
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
