"""Confirming orders after they are placed."""

from __future__ import annotations

import pgqpy


class Confirmer(pgqpy.Consumer):
    """Confirms orders exactly once: in the transaction that finishes the batch.

    Django's own connection has another transaction: its writes may happen twice.
    """

    queue = "orders"
    consumer = "confirmer"
    event_types = ("order.placed",)

    def process_event(self, conn: pgqpy.Connection, event: pgqpy.Event) -> None:
        conn.execute("update shop_order set confirmed = true where id = %s", [event.json()["id"]])
