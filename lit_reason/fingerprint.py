"""A short name for the weights of a network."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from lit_reason.sharding import whole

SAMPLE = 256  # entries of each tensor that are looked at


@torch.no_grad()
def fingerprint(network: nn.Module) -> str:
    """16 hexadecimal digits that differ between networks whose weights differ.

    It reads names, shapes and up to 256 entries of each tensor, spread evenly: an optimizer step
    moves all of them, and a model of any size takes a moment. A network with new adapters, which
    change nothing yet, has the name of its base.

    Args:
        network: Any network; its device and precision do not matter as long as the values are
            the same. Every rank must ask if it is sharded.

    Example:
        >>> network = nn.Linear(2, 3)
        >>> before = fingerprint(network)
        >>> fingerprint(network) == before
        True
        >>> network.bias.data += 1e-3
        >>> fingerprint(network) == before
        False
    """
    digest = hashlib.sha256()
    for name, value in sorted(_effective(network.state_dict()).items()):
        flat = whole(value).detach().flatten()
        step = max(flat.numel() // SAMPLE, 1)
        entries = flat[::step][:SAMPLE].float().cpu().contiguous()
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(entries.numpy().tobytes())
    return digest.hexdigest()[:16]


def _effective(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without adapters as long as their second factor is 0, under the names of the base."""
    if any(whole(value).any() for name, value in weights.items() if ".lora_B." in name):
        return weights
    return {n.replace(".base_layer.", "."): v for n, v in weights.items() if ".lora_" not in n}
