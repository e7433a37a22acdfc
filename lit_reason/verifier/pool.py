"""Worker processes that compare answers, each answer within hard limits.

`concurrent.futures` cannot end one worker, and `multiprocessing` (and `pebble` on top of it) runs
the user's script again in every process that it does not fork. These workers start from nothing
but the engine; `worker.py` says how they replace themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lit_reason.errors import ConfigError
from lit_reason.verdict import Status
from lit_reason.verifier import worker

Pair = tuple[str, str]

_CHUNK = 16  # pairs in one message: enough to hide the pipe, few to do again when one is fatal
_MESSAGE = 60_000  # bytes: fits into an empty pipe, so that writing never waits for a worker
_START = 120.0  # seconds for a worker to load the engine on a busy machine
_FALSE_STARTS = 3
_GRACE = 5.0  # seconds after which a worker that should have ended itself is ended
_ENGINE = "lit_reason.verifier.equivalence:equivalent"
_SETTLED = {
    worker.EQUAL: Status.CORRECT,
    worker.DIFFERENT: Status.WRONG,
    worker.RAISED: Status.ERROR,
    worker.TIMED_OUT: Status.TIMEOUT,
    worker.DIED: Status.ERROR,
}
_ENDED_THE_CHILD = (worker.TIMED_OUT, worker.DIED)


@dataclass
class _Worker:
    """One process and the pairs it was sent, by number, in order."""

    process: subprocess.Popen[bytes]
    ready: bool = False
    assigned: deque[int] = field(default_factory=deque)
    deadline: float = float("inf")


class Pool:
    """Compares pairs of answers in worker processes, which start at the first call.

    Args:
        workers: Number of processes.
        time_limit: Seconds for one pair.
        memory_limit: MiB that comparing may take in each worker.
        recycle_after: Pairs after which a worker's memory is given back.
        engine: `module:function` that compares; it is imported in the workers only, and first
            compares the pairs in the module's `WARM_UP`, if there are any.

    Example:
        >>> pool = Pool(workers=1)
        >>> [str(status) for status in pool.run([("1/2", "0.5"), ("1/2", "0.25")])]
        ['correct', 'wrong']
        >>> pool.close()
    """

    def __init__(
        self,
        workers: int = 2,
        time_limit: float = 5.0,
        memory_limit: int = 1024,
        recycle_after: int = 2000,
        engine: str = _ENGINE,
    ) -> None:
        self.size = workers
        self.time_limit, self.memory_limit = time_limit, memory_limit
        self.recycle_after, self.engine = recycle_after, engine
        self._workers: list[_Worker] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._owner)

    def __reduce__(self) -> tuple[object, ...]:
        settings = (self.size, self.time_limit, self.memory_limit, self.recycle_after, self.engine)
        return Pool, settings  # a copy, in this process or another, has workers of its own

    def run(self, pairs: Sequence[Pair]) -> list[Status]:
        """Whether each pair is equal (`correct`) or not (`wrong`), or what prevented to tell.

        Raises:
            ConfigError: The workers cannot start.
        """
        if not pairs:
            return []
        with self._lock:
            try:
                self._start()
                return _Batch(self, pairs).run()
            except BaseException:
                self._end()  # a worker that is in the middle of something would answer the next
                raise

    def close(self) -> None:
        """Ends the workers; the next `run` starts new ones."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        if os.getpid() != self._owner:
            # forked: the workers and their pipes belong to the process that was copied
            self._finalizer.detach()
            self._workers = []
            self._owner = os.getpid()
            self._finalizer = weakref.finalize(self, _end_all, self._workers, self._owner)
        while len(self._workers) < self.size:
            self._workers.append(_Worker(self.spawn()))

    def _end(self) -> None:
        _end_all(self._workers, self._owner)

    def spawn(self) -> subprocess.Popen[bytes]:
        """A new process, which still has to load the engine."""
        program = (
            "from lit_reason.verifier.worker import main; "
            f"main({self.engine!r}, {self.time_limit!r}, {self.memory_limit!r}, "
            f"{self.recycle_after!r}, {os.getpid()})"
        )
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # one hash seed: sympy's order of terms, and what it finds in time, depend on it
        settings = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        # Ctrl-C is for the parent: the worker inherits the mask, and has a session of its own
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **settings},
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def members(self) -> list[_Worker]:
        """The workers that are running."""
        return self._workers


