"""Reports to systemd: sd_notify's protocol is one datagram of VARIABLE=value lines."""

from __future__ import annotations

import os
import socket
import time


class Systemd:
    """The service manager that started us; without one every call does nothing."""

    def __init__(self, address: str | None = None, watchdog_usec: str | None = None) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET") if address is None else address
        usec = os.environ.get("WATCHDOG_USEC") if watchdog_usec is None else watchdog_usec
        self.watchdog = int(usec) / 1e6 if self._address and usec and usec.isdecimal() else None
        """The seconds within which systemd expects a sign of life; None if it does not watch."""

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        # Type=notify-reload tells this reload from an earlier one by the time.
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={usec}")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the NUL of Linux' abstract socket names.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            try:
                sender.sendto("\n".join(lines).encode(), address)
            except OSError:
                # A service manager that does not listen must not stop the ticks.
                return
