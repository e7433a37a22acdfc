"""Models in GGUF files, the format of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, modeling_gguf_pytorch_utils

from lit_reason.errors import ConfigError


def check_gguf(folder: Path, name: str) -> None:
    """Refuses a file that is not there, and a GGUF file without the packages that read it.

    Args:
        folder: The model's folder; a hub id, which is no folder, is not looked into.
        name: The file.

    Raises:
        ConfigError: Something is missing.
    """
    missing = [p for p in ("gguf", "accelerate") if find_spec(p) is None]
    if missing:
        raise ConfigError(
            f"model.backbone.gguf_file={name}: needs {' and '.join(missing)}; install with "
            "pip install 'lit-reason[gguf]'"
        )
    if folder.is_dir() and not (folder / name).is_file():
        held = ", ".join(sorted(p.name for p in folder.glob("*.gguf"))) or "no .gguf file"
        raise ConfigError(
            f"model.backbone.gguf_file={name}: no such file in {folder}; it holds {held}"
        )


@contextmanager
def without_bar() -> Iterator[None]:
    """Loads GGUF files without the progress bar that `transformers` cannot be told to leave out."""
    shown = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = partial(shown, disable=True)
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = shown


def plain_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The same network without the mark of quantisation, which `transformers` refuses to save."""
    copy = AutoModelForCausalLM.from_config(
        model.config,
        dtype=torch.float32,
        attn_implementation=model.config._attn_implementation,
        trust_remote_code=False,
    )
    if hasattr(copy.config, "quantization_config"):  # the weights are plain numbers now
        del copy.config.quantization_config
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    return copy
