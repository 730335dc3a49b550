"""Events: those that consumers get, and those that producers write."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from pgqpy._runtime.failure import delay_of, storable, traceback_of
from pgqpy._wire.cloud_event import JSON, cloud_event, http_request, kept_attributes
from pgqpy._wire.event_data import json_text
from pgqpy._wire.row_format import decode_json, decode_row, is_json, operation_and_key
from pgqpy.errors import InvalidParameter, InvalidPayload, PgqError

if TYPE_CHECKING:
    from cloudevents.core.v1.event import CloudEvent

#: The maximum characters of a dead letter's reason.
MAX_REASON = 2000

#: Dead letters that one statement sends. Each costs the server a pass over the batch.
PIECE = 10_000

_SECOND = timedelta(seconds=1)

Letters = tuple[list[int], list[str], list[str | None]]


class NewEvent(NamedTuple):
    """An event to be written; ``data`` is a `pgqpy.producer.EventData`, or None.

    A plain tuple with the fields in this order will do.
    """

    type: str | None
    data: Any = None
    extra1: str | None = None
    extra2: str | None = None
    extra3: str | None = None
    extra4: str | None = None


class RetryCount(int):
    """The number of retries of an event; calling it retries the event once more.

    PgQ calls both "retry": the column ev_retry and the function event_retry.
    """

    _event: Event

    def __new__(cls, event: Event) -> RetryCount:
        retry = super().__new__(cls, event.retry_count)
        retry._event = event
        return retry

    def __call__(self, delay: float | timedelta | datetime) -> None:
        """Retry the event after seconds, after an interval, or at a time (with a zone).

        Raises PgqError if the event is not of an open batch, ValueError for a time without a
        zone or for a negative delay.
        """
        self._event._of_batch().add(self._event.id, delay)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a batch.

    ``id`` ascends within a batch, not across transactions; ``time`` (UTC) is the time at which its
    transaction inserted it, ``txid`` that transaction; ``retry_count`` the number of its retries.
    """

    id: int
    time: datetime
    txid: int
    retry_count: int
    type: str | None
    data: str | None
    extra1: str | None = None
    extra2: str | None = None
    extra3: str | None = None
    extra4: str | None = None
    _retries: Retries | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Callable[..., Event], tuple[Any, ...]]:
        # An event in another process has left its batch.
        return Event, tuple(getattr(self, each.name) for each in fields(self)[:-1])

    def json(self) -> Any:
        """The data, decoded as JSON; None if there is none.

        For a row that a trigger wrote, numbers are exact, like in `row`; for other events numbers
        with a fraction are float. Raises ValueError (json.JSONDecodeError) if it is not JSON.
        """
        if self.data is None:
            return None
        return json.loads(self.data) if self.operation is None else decode_json(self.data)

    def row(self) -> dict[str, Any]:
        """The table row that a trigger wrote: column names and values.

        Values are those of JSON (jsontriga, capture), but numbers with a fraction are Decimal, with
        the digits that PostgreSQL wrote; or str and None (logutriga). Empty for TRUNCATE. Raises
        ValueError if the data is no row.
        """
        return decode_row(self.data or "")

    def old_row(self) -> dict[str, Any] | None:
        """The row before an UPDATE, if the trigger keeps it (``backup``); else None."""
        return None if self.extra2 is None else decode_row(self.extra2)

    @property
    def operation(self) -> str | None:
        """INSERT, UPDATE, DELETE or TRUNCATE; None for an event that no trigger wrote."""
        return operation_and_key(self.type)[0]

    @property
    def table(self) -> str | None:
        """``schema.table`` for an event that a trigger wrote; else None."""
        return self.extra1 if self.operation else None

    @property
    def full_type(self) -> str | None:
        """The type for other systems: ``public.orders.insert`` if a trigger wrote the event."""
        operation = self.operation
        return f"{self.table}.{operation.lower()}" if operation else self.type

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the table's primary key, as the trigger knew it."""
        return operation_and_key(self.type)[1]

    @property
    def key(self) -> dict[str, Any]:
        """The primary key's columns and their values in `row`."""
        row = self.row()
        return {column: row[column] for column in self.key_columns}

    def new(self) -> NewEvent:
        """Return the event for writing it again, to this or another queue."""
        return NewEvent(self.type, self.data, self.extra1, self.extra2, self.extra3, self.extra4)

    def to_cloudevent(self, source: str | None = None) -> CloudEvent:
        """Return the event as a CloudEvent (1.0): the one it was written as, or made of its fields.

        Then its id is made of the event's id and time, ``source`` is the given one, a URI, and a
        captured row has a type such as ``public.orders.insert``. Raises InvalidParameter if a
        source is needed, InvalidPayload if the stored attributes are invalid.
        """
        return cloud_event(*self._attributes_and_data(source))

    def to_cloudevent_request(
        self, source: str | None = None, *, binary: bool = False
    ) -> tuple[dict[str, str], bytes]:
        """Return headers and body of the HTTP request that sends the event as a CloudEvent.

        In structured content mode, or in ``binary``. JSON is sent as it is stored, digit by digit.
        Needs no library. Raises InvalidParameter if a source is needed, ValueError if the event
        cannot be sent.
        """
        return http_request(*self._attributes_and_data(source), binary=binary)

    def _attributes_and_data(self, source: str | None) -> tuple[dict[str, Any], str | bytes | None]:
        """Return the attributes as in a CloudEvent's JSON, and the data; those of JSON as text."""
        time, data = self.time.astimezone(UTC), self.data
        attributes: dict[str, Any] = {
            "specversion": "1.0",
            # A queue that was dropped and made again repeats its ids; a retry keeps id and time.
            "id": f"{self.id}-{time:%Y%m%dT%H%M%S.%fZ}",
            "source": source,
            "type": self.type,
            "time": time.isoformat(),
        }
        kept = kept_attributes(self.extra4)
        if kept is not None:
            attributes |= kept
            if (encoded := attributes.pop("data_base64", None)) is not None:
                return attributes, _bytes_of(encoded)
        else:
            attributes["type"] = self.full_type or "pgq.event"
            if data is not None:
                if self.operation and not is_json(data):
                    data = json_text(self.row())
                attributes["datacontenttype"] = JSON if is_json(data) else "text/plain"
        if attributes["source"] is None:
            raise InvalidParameter(
                f"event {self.id} was not written as a CloudEvent, and has no source",
                hint="Name its queue by a URI: event.to_cloudevent('https://shop.example/orders').",
            )
        return attributes, data

    def dead_letter(self, reason: str) -> None:
        """Give the event up: it becomes a dead letter of this consumer, with this reason.

        It happens when the batch is finished, in the same transaction. Writes for the event stay;
        raise `DeadLetter` to roll them back. Raises PgqError if the event is not of an open batch.
        """
        self._of_batch().give_up(self.id, reason)

    def _of_batch(self) -> Retries:
        if self._retries is None:
            raise PgqError(
                f"event {self.id} does not belong to a batch",
                hint="Only events that a batch is iterating can be retried or given up.",
            )
        return self._retries

    @property
    def retry(self) -> RetryCount:
        """The number of retries (0 the first time); call it to retry the event.

        ``event.retry(60)``, ``event.retry(timedelta(hours=1))`` or ``event.retry(at)`` schedule the
        event for this consumer only, in a later batch. It happens when the batch is finished, in
        the same transaction.
        """
        return RetryCount(self)


