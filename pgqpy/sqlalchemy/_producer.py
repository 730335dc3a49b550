"""Producing from a session or connection of SQLAlchemy, in its transaction."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from pgqpy._delivery import AnyEvent, Delivery, EventOptions, EventsOptions
from pgqpy._runtime.acompat import async_each
from pgqpy._wire.event_data import EventData
from pgqpy._wire.statements import call, event_arrays, padded, texts
from pgqpy.shards._current import ENTER_SHARD, CurrentMap, MapSource
from pgqpy.sqlalchemy._session import fetch, translate_errors
from pgqpy.telemetry._spans import EVENTS, marked, sending

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent

#: Objects that execute statements.
AnySession: TypeAlias = Session | scoped_session[Any] | sa.Connection
AnyAsyncSession: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection

#: The maximum events of a statement; their characters are limited, too.
_SLICE = 5_000
_SLICE_CHARACTERS = 4_000_000


class Producer:
    """Writes events into one queue, by a Session or a Connection, with any driver.

    The events are in the session's transaction: they are delivered after it commits, and never if
    it, or their savepoint, is rolled back. If a session has several databases, it cannot know which
    one is meant: pass ``session.connection(...)``.

    ``at``, ``delay``, ``key`` and ``shard_key``, and the errors raised, are those of
    `pgqpy.Producer`.
    """

    def __init__(self, queue: str, *, shards: MapSource | None = None) -> None:
        self.queue = queue
        self._current = None if shards is None else CurrentMap(shards, queue)

    def insert_event(
        self,
        session: AnySession,
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
        self._check_keys(session, [shard_key])
        fields = texts(padded((type, data, extra1, extra2, extra3, extra4)))
        delivery = Delivery(at=at, delay=delay, key=key)
        with sending(EVENTS, self.queue):
            fields = marked(fields)
            if delivery.plain:
                return int(_execute(session, _INSERT_EVENT, [self.queue, *fields])[0])
            return int(_execute(session, *delivery.event(self.queue, fields))[0])

    def cancel_event(self, session: AnySession, event_id: int) -> bool:
        """Cancel a delayed event; see `pgqpy.Producer.cancel_event`."""
        return bool(_execute(session, _CANCEL_EVENT, [self.queue, event_id])[0])

    def insert_events(
        self, session: AnySession, events: Iterable[AnyEvent], **options: Unpack[EventsOptions]
    ) -> int:
        """Write any number of events; returns their number.

        All are written or, after an error, none: they are in a savepoint, so the session can go
        on, and AUTOCOMMIT is not possible. They are sent some thousand at a time, not held.
        """
        count = 0
        with translate_errors(), _checked(session).begin_nested():
            for some in _sliced(events):
                self.insert_events_returning(session, some, **options)
                count += len(some)
        return count

    def insert_events_returning(
        self, session: AnySession, events: Iterable[AnyEvent], **options: Unpack[EventsOptions]
    ) -> list[int]:
        """Write some events in one statement; returns their ids, in order.

        They are held in memory; for large numbers use `insert_events`.
        """
        if self._current is not None:
            events, shard_key = list(events), options.get("shard_key")
            self._check_keys(session, [shard_key and shard_key(event) for event in events])
        delivery = Delivery(
            at=options.get("at"), delay=options.get("delay"), key=options.get("key")
        )
        with sending(EVENTS, self.queue) as span:
            if delivery.plain:
                ids = _execute(session, _INSERT_EVENTS, [self.queue, *event_arrays(events)])
            else:
                ids = _execute(session, *delivery.events(self.queue, list(events)))
            span.count = len(ids)
        return ids

    def _check_keys(self, session: AnySession, keys: Iterable[str | None]) -> None:
        """Enter the shard of the session's database; raise WrongShard for a key of another one."""
        if self._current is not None:
            [place] = fetch(_checked(session), ENTER_SHARD, [self.queue])
            check = self._current.writable(*place)
            for key in keys:
                check(key)


