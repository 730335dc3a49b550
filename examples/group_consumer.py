"""A consumer group: each customer's orders in order, different customers in parallel.

Run the ticker (``pgqpy ticker``), this as often as you like, in as many terminals, and then
``examples/producer.py``; the database is named by PGQPY_DSN or libpq's variables. Ctrl-C or
SIGTERM stops a worker after its batch, and the others take over its partitions::

    python examples/group_consumer.py
"""

from __future__ import annotations

import pgqpy

TABLE = """
create table if not exists customer_order (
    nr          bigint generated always as identity,
    customer    text not null,
    event_type  text not null
)
"""


class Shipments(pgqpy.GroupConsumer):
    """Writes down what it hears of each customer, in order."""

    queue = "orders"
    consumer = "shipments"
    key = "ev_data::jsonb ->> 'customer'"
    partitions = 4

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        conn.execute(
            "insert into customer_order (customer, event_type) values (%s, %s)",
            (event.json().get("customer", "?"), event.type),
        )

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        if stats.events:
            print(f"{self.worker_name}: {stats.events:,} events", flush=True)


def main() -> None:
    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue("orders")
        conn.execute(TABLE)
    shipments = Shipments()
    shipments.register()
    print("waiting for events", flush=True)
    shipments.run()


if __name__ == "__main__":
    main()
