"""A policy as a `transformers` folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lit_reason.backbones import Backbone
from lit_reason.errors import ConfigError
from lit_reason.files import filling
from lit_reason.lora import merged
from lit_reason.networks import broken_weight, has_adapters


def save_policy(actor: Any, backbone: Backbone, folder: Path, card: str | None = None) -> None:
    """Writes weights, configurations and tokenizer where `Pretrained` and vLLM can load them.

    Args:
        actor: A `transformers` causal language model; adapters are merged into what is written.
        backbone: Where it came from.
        folder: Made if it does not exist; written whole or not at all.
        card: Text of its README; null writes none.

    Raises:
        ConfigError: A weight is not finite; nothing is written.
    """
    if has_adapters(actor):
        actor = merged(actor)
    if broken := broken_weight(actor.state_dict()):
        raise ConfigError(
            f"{folder}: not written, the policy has weights that are not finite, the first in "
            f"{broken}; lower the learning rate, or continue from an earlier checkpoint"
        )
    tokenizer, ends = backbone.tokenizer, backbone.eos_ids
    if actor.generation_config.eos_token_id is None:  # or a server would never stop
        actor.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
        actor.generation_config.pad_token_id = tokenizer.pad_token_id
    with filling(folder) as partial:
        actor.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        if card is not None:
            (partial / "README.md").write_text(card, encoding="utf-8")