class _Batch:
    """One run of the pool over some pairs."""

    def __init__(self, pool: Pool, pairs: Sequence[Pair]) -> None:
        self.pool, self.pairs = pool, pairs
        self.waiting = deque(range(len(pairs)))
        self.settled: dict[int, Status] = {}
        self.false_starts = 0
        self.selector = selectors.DefaultSelector()
        self.chunk = max(1, min(_CHUNK, len(pairs) // (2 * pool.size)))

    def run(self) -> list[Status]:
        with self.selector:
            for member in self.pool.members:
                self._watch(member)
            while len(self.settled) < len(self.pairs):
                for member in self.pool.members:
                    if member.ready and not member.assigned:
                        self._assign(member)
                soonest = min(member.deadline for member in self.pool.members)
                for key, _ in self.selector.select(max(soonest - time.monotonic(), 0)):
                    self._read(key.data)
                for member in self.pool.members:
                    if time.monotonic() > member.deadline:
                        self._replace(member, worker.TIMED_OUT)
        return [self.settled[i] for i in range(len(self.pairs))]

    def _watch(self, member: _Worker) -> None:
        if not member.ready:
            member.deadline = time.monotonic() + _START
        self.selector.register(member.process.stdout, selectors.EVENT_READ, member)  # type: ignore[arg-type]

    def _assign(self, member: _Worker) -> None:
        if not self.waiting:
            member.deadline = float("inf")
            return
        items: list[str] = []
        size = 0
        while self.waiting and len(items) < self.chunk:
            item = json.dumps(self.pairs[self.waiting[0]])
            size += len(item) + 1
            if items and size > _MESSAGE:
                break
            items.append(item)
            member.assigned.append(self.waiting.popleft())
        self._renew(member)
        # a worker that has died since its last answer is found out when it is read
        with contextlib.suppress(BrokenPipeError):
            member.process.stdin.write(f"[{','.join(items)}]\n".encode())  # type: ignore[union-attr]
            member.process.stdin.flush()  # type: ignore[union-attr]

    def _renew(self, member: _Worker) -> None:
        member.deadline = time.monotonic() + self.pool.time_limit + _GRACE

    def _read(self, member: _Worker) -> None:
        received = os.read(member.process.stdout.fileno(), 4096)  # type: ignore[union-attr]
        if not received:
            self._replace(member, worker.DIED)
        for event in (received[i : i + 1] for i in range(len(received))):
            if event == worker.READY:
                member.ready, member.deadline = True, float("inf")
                continue
            self._settle(member, event)
            if event in _ENDED_THE_CHILD:
                self._return(member)
        if received and member.assigned:
            self._renew(member)

    def _settle(self, member: _Worker, event: bytes) -> None:
        if member.assigned:  # else the child died between two chunks, which costs nothing
            self.settled[member.assigned.popleft()] = _SETTLED[event]

    def _return(self, member: _Worker) -> None:
        """Puts back what the child had not come to."""
        self.waiting.extendleft(reversed(member.assigned))
        member.assigned.clear()

    def _replace(self, member: _Worker, event: bytes) -> None:
        """Ends a worker and starts another in its place."""
        self.selector.unregister(member.process.stdout)  # type: ignore[arg-type]
        code = _kill(member.process)
        if not member.ready:
            self.false_starts += 1
            if code > 0 or self.false_starts > _FALSE_STARTS:  # else somebody killed it
                raise ConfigError(
                    f"verifier.workers={self.pool.size}: a worker ended with code {code} before "
                    "its first answer; its own message stands above"
                )
        self._settle(member, event)
        self._return(member)
        member.process, member.ready = self.pool.spawn(), False
        self._watch(member)


def _kill(process: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was not flushed to a dead worker
            stream.close()  # type: ignore[union-attr]
    return process.wait()


def _end_all(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:
        for member in workers:
            _kill(member.process)
    workers.clear()
