"""Where a critic starts: the policy's weights, a saved critic, or a reward model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from lit_reason.architecture import architecture, difference, misfit
from lit_reason.errors import ConfigError
from lit_reason.files import replacing
from lit_reason.loading import reading
from lit_reason.networks import ValueModel, base_weights, broken_weight, own_weights
from lit_reason.reward_models import load_reward_model
from lit_reason.sharding import whole

CRITIC_FILE = "critic.safetensors"
RM = "rm"  # a warm-up then makes what it is named for
FRESH = ("policy", "random", RM)  # critics that are made, not loaded


def check_critic_init(critic_init: str) -> None:
    """Refuses what names no critic, before a model is loaded.

    Raises:
        ConfigError: Neither a word that is known nor a folder of a critic or of a model.
    """
    folder = Path(critic_init).expanduser()
    if critic_init in FRESH or any((folder / f).is_file() for f in (CRITIC_FILE, "config.json")):
        return
    if (folder / "critic" / CRITIC_FILE).is_file():
        raise ConfigError(
            f"model.backbone.critic_init={critic_init}: is a run folder; its critic is "
            f"{Path(critic_init, 'critic')}"
        )
    is_hub_id = critic_init.count("/") == 1 and not critic_init.startswith((".", "/", "~"))
    if folder.exists() or not is_hub_id:
        raise ConfigError(
            f"model.backbone.critic_init={critic_init}: none of 'policy', 'random' and 'rm', nor a "
            f"folder that holds {CRITIC_FILE} (ValuePretraining and ValueWarmup write one) or a "
            "reward model, nor a reward model's hub id"
        )


def save_critic(critic: ValueModel, folder: Path, tokenizer: Any, **notes: str) -> None:
    """Writes the critic's weights where `critic_init=FOLDER` finds them.

    Every rank must call it, and rank 0 writes.

    Args:
        critic: Of one with adapters, these and the head are written.
        folder: Made if it does not exist.
        tokenizer: Its vocabulary is noted, and the architecture, as with another one the same
            weights would be another function.
        **notes: Further text to keep in the file.
    """
    own = whole(own_weights(critic))
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        return
    weights = {name: value.detach().contiguous() for name, value in own.items()}
    notes |= {
        "vocabulary": vocabulary(tokenizer),
        "architecture": json.dumps(architecture(critic.base)),
        "adapters": json.dumps(critic.notes),
    }
    with replacing(folder / CRITIC_FILE) as partial:
        save_file(weights, partial, notes)


def start_critic(critic: ValueModel, critic_init: str, tokenizer: Any) -> None:
    """Gives a critic the weights that `critic_init` names; those it was made with stay otherwise.

    Raises:
        ConfigError: The file holds another architecture or vocabulary, weights that are not finite,
            or no reward model.
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


def notes_of(file: Path) -> dict[str, str]:
    """The text that `save_critic` kept beside the weights.

    Args:
        file: Of a critic.
    """
    with safe_open(file, "pt") as opened:
        return opened.metadata() or {}


def _load_critic(critic: ValueModel, file: Path, name: str, tokenizer: Any) -> None:
    key = f"model.backbone.critic_init={name}"
    with reading(f"{key}: {file.name}", "give another start"):
        noted, weights = notes_of(file), load_file(file)
        adapters = dict(json.loads(noted.get("adapters", "{}")))
        built = dict(json.loads(noted.get("architecture", "{}")))  # older files say nothing of it
    if noted.get("vocabulary", vocabulary(tokenizer)) != vocabulary(tokenizer):
        raise ConfigError(
            f"{key}: the critic was trained with another vocabulary than that of model.backbone"
        )
    check_notes(key, adapters, critic.notes)
    _take(critic, weights, built, key)


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
    weights |= {"head.weight": head.weight, "head.bias": bias}
    _take(critic, weights, architecture(model), f"{key}={path}")


def _take(
    critic: ValueModel, weights: dict[str, torch.Tensor], built: dict[str, Any], key: str
) -> None:
    """Loads weights into a critic after a look at what they are.

    Args:
        critic: The critic.
        weights: All of its own weights.
        built: The architecture that they were trained in, as far as it is known.
        key: Where they were named.
    """
    apart = difference(built, architecture(critic.base))
    weights = {**base_weights(critic), **weights}
    apart = apart or misfit(weights, critic.state_dict())
    if apart is not None:
        raise ConfigError(
            f"{key}: is of another architecture than model.backbone: {apart}; give the backbone "
            "that it was made with, or another start"
        )
    if broken := broken_weight(weights):
        raise ConfigError(
            f"{key}: holds weights that are not finite, the first in {broken}; give another start"
        )
    critic.load_state_dict(weights)