def _bytes_of(encoded: object) -> bytes:
    try:
        return b64decode(str(encoded))
    except ValueError as error:
        raise InvalidPayload(
            f"data_base64 of a CloudEvent is invalid: {error}", hint="It is bytes in base64."
        ) from error


def _text_of(name: str) -> property:
    """Return a property for a text of an event; it raises if it is not valid UTF-8."""
    slot = Event.__dict__[name]

    def read(event: Event) -> str | None:
        value: str | bytes | None = slot.__get__(event)
        if not isinstance(value, bytes):
            return value
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidPayload(
                f"{name} of event {event.id} is not valid UTF-8: {error.reason} at byte "
                f"{error.start}",
                hint="The database's encoding is SQL_ASCII; its texts must be UTF-8 all the same.",
            ) from error

    return property(read)


class UnreadableEvent(Event):
    """An event with a text that is not UTF-8, which a database in SQL_ASCII can hold.

    Reading that text raises InvalidPayload, so it is handled like other bad events.
    """

    __slots__ = ()

    type = _text_of("type")
    data = _text_of("data")
    extra1 = _text_of("extra1")
    extra2 = _text_of("extra2")
    extra3 = _text_of("extra3")
    extra4 = _text_of("extra4")

    def __repr__(self) -> str:
        return f"UnreadableEvent(id={self.id})"


