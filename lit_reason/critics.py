"""Where a critic starts: the policy's weights, a saved critic, or a reward model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from lit_reason.errors import ConfigError
from lit_reason.networks import ValueModel, base_weights, own_weights
from lit_reason.reward_models import load_reward_model
from lit_reason.sharding import whole

CRITIC_FILE = "critic.safetensors"
FRESH = ("policy", "random")  # critics that are made, not loaded


def check_critic_init(critic_init: str) -> None:
    """Refuses what names no critic, before a model is loaded.

    Raises:
        ConfigError: Neither a word that is known nor a folder of a critic or of a model.
    """
    folder = Path(critic_init).expanduser()
    if critic_init in FRESH or any((folder / f).is_file() for f in (CRITIC_FILE, "config.json")):
        return
    is_hub_id = critic_init.count("/") == 1 and not critic_init.startswith((".", "/", "~"))
    if folder.exists() or not is_hub_id:
        raise ConfigError(
            f"model.backbone.critic_init={critic_init}: neither 'policy' nor 'random', nor a "
            f"folder that holds {CRITIC_FILE} (ValuePretraining and ValueWarmup write one) or a "
            "reward model, nor a reward model's hub id"
        )


def save_critic(critic: ValueModel, folder: Path, tokenizer: Any, **notes: str) -> None:
    """Writes the critic's weights where `critic_init=FOLDER` finds them.

    Every rank must call it, and rank 0 writes.

    Args:
        critic: Of one with adapters, these and the head are written.
        folder: Made if it does not exist.
        tokenizer: Its vocabulary is noted, as another one would give the same weights no sense.
        **notes: Further text to keep in the file.
    """
    own = whole(own_weights(critic))
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        return
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().contiguous() for name, value in own.items()}
    partial = folder / f".{CRITIC_FILE}.partial"
    notes |= {"vocabulary": vocabulary(tokenizer), "adapters": json.dumps(critic.notes)}
    save_file(weights, partial, notes)
    partial.replace(folder / CRITIC_FILE)  # a crash while writing leaves the earlier one


def start_critic(critic: ValueModel, critic_init: str, tokenizer: Any) -> None:
    """Gives a critic the weights that `critic_init` names; those it was made with stay otherwise.

    Raises:
        ConfigError: The file holds another architecture or vocabulary, or no reward model.
    """
    if critic_init in FRESH:
        return
    folder = Path(critic_init).expanduser()
    if (folder / CRITIC_FILE).is_file():
        _load_critic(critic, folder / CRITIC_FILE, critic_init, tokenizer)
    else:
        _load_reward_model(critic, str(folder) if folder.is_dir() else critic_init, tokenizer)


def vocabulary(tokenizer: Any) -> str:
    """A short name of which token has which number."""
    words = json.dumps(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def check_notes(key: str, noted: dict[str, str], wanted: dict[str, str]) -> None:
    """Refuses adapters that were made for other networks.

    Args:
        key: Where their file was named.
        noted: What the file says of them; nothing if it holds whole networks.
        wanted: What holds for the networks that are to take them; nothing if they have none.

    Raises:
        ConfigError: The two differ.
    """
    if wanted and not noted:
        raise ConfigError(f"{key}: holds no adapters, and model.backbone=LoRA takes nothing else")
    if noted and not wanted:
        raise ConfigError(f"{key}: holds adapters; set model.backbone to the LoRA of their run")
    for name, value in wanted.items():
        if noted.get(name, value) == value:
            continue
        if name.endswith("base"):
            raise ConfigError(f"{key}: its adapters belong to another base than model.backbone")
        raise ConfigError(
            f"{key}: its adapters have {name}={noted[name]}, not {value}; set "
            f"model.backbone.{name} to {noted[name]}"
        )


def _load_critic(critic: ValueModel, file: Path, name: str, tokenizer: Any) -> None:
    try:
        with safe_open(file, "pt") as opened:
            noted = opened.metadata() or {}
        weights = load_file(file)
    except SafetensorError as error:
        raise ConfigError(
            f"model.backbone.critic_init={name}: {file.name} cannot be read ({error})"
        ) from error
    if noted.get("vocabulary", vocabulary(tokenizer)) != vocabulary(tokenizer):
        raise ConfigError(
            f"model.backbone.critic_init={name}: the critic was trained with another vocabulary "
            "than that of model.backbone"
        )
    adapters = json.loads(noted.get("adapters", "{}"))
    check_notes(f"model.backbone.critic_init={name}", adapters, critic.notes)
    _take(critic, weights, f"model.backbone.critic_init={name}")


def _load_reward_model(critic: ValueModel, path: str, tokenizer: Any) -> None:
    key = "model.backbone.critic_init"
    model, own = load_reward_model(path, torch.float32, key)
    heads = [getattr(model, name, None) for name in ("score", "classifier")]
    head = next((h for h in heads if isinstance(h, nn.Linear)), None)
    if head is None:
        raise ConfigError(f"{key}={path}: its head is no linear layer, so it gives no start")
    if vocabulary(own) != vocabulary(tokenizer):
        raise ConfigError(f"{key}={path}: has another vocabulary than model.backbone")
    weights = {f"base.{name}": value for name, value in model.base_model.state_dict().items()}
    bias = torch.zeros(1) if head.bias is None else head.bias
    _take(critic, {**weights, "head.weight": head.weight, "head.bias": bias}, f"{key}={path}")


def _take(critic: ValueModel, weights: dict[str, torch.Tensor], key: str) -> None:
    try:
        critic.load_state_dict({**base_weights(critic), **weights})
    except RuntimeError as error:
        reason = " ".join(str(error).split()[:40])
        raise ConfigError(
            f"{key}: its weights are of another architecture than the backbone's; {reason}"
        ) from error