class AsyncProducer:
    """`Producer` for an AsyncSession or AsyncConnection."""

    def __init__(self, queue: str, *, shards: MapSource | None = None) -> None:
        self.queue = queue
        self._producer = Producer(queue, shards=shards)

    async def insert_event(
        self,
        session: AnyAsyncSession,
        type: str | CloudEvent | None,  # noqa: A002
        data: EventData | None = None,
        **options: Unpack[EventOptions],
    ) -> int:
        """Write one event (pgq.insert_event, .._at, .._once); returns its id."""
        return await _real(session).run_sync(self._producer.insert_event, type, data, **options)

    async def cancel_event(self, session: AnyAsyncSession, event_id: int) -> bool:
        """Cancel a delayed event; see `pgqpy.Producer.cancel_event`."""
        return await _real(session).run_sync(self._producer.cancel_event, event_id)

    async def insert_events(
        self,
        session: AnyAsyncSession,
        events: Iterable[AnyEvent] | AsyncIterable[AnyEvent],
        **options: Unpack[EventsOptions],
    ) -> int:
        """Write any number of events; returns their number. See `Producer.insert_events`."""
        real = _real(session)
        piece = _Slice()
        count = 0
        with translate_errors():
            async with real.begin_nested():
                async for event in async_each(events):
                    count += 1
                    if piece.add(event):
                        await self.insert_events_returning(real, piece.taken(), **options)
                await self.insert_events_returning(real, piece.taken(), **options)
        return count

    async def insert_events_returning(
        self,
        session: AnyAsyncSession,
        events: Iterable[AnyEvent],
        **options: Unpack[EventsOptions],
    ) -> list[int]:
        """Write some events in one statement; returns their ids, in order."""
        return await _real(session).run_sync(
            self._producer.insert_events_returning, events, **options
        )


class _Slice:
    """Collects events for one statement."""

    def __init__(self) -> None:
        self._events: list[AnyEvent] = []
        self._characters = 0

    def add(self, event: AnyEvent) -> bool:
        """Add an event; True if the slice is full."""
        self._events.append(event)
        self._characters += sum(len(text) for text in padded(event) if isinstance(text, str))
        return len(self._events) >= _SLICE or self._characters >= _SLICE_CHARACTERS

    def taken(self) -> list[AnyEvent]:
        """Return the events so far; the next ones are in a new slice."""
        events, self._events, self._characters = self._events, [], 0
        return events


def _sliced(events: Iterable[AnyEvent]) -> Iterable[list[AnyEvent]]:
    piece = _Slice()
    for event in events:
        if piece.add(event):
            yield piece.taken()
    yield piece.taken()


def _real(session: AnyAsyncSession) -> AsyncSession | AsyncConnection:
    """Return the current task's session of a scoped one. Raises TypeError for other objects."""
    real = session() if isinstance(session, async_scoped_session) else session
    if not hasattr(real, "run_sync"):
        raise _wrong(real, "an AsyncSession or AsyncConnection", "Producer")
    return real


def _checked(session: AnySession) -> AnySession:
    """Return it, if it can write events. Raises TypeError."""
    if hasattr(session, "run_sync") or not hasattr(session, "begin_nested"):
        raise _wrong(session, "a Session or Connection", "AsyncProducer")
    return session


def _wrong(given: object, wanted: str, other: str) -> TypeError:
    kind = type(given).__name__
    if isinstance(given, sa.Engine | AsyncEngine):
        advice = f"{kind}.begin() gives a connection with a transaction"
    elif isinstance(given, psycopg.Connection | psycopg.AsyncConnection):
        kind, advice = f"psycopg's {kind}", "that is for pgqpy.Producer and pgqpy.AsyncProducer"
    else:
        advice = f"for what there is besides, see pgqpy.sqlalchemy.{other}"
    return TypeError(f"events are written by {wanted}, not by {kind}; {advice}")


def _execute(session: AnySession, statement: bytes, arguments: Sequence[Any]) -> list[Any]:
    """Execute a statement of the psycopg producer; return the first column."""
    return [row[0] for row in fetch(_checked(session), statement, arguments)]


_INSERT_EVENT = call("insert_event", 7)
_INSERT_EVENTS = call("insert_events", 7)
_CANCEL_EVENT = call("cancel_event", 2)
