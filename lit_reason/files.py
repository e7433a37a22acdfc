"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from safetensors import SafetensorError

PARTIAL = ".partial"
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes to a file, which is on the disk at its end, even if the power fails.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be written, with its name and what to do.
    """
    with naming_file(path):
        new = not path.exists()
        yield
        if path.exists():
            sync(path)
        if new:
            sync(path.parent)


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Names the file when something goes wrong in the block, and says what to do.

    Args:
        path: The file that is written, or a folder of which all is written.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _number(error)
        if number is None:
            raise
        what = "make room" if number in FULL else "choose a place that can be"
        why = f"cannot be written ({os.strerror(number)}); {what}, then start again or continue"
        raise OSError(number, why, str(path)) from error


def _number(error: Exception) -> int | None:
    """What the system called the error; safetensors has it in its text only."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def sync(path: Path) -> None:
    """Waits until a file is on the disk, or the names in a folder.

    Args:
        path: The file or folder.

    Raises:
        OSError: The disk cannot hold it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:  # some file systems keep names without being asked, and refuse to be
        if not path.is_dir():
            raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, whose file takes the place of `path` when the block ends.

    A crash, a kill, a full disk or a power failure inside the block leaves the earlier file as it
    was.

    Args:
        path: The file to replace; its folder is made if there is none.

    Raises:
        OSError: It cannot be written, with the name of the file and what to do.
    """
    # beside the file, as only a rename inside one file system is atomic
    partial = path.with_name(f".{path.name}{PARTIAL}")
    with naming_file(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)  # a killed run left it, and it might be appended to
        try:
            yield partial
            give_usual_mode(partial)
            sync(partial)  # or the name might be on the disk before what it stands for
            partial.replace(path)
            sync(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A folder to write to, whose files move into `folder` when the block ends.

    A crash, a kill or a full disk inside the block leaves what `folder` held as it was, and no
    folder where there was none.

    Args:
        folder: Made if it does not exist; files of the same names are replaced, others stay.

    Raises:
        OSError: It cannot be written, with its name and what to do.
    """
    # inside, as the user may be allowed to write there and nowhere else
    partial, new = folder / PARTIAL, not folder.exists()
    with naming_file(folder):
        try:
            rmtree(partial, ignore_errors=True)  # a killed run left it
            partial.mkdir(parents=True)
            yield partial
            files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
            for file in files:
                give_usual_mode(file)
                sync(file)
            for file in files:
                target = folder / file.relative_to(partial)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
                sync(target.parent)
            if new:
                sync(folder.parent)
        finally:
            rmtree(partial, ignore_errors=True)
            if new and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def holds_nothing(folder: Path) -> bool:
    """Whether a folder is free to be filled: missing, or empty but for what a kill left behind.

    Args:
        folder: Any path.
    """
    if not folder.exists():
        return True
    return folder.is_dir() and all(path.name == PARTIAL for path in folder.iterdir())


def write_text(path: Path, text: str) -> None:
    """Writes a text, at once or not at all.

    Args:
        path: The file to replace.
        text: What it is to hold; half a surrogate pair is written as an escape.
    """
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def save_tensors(value: Any, path: Path) -> None:
    """`torch.save`, at once or not at all.

    Args:
        value: Anything that `torch.save` takes.
        path: The file to replace.

    Raises:
        OSError: The disk is full or the folder is read-only; the earlier file is as it was.
    """
    with replacing(path) as partial, partial.open("wb") as file:
        writer: Any = _Remembering(file)
        try:
            torch.save(value, writer)
        except RuntimeError as error:  # torch hides what the file said
            raise writer.error or error from error


class _Remembering:
    """A file that keeps the error of a failed write."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes, and keeps what went wrong."""
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """As of the file."""
        self.file.flush()


def take_lock(descriptor: int) -> bool:
    """Locks an open file or folder; says whether it could, as no other process holds it.

    The system lets go of it when it is closed or this process ends, also after a kill.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks
        pass
    return True


def give_usual_mode(path: Path) -> None:
    """Lets those read a file who may read others: some libraries write theirs for its owner alone.

    Args:
        path: The file.
    """
    mask = os.umask(0)  # there is no other way to ask
    os.umask(mask)
    if path.stat().st_mode & 0o777 != 0o666 & ~mask:
        path.chmod(0o666 & ~mask)
