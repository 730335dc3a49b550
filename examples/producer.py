"""Write events in your own transactions.

An event exists if its transaction commits, and is delivered to every consumer that is
registered by then. Needs a database with the schema (``pgqpy migrate``), named by
PGQPY_DSN or libpq's variables::

    python examples/producer.py
"""

from __future__ import annotations

import pgqpy

TABLE = """
create table if not exists orders (
    id        int primary key generated always as identity,
    customer  text not null,
    amount    numeric not null
)
"""


def main() -> None:
    orders = pgqpy.Producer("orders")
    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue("orders")
        conn.execute(TABLE)
        conn.commit()

        # The order and the event that tells of it: both or none.
        with conn.transaction():
            conn.execute("insert into orders (customer, amount) values ('Ada', 12.50)")
            event_id = orders.insert_event(
                conn, "order.created", {"customer": "Ada", "amount": 12.50}
            )
            print(f"event {event_id} will be delivered")

        # Many events go by COPY, from any iterable; memory does not grow with their number.
        with conn.transaction():
            count = orders.insert_events(
                conn, (("order.shipped", {"order": n}) for n in range(2_000))
            )
            print(f"and {count:,} more")


if __name__ == "__main__":
    main()
