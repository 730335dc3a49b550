"""Common code of the programs in Python. Debian's Python runs this, too: nothing but the
standard library."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterator

SINGLY = "SINGLY" in os.environ
"""Whether workers handle one item after the other, and do nothing else meanwhile."""


class Log:
    """The items that ``work`` has handled."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.began = 0.0
        self.sent = array("d")
        self.handled = array("d")
        signal.signal(signal.SIGALRM, self._time_is_over)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def ready(self) -> None:
        print("ready", flush=True)
        self.began = time.monotonic()

    def take(self, payload: str | float) -> None:
        """Note an item; must be quick, because its time counts."""
        self.sent.append(float(payload))
        self.handled.append(time.monotonic())

    @property
    def complete(self) -> bool:
        return len(self.handled) >= self.count

    def report(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        values = {"began": self.began, "sent": list(self.sent), "handled": list(self.handled)}
        print(json.dumps(values), flush=True)

    def _time_is_over(self, number: int, frame: object) -> None:
        self.report()
        os._exit(0)


def pace(count: int, rate: float) -> Iterator[str]:
    """Payloads, each when it is due, or at once if that has passed."""
    due = time.monotonic()
    for _ in range(count):
        time.sleep(max(due - time.monotonic(), 0))
        yield repr(time.monotonic())
        if rate:
            due += 1 / rate


def payloads(count: int) -> Iterator[str]:
    for _ in range(count):
        yield repr(time.monotonic())


def timed(send: Callable[[], object]) -> None:
    began = time.monotonic()
    send()
    print(json.dumps({"seconds": time.monotonic() - began}))


def main(
    install: Callable[[str], object],
    send: Callable[[str, Iterator[str]], object],
    bulk: Callable[[str, Iterator[str]], object],
    work: Callable[[str, Log], object],
) -> None:
    """Run a command: each gets the DSN, and the items to send or a log for handled ones."""
    match sys.argv[1:]:
        case ["install", dsn]:
            install(dsn)
        case ["send", dsn, count, rate]:
            timed(lambda: send(dsn, pace(int(count), float(rate))))
        case ["bulk", dsn, count]:
            timed(lambda: bulk(dsn, payloads(int(count))))
        case ["work", dsn, count, seconds]:
            log = Log(int(count), float(seconds))
            work(dsn, log)
            log.report()
        case _:
            raise SystemExit(__doc__)
