"""Common code of the programs in Python. Debian's Python runs this, too: nothing but the
standard library."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from array import array
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Result: TypeAlias = Coroutine[Any, Any, None] | None
"""What a command of a program returns, which may be `async`."""

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


def peak_memory(process: int | str = "self") -> int:
    """The peak memory of a process in kB. getrusage() would include the parent's."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


class Reading(NamedTuple):
    """The cost of reading everything once."""

    seconds: float
    events: int
    memory: list[int]
    """Growth of the process in kB, after a tenth and at the end."""


class Notes:
    """Notes the memory that this process uses at several moments."""

    def __init__(self, a_tenth: int) -> None:
        self.a_tenth = a_tenth
        self.before = 0
        self.memory: list[int] = []

    def take(self) -> None:
        self.memory.append(peak_memory() - self.before)

    def read(self, reader: Reader, dsn: str) -> Reading:
        self.before = peak_memory()
        began = time.perf_counter()
        events = reader(dsn, self)
        took = time.perf_counter() - began
        self.take()
        return Reading(took, events, self.memory)


Reader: TypeAlias = Callable[[str, Notes], int]
"""Reads everything, takes a note when it has read a tenth, and returns the number of events."""


def run(result: Result) -> None:
    if result is not None:
        asyncio.run(result)


def timed(send: Callable[[], object]) -> None:
    began = time.monotonic()
    send()
    print(json.dumps({"seconds": time.monotonic() - began}))


def main(
    install: Callable[[str], Result],
    send: Callable[[str, Iterator[str]], Result],
    bulk: Callable[[str, Iterator[str]], Result],
    work: Callable[[str, Log], Result],
) -> None:
    """Run a command: each gets the DSN, and the items to send or a log for handled ones."""
    match sys.argv[1:]:
        case ["install", dsn]:
            run(install(dsn))
        case ["send", dsn, count, rate]:
            timed(lambda: run(send(dsn, pace(int(count), float(rate)))))
        case ["bulk", dsn, count]:
            timed(lambda: run(bulk(dsn, payloads(int(count)))))
        case ["work", dsn, count, seconds]:
            log = Log(int(count), float(seconds))
            run(work(dsn, log))
            log.report()
        case _:
            raise SystemExit(__doc__)
