"""Events: as consumers get them, and as producers write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pgqpy.errors import InvalidPayload, PgqError
from pgqpy.retries import Retries
from pgqpy.row_format import decode_json, decode_row, operation_and_key


class NewEvent(NamedTuple):
    """An event to be written. A plain tuple with the fields in this order is as good."""

    type: str | None
    data: str | None = None
    extra1: str | None = None
    extra2: str | None = None
    extra3: str | None = None
    extra4: str | None = None


class RetryCount(int):
    """The number of times an event was put back, and the way to put it back once more.

    PgQ calls both "retry": the column ev_retry and the function event_retry.
    """

    _event: Event

    def __new__(cls, event: Event) -> RetryCount:
        retry = super().__new__(cls, event.retry_count)
        retry._event = event
        return retry

    def __call__(self, after: float | timedelta | datetime) -> None:
        """Have the event again after so many seconds, so long, or at that time (with a zone).

        Raises PgqError if the event is not of an open batch, ValueError for a time without a
        zone or for a negative delay.
        """
        self._event._of_batch().add(self._event.id, after)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a batch.

    ``id`` ascends within a batch, not across transactions; ``time`` (UTC) is when its transaction
    inserted it, ``txid`` that transaction; ``retry_count`` is how often it was put back.
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
        # What travels to another process has left its batch.
        return Event, (
            self.id,
            self.time,
            self.txid,
            self.retry_count,
            self.type,
            self.data,
            self.extra1,
            self.extra2,
            self.extra3,
            self.extra4,
        )

    def json(self) -> Any:
        """The data, decoded as JSON; None if there is none.

        Of a row that a trigger wrote the numbers are exact, as in `row`; of other events those with
        a fraction are float. Raises ValueError (json.JSONDecodeError) if it is something else.
        """
        if self.data is None:
            return None
        return json.loads(self.data) if self.operation is None else decode_json(self.data)

    def row(self) -> dict[str, Any]:
        """The table row that a trigger wrote: column names and values.

        Values are what JSON gives (jsontriga, capture), but numbers with a fraction are Decimal,
        with the digits that PostgreSQL wrote; or str and None (logutriga). Empty for TRUNCATE.
        Raises ValueError if the data is no row.
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
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the table's primary key, as the trigger knew it."""
        return operation_and_key(self.type)[1]

    @property
    def key(self) -> dict[str, Any]:
        """The primary key's columns and their values in `row`."""
        row = self.row()
        return {column: row[column] for column in self.key_columns}

    def new(self) -> NewEvent:
        """The same event to be written again, to this or another queue."""
        return NewEvent(self.type, self.data, self.extra1, self.extra2, self.extra3, self.extra4)

    def dead_letter(self, reason: str) -> None:
        """Give the event up: it becomes a dead letter of this consumer, with this reason.

        It happens when the batch is finished, in the same transaction. What is written for the
        event stays; raise `DeadLetter` to have it rolled back. Raises PgqError if the event is
        not of an open batch.
        """
        self._of_batch().bury(self.id, reason)

    def _of_batch(self) -> Retries:
        if self._retries is None:
            raise PgqError(
                f"event {self.id} does not belong to a batch",
                hint="Only events that a batch is iterating can be put back or given up.",
            )
        return self._retries

    @property
    def retry(self) -> RetryCount:
        """How often it was put back (0 the first time); called, it puts the event back.

        ``event.retry(60)``, ``event.retry(timedelta(hours=1))`` or ``event.retry(at)`` let this
        consumer, and no other, have the event again then, in a later batch. It happens when the
        batch is finished, in the same transaction.
        """
        return RetryCount(self)


def _text_of(name: str) -> property:
    """A field of an event as it is read; as bytes it is no text."""
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
    """An event of which some text is not UTF-8, as a database in SQL_ASCII may have it.

    Reading that text raises InvalidPayload, which makes it a bad event like others.
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
