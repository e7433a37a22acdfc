"""Handlers of the signals that stop a process. Imports nothing heavy: the first are set early."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a scheduler, a lost terminal
Handlers = dict[signal.Signals, Any]


def set_handlers(handle: Callable[[int, Any], None]) -> Handlers:
    """Sets the handler of the signals that stop a process.

    Args:
        handle: As of `signal.signal`.

    Returns:
        The earlier handlers; none outside of the main thread, which cannot set any.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    # `nohup` sees to it that this one is ignored
    wanted = [x for x in SIGNALS if (x, signal.getsignal(x)) != (signal.SIGHUP, signal.SIG_IGN)]
    return {number: signal.signal(number, handle) for number in wanted}


def hand_back(earlier: Handlers) -> None:
    """Sets the handlers that `set_handlers` replaced."""
    for number, handler in earlier.items():
        if handler is not None:  # not set by Python
            signal.signal(number, handler)
