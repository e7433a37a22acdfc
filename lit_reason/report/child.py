"""Subprocesses that do not outlive the process that waits for them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

GRACE = 10.0  # seconds between asking a child to end and ending it

Child = subprocess.Popen[bytes]


def start(command: Sequence[str], log: Path) -> Child:
    """Starts a command with its output in a file.

    The caller ends it with `end` whatever interrupts the wait; on Linux the child ends even when
    this process is killed outright.

    Args:
        command: Program and arguments.
        log: File that takes standard output and standard error.
    """
    with log.open("w", encoding="utf-8") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )


def end(child: Child) -> None:
    """Ends a child and its own children, if it still runs."""
    if child.poll() is not None:
        return
    for request in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, request)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
            return


def exit_on_signals() -> None:
    """Turns the signals that would end this process at once into `SystemExit`."""
    for name in ("SIGTERM", "SIGHUP", "SIGINT"):  # a background job starts with SIGINT ignored
        if hasattr(signal, name):
            number = getattr(signal, name)
            signal.signal(number, lambda signum, _: sys.exit(128 + signum))


def _end_with_parent() -> None:
    pr_set_pdeathsig = 1  # <sys/prctl.h>
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
