"""A frozen network whose weights wait on the CPU, and are lent to the device while it scores."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.sharding import parts

if TYPE_CHECKING:
    from lit_reason.module import ReasonModule

KEY = "model.reference_offload=true"


def offload(network: nn.Module) -> None:
    """Moves the weights of a network to the CPU; its buffers, which are small, stay."""
    for weight in network.parameters():
        weight.data = weight.data.cpu()


@contextmanager
def lent(network: nn.Module, device: torch.device | str) -> Iterator[None]:
    """Keeps a copy of the weights on the device, and drops it at the end: they are frozen.

    Args:
        network: Its parameters stay what they are; only their data changes place.
        device: Where it is to run.
    """
    homes = [(weight, weight.data) for weight in network.parameters()]
    for weight, home in homes:
        weight.data = home.to(device)
    try:
        yield
    finally:
        for weight, home in homes:
            weight.data = home


def check_offload(module: ReasonModule) -> None:
    """Warns of an offload that moves nothing; called once the networks are built.

    Raises:
        ConfigError: The reference is split over ranks.
    """
    reference, reason = module.reference, None
    if reference is None:
        reason = "without a term or reward that compares with the reference"
    elif module.backbone.fixed_reference:
        reason = "with LoRA, whose reference is the frozen base that actor and critic stand on"
    elif parts(reference):
        raise ConfigError(
            f"{KEY}: not available with fsdp2, which leaves each rank a part of the reference; "
            "set it to false"
        )
    elif module._trainer is not None and module.trainer.strategy.root_device.type == "cpu":
        reason = "on a CPU"
    if reason:
        warnings.warn(f"{KEY}: has no effect {reason}", ConfigWarning, stacklevel=2)
