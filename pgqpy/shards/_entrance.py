# WARNING: generated from pgqpy/shards/_entrance_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""What a producer does before it writes into a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from psycopg.pq import TransactionStatus

from pgqpy._runtime.acompat import each
from pgqpy._runtime.fetch import fetch
from pgqpy.connection import Connection
from pgqpy.errors import PgqError
from pgqpy.shards._current import CurrentMap, MapSource

ENTER_SHARD = b"select shard_name, shard_version from pgq.enter_shard(%s)"


class Entrance:
    """Lets transactions write into the shards of a queue."""

    def __init__(self, queue: str, shards: MapSource) -> None:
        self._queue = queue
        self._current = CurrentMap(shards)
        self._current.require(queue)

    def enter(self, conn: Connection) -> Callable[[Any], None]:
        """Enter the shard of a connection's database, in whose version it stays until the
        transaction ends; return the check of a key.

        Raises WrongShard, StaleShardMap, and PgqError without a transaction.
        """
        if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
            raise PgqError(
                "an event for a shard is written in a transaction, and the connection has none",
                hint="Write it inside `with conn.transaction():`, or without autocommit.",
            )
        ((name, version),) = fetch(conn, ENTER_SHARD, [self._queue])
        return self._current.writable(name, version)


def checked_keys(
    check: Callable[[Any], None],
    events: Iterable[Any],
    shard_key: Callable[[Any], str] | None,
) -> Iterator[Any]:
    """Yield the events. Raises WrongShard at the first one of another shard."""
    if shard_key is None:
        check(None)
    else:
        for event in each(events):
            check(shard_key(event))
            yield event
