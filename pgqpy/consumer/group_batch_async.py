"""Batches of a consumer group: those of a partition, and the parked events of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pgqpy._runtime.fetch_async import async_fetch
from pgqpy._wire.statements import call
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer import _statements as sql
from pgqpy.consumer._batch import GroupFields
from pgqpy.consumer._concurrency import AsyncKeyOrder
from pgqpy.consumer.batch_async import AsyncBatch


@dataclass(eq=False, kw_only=True)
class AsyncGroupBatch(GroupFields, AsyncBatch):
    """A batch of one partition: events of its keys, without those of parked ones.

    ``partition`` is its number; ``generation`` tells its owners apart.
    """

    #: Set if several events are processed at once.
    order: AsyncKeyOrder | None = field(default=None, init=False, repr=False)

    async def read_keys(self, dsn: str) -> None:
        """Read the keys of the events, on the standby if there is one."""
        keys = None if self.elsewhere is None else await self.elsewhere.use(self, self._keys_there)
        if keys is None:
            # On a separate connection: this is not one of the event's effects.
            async with await async_connect(dsn, prepare_threshold=None) as conn:
                keys = await self.keys_on(conn)
        self.keys = dict(keys)

    async def keys_on(self, primary: AsyncConnection) -> list[tuple[int, str]]:
        """Return the keys of the events."""
        return await async_fetch(primary, call("group_batch_keys", 1), (self.id,))

    async def _keys_there(self, conn: AsyncConnection, query: str) -> list[tuple[int, str]]:
        statement = f"select ev_id, {self.key_sql} from ({query}) keyed".replace("%", "%%")
        return await async_fetch(conn, statement.encode())

    async def start_over(self, *, in_pieces: bool) -> None:
        """Forget the retries and dead letters: processing starts again from the first event."""
        self._forget_parks()
        await super().start_over(in_pieces=in_pieces)

    def _finish_batch(self, encoding: str) -> tuple[bytes, Sequence[Any]]:
        types = None if self.event_types is None else list(self.event_types)
        parked = self._park_columns(encoding)
        return sql.FINISH_GROUP_BATCH, [self.id, self.generation, *parked, types]


@dataclass(eq=False, kw_only=True)
class AsyncParkedBatch(AsyncGroupBatch):
    """The first parked events of one key, in their order; its ``id`` is the key's.

    There are no ticks around it.
    """

    is_of_queue: ClassVar[bool] = False

    #: ev_id and pe_id of its events.
    event_ids: Sequence[int]
    parked_ids: Sequence[int]

    async def finish(self, conn: AsyncConnection) -> None:
        """Remove the finished events. Raises LeaseLost."""
        await self.close()
        place = dict(zip(self.event_ids, self.parked_ids, strict=True))
        done = list(self.parked_ids)
        encoding = conn.info.parameter_status("server_encoding") or ""
        reason, delay = None, None
        for event_id, reason, delay in zip(*self._park_columns(encoding), strict=True):  # noqa: B007
            done = done[: done.index(place[event_id])]
        ids, reasons, where = next(self.retries.letters(encoding), ([], [], []))
        letters = [place[event_id] for event_id in ids], reasons, where
        failed = reason is not None, reason, delay
        await async_fetch(
            conn, sql.FINISH_PARKED, [self.id, self.generation, done, *failed, *letters]
        )
