"""A consumer for `benchmarks.consume` on PgQ's Python client. Debian's Python runs it, since that
has the client.

    python3 -m benchmarks.programs.pgq_counter CONFIG_FILE

It reads until the queue is empty if ``loop_delay`` is 0, and prints its costs as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pgq


def most_memory() -> int:
    """The peak memory of this process in kB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


class Counter(pgq.Consumer):  # type: ignore[misc]
    """Looks at each event."""

    events = 0
    memory: tuple[int, ...] = ()

    def process_event(self, db: Any, ev: Any) -> None:
        self.events += 1

    def process_batch(self, db: Any, batch_id: int, event_list: Any) -> None:
        super().process_batch(db, batch_id, event_list)
        if not self.memory and self.events >= self.cf.getint("a_tenth"):
            self.memory = (most_memory(),)


if __name__ == "__main__":
    counter = Counter("counter", "db", sys.argv[1:])
    before = most_memory()
    began = time.perf_counter()
    try:
        counter.start()
    finally:
        took = time.perf_counter() - began
        memory = [kilobytes - before for kilobytes in (*counter.memory, most_memory())]
        print(json.dumps({"seconds": took, "events": counter.events, "memory": memory}))
