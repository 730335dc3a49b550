"""An asyncio consumer: process events one by one, and retry some later.

Run the ticker (``pgqpy ticker``), this, and then ``examples/producer.py``; the database is
named by PGQPY_DSN or libpq's variables. Ctrl-C or SIGTERM stops it after the batch::

    python examples/async_consumer.py
"""

from __future__ import annotations

import asyncio

import pgqpy


class OrderMailer(pgqpy.AsyncConsumer):
    """Says what it would mail. At the first attempt the mail server is always busy."""

    queue = "orders"
    consumer = "order_mailer"
    event_types = ("order.created",)

    async def process_event(self, conn: pgqpy.AsyncConnection, event: pgqpy.Event) -> None:
        order = event.json()
        if event.retry == 0:
            print(f"event {event.id}: busy, again in a second", flush=True)
            event.retry(1)
        else:
            print(f"event {event.id}: thank you, {order['customer']}", flush=True)


async def main() -> None:
    async with await pgqpy.async_connect() as conn:
        await pgqpy.AsyncAdmin(conn).create_queue("orders")
    mailer = OrderMailer()
    await mailer.register()
    print("waiting for events", flush=True)
    await mailer.run()


if __name__ == "__main__":
    asyncio.run(main())
