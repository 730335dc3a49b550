"""What a producer does before it writes into a shard."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any

from psycopg.pq import TransactionStatus

from pgqpy._runtime.acompat import async_each
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import PgqError
from pgqpy.shards._current import CurrentMap, MapSource

ENTER_SHARD = b"select shard_name, shard_version from pgq.enter_shard(%s)"


class AsyncEntrance:
    """Lets transactions write into the shards of a queue."""

    def __init__(self, queue: str, shards: MapSource) -> None:
        self._queue = queue
        self._current = CurrentMap(shards)
        self._current.require(queue)

    async def enter(self, conn: AsyncConnection) -> Callable[[Any], None]:
        """Enter the shard of a connection's database, in whose version it stays until the
        transaction ends; return the check of a key.

        Raises WrongShard, StaleShardMap, and PgqError without a transaction.
        """
        if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
            raise PgqError(
                "an event for a shard is written in a transaction, and the connection has none",
                hint="Write it inside `with conn.transaction():`, or without autocommit.",
            )
        ((name, version),) = await async_fetch(conn, ENTER_SHARD, [self._queue])
        return self._current.writable(name, version)


async def async_checked_keys(
    check: Callable[[Any], None],
    events: Iterable[Any] | AsyncIterable[Any],
    shard_key: Callable[[Any], str] | None,
) -> AsyncIterator[Any]:
    """Yield the events. Raises WrongShard at the first one of another shard."""
    if shard_key is None:
        check(None)
    else:
        async for event in async_each(events):
            check(shard_key(event))
            yield event
