"""The consumers' log of their batches, for the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

WRITE = """
insert into pgqpy_demo.batch_log (consumer, batch_id, received_at, events, txids)
values (%s, %s, %s, %s, %s)
"""

READ = """
select received_at, events, txids
  from pgqpy_demo.batch_log
 where consumer = %s
 order by batch_id
"""

DELIVERED = "select consumer, sum(events) from pgqpy_demo.batch_log group by consumer"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch."""

    at: float
    """The time at which the consumer's method was called, in seconds since 1970."""
    events: int
    txids: Sequence[int]
    """The transactions that were delivered; empty if the consumer does not log them."""


def write(
    conn: Connection,
    consumer: str,
    batch_id: int,
    received: float,
    events: int,
    txids: Iterable[int] = (),
) -> None:
    """Log a batch, in the transaction that finishes it."""
    conn.execute(WRITE, (consumer, batch_id, received, events, sorted(txids)))


def read(conn: Connection, consumer: str) -> list[Delivery]:
    """Return a consumer's batches, in their order."""
    return [Delivery(*row) for row in conn.execute(READ, (consumer,))]


def delivered(conn: Connection) -> dict[str, int]:
    """Return the number of events that each consumer has finished."""
    return {name: int(events) for name, events in conn.execute(DELIVERED)}
