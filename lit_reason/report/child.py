"""Subprocesses that do not outlive the process that waits for them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# a background job starts with SIGINT ignored
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
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
    # what a handler raises while the interpreter forks is lost
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        with log.open("w", encoding="utf-8") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(_begin, mask),
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end(children: Sequence[Child]) -> None:
    """Ends children, with their own children, as far as they still run."""
    for request in (signal.SIGTERM, signal.SIGKILL):
        left = [child for child in children if child.poll() is None]
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, request)
        until = time.monotonic() + GRACE
        for child in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(until - time.monotonic(), 0))


def exit_on_signals() -> None:
    """Turns the signals that would end this process at once into `SystemExit`.

    The first one only: until this process ends it is at work on ending its children.
    """

    def leave(signum: int, _: Any) -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + signum)

    for number in ENDING:
        signal.signal(number, leave)


@contextlib.contextmanager
def saying_how_to_continue() -> Iterator[None]:
    """Around a loop over runs that a second call skips: says so where a signal ends it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        with contextlib.suppress(OSError):  # the terminal may be gone
            text = "stopped; the same command continues with the runs that were under way"
            print(text, file=sys.stderr, flush=True)
        sys.exit(stop.code if isinstance(stop, SystemExit) else 130)


def _begin(mask: Iterable[int]) -> None:
    """In the child: lets signals through, and on Linux ends with the parent."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # <sys/prctl.h>
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
