"""A consumer: count events by type, exactly once, whatever fails.

The count and the end of the batch are one transaction. Run the ticker (``pgqpy ticker``),
this, and then ``examples/producer.py``; the database is named by PGQPY_DSN or libpq's
variables. Ctrl-C or SIGTERM stops it after the batch::

    python examples/consumer.py
"""

from __future__ import annotations

from collections import Counter

import pgqpy

TABLE = """
create table if not exists order_event_count (
    event_type  text primary key,
    events      bigint not null
)
"""

ADD = """
insert into order_event_count as kept values (%s, %s)
on conflict (event_type) do update set events = kept.events + excluded.events
"""


class OrderCounter(pgqpy.Consumer):
    """Keeps ``order_event_count`` up to date."""

    queue = "orders"
    consumer = "order_counter"

    def process_batch(self, conn: pgqpy.Connection, batch: pgqpy.Batch) -> None:
        counts = Counter(event.type for event in batch)
        for event_type, events in sorted(counts.items()):
            conn.execute(ADD, (event_type, events))

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        if stats.events:
            print(f"batch {stats.batch_id}: {stats.events:,} events", flush=True)


def main() -> None:
    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue("orders")
        conn.execute(TABLE)
    counter = OrderCounter()
    counter.register()
    print("waiting for events", flush=True)
    counter.run()


if __name__ == "__main__":
    main()
