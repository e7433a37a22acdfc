"""Optimizers and schedules of a module's networks, built from what the user configured."""

from __future__ import annotations

import math
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_reason.errors import STILL, ConfigError, ConfigWarning, users_frame
from lit_reason.peers import COLLECTIVE

ELSEWHERE = ("CUDA", *COLLECTIVE)
OTHERS = "choose other arguments, or torch.optim.AdamW"
SLACK = 1e-9  # of its first value, by which a rate that a schedule takes to 0 may miss it
# not the rest of `ArithmeticError`: a `FloatingPointError` is a run that diverged, and says so
MISTAKES = (
    *(TypeError, ValueError, RuntimeError, AssertionError, AttributeError, LookupError),
    *(ZeroDivisionError, OverflowError),
)

# what torch says of a number that an optimizer does not take, and of switches
_NUMBER = re.compile(
    r"(?:Invalid (?P<of>[\w ]+?)(?: value| parameter at index \d)?s?: "
    r"|(?P<by>[\w ]+?)(?: d)? should be \W+\d but is: )(?P<value>.+)"
)
_SWITCHES = re.compile(r"`(\w+)` (?:and|does not support) `(\w+)`")
_ARGUMENTS = {"learning rate": "lr", "weight decay": "weight_decay", "beta": "betas"}
_ARGUMENTS |= {"epsilon": "eps", "epsilon1": "eps", "epsilon2": "eps", "eta": "etas"}
_ARGUMENTS |= {"clipping threshold": "d"}
_BOUNDS = {"betas": "each must be at least 0 and below 1", "d": "must be at least 1"}
_BOUNDS |= {"rho": "must lie in [0, 1]", "beta2_decay": "must be at most 0"}
_BOUNDS |= {"etas": "must be one from 0 to 1 and one above 1, as [0.5, 1.2]"}


