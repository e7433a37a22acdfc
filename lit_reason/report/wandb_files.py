"""Reads the folder that W&B writes without a server, `wandb/offline-run-TIME-ID`.

Its `run-ID.wandb` is a log in LevelDB's format whose records are W&B's protocol buffers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lit_reason.errors import ConfigError
from lit_reason.report.history import Run, collect

HEADER = 7  # bytes, of the file and of each piece of a record
BLOCK = 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def offline_file(folder: Path) -> Path | None:
    """The `.wandb` file of an offline run folder; `None` if it is none."""
    return next(iter(sorted(folder.glob("run-*.wandb"))), None)


def read_offline(folder: Path) -> Run:
    """Reads an offline run folder.

    Raises:
        ConfigError: It holds no run, a damaged one, or one without a metric.
    """
    path = offline_file(folder)
    if path is None:
        raise ConfigError(f"{folder}: not an offline run of W&B, it holds no run-*.wandb")
    data = path.read_bytes()
    if data[:4] != b":W&B":
        raise ConfigError(f"{path}: not a file of W&B")
    series = collect(list(_rows(path, data)))
    if not series:
        raise ConfigError(f"{path}: holds no metrics yet; wait for the first rollout to finish")
    return Run(folder.resolve().name, series, [])


def records(data: bytes) -> Iterator[bytes]:
    """The records of a file's content; what a crash cut off at the end is left out.

    Args:
        data: With the header.
    """
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        room = BLOCK - place % BLOCK
        if room < HEADER:  # no piece fits; the block is filled up
            place += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        piece = data[place + HEADER : place + HEADER + length]
        if kind not in (FULL, FIRST, MIDDLE, LAST) or len(piece) < length:
            return
        place += HEADER + length
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            yield parts


def _rows(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2 as messages

    for content in records(data):
        record: Any = messages.Record()  # type: ignore[attr-defined]
        try:
            record.ParseFromString(content)
            items = record.history.item
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items
            }
        except (DecodeError, ValueError) as error:
            raise ConfigError(f"{path}: is damaged; take another copy, or leave it out") from error
        if record.WhichOneof("record_type") == "history":
            yield row
