"""A policy as a `transformers` folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lit_reason.files import give_usual_mode
from lit_reason.networks import has_adapters


def save_policy(actor: Any, tokenizer: Any, folder: Path, card: str | None = None) -> None:
    """Writes weights, configurations and tokenizer where `Pretrained` and vLLM can load them.

    Args:
        actor: A `transformers` causal language model; adapters are merged into what is written.
        tokenizer: Its tokenizer.
        folder: Made if it does not exist.
        card: Text of its README; null writes none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if has_adapters(actor):
        from lit_reason.lora import merged  # which imports the backbones

        actor = merged(actor)
    if actor.generation_config.eos_token_id is None:  # or a server would never stop
        actor.generation_config.eos_token_id = tokenizer.eos_token_id
        actor.generation_config.pad_token_id = tokenizer.pad_token_id
    actor.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        give_usual_mode(weights)
    tokenizer.save_pretrained(folder)
    if card is not None:
        (folder / "README.md").write_text(card, encoding="utf-8")
