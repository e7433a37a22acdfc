"""Loading a tokenizer as it was built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")


def tokenizer_class(path: str) -> Any:
    """The class that reads the tokenizer of a model folder or hub id.

    Where its file says that the file is all there is to it, the plain one: `AutoTokenizer` would
    take the class of the model type, and with it another algorithm.

    Raises:
        ValueError: The file cannot be read.
    """
    file = Path(path, "tokenizer_config.json")
    named = None
    if file.is_file():
        settings = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise ValueError(f"{file.name} holds a {type(settings).__name__}, not a mapping")
        named = settings.get("tokenizer_class")
    return PreTrainedTokenizerFast if named in GENERIC else AutoTokenizer
