"""Rows of a data set, wherever it lies."""

from __future__ import annotations

import codecs
import glob
import mmap
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lit_reason.errors import ConfigError, ConfigWarning, warn_of_no_effect

_KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # no rows
_NAMED = 5  # files in a message
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:/")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


_FILLED = "give a file with one on each row"


class Rows:
    """Rows that say which data set they are of where one cannot be read.

    Args:
        rows: As `datasets` gives them; some of its errors come only with the rows.
        path: The data set.
    """

    def __init__(self, rows: Any, path: str) -> None:
        self._rows, self._path = rows, path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            yield from self._rows
        except Exception as error:
            raise ConfigError(
                f"task.path={self._path}: cannot be read ({_reason(error)}); {_repair(error)}"
            ) from error

    def select_columns(self, names: list[str]) -> Rows:
        """The same rows with these columns only."""
        return Rows(self._rows.select_columns(names), self._path)


def load(path: str, split: str, config: str | None, streaming: bool) -> Rows:
    """The rows of a data set, read as they are asked for.

    Args:
        path: A `.json`, `.jsonl`, `.parquet` or `.csv` file, a folder (written by `save_to_disk`,
            or holding such files), or an id on the Hugging Face hub.
        split: Which one, where there are several.
        config: Which one, where a hub data set has several.
        streaming: Read rows as they are needed. What `save_to_disk` wrote is read so anyway.

    Raises:
        ConfigError: There is no such data set or split, or it cannot be opened.
    """
    file = Path(path).expanduser()
    _check_file(file, path)
    if file.is_file():
        named = None if split == "train" else split
        warn_of_no_effect("on a single file", {"task.split": named}, "train")
        warn_of_no_effect("on a single file", {"task.config": config})
    try:
        for part in _parts(file):
            _check_text(part, path)
        loaded = _open(file, path, split, config, streaming)
    except ConfigError:
        raise
    except Exception as error:
        if "corresponds to no data" in str(error):
            raise ConfigError(f"task.path={path}: holds no problems; {_FILLED}") from error
        raise ConfigError(
            f"task.path={path}: cannot be loaded ({_reason(error)}); {_fix(error, file)}"
        ) from error
    if isinstance(loaded, dict):
        if split not in loaded:
            raise ConfigError(f"task.split={split}: {path} has {', '.join(loaded)}")
        loaded = loaded[split]
    return Rows(loaded, path)


def _check_file(file: Path, path: str) -> None:
    """Refuses what is no data set by its name, or is empty."""
    if not path.strip():
        raise ConfigError(
            f"task.path={path}: names nothing; give a file, a folder or the id of a data set"
        )
    if _ADDRESS.match(path):
        raise ConfigError(
            f"task.path={path}: is an address; download the data, and give the file or the folder"
        )
    if file.suffix in _KINDS and not file.exists():
        raise ConfigError(f"task.path={path}: no such file")
    if file.is_file() and file.suffix not in _KINDS:
        raise ConfigError(
            f"task.path={path}: not one of the kinds {', '.join(_KINDS)}; convert it, or give a "
            "folder or a hub id"
        )
    if file.is_file() and _is_blank(file):
        raise ConfigError(f"task.path={path}: is empty; give a file with a problem on each row")


def _parts(file: Path) -> list[Path]:
    """The files that `datasets` may read."""
    found = file.rglob("*") if file.is_dir() else [file]
    return [f for f in found if f.suffix in _KINDS and f.name not in _ABOUT and f.is_file()]


