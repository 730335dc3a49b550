"""Producing: events are inserted into a queue in the caller's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.abc import Buffer
from psycopg.copy import AsyncLibpqWriter
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgqpy._delivery import (
    CANCEL_EVENT,
    CURRENT_TABLE,
    FIRST_EVENT,
    MAY_CALL,
    PIECE,
    AnyEvent,
    Delivery,
)
from pgqpy._delivery import EventFields as EventFields  # noqa: PLC0414
from pgqpy._runtime.acompat import async_each
from pgqpy._runtime.contracts_async import AsyncContracts
from pgqpy._runtime.fetch_async import async_fetch
from pgqpy._wire.copy_format import MAX_EVENT_BYTES, NEW_EVENT_COLUMNS
from pgqpy._wire.event_data import EventData as EventData  # noqa: PLC0414
from pgqpy._wire.statements import (
    checked,
    copy_in,
    insert_into_relation,
    padded,
    require_utf8,
    texts,
    unencodable,
)
from pgqpy.connection_async import AsyncConnection
from pgqpy.errors import (
    PayloadTooLarge,
    PgqError,
    QueueNotFound,
    SchemaMissing,
    translate_errors,
)
from pgqpy.shards._current import ENTER_SHARD, CurrentMap, MapSource
from pgqpy.telemetry._spans import EVENTS, marked, marker, sending

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent


class AsyncProducer:
    """Writes events into one queue.

    It has no connection of its own: each call takes one, and the events are part of its
    transaction. They are delivered after it commits, and never if it rolls back.

    Events with a time (``at``) or a ``delay`` (in seconds or as a timedelta) are delivered
    when they are due, to the consumers that are registered then; a time in the past means at once.
    An event with a ``key`` is inserted unless one with this key was, within the queue's key_window:
    then the first one's id is returned. While another transaction inserts one with this key, the
    call waits for its end.

    A CloudEvent is given instead of type and data, or in a list of events. An event's data is a
    text, or a dict, a dataclass or a model of pydantic or msgspec, which is
    dumped as JSON.

    All methods raise QueueNotFound, InsertDisabled, PermissionDenied and, for the events
    themselves, InvalidPayload (NUL characters, objects that JSON cannot hold) and PayloadTooLarge
    (a gigabyte). Methods with times and keys raise ValueError for a time without zone, and
    NoKeyWindow and InvalidKey; all raise TypeError if a field is not a text.

    With ``check=True`` each payload is checked here against the queue's contracts, before it is
    sent: ContractViolation says where it does not fit. It needs the extra ``contracts``.

    With ``shards``, a `ShardMap`, its file, or a function that reads it, the queue is a part of
    one in many databases, and each event needs a ``shard_key``: WrongShard says that the key
    belongs to the database of another shard, StaleShardMap that the map is being changed.
    """

    def __init__(self, queue: str, *, check: bool = False, shards: MapSource | None = None) -> None:
        self.queue = queue
        self._shards = None if shards is None else CurrentMap(shards, queue)
        self._contracts = AsyncContracts(queue) if check else None

    async def insert_event(
        self,
        conn: AsyncConnection,
        type: str | CloudEvent | None,  # noqa: A002
        data: EventData | None = None,
        *,
        extra1: str | None = None,
        extra2: str | None = None,
        extra3: str | None = None,
        extra4: str | None = None,
        at: datetime | None = None,
        delay: float | timedelta | None = None,
        key: str | None = None,
        shard_key: str | None = None,
    ) -> int:
        """Write one event (pgq.insert_event, .._at, .._once); returns its id."""
        _require_usable(conn)
        if self._shards is not None:
            (await self._enter(conn, self._shards))(shard_key)
        fields = texts(padded((type, data, extra1, extra2, extra3, extra4)))
        if self._contracts is not None:
            (await self._contracts.read(conn)).check(fields[0], fields[1])
        delivery = Delivery(at=at, delay=delay, key=key)
        with sending(EVENTS, self.queue):
            fields = marked(fields)
            if delivery.plain:
                return await self._insert(conn, fields)
            statement, arguments = delivery.event(self.queue, fields)
            return int((await async_fetch(conn, statement, arguments))[0][0])

    async def cancel_event(self, conn: AsyncConnection, event_id: int) -> bool:
        """Cancel a delayed event (pgq.cancel_event).

        True if it will never be delivered, once the transaction commits; False if it was
        delivered or cancelled before. In REPEATABLE READ and SERIALIZABLE it raises
        RetryTransaction if the event was delivered after the transaction began.
        """
        return bool((await async_fetch(conn, CANCEL_EVENT, [self.queue, event_id]))[0][0])

    async def insert_events(
        self,
        conn: AsyncConnection,
        events: Iterable[AnyEvent] | AsyncIterable[AnyEvent],
        *,
        at: datetime | Callable[[EventFields], datetime] | None = None,
        delay: float | timedelta | None = None,
        key: Callable[[EventFields], str | None] | None = None,
        shard_key: Callable[[EventFields], str] | None = None,
    ) -> int:
        """Write any number of events by COPY; returns their number.

        The fastest way for more than a few. The events are streamed: memory does not grow with
        their number. All are written or, after an error, none. While it runs, the iterator of the
        events must not use the same connection.

        With ``at``, ``delay`` or ``key``, of which the first and the last may be functions of an
        event, they go in statements of 10,000 events each. ``shard_key`` is a function of an event.
        """
        _require_usable(conn)
        delivery = Delivery(at=at, delay=delay, key=key)
        with translate_errors(), sending(EVENTS, self.queue) as span:
            if not conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
                # Begin the caller's transaction: without it, ours would be one, and commit.
                await conn.execute(b"")
            async with conn.transaction():
                checked = await self._checked(conn, events, shard_key)
                write = self._copy if delivery.plain else self._in_pieces
                span.count = count = await write(conn, checked, delivery)
                return count

    async def insert_events_returning(
        self,
        conn: AsyncConnection,
        events: Iterable[AnyEvent],
        *,
        at: datetime | Callable[[EventFields], datetime] | None = None,
        delay: float | timedelta | None = None,
        key: Callable[[EventFields], str | None] | None = None,
        shard_key: Callable[[EventFields], str] | None = None,
    ) -> list[int]:
        """Write some events in one statement (pgq.insert_events, .._at, .._once); returns their
        ids, in order.

        They are held in memory; for large numbers use `insert_events`.
        """
        _require_usable(conn)
        delivery = Delivery(at=at, delay=delay, key=key)
        checked = await self._checked(conn, events, shard_key)
        held = [event async for event in async_each(checked)]
        with sending(EVENTS, self.queue) as span:
            ids = await self._insert_many(conn, held, delivery)
            span.count = len(ids)
        return [int(event_id) for (event_id,) in ids]

    async def _enter(self, conn: AsyncConnection, shards: CurrentMap) -> Callable[[Any], None]:
        """Enter the shard of a connection's database, in whose version it stays until the
        transaction ends; return the check of a key."""
        if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
            raise PgqError(
                "an event for a shard is written in a transaction, and the connection has none",
                hint="Write it inside `with conn.transaction():`, or without autocommit.",
            )
        ((name, version),) = await async_fetch(conn, ENTER_SHARD, [self.queue])
        return shards.writable(name, version)

    async def _checked(
        self,
        conn: AsyncConnection,
        events: Iterable[AnyEvent] | AsyncIterable[AnyEvent],
        shard_key: Callable[[EventFields], str] | None,
    ) -> Iterable[AnyEvent] | AsyncIterable[AnyEvent]:
        """Return the events; reading them raises at the first one that is not for here."""
        if self._shards is not None:
            check_key = await self._enter(conn, self._shards)
            if shard_key is None:
                check_key(None)
            else:
                events = _checking(lambda event: check_key(shard_key(event)), events)
        if self._contracts is not None:
            events = _checking((await self._contracts.read(conn)).check_new, events)
        return events

    async def _insert(self, conn: AsyncConnection, fields: Sequence[str | None]) -> int:
        """Write an event by the function, whose errors are clear, once on each connection; after
        that by the relation, which is faster if its statement is prepared. A role with a grant on
        the queue alone may use the relation only."""
        into_relation = insert_into_relation(self.queue)
        ways = _ways.setdefault(conn, {})
        if into_relation is not None:
            if self.queue not in ways and not await _may_call(conn):
                ways[self.queue] = True
            if ways.get(self.queue):
                return (await self._by_relation(conn, into_relation, fields))[0][0]
        arguments = [self.queue, *fields, self.queue]
        [(event_id, is_relation)] = await async_fetch(conn, FIRST_EVENT, arguments)
        ways[self.queue] = (
            is_relation
            and conn.prepare_threshold is not None
            and not issubclass(conn.cursor_factory, psycopg.AsyncClientCursor)
        )
        return int(event_id)

    async def _insert_many(
        self, conn: AsyncConnection, events: Sequence[AnyEvent], delivery: Delivery
    ) -> list[tuple[int]]:
        statement, arguments = delivery.events(self.queue, events)
        into_relation = insert_into_relation(self.queue, many=True)
        if into_relation is not None and delivery.plain and not await _may_call(conn):
            return await self._by_relation(conn, into_relation, arguments[1:])
        return await async_fetch(conn, statement, arguments)

    async def _by_relation(
        self, conn: AsyncConnection, statement: bytes, arguments: Sequence[object]
    ) -> list[tuple[int]]:
        try:
            return await async_fetch(conn, statement, arguments)
        except SchemaMissing as error:
            raise QueueNotFound(f"there is no queue {self.queue!r}") from error.__cause__

    async def _in_pieces(
        self,
        conn: AsyncConnection,
        events: Iterable[AnyEvent] | AsyncIterable[AnyEvent],
        delivery: Delivery,
    ) -> int:
        count = 0
        piece: list[AnyEvent] = []
        async for event in async_each(events):
            piece.append(event)
            if len(piece) == PIECE:
                await self._insert_many(conn, piece, delivery)
                count += len(piece)
                piece.clear()
        await self._insert_many(conn, piece, delivery)
        return count + len(piece)

    async def _copy(
        self,
        conn: AsyncConnection,
        events: Iterable[AnyEvent] | AsyncIterable[AnyEvent],
        delivery: Delivery,
    ) -> int:
        if not await _may_call(conn):
            return await self._in_pieces(conn, events, delivery)
        count = 0
        mark = marker()
        async with conn.cursor(row_factory=tuple_row) as cursor:
            # Read in the transaction that writes: so a rotation between the two is noticed, and the
            # events are looked for in this table.
            await cursor.execute(CURRENT_TABLE, checked([self.queue, self.queue]))
            [(table,)] = await cursor.fetchall()
            if table is None:
                return await self._in_pieces(conn, events, delivery)
            async with cursor.copy(copy_in(table), writer=_AsyncWriter(cursor)) as copy:
                copy.set_types(["text"] * len(NEW_EVENT_COLUMNS))
                async for event in async_each(events):
                    row = padded(event, mark)
                    try:
                        await copy.write_row(row)
                    except UnicodeEncodeError as error:
                        raise unencodable(error) from error
                    except TypeError as error:
                        raise TypeError(
                            f"an event's fields are str or None: {row!r:.80}"
                        ) from error
                    count += 1
        return count


class _AsyncWriter(AsyncLibpqWriter):
    """Refuses a row that could be stored, field by field, but never be read again."""

    async def write(self, data: Buffer) -> None:
        if len(data) > MAX_EVENT_BYTES:
            raise PayloadTooLarge(f"an event of about {len(data):,} bytes is too large")
        await super().write(data)


async def _checking(
    check: Callable[[Any], None], events: Iterable[AnyEvent] | AsyncIterable[AnyEvent]
) -> AsyncIterator[AnyEvent]:
    async for event in async_each(events):
        check(event)
        yield event


def _require_usable(conn: object) -> None:
    if not isinstance(conn, psycopg.AsyncConnection):
        raise TypeError(
            f"events are written on psycopg's AsyncConnection, not on {conn!r:.80}: for SQLAlchemy "
            "there is pgqpy.sqlalchemy.AsyncProducer, in Django it is connection.connection"
        )
    with translate_errors():
        sent = conn.pgconn.parameter_status
        if b"SQL_ASCII" in (sent(b"client_encoding"), sent(b"server_encoding")):
            require_utf8(conn)


async def _may_call(conn: AsyncConnection) -> bool:
    """Return whether the role that the connection has now may call the functions."""
    # If the function is missing, its call says so.
    return (await async_fetch(conn, MAY_CALL))[0][0] is not False


#: Whether single events go by the relation, for each connection and queue. It stays when the role
#: changes: what a function has written, the relation takes from every role with the right.
_ways: WeakKeyDictionary[AsyncConnection, dict[str, bool]] = WeakKeyDictionary()
