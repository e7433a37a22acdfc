"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the file when something goes wrong in the block, and says what to do.

    Args:
        path: The file that is written.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        why = f"cannot be written ({error.strerror}); make room, then continue the run"
        raise OSError(error.errno, why, str(path)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, whose file takes the place of `path` when the block ends.

    A crash, a kill or a full disk inside the block leaves the earlier file as it was.

    Args:
        path: The file to replace; its folder is made if there is none.

    Raises:
        OSError: It cannot be written, with the name of the file and what to do.
    """
    # beside the file, as only a rename inside one file system is atomic
    partial = path.with_name(f".{path.name}{PARTIAL}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)  # a killed run left it, and it might be appended to
        try:
            yield partial
            give_usual_mode(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def give_usual_mode(path: Path) -> None:
    """Lets those read a file who may read others: some libraries write theirs for its owner alone.

    Args:
        path: The file.
    """
    mask = os.umask(0)  # there is no other way to ask
    os.umask(mask)
    if path.stat().st_mode & 0o777 != 0o666 & ~mask:
        path.chmod(0o666 & ~mask)
