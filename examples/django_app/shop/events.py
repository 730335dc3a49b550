"""The queue, and Django's way to it."""

from __future__ import annotations

from typing import Any

from django.db import connection

import pgqpy

ORDERS = pgqpy.Producer("orders")


def send(event_type: str, **data: Any) -> int:
    """Write an event in Django's transaction: inside ``transaction.atomic()``, with the rest."""
    connection.ensure_connection()
    # psycopg's own connection, which Django has wrapped
    return ORDERS.insert_event(connection.connection, event_type, data)
