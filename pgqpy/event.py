"""Events: those that consumers get, and those that producers write."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pgqpy._runtime.retries import Retries
from pgqpy._wire.row_format import decode_json, decode_row, operation_and_key
from pgqpy.errors import InvalidPayload, PgqError


class NewEvent(NamedTuple):
    """An event to be written. A plain tuple with the fields in this order will do."""

    type: str | None
    data: str | None = None
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

    def dead_letter(self, reason: str) -> None:
        """Give the event up: it becomes a dead letter of this consumer, with this reason.

        It happens when the batch is finished, in the same transaction. Writes for the event stay;
        raise `DeadLetter` to roll them back. Raises PgqError if the event is not of an open batch.
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
        """The number of retries (0 the first time); call it to retry the event.

        ``event.retry(60)``, ``event.retry(timedelta(hours=1))`` or ``event.retry(at)`` schedule the
        event for this consumer only, in a later batch. It happens when the batch is finished, in
        the same transaction.
        """
        return RetryCount(self)


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
