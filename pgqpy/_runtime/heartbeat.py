"""Heartbeats: what is told to the server at intervals while user code runs."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Self

from pgqpy._runtime.backoff import Backoff
from pgqpy.connection import Connection
from pgqpy.errors import translate_errors

#: A connection that would be idle for longer is closed.
_IDLE = 2.0


class Heartbeat:
    """A thread that calls ``beat`` with a connection of its own, whenever ``due``.

    With asyncio, too: user code may keep the event loop busy. ``due()`` returns the time of the
    next beat by `time.monotonic`, `math.inf` for none; call `wake` if it becomes earlier. If a beat
    fails, ``failed`` is called with the error and the seconds until the next one, which connects
    anew. All three are called in the thread.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        beat: Callable[[Connection], Any],
        due: Callable[[], float],
        failed: Callable[[Exception, float], None],
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self._connect = connect
        self._beat = beat
        self._due = due
        self._failed = failed
        self._backoff = backoff or Backoff(0.5, 30)
        self._conn: Connection | None = None
        self._changed = threading.Condition()
        self._next = 0.0
        self._not_before = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"pgqpy {name}", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if not self._thread.is_alive():
            self._thread.start()

    def wake(self, at: float = 0.0) -> None:
        """Look at ``due`` again, if it may be as early as ``at``."""
        with self._changed:
            if at < self._next:
                self._changed.notify()

    def close(self, timeout: float | None = None) -> None:
        """End the thread; wait for a beat that is under way, at most ``timeout`` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    # --- in the thread

    def _run(self) -> None:
        try:
            while self._wait():
                try:
                    if self._conn is None:
                        self._conn = self._connect()
                    with translate_errors():
                        self._beat(self._conn)
                except Exception as error:
                    self._disconnect()
                    pause = self._backoff.pause(error)
                    self._not_before = monotonic() + pause
                    self._failed(error, pause)
                else:
                    self._backoff.reset()
        finally:
            self._disconnect()

    def _wait(self) -> bool:
        """Wait until a beat is due. False if closed."""
        with self._changed:
            while not self._closed:
                now = monotonic()
                self._next = max(self._due(), self._not_before)
                if self._next <= now:
                    return True
                if self._next > now + _IDLE:
                    self._disconnect()
                self._changed.wait(min(self._next - now, threading.TIMEOUT_MAX))
        return False

    def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()


def unique_name() -> str:
    """Return a name for a worker: machine, process, and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
