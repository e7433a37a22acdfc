"""A policy as a `transformers` folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lit_reason.networks import has_adapters


def save_policy(actor: Any, tokenizer: Any, folder: Path) -> None:
    """Writes weights, configuration and tokenizer where `Pretrained` and vLLM can load them.

    Args:
        actor: A `transformers` causal language model; adapters are merged into what is written.
        tokenizer: Its tokenizer.
        folder: Made if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if has_adapters(actor):
        from lit_reason.lora import merged  # which imports the backbones

        actor = merged(actor)
    actor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
