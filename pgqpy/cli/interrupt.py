"""Ctrl-C ends a command within a second, whatever the driver is in the middle of."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What a shell reports for a process that SIGINT ended.
INTERRUPTED = 128 + signal.SIGINT

#: Seconds that unwinding may take after Ctrl-C.
PATIENCE = 1.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside the block, Ctrl-C raises KeyboardInterrupt, and ends the process if that is stuck.

    An interrupt at the wrong moment, such as the start of a COPY, leaves psycopg waiting for its
    own lock. Ending the process is just as clean: the server rolls back what is not committed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        watchdog = threading.Timer(PATIENCE, os._exit, [INTERRUPTED])
        watchdog.daemon = True
        watchdog.start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
