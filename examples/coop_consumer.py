"""Workers that share the work: start this in as many terminals as you like.

They share the position of one consumer, whole batches each. Kill one (``kill -9``), and another
one has its batch ten seconds later; Ctrl-C or SIGTERM lets it finish its batch and leave. Run the
ticker (``pgqpy ticker``), some of these, and then ``examples/producer.py``::

    python examples/coop_consumer.py
"""

from __future__ import annotations

from datetime import timedelta

import pgqpy

TABLE = """
create table if not exists parcel (
    order_event bigint primary key,
    packed_by   text not null
)
"""


class Packer(pgqpy.CoopConsumer):
    """Packs what was shipped."""

    queue = "orders"
    consumer = "packers"
    event_types = ("order.shipped",)
    dead_after = timedelta(seconds=10)

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        conn.execute("insert into parcel values (%s, %s)", (event.id, self.worker_name))

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        if stats.events:
            print(f"batch {stats.batch_id}: packed {stats.events:,}", flush=True)


def main() -> None:
    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue("orders")
        conn.execute(TABLE)
    packer = Packer()
    packer.register()
    print(f"{packer.worker_name} waits for events", flush=True)
    packer.run()


if __name__ == "__main__":
    main()