def build_optimizer(
    module: Any, network: str, weights: Sequence[nn.Parameter] | None = None
) -> Optimizer:
    """The configured optimizer of a network.

    Args:
        module: With the factories of its optimizers.
        network: One of those that train.
        weights: What it steps; `None` takes the weights of the network.

    Raises:
        ConfigError: The optimizer refuses its settings, or its steps would.
    """
    key = module.optimizer_key(network)
    with naming_settings(key):
        stepped = module.weights(network) if weights is None else weights
        optimizer: Optimizer = module.optimizer_factories[network](stepped)
    if isinstance(optimizer, LBFGS) and not module.automatic_optimization:
        raise ConfigError(f"{key}=LBFGS: needs a closure; choose torch.optim.AdamW")
    trainer = getattr(module, "_trainer", None)
    weight: Any = optimizer.param_groups[0]["params"][0]
    # not that of the weights, which come to it later where a run continues
    device = (weight.device if trainer is None else trainer.strategy.root_device).type
    for group in optimizer.param_groups:
        if group.get("capturable") and device in ("cpu", "mps"):
            raise ConfigError(
                f"{key}.capturable=true: is for graphs of a GPU, and the run is on {device}; set "
                "it to false"
            )
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
        ConfigError: The schedule refuses its settings, or begins with a negative rate.
    """
    factory = module.scheduler_factories[network]
    if factory is None:
        return None
    key = module.scheduler_key(network)
    with naming_settings(key, "choose other arguments"):
        schedule = factory(optimizer)
    check_rates(key, schedule)
    return schedule


def step_schedule(key: str, schedule: Any, last: bool = False) -> None:
    """Steps a schedule.

    Args:
        key: Where it is configured.
        schedule: The schedule.
        last: Nothing trains with the rate that it makes now.

    Raises:
        ConfigError: The step fails, or makes a rate that no training means.
    """
    with naming_settings(key, "choose other arguments"):
        schedule.step()
    if not last:
        check_rates(key, schedule)


def check_rates(key: str, schedule: Any) -> None:
    """Refuses rates below 0, with which an optimizer climbs the loss, and infinite ones.

    Args:
        key: Where the schedule is configured.
        schedule: The schedule, with the rates that it has made last.

    Raises:
        ConfigError: There is such a rate.
    """
    if not isinstance(schedule, LRScheduler):
        return
    groups = schedule.optimizer.param_groups
    for rate, group in zip(map(float, schedule.get_last_lr()), groups, strict=False):
        if not -SLACK * abs(group.get("initial_lr", 0.0)) <= rate < math.inf:
            raise ConfigError(
                f"{key}={type(schedule).__name__}: makes the learning rate {rate:g} in step "
                f"{schedule.last_epoch + 1}, with which a run climbs its loss or diverges; choose "
                "other arguments"
            )


def warn_of_standstill(key: str, network: str, optimizer: Optimizer) -> None:
    """Warns of learning rates with which no weight moves."""
    rates: list[Any] = [g.get("lr") for g in optimizer.param_groups]  # None where it sets its own
    if all(rate is not None and rate < STILL for rate in rates):
        text = f"{key}.lr={float(rates[0]):g}: the {network} never changes; choose a rate above"
        warnings.warn(f"{text} {STILL:g}", ConfigWarning, stacklevel=2)


@contextmanager
def naming_settings(key: str, fix: str = OTHERS) -> Iterator[None]:
    """Names what an optimizer or a schedule refuses of the settings it is built with.

    Args:
        key: The key.
        fix: Ends the message, where it does not say itself what is right.
    """
    try:
        yield
    except ConfigError:
        raise
    except MISTAKES as error:
        said = isinstance(error, TypeError | ValueError)
        if not said and (_is_elsewhere(error) or users_frame(error) is not None):
            raise
        raise ConfigError(_refusal(key, error, fix)) from error


def _refusal(key: str, error: Exception, fix: str) -> str:
    """One line for settings that are refused, with the arguments if torch names them."""
    text = str(error).strip().rstrip(".")
    frame, _ = list(traceback.walk_tb(error.__traceback__))[-1]
    of_torch = frame.f_globals.get("__name__", "").startswith("torch.optim.")
    if of_torch and (number := _NUMBER.fullmatch(text)):
        of = (number["of"] or number["by"]).strip()
        name = _ARGUMENTS.get(of.lower(), of)
        if name.isidentifier():
            bound = _BOUNDS.get(name, "must be at least 0")
            return f"{key}.{name}={number['value']}: {bound}"
    if switches := _SWITCHES.match(text):
        both = ", ".join(f"{key}.{name}=true" for name in switches.groups())
        return f"{both}: do not go together; set one to false"
    if isinstance(error, TypeError | ValueError):
        return f"{key}: {text}"
    return f"{key}: raised {type(error).__name__}: {text}; {fix}"


@contextmanager
def naming_step(key: str, reached: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Puts the key of an optimizer before what its step raises, as one that takes no such tensors.

    Args:
        key: The key.
        reached: Whether the optimizer had begun; what it waits for names itself.
    """
    try:
        yield
    except MISTAKES as error:
        own = isinstance(error, ConfigError) or users_frame(error) is not None
        if own or _is_elsewhere(error) or not reached():
            raise
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raised = f"{type(error).__name__}: {first.rstrip('.')}"
        raise ConfigError(f"{key}: its step raised {raised}; {OTHERS}") from error


def _is_elsewhere(error: Exception) -> bool:
    """Whether no argument mends an error: of devices and of other ranks.

    Some of these are of classes of their own.
    """
    return type(error).__module__ != "builtins" or any(x in str(error) for x in ELSEWHERE)


def of_torch(part: object) -> bool:
    """Whether an optimizer or a schedule is one of torch's own."""
    return f"{type(part).__module__}.".startswith("torch.optim.")


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor) and not value.ndim:
        value = value.item()
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
