"""The program of a worker process: `python -c "from lit_reason.verifier.worker import main; ..."`.

It loads the engine once and then only watches a child that it forks: the child compares, and may be
killed at any answer; its successor takes milliseconds and starts with the memory of the first. This
process holds no threads and no torch, so forking it is safe.

Standard input brings one JSON line for some pairs, standard output takes one byte for each event:
`EQUAL`, `DIFFERENT` or `RAISED` for each pair in order, `TIMED_OUT` or `DIED` in place of an answer
that ended the child, with which the pairs behind it on the line are lost, and `READY` once.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

READY, EQUAL, DIFFERENT, RAISED, TIMED_OUT, DIED = b"r", b"=", b"!", b"e", b"t", b"x"
_LOOK = 1000  # milliseconds between two looks for the parent
_RECYCLED = 3  # exit status of a child that has answered its share
_OPENED_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = (  # beginnings of the names of audit events
    *("subprocess.", "socket.", "shutil.", "ctypes.", "os.system", "os.exec", "os.spawn"),
    *("os.posix_spawn", "os.fork", "os.kill", "os.remove", "os.rename", "os.rmdir", "os.mkdir"),
    *("os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.putenv"),
)

Engine = Callable[[str, str], bool]


def main(engine: str, time_limit: float, memory_limit: int, answers: int, parent: int) -> None:
    """Serves until standard input ends, or the parent does.

    Args:
        engine: `module:function` that compares a gold answer with another.
        time_limit: Seconds for one answer.
        memory_limit: MiB that a child may take on top of what it starts with.
        answers: Number of answers after which a child makes room for the next.
        parent: Process that this one ends with.
    """
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what an engine prints is no answer
    compare = _load(engine)
    gc.freeze()  # the children leave these pages shared
    try:
        os.write(out, READY)
    except BrokenPipeError:  # closed while this was loading
        return
    while True:
        alive, held = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(alive)
            _serve(compare, out, time_limit, memory_limit, answers)
        os.close(held)
        deserted = not _outlives(alive, parent)
        if deserted:
            os.kill(child, signal.SIGKILL)
        os.close(alive)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if deserted or code == 0:
            return
        if code != _RECYCLED:
            os.write(out, TIMED_OUT if code == -signal.SIGALRM else DIED)


def _load(engine: str) -> Engine:
    name, function = engine.split(":")
    module = importlib.import_module(name)
    compare: Engine = getattr(module, function)
    for pair in getattr(module, "WARM_UP", ()):
        compare(*pair)
    return compare


def _outlives(child_alive: int, parent: int) -> bool:
    """Waits for the end of the child, or of the parent; whether the parent is still there.

    The other side of standard input stays open if the parent has forked, so that is not enough.
    """
    poll = select.poll()
    poll.register(child_alive, select.POLLIN)
    poll.register(0, 0)  # reports only that the other side has closed
    while os.getppid() == parent:
        if ended := poll.poll(_LOOK):
            return all(descriptor != 0 for descriptor, _ in ended)
    return False


def _serve(compare: Engine, out: int, time_limit: float, memory_limit: int, answers: int) -> None:
    status = 1
    try:
        _confine(memory_limit)
        status = _answer(compare, out, time_limit, answers)
    finally:
        os._exit(status)


def _answer(compare: Engine, out: int, time_limit: float, answers: int) -> int:
    done = 0
    for pairs in _lines():
        for gold, stated in pairs:
            # by default the kernel ends the process, whatever it is in the middle of
            signal.setitimer(signal.ITIMER_REAL, time_limit)
            try:
                reply = EQUAL if compare(gold, stated) else DIFFERENT
            except MemoryError:
                return 1
            except Exception:
                reply = RAISED
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.write(out, reply)
            done += 1
        if done >= answers:
            return _RECYCLED
    return 0


def _lines() -> Iterator[Any]:
    """One line at a time and nothing of the next, which may be for another child."""
    buffer = b""
    while part := os.read(0, 1 << 16):
        buffer += part
        if buffer.endswith(b"\n"):
            yield json.loads(buffer)
            buffer = b""


def _confine(memory_limit: int) -> None:
    """Bounds memory, silences the process, and refuses what no comparison needs."""
    import resource

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    statm = Path("/proc/self/statm")
    held = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0
    for kind, limit in (
        (resource.RLIMIT_AS, held + memory_limit * 2**20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # a limit that is lower already, or macOS
            resource.setrlimit(kind, (limit, limit))
    sys.dont_write_bytecode = True
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    # nothing here evaluates text as code; this is for the day when a library does
    if event == "open":
        _, _, flags = arguments
        refused = isinstance(flags, int) and bool(flags & _OPENED_FOR_WRITING)
    else:
        refused = event.startswith(_REFUSED)
    if refused:
        raise PermissionError(f"{event} in a verifier")
