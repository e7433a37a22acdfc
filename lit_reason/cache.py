"""A key-value cache that does not copy itself at every token."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicCache, DynamicLayer


def cache_argument(model: Any) -> str:
    """What the forward pass of a model calls its cache, which `transformers` renamed within 5.x."""
    taken = inspect.signature(type(model).forward).parameters
    return "cache" if "cache" in taken else "past_key_values"


def is_recurrent(layer: Any) -> bool:
    """Whether a layer of a cache holds the state of a convolution or of linear attention."""
    return hasattr(layer, "conv_states")


def attends(layer: Any) -> bool:
    """Whether a layer of a cache holds keys and values, beside such a state or alone."""
    return isinstance(layer, CacheLayerMixin)


class GrowingLayer(DynamicLayer):
    """`transformers`' growing layer, with room for `block` tokens made at once.

    The library's own layer concatenates, and so copies all keys and values, for every new token.
    """

    block = 128

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Appends keys and values and returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.room = (key_states[..., :0, :], value_states[..., :0, :])
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if end > self.room[0].shape[-2]:
            self.room = (
                self._grow(self.keys, key_states, end),
                self._grow(self.values, value_states, end),
            )
        for room, new in zip(self.room, (key_states, value_states), strict=True):
            room[..., start:end, :] = new
        self.keys, self.values = (room[..., :end, :] for room in self.room)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Takes these rows, each as often as it is named."""
        end = self.get_seq_length()
        self.room = (self.room[0][beam_idx], self.room[1][beam_idx])
        self.keys, self.values = (room[..., :end, :] for room in self.room)

    def _grow(self, old: Tensor | None, new: Tensor, end: int) -> Tensor:
        blocks = -(-end // self.block)
        grown = new.new_empty(*new.shape[:-2], blocks * self.block, new.shape[-1])
        if old is not None and old.numel():
            grown[..., : old.shape[-2], :] = old
        return grown


def growing_cache(config: Any) -> DynamicCache:
    """A cache of `GrowingLayer` where the model attends to everything, else the library's own.

    Args:
        config: The model's configuration.
    """
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(x) is DynamicLayer else x for x in cache.layers]
    return cache
