"""What the server tells of a batch, and what is noted of it, for threads and for asyncio alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from pgqpy._runtime.failure import storable
from pgqpy._wire.contract import Validators
from pgqpy.errors import PgqError
from pgqpy.event import Event, Retries
from pgqpy.models import BatchStats


class Stopped(BaseException):
    """Leave a batch, as if its processing had not begun: `stop` was called."""


class RunInPieces(Exception):
    """Roll back, because the transaction holds writes of a failed event. Then run in pieces."""


# Long: a field each for what the server tells of a batch.
@dataclass(eq=False, kw_only=True)
class BatchFields:
    """A batch without what reads it."""

    id: int
    queue: str
    consumer: str
    prev_tick: int
    """The id of the tick before it."""
    tick: int
    """The id of the tick at its end."""
    prev_tick_time: datetime
    tick_time: datetime
    seq_start: int
    """The event sequence at the tick before it."""
    seq_end: int
    """That at its end: the difference estimates the number of events."""
    lag: timedelta
    """The age of ``tick`` when the batch was opened."""
    sql: str
    """A self-contained query for the events, which gives the same rows on any connection
    (pgq.batch_event_sql)."""
    event_types: Collection[str] | None = None
    tick_snapshot: str | None = field(default=None, repr=False)
    """The snapshot of ``tick``, or None if it is not needed."""
    events_read: int = field(default=0, init=False)
    """The number of events that iteration has fetched so far."""

    retries: Retries = field(default_factory=Retries, init=False, repr=False)
    #: What checks its events, if the consumer has ``check_contracts``.
    validators: Validators | None = field(default=None, repr=False)
    #: Processed so that the writes of one event can be undone: event by event.
    in_pieces: bool = field(default=False, init=False, repr=False)
    #: Called with the events as they are read, if telemetry is on.
    watch: Callable[[list[Event]], None] | None = field(default=None, init=False, repr=False)

    #: What finishes it, if not pgq.finish_batch().
    finish_statement: tuple[bytes, Sequence[Any]] | None = field(default=None, repr=False)

    #: Whether the queue has the batch, so that a failure can be recorded there.
    is_of_queue: ClassVar[bool] = True

    @property
    def retried(self) -> int:
        """The number of events that are retried."""
        return len(self.retries)

    @property
    def identity(self) -> tuple[object, ...]:
        """What a target records of it."""
        ticks = self.prev_tick, self.prev_tick_time, self.tick, self.tick_time
        return self.consumer, self.queue, self.id, *ticks

    def refuse_retries(self) -> None:
        """Raise PgqError if an event was retried, or given up: its consumer keeps the order."""
        if self.retries:
            raise PgqError(
                f"an event of batch {self.id} was retried or given up, but consumer "
                f"{self.consumer} keeps the order of events",
                hint="Raise the error, so that the batch comes again, or use a RemoteConsumer.",
            )

    def stats(self, seconds: float) -> BatchStats:
        """Return the report of the batch, which is finished."""
        return BatchStats(
            queue=self.queue,
            consumer=self.consumer,
            batch_id=self.id,
            tick_id=self.tick,
            events=self.events_read,
            retried=self.retried,
            dead_letters=self.retries.dead_letters,
            seconds=seconds,
            lag=self.lag,
        )


#: The fields of what has no ticks.
NO_TICKS: dict[str, Any] = {"prev_tick": 0, "tick": 0, "seq_start": 0, "seq_end": 0, "sql": ""}


def fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a function which opens batches has returned."""
    return {
        "id": row["batch_id"],
        "prev_tick": row["prev_tick_id"],
        "tick": row["cur_tick_id"],
        "prev_tick_time": row["prev_tick_time"],
        "tick_time": row["cur_tick_time"],
        "seq_start": row["prev_tick_event_seq"],
        "seq_end": row["cur_tick_event_seq"],
        "lag": row["lag"],
        "sql": row["batch_sql"],
        "tick_snapshot": row.get("tick_snapshot"),
    }


@dataclass(eq=False, kw_only=True)
class GroupFields(BatchFields):
    """A batch of a group, with its failed events, and the keys that wait because of them."""

    partition: int
    generation: int
    #: The key as SQL, if events are read on a standby.
    key_sql: str = field(default="", repr=False)
    #: The keys of all events; None: not read yet, because no event has failed.
    keys: dict[int, str] | None = field(default=None, repr=False)
    #: The reasons of failed events, and their delays; None: until they are unparked.
    parks: dict[int, tuple[str, timedelta | None]] = field(
        default_factory=dict, init=False, repr=False
    )
    _waiting: set[str] = field(default_factory=set, init=False, repr=False)

    def park(self, event: Event, reason: str, delay: timedelta | None) -> None:
        """Park an event that failed, and those of its key behind it; `keys` are known."""
        self.parks[event.id] = reason, delay
        self._waiting.add(self.key_of(event))

    def key_of(self, event: Event) -> str:
        """Return the key of an event; `keys` are known."""
        assert self.keys is not None
        return self.keys[event.id]

    def is_parked(self, event: Event) -> bool:
        """Whether an event with the same key, before this one, has failed."""
        return bool(self._waiting) and self.key_of(event) in self._waiting

    @property
    def retried(self) -> int:
        """The number of events that failed."""
        return len(self.parks)

    def _forget_parks(self) -> None:
        self.parks.clear()
        self._waiting.clear()

    def _park_columns(self, encoding: str) -> tuple[list[int], list[str], list[timedelta | None]]:
        """Return event ids, reasons and delays, as arrays of one length."""
        reasons = [storable(reason, encoding) for reason, _ in self.parks.values()]
        return list(self.parks), reasons, [delay for _, delay in self.parks.values()]
