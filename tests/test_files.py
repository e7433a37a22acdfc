"""Files that are there whole or not at all, and those with one JSON object a line."""

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lit_reason.errors import ConfigError
from lit_reason.files import (
    filling,
    give_usual_mode,
    holds_nothing,
    replacing,
    save_tensors,
    write_text,
)
from lit_reason.jsonl import append_rows, drop_from, is_cut, read_rows
from lit_reason.loggers import MetricsFile
from tests.conftest import full_disk

PATH = Path("rows.jsonl")
ROWS = [{"rollout": i, "text": "é" * i} for i in range(3)]


def test_what_a_killed_run_left_behind_gets_into_no_file():
    append_rows(PATH, ROWS)
    left = Path(".rows.jsonl.partial")
    append_rows(left, ROWS)
    with left.open("a") as file:
        file.write('{"rollout": 1, "te')
    drop_from(PATH, 2)
    assert list(read_rows(PATH)) == ROWS[:2]
    left.write_text("long, and of an earlier write")
    with replacing(PATH) as partial, partial.open("a") as file:
        file.write("new")
    assert PATH.read_text() == "new"


def test_a_line_that_was_cut_in_a_character_is_left_out():
    append_rows(PATH, ROWS)
    whole = PATH.read_bytes()
    assert not is_cut(PATH)
    for length in range(len(whole) - 1, whole.rindex(b"{"), -1):
        PATH.write_bytes(whole[:length])
        assert is_cut(PATH)
        assert list(read_rows(PATH)) == ROWS[:2]
    drop_from(PATH, 9)
    assert list(read_rows(PATH)) == ROWS[:2]
    PATH.write_bytes(b"")
    assert not is_cut(PATH)


@pytest.mark.parametrize("line", ["x", "[]", '{"a": 1}', "\udcff"])
def test_a_file_that_was_changed_is_refused_where_it_would_be_continued(line):
    text = json.dumps(ROWS[0]) + "\n" + line + "\n"
    PATH.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"rows\.jsonl: is not as .*; move it away to continue"):
        drop_from(PATH, 1)
    if not line.startswith(("[", "{")):
        with pytest.raises(ValueError, match="line 2 is no JSON"):
            list(read_rows(PATH))


def save_weights(path):
    with replacing(path) as partial:
        save_file({"weight": torch.zeros(1000)}, partial)


def save_folder(path):
    with filling(path.parent / "folder") as partial:
        (partial / "config.json").write_text("{}")
        save_file({"weight": torch.zeros(1000)}, partial / "model.safetensors")


WRITERS = {
    "text": lambda path: write_text(path, "x" * 4000),
    "torch": lambda path: save_tensors({"weight": torch.zeros(1000)}, path),
    "safetensors": save_weights,
    "folder": save_folder,
    "rows": lambda path: append_rows(path, [{"text": "x" * 4000}]),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_is_an_error_of_the_file_and_leaves_nothing_behind(write):
    path = Path("new/file")
    path.parent.mkdir()
    with (
        full_disk(2000),
        pytest.raises(OSError, match=r"cannot be written \(File too large\); make room") as error,
    ):
        write(path)
    assert error.value.filename in ("new/file", "new/folder")
    if write is not WRITERS["rows"]:  # a row that was cut off is left out by who reads it
        assert not list(path.parent.iterdir())


@pytest.fixture
def done(monkeypatch):
    """What is asked of the system, in order: (what, number of the file, bytes in it by then)."""
    asked, fsync, replace = [], os.fsync, Path.replace

    def synced(descriptor):
        found = os.fstat(descriptor)
        asked.append(("sync", found.st_ino, found.st_size))
        fsync(descriptor)

    def renamed(path, target):
        found = path.stat()
        asked.append(("rename", found.st_ino, found.st_size))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    return asked


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_file_is_on_the_disk_before_it_takes_its_name_and_its_name_is_afterwards(write, done):
    """Or a power failure would leave the name of a file that is empty or cut off."""
    path = Path("new/file")
    path.parent.mkdir()
    write(path)
    written = [p.stat() for p in Path("new").rglob("*") if p.is_file()]
    assert len(written) == (2 if write is WRITERS["folder"] else 1)
    for file in written:
        (folder,) = {
            p.parent.stat().st_ino for p in Path("new").rglob("*") if p.stat().st_ino == file.st_ino
        }
        synced = done.index(("sync", file.st_ino, file.st_size))
        named = synced
        if write is not WRITERS["rows"]:  # which are appended to the file itself
            named = done.index(("rename", file.st_ino, file.st_size))
            assert synced < named
        assert folder in [number for what, number, _ in done[named:] if what == "sync"]


def test_rows_are_on_the_disk_as_soon_as_they_are_written(done):
    """A checkpoint that is written after them must not be there without them."""
    for rows in ROWS[:2], ROWS[2:]:
        append_rows(PATH, rows)
        assert ("sync", PATH.stat().st_ino, PATH.stat().st_size) in done
    logger = MetricsFile("run")
    for step in range(2):
        logger.log_metrics({"reward": 1.0}, step)
        logger.save()
        found = Path("run/metrics.csv").stat()
        assert ("sync", found.st_ino, found.st_size) in done


def test_a_file_system_that_syncs_no_folders_is_written_to(monkeypatch):
    def refuses(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuses)
    write_text(PATH, "new")
    assert PATH.read_text() == "new"


def test_a_file_that_the_disk_does_not_keep_is_one_line_and_takes_no_name(monkeypatch):
    def refuses(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    PATH.write_text("earlier")
    monkeypatch.setattr(os, "fsync", refuses)
    with pytest.raises(OSError, match=r"cannot be written \(Input/output error\); choose a place"):
        write_text(PATH, "new")
    assert PATH.read_text() == "earlier"
    assert [path.name for path in Path().iterdir()] == [PATH.name]


def test_a_folder_is_filled_whole_and_may_hold_what_a_kill_left_behind():
    folder = Path("policy")
    (folder / ".partial").mkdir(parents=True)
    (folder / ".partial" / "old").touch()
    assert holds_nothing(folder)
    with filling(folder) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "a").write_text("1")
        assert [path.name for path in folder.iterdir()] == [".partial"]
    assert [str(path) for path in folder.rglob("*")] == ["policy/sub", "policy/sub/a"]
    assert not holds_nothing(folder)
    with suppress(KeyboardInterrupt), filling(folder) as partial:
        (partial / "b").touch()
        raise KeyboardInterrupt
    assert [path.name for path in folder.iterdir()] == ["sub"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_file_has_the_mode_of_others(mask):
    before = os.umask(mask)
    try:
        with replacing(PATH) as partial:
            partial.touch(0o600)
        Path("other").touch(0o600)
        give_usual_mode(Path("other"))
        assert [p.stat().st_mode & 0o777 for p in (PATH, Path("other"))] == [0o666 & ~mask] * 2
        assert os.umask(mask) == mask  # as it was
    finally:
        os.umask(before)
