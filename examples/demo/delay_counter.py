"""The demo's `pgqpy.Consumer`: flights and delay by carrier, always up to date.

Its writes and the finish of the batch are one transaction, so that each event counts once,
whatever fails.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pgqpy
from examples.demo import DELAY_COUNTER, QUEUE, READY
from examples.demo.results import log_batch

ADD = """
insert into pgqpy_demo.delay_by_carrier as kept (carrier, flights, delay)
select * from unnest(%s::text[], %s::int8[], %s::int8[])
on conflict (carrier) do update
   set flights = kept.flights + excluded.flights,
       delay = kept.delay + excluded.delay
"""


def effects(event: pgqpy.Event) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield an event's changes to the totals: rows to add (1) and rows to subtract (-1)."""
    match event.operation:
        case "INSERT":
            yield 1, event.row()
        case "UPDATE":
            yield -1, event.old_row() or {}
            yield 1, event.row()
        case "DELETE":
            yield -1, event.row()


class DelayCounter(pgqpy.Consumer):
    """Counts flights and adds up their delay, by carrier."""

    queue = QUEUE
    consumer = DELAY_COUNTER
    backoff_cap = 2.0  # so that it goes on soon after a failure

    def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
        received = time.time()
        flights: Counter[str] = Counter()
        delay: Counter[str] = Counter()
        events = 0
        txids: set[int] = set()
        for event in batch:
            events += 1
            txids.add(event.txid)
            for sign, row in effects(event):
                flights[row["carrier"]] += sign
                delay[row["carrier"]] += sign * (row["arr_delay"] or 0)
        if not events:
            return
        carriers = sorted(flights)  # the same order in every transaction: no deadlocks
        conn.execute(ADD, (carriers, [flights[c] for c in carriers], [delay[c] for c in carriers]))
        log_batch(conn, DELAY_COUNTER, batch.id, received, events, txids)


if __name__ == "__main__":
    consumer = DelayCounter()
    consumer.register()
    print(READY, flush=True)
    consumer.run()
