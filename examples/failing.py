"""Bad events: some are retried, some become dead letters, and the others are not affected.

Run the ticker (``pgqpy ticker``) and this; the database is named by PGQPY_DSN or libpq's variables.
It writes three orders of which two are bad, processes them until the last is settled, replays the
dead letter, and ends. The lines about events are the library's log::

    python examples/failing.py
"""

from __future__ import annotations

import pgqpy


class Invoices(pgqpy.Consumer):
    """An order without a total is given up at once; a busy tax office is asked three times."""

    queue = "orders_to_invoice"
    consumer = "invoices"
    retry_policy = pgqpy.FixedDelay(0.5, attempts=3)

    settled = 0

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        order = event.json()
        if "total" not in order:
            raise pgqpy.DeadLetter(f"order {order['id']} has no total")
        if order["id"] == 3 and event.retry < 2:
            raise TimeoutError("the tax office is busy")
        print(f"order {order['id']}: an invoice over {order['total']}", flush=True)

    def on_batch(self, stats: pgqpy.BatchStats) -> None:
        self.settled += stats.events - stats.retried
        if self.settled == 3:
            self.stop()


def main() -> None:
    with pgqpy.connect() as conn:
        pgqpy.Admin(conn).create_queue(Invoices.queue)
    invoices = Invoices()
    invoices.register()
    with pgqpy.connect() as conn:
        pgqpy.Producer(Invoices.queue).insert_events(
            conn,
            [
                ("order.created", '{"id": 1, "total": 12.5}'),
                ("order.created", '{"id": 2}'),
                ("order.created", '{"id": 3, "total": 7.0}'),
            ],
        )
    invoices.run()
    with pgqpy.connect() as conn:
        letters = pgqpy.DeadLetters(conn)
        which = pgqpy.DeadLetterFilter(queue=Invoices.queue)
        for letter in letters.find(which):
            print(f"dead letter of {letter.consumer}: {letter.reason}", flush=True)
        print(f"{letters.replay(which)} replayed", flush=True)


if __name__ == "__main__":
    main()
