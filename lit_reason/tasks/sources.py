"""Rows of a data set, wherever it lies."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from lit_reason.errors import ConfigError

_KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def load(path: str, split: str, config: str | None, streaming: bool) -> Any:
    """The rows of a data set, as `datasets` gives them.

    Args:
        path: A `.json`, `.jsonl`, `.parquet` or `.csv` file, a folder (written by `save_to_disk`,
            or holding such files), or an id on the Hugging Face hub.
        split: Which one, where there are several.
        config: Which one, where a hub data set has several.
        streaming: Read rows as they are needed. What `save_to_disk` wrote is read so anyway.

    Raises:
        ConfigError: There is no such data set or split, or it cannot be read.
    """
    file = Path(path).expanduser()
    if file.suffix in _KINDS and not file.exists():
        raise ConfigError(f"task.path={path}: no such file")
    if file.is_file() and file.suffix not in _KINDS:
        raise ConfigError(
            f"task.path={path}: not one of the kinds {', '.join(_KINDS)}; convert it, or give a "
            "folder or a hub id"
        )
    if file.is_file() and not file.stat().st_size:
        raise ConfigError(f"task.path={path}: is empty")
    try:
        loaded = _open(file, path, split, config, streaming)
    except Exception as error:
        cause = error.__cause__ or error  # `datasets` wraps what it has met
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise ConfigError(
            f"task.path={path}: cannot be loaded ({reason}); give a .json, .jsonl, .parquet or "
            ".csv file, a folder written by save_to_disk, or a hub id that this machine can reach"
        ) from error
    if isinstance(loaded, dict):
        if split not in loaded:
            raise ConfigError(f"task.split={split}: {path} has {', '.join(loaded)}")
        loaded = loaded[split]
    return loaded


def _open(file: Path, path: str, split: str, config: str | None, streaming: bool) -> Any:
    import datasets

    if any((file / name).exists() for name in ("dataset_dict.json", "state.json")):
        return datasets.load_from_disk(str(file))
    if file.is_file():
        kind = _KINDS[file.suffix]
        name = glob.escape(str(file))  # `datasets` takes it for a pattern
        return datasets.load_dataset(kind, data_files=name, split="train", streaming=streaming)
    where = str(file) if file.is_dir() else path
    return datasets.load_dataset(where, config, split=split, streaming=streaming)
