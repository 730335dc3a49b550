"""Ctrl-C ends a command within a second, whatever the driver is doing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: The exit code that a shell reports for a process ended by SIGINT.
INTERRUPTED = 128 + signal.SIGINT

#: The seconds that unwinding may take after Ctrl-C.
PATIENCE = 1.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C inside the block; end the process if that hangs.

    An interrupt at the wrong moment, such as the start of a COPY, leaves psycopg waiting for its
    own lock. Ending the process is just as clean: the server rolls back uncommitted work.
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
