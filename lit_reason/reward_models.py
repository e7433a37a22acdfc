"""Loading a reward model: a sequence-classification model with one label."""

from __future__ import annotations

from typing import Any

import torch

from lit_reason.errors import ConfigError
from lit_reason.loading import load_model, reading
from lit_reason.tokenizer import tokenizer_class


def load_reward_model(path: str, dtype: torch.dtype, key: str) -> tuple[Any, Any]:
    """The frozen model and its tokenizer.

    Args:
        path: Folder or hub id.
        dtype: Of the weights.
        key: That names the path, for messages.

    Raises:
        ConfigError: It cannot be loaded, was saved without its head, or has several labels.
    """
    from transformers import AutoModelForSequenceClassification

    fix = (
        "give a folder, or a hub id that this machine can reach, of a sequence-classification "
        "model with its tokenizer"
    )
    model = load_model(AutoModelForSequenceClassification, path, f"{key}={path}", fix, dtype=dtype)
    with reading(f"{key}={path}", fix):
        tokenizer = tokenizer_class(path).from_pretrained(path, trust_remote_code=False)
    if model.config.num_labels != 1:
        raise ConfigError(
            f"{key}={path}: has {model.config.num_labels} labels; give a reward model, which has 1"
        )
    return model.eval().requires_grad_(False), tokenizer
