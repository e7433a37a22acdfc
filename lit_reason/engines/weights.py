"""The policy's weights as an engine loads them: whole, merged, under their checkpoint's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lit_reason.networks import has_adapters

Named: TypeAlias = tuple[str, Tensor]


def policy_weights(actor: nn.Module) -> Iterator[Named]:
    """Each weight of a policy, one at a time.

    Adapters are merged into the weight that they adapt, so that an engine needs no support for
    them. A tied head is sent beside the embeddings: vLLM reloads layer by layer, and warns of a
    head that gets nothing. Where weights are sharded, every rank must iterate: gathering one is a
    collective.

    Args:
        actor: A `transformers` causal language model, with LoRA adapters or without.
    """
    layers = dict(actor.named_modules()) if has_adapters(actor) else {}
    for name, weight in actor.named_parameters(remove_duplicate=False):
        if ".lora_" in name:
            continue
        owner, based, kind = name.rpartition(".base_layer.")
        value = whole(weight.detach())
        if based and kind == "weight":
            layer: Any = layers[owner]
            for adapter in layer.active_adapters:
                value = value + whole(layer.get_delta_weight(adapter).detach()).to(value)
        yield name.replace(".base_layer.", "."), value


def whole(weight: Tensor) -> Tensor:
    """A weight itself, gathered from all ranks where it is sharded."""
    gather = getattr(weight, "full_tensor", None)
    return weight if gather is None else gather()


def chunks(weights: Iterable[Named], size: int, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """Weights on the CPU, collected until `size` bytes are reached.

    Args:
        weights: From `policy_weights`.
        size: Of a chunk in bytes, which its last weight may exceed.
        dtype: What they are converted to; an engine in half precision needs no more.

    Example:
        >>> named = [(name, torch.zeros(4)) for name in "abc"]
        >>> [list(chunk) for chunk in chunks(named, 32, torch.float32)]
        [['a', 'b'], ['c']]
    """
    chunk: dict[str, Tensor] = {}
    collected = 0
    for name, weight in weights:
        # of its own: tensors that share memory cannot be written to one file
        chunk[name] = weight.to("cpu", dtype, copy=True).contiguous()
        collected += chunk[name].nbytes
        if collected >= size:
            yield chunk
            chunk, collected = {}, 0
    if chunk:
        yield chunk
