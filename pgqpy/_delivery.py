"""The statements of producers, and their options: delayed delivery and deduplication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from pgqpy._runtime.failure import delay_of
from pgqpy._wire.statements import call, event_arrays

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent

#: Type, data, extra1..4, of which the last ones may be omitted; `pgqpy.NewEvent` is one. All are
#: texts or None; the data may also be any `EventData`, and the type a CloudEvent.
EventFields: TypeAlias = Sequence[Any]
AnyEvent: TypeAlias = "EventFields | CloudEvent"

#: The number of events in one statement, if they are not sent by COPY.
PIECE = 10_000

MAY_CALL = b"""
select pg_catalog.has_function_privilege(
           pg_catalog.to_regprocedure('pgq.insert_event(text, text, text)'), 'execute')
"""

# PgQ's own queues are no relations.
FIRST_EVENT = b"""
select pgq.insert_event(%s, %s, %s, %s, %s, %s, %s),
       pg_catalog.to_regclass('pgq_queue.' || pg_catalog.quote_ident(%s)) is not null
"""

# COPY does not count the events of a transaction, if their number is limited.
CURRENT_TABLE = b"""
select case when not exists (select from pgq.queue
                              where queue_name = %s and queue_per_tx_limit is not null)
       then pgq.current_event_table(%s) end
"""
CANCEL_EVENT = call("cancel_event", 2)

_INSERT_EVENT = call("insert_event", 7)
_INSERT_EVENTS = call("insert_events", 7)

_INSERT_EVENT_AT = b"""
select pgq.insert_event_at(%s, coalesce(%s::timestamptz, clock_timestamp() + %s::interval),
                           %s, %s, %s, %s, %s, %s)
"""

_INSERT_EVENT_ONCE = b"""
select pgq.insert_event_once(
           %s, %s, %s, %s, %s, %s, %s, %s,
           deliver_at => coalesce(%s::timestamptz, clock_timestamp() + %s::interval))
"""

_INSERT_EVENTS_AT = b"""
select pgq.insert_events_at(
           %s, coalesce(%s::timestamptz[],
                        pg_catalog.array_fill(clock_timestamp() + %s::interval,
                                              array[%s::int4])),
           %s, %s, %s, %s, %s, %s)
"""

_INSERT_EVENTS_ONCE = b"""
select pgq.insert_events_once(
           %s, %s, %s, %s, %s, %s, %s, %s,
           i_times => coalesce(%s::timestamptz[],
                               pg_catalog.array_fill(clock_timestamp() + %s::interval,
                                                     array[%s::int4])))
"""


class EventsOptions(TypedDict, total=False):
    """The options of `pgqpy.Producer.insert_events`."""

    at: datetime | Callable[[EventFields], datetime] | None
    delay: float | timedelta | None
    key: Callable[[EventFields], str | None] | None
    shard_key: Callable[[Any], str] | None


class EventOptions(TypedDict, total=False):
    """The options of `pgqpy.Producer.insert_event`."""

    extra1: str | None
    extra2: str | None
    extra3: str | None
    extra4: str | None
    at: datetime | None
    delay: float | timedelta | None
    key: str | None
    shard_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Options of delivery: ``at`` a time or after a ``delay`` by the server's clock; with ``key``,
    only if no event with this key exists. For many events, ``at`` and ``key`` may be functions of
    one.

    Raises ValueError for times without zone, negative delays, and both at once.
    """

    at: datetime | Callable[[EventFields], datetime] | None = None
    delay: float | timedelta | None = None
    key: str | Callable[[EventFields], str | None] | None = None

    def __post_init__(self) -> None:
        if self.at is not None and self.delay is not None:
            raise ValueError("an event is delivered at a time or after a delay, not both")
        if self.at is not None and not callable(self.at):
            _zoned(self.at)
        if self.delay is not None:
            delay = delay_of(self.delay, "the delay to deliver after")
            object.__setattr__(self, "delay", delay)

    @property
    def plain(self) -> bool:
        """Whether all events are delivered at once."""
        return self.at is None and self.delay is None and self.key is None

    def event(self, queue: str, fields: Sequence[str | None]) -> tuple[bytes, list[Any]]:
        """Return the statement that inserts one event of six fields, and its parameters."""
        if self.plain:
            return _INSERT_EVENT, [queue, *fields]
        if self.key is None:
            return _INSERT_EVENT_AT, [queue, self.at, self.delay, *fields]
        return _INSERT_EVENT_ONCE, [queue, _text(self.key), *fields, self.at, self.delay]

    def events(self, queue: str, events: Sequence[Any]) -> tuple[bytes, list[Any]]:
        """Return the statement that inserts many events, and its parameters."""
        arrays = event_arrays(events)
        if self.plain:
            return _INSERT_EVENTS, [queue, *arrays]
        at, key = self.at, self.key
        times: list[datetime] | None = None
        if isinstance(at, datetime):
            times = [at] * len(events)
        elif at is not None:
            times = [_zoned(at(event)) for event in events]
        if key is None:
            return _INSERT_EVENTS_AT, [queue, times, self.delay, len(events), *arrays]
        if isinstance(key, str):
            raise TypeError("many events have no single key: give a function of an event")
        keys = [_text(key(event)) for event in events]
        return _INSERT_EVENTS_ONCE, [queue, keys, *arrays, times, self.delay, len(events)]


def _text(key: object) -> str | None:
    if key is not None and not isinstance(key, str):
        raise TypeError(f"an event's key is str or None, not {key!r:.80}")
    return key


def _zoned(at: datetime) -> datetime:
    if not isinstance(at, datetime):
        raise TypeError(f"the time to deliver at is a datetime, not {at!r:.80}")
    if at.tzinfo is None:
        raise ValueError("the time to deliver at needs a time zone")
    return at