class Retries:
    """Retries and dead letters of a batch, sent together when it is finished.

    Its length is the number of retries.
    """

    def __init__(self) -> None:
        self._after: dict[int, timedelta | datetime] = {}
        self._letters: dict[int, tuple[str, str | None]] = {}
        # Errors at the same place share one.
        self._tracebacks: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._after)

    def __bool__(self) -> bool:
        return bool(self._after or self._letters)

    def __contains__(self, event_id: int) -> bool:
        return event_id in self._after or event_id in self._letters

    @property
    def dead_letters(self) -> int:
        """The number of events that are given up."""
        return len(self._letters)

    def add(self, event_id: int, delay: float | timedelta | datetime) -> None:
        """Add a retry of an event; of several calls for one event the last wins."""
        if isinstance(delay, datetime):
            if delay.tzinfo is None:
                raise ValueError("the time to retry at needs a time zone")
        else:
            delay = delay_of(delay)
        self.forget([event_id])
        self._after[event_id] = delay

    def give_up(self, event_id: int, reason: str, error: BaseException | None = None) -> None:
        """Add a dead letter, with the traceback of an error; the last call wins."""
        where = None
        if error is not None:
            text = traceback_of(error)
            where = self._tracebacks.setdefault(text, text)
        self.forget([event_id])
        self._letters[event_id] = (reason[:MAX_REASON], where)

    def forget(self, event_ids: Iterable[int]) -> None:
        """Remove the entries of some events: they are processed again."""
        for event_id in event_ids:
            self._after.pop(event_id, None)
            self._letters.pop(event_id, None)

    def take(self, event_id: int) -> timedelta | datetime | None:
        """Remove an event's retry and return its time or delay; None if it has none."""
        return self._after.pop(event_id, None)

    def clear(self) -> None:
        """Remove all entries: the batch starts over."""
        self._after.clear()
        self._letters.clear()

    def columns(self) -> tuple[list[int], list[datetime | None], list[timedelta | None]]:
        """Return event ids, times and delays, as arrays of one length; one of the latter two is
        set."""
        whens = self._after.values()
        return (
            list(self._after),
            [when if isinstance(when, datetime) else None for when in whens],
            [when if isinstance(when, timedelta) else None for when in whens],
        )

    def letters(self, encoding: str) -> Iterator[Letters]:
        """Yield event ids, reasons and tracebacks, as arrays of one length, in pieces.

        Errors quote any text; characters that the database's encoding lacks are escaped.
        """
        items = iter(self._letters.items())
        while piece := list(islice(items, PIECE)):
            yield (
                [event_id for event_id, _ in piece],
                [storable(reason, encoding) for _, (reason, _) in piece],
                [None if where is None else storable(where, encoding) for _, (_, where) in piece],
            )

    def dump(self, encoding: str) -> dict[str, Any]:
        """Return all entries as JSON, for a database of that encoding."""
        return {
            "retries": [
                (event_id, delay.isoformat() if isinstance(delay, datetime) else delay / _SECOND)
                for event_id, delay in self._after.items()
            ],
            "letters": [
                letter for piece in self.letters(encoding) for letter in zip(*piece, strict=True)
            ],
        }

    def load(self, dumped: dict[str, Any]) -> None:
        """Replace all entries by dumped ones."""
        self.clear()
        for event_id, delay in dumped.get("retries", ()):
            self.add(event_id, datetime.fromisoformat(delay) if isinstance(delay, str) else delay)
        for event_id, reason, where in dumped.get("letters", ()):
            self._letters[event_id] = (reason, where)
