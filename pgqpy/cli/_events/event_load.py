"""Insertion of a stream of events: in one transaction, or in several of a given size."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice

import pgqpy
from pgqpy.event import NewEvent


def load(
    conn: pgqpy.Connection,
    queue: str,
    events: Iterator[NewEvent],
    *,
    batch: int | None,
    at: datetime | None = None,
) -> int:
    """Insert the events, to be delivered at a time, and return their number.

    Without `batch` an error rolls all of them back; with it, the error says how many were
    committed before.
    """
    if batch is None:
        return _insert(conn, queue, events, at)
    inserted = 0
    try:
        for first in events:
            inserted += _insert(conn, queue, chain([first], islice(events, batch - 1)), at)
    except Exception as error:
        error.add_note(f"{inserted:,} events were inserted before")
        raise
    return inserted


def _insert(
    conn: pgqpy.Connection, queue: str, events: Iterator[NewEvent], at: datetime | None
) -> int:
    return pgqpy.Producer(queue).insert_events(conn, events, at=at)