def _check_text(file: Path, path: str) -> None:
    """Refuses what `datasets` would misread, or end the process at.

    Args:
        file: Of the data set.
        path: The data set, for messages.

    Raises:
        ConfigError: It is not in UTF-8, has null for a row, or has rows that are longer than its
            header.
    """
    kind = _KINDS[file.suffix]
    if kind == "parquet":
        return
    where = f"task.path={path}" + ("" if file == Path(path).expanduser() else f": {file.name}")
    with file.open("rb") as content:
        head = content.read(1 << 16)
        if head.startswith(_UTF16) or b"\0" in head:
            raise ConfigError(f"{where}: is no text in UTF-8; save it as UTF-8")
        text = head.removeprefix(codecs.BOM_UTF8).lstrip()
        while not text and (more := content.read(1 << 16)):
            text = more.lstrip()
    if kind == "json" and text and (line := _line_of_null(file)):
        raise ConfigError(f"{where}: line {line} is null, which is no row; leave it out")
    if kind == "csv" and text:
        import pandas

        first = pandas.read_csv(file, nrows=1)
        # a column without a name, which pandas takes for one of labels: all others would shift
        if len(first) and not isinstance(first.index, pandas.RangeIndex):
            raise ConfigError(
                f"{where}: its first row has more fields than its header names; name every column, "
                "and quote a field that holds a comma"
            )


_NULL_FIRST = re.compile(rb"(?:\xef\xbb\xbf)?\s*(null)")
# a text holds no line break: what begins a line after the end of a row is a row
_NULL_LATER = re.compile(rb"\}[ \t\r]*\n\s*(null)")


def _line_of_null(file: Path) -> int | None:
    """Number of the first line that is null instead of a row: pyarrow may end the process at it."""
    with (
        file.open("rb") as content,
        mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        found = _NULL_FIRST.match(text) or _NULL_LATER.search(text)
        return text[: found.start(1)].count(b"\n") + 1 if found else None


def _is_blank(file: Path) -> bool:
    with file.open("rb") as content:
        return not any(part.strip() for part in iter(lambda: content.read(1 << 16), b""))


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error  # `datasets` wraps what it has met
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]


def _fix(error: Exception, file: Path) -> str:
    if file.is_file():
        return _repair(error)
    return (
        "give a .json, .jsonl, .parquet or .csv file, a folder written by save_to_disk, or a hub "
        "id that this machine can reach"
    )


def _repair(error: Exception) -> str:
    """What to do to a file that is of the right kind by its name."""
    reason = _reason(error)
    if isinstance(error.__cause__ or error, UnicodeDecodeError):
        return "save it as UTF-8"
    if "surrogate" in reason:
        return r"write the character itself, or both halves of its \ud... escape"
    if "magic bytes" in reason:
        return "write it again, or give it the ending of what it holds"
    return "repair that row, or leave it out"


def _warn_of_ignored(folder: Path, path: str) -> None:
    """Names the files of a folder that `datasets`, which takes one kind of them, does not read."""
    import datasets

    read = datasets.load_dataset_builder(str(folder)).config.data_files or {}
    known = {Path(name).resolve() for files in read.values() for name in files}
    left = sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.suffix in _KINDS and file.name not in _ABOUT and file.resolve() not in known
    )
    if left:
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        kinds = ", ".join(sorted({file.suffix for file in known}))
        warnings.warn(
            f"task.path={path}: only its {kinds} files are read, not {', '.join(left[:_NAMED])}"
            f"{more}; give one file, or a folder with one kind of files",
            ConfigWarning,
            stacklevel=5,
        )


def _open(file: Path, path: str, split: str, config: str | None, streaming: bool) -> Any:
    import datasets

    if any((file / name).exists() for name in ("dataset_dict.json", "state.json")):
        return datasets.load_from_disk(str(file))
    if file.is_file():
        kind = _KINDS[file.suffix]
        name = glob.escape(str(file))  # `datasets` takes it for a pattern
        return datasets.load_dataset(kind, data_files=name, split="train", streaming=streaming)
    if file.is_dir() and config is None:  # a configuration says which files are meant
        _warn_of_ignored(file, path)
    where = str(file) if file.is_dir() else path
    return datasets.load_dataset(where, config, split=split, streaming=streaming)
