"""A consumer for `benchmarks.consume` on PgQ's Python client. Debian's Python runs it, since that
has the client.

    python3 -m benchmarks.programs.pgq_counter DSN A_TENTH LAZY_FETCH

It reads until the queue is empty, and prints its costs as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pgq

from benchmarks.programs.pgq import configured
from benchmarks.programs.protocol import Notes


class Counter(pgq.Consumer):  # type: ignore[misc]
    """Looks at each event."""

    notes: Notes
    events = 0

    def process_event(self, db: Any, ev: Any) -> None:
        self.events += 1

    def process_batch(self, db: Any, batch_id: int, event_list: Any) -> None:
        super().process_batch(db, batch_id, event_list)
        if not self.notes.memory and self.events >= self.notes.a_tenth:
            self.notes.take()

    def read(self, dsn: str, notes: Notes) -> int:
        self.notes = notes
        self.start()
        return self.events


if __name__ == "__main__":
    dsn, a_tenth, lazy_fetch = sys.argv[1:]
    # Without a delay it leaves when there is nothing to do.
    settings = {"loop_delay": 0, "pgq_lazy_fetch": int(lazy_fetch)}
    with configured(Counter, "counter", dsn, settings) as counter:
        print(json.dumps(Notes(int(a_tenth)).read(counter.read, dsn)))
