"""Reading model folders, which others wrote: their code never runs, and damage is one line."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from safetensors import SafetensorError

from lit_reason.errors import ConfigError, ConfigWarning

PLAIN = (OSError, ValueError, ImportError, SafetensorError)  # whose texts say enough


@contextmanager
def reading(key: str, fix: str) -> Iterator[None]:
    """Makes one line of whatever libraries raise that read a damaged folder.

    Args:
        key: Where it is named, as `KEY=VALUE`.
        fix: Ends the message.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{key}: cannot be loaded ({_reason(error)}); {fix}") from error


def load_model(loader: Any, path: str, key: str, fix: str, **kwargs: Any) -> Any:
    """A model with the weights of its folder, all of them.

    Args:
        loader: An Auto class.
        path: Folder or hub id.
        key: See `reading`.
        fix: See `reading`.
        **kwargs: For `from_pretrained`.

    Raises:
        ConfigError: It cannot be loaded, or `config.json` describes another model than the weights
            are of.
    """
    with reading(key, fix):
        model, info = loader.from_pretrained(
            path,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to say below which
            trust_remote_code=False,
            **kwargs,
        )
    for name, held, made in sorted(info["mismatched_keys"]):
        raise ConfigError(
            f"{key}: {name} is of shape {tuple(held)}, and config.json says {tuple(made)}; give "
            "the config.json that belongs to the weights"
        )
    if missing := sorted(info["missing_keys"]):
        raise ConfigError(
            f"{key}: lacks weights, the first is {missing[0]}; give a model that was saved with "
            "all of them, its head too, and with the config.json that belongs to them"
        )
    if unused := sorted(info["unexpected_keys"]):
        warnings.warn(
            f"{key}: {len(unused)} of its weights have no place in the model that its config.json "
            f"describes and are left out, the first is {unused[0]}",
            ConfigWarning,
            stacklevel=2,
        )
    return model


def _reason(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return "its weights are a pickle of more than tensors, which is not opened"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return text if text and isinstance(error, PLAIN) else f"{type(error).__name__}: {text}"
