"""Batches of a consumer group: those of a partition, and the parked events of a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from pgqpy._runtime.failure import storable
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy._wire.statements import call
from pgqpy.connection_async import AsyncConnection
from pgqpy.consumer._concurrency import AsyncKeyOrder
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.event import Event

_FINISH_BATCH = b"""
select pgq.finish_group_batch(%s, %s, %s::bigint[], %s::text[], %s::interval[], %s::text[])
       is not null
"""
_FINISH_PARKED = b"""
select pgq.finish_parked(%s, %s, %s::bigint[], %s, %s, %s::interval,
                         %s::bigint[], %s::text[], %s::text[])
"""


@dataclass(eq=False, kw_only=True)
class AsyncGroupBatch(AsyncBatch):
    """A batch of one partition: events of its keys, without those of parked ones.

    ``partition`` is its number; ``generation`` tells its owners apart.
    """

    partition: int
    generation: int
    #: The key as SQL, if events are read on a standby.
    key_sql: str = field(default="", repr=False)
    #: The reasons of failed events, and their delays; None: until they are unparked.
    parks: dict[int, tuple[str, timedelta | None]] = field(
        default_factory=dict, init=False, repr=False
    )
    #: The keys of the events; None: not read yet, because no event has failed.
    keys: dict[int, str] | None = field(default=None, init=False, repr=False)
    _parked_keys: set[str] = field(default_factory=set, init=False, repr=False)
    #: Set if several events are processed at once.
    order: AsyncKeyOrder | None = field(default=None, init=False, repr=False)

    def park(self, event: Event, reason: str, delay: timedelta | None) -> None:
        """Park an event that failed, and those of its key behind it; `keys` are known."""
        self.parks[event.id] = reason, delay
        self._parked_keys.add(self.key_of(event))

    async def read_keys(self, conn: AsyncConnection) -> None:
        """Read the keys of the events on the primary."""
        self.keys = dict(await async_fetch(conn, call("group_batch_keys", 1), (self.id,)))

    async def read_keys_elsewhere(self) -> bool:
        """Read them on a standby, if there is one; False if the primary is to be read."""
        if self.elsewhere is None:
            return False

        async def read(conn: AsyncConnection, query: str) -> list[tuple[int, str]]:
            statement = f"select ev_id, {self.key_sql} from ({query}) keyed".replace("%", "%%")
            return await async_fetch(conn, statement.encode())

        keys = await self.elsewhere.use(self, read)
        if keys is not None:
            self.keys = dict(keys)
        return keys is not None

    def key_of(self, event: Event) -> str:
        """Return the key of an event; `keys` are known."""
        assert self.keys is not None
        return self.keys[event.id]

    def is_parked(self, event: Event) -> bool:
        """Whether an event with the same key, before this one, has failed."""
        return bool(self._parked_keys) and self.key_of(event) in self._parked_keys

    async def start_over(self, *, in_pieces: bool) -> None:
        """Forget the retries and dead letters: processing starts again from the first event."""
        self.parks.clear()
        self._parked_keys.clear()
        await super().start_over(in_pieces=in_pieces)

    @property
    def retried(self) -> int:
        """The number of events that failed."""
        return len(self.parks)

    def _finish_batch(self, encoding: str) -> tuple[bytes, Sequence[Any]]:
        return _FINISH_BATCH, [
            self.id,
            self.generation,
            list(self.parks),
            [storable(reason, encoding) for reason, _ in self.parks.values()],
            [delay for _, delay in self.parks.values()],
            None if self.event_types is None else list(self.event_types),
        ]


@dataclass(eq=False, kw_only=True)
class AsyncParkedBatch(AsyncGroupBatch):
    """The first parked events of one key, in their order; its ``id`` is the key's.

    There are no ticks around it.
    """

    is_of_queue: ClassVar[bool] = False

    #: ev_id and pe_id of its events.
    event_ids: Sequence[int]
    parked_ids: Sequence[int]

    def key_of(self, event: Event) -> str:
        """Return the common key."""
        return ""

    def park(self, event: Event, reason: str, delay: timedelta | None) -> None:
        """Park an event that failed, and those behind it."""
        self.parks[event.id] = reason, delay

    def is_parked(self, event: Event) -> bool:
        """Whether an event before this one has failed."""
        return bool(self.parks)

    async def finish(self, conn: AsyncConnection) -> None:
        """Remove the finished events. Raises LeaseLost."""
        await self.close()
        place = dict(zip(self.event_ids, self.parked_ids, strict=True))
        done = list(self.parked_ids)
        reason, delay = None, None
        encoding = conn.info.parameter_status("server_encoding") or ""
        for event_id, (said, delay) in self.parks.items():  # noqa: B007
            reason = storable(said, encoding)
            done = done[: done.index(place[event_id])]
        ids, reasons, where = next(self.retries.letters(encoding), ([], [], []))
        letters = [place[event_id] for event_id in ids], reasons, where
        failed = bool(self.parks), reason, delay
        await async_fetch(conn, _FINISH_PARKED, [self.id, self.generation, done, *failed, *letters])
