"""A name of an event that stays the same at each delivery, for systems outside the database."""

from __future__ import annotations

import hashlib

from pgqpy import Event


def identity(event: Event, *scope: str) -> str:
    """The event's id and a digest of id, time and ``scope`` (the queue and the receiver).

    The time tells databases apart, and a queue from an earlier one of the same name.
    """
    text = "\n".join((*scope, str(event.id), event.time.isoformat()))
    return f"{event.id}.{hashlib.sha256(text.encode()).hexdigest()[:20]}"
