"""Results of the information functions, and reports of consumers, as values.

Fields have the names of PgQ's result columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal, Self

from pgqpy.event import Event

Start = Literal["first", "now"] | datetime
"""Where a new consumer's events begin: with the oldest there are, those to come, or at a time."""


@dataclass(frozen=True, slots=True)
class _Row:
    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Pick this class's columns; a newer schema may return more."""
        names: tuple[str, ...] = cls.__match_args__
        return cls(*[row[name] for name in names])


@dataclass(frozen=True, slots=True)
class QueueInfo(_Row):
    """A queue: its settings and state (pgq.get_queue_info).

    ``ticker_lag`` is the age of the last tick, ``ev_per_sec`` the rate between recent ticks,
    ``ev_new`` the number of events since the last tick.
    """

    queue_name: str
    queue_ntables: int
    queue_cur_table: int
    queue_rotation_period: timedelta
    queue_switch_time: datetime
    queue_external_ticker: bool
    queue_ticker_paused: bool
    queue_ticker_max_count: int
    queue_ticker_max_lag: timedelta
    queue_ticker_idle_period: timedelta
    ticker_lag: timedelta | None
    ev_per_sec: float | None
    ev_new: int | None
    last_tick_id: int | None


@dataclass(frozen=True, slots=True)
class ContractInfo(_Row):
    """The contract for a type of event, with its version in force (pgq.get_contract_info).

    ``ev_type`` None: for all types without a contract of their own. ``captured``: the columns of a
    captured table, against which nothing is checked.
    """

    queue_name: str
    ev_type: str | None
    version: int
    compatibility: Literal["none", "backward", "full"]
    enforced: bool
    added: datetime
    captured: bool


@dataclass(frozen=True, slots=True)
class Contract(_Row):
    """A version of a contract with its schema (pgq.get_contract)."""

    ev_type: str | None
    version: int
    schema: dict[str, Any]
    compatibility: Literal["none", "backward", "full"]
    enforced: bool
    added: datetime


@dataclass(frozen=True, slots=True)
class ConsumerInfo(_Row):
    """A consumer on a queue (pgq.get_consumer_info).

    ``lag`` is the age of its position, ``last_seen`` the time since it last took or finished a
    batch, ``pending_events`` an estimate of the events that it has not read.
    """

    queue_name: str
    consumer_name: str
    lag: timedelta | None
    last_seen: timedelta | None
    last_tick: int | None
    current_batch: int | None
    next_tick: int | None
    pending_events: int | None


@dataclass(frozen=True, slots=True)
class ConsumerPause(_Row):
    """A consumer, or a partition of a group, that is paused (pgq.get_paused_consumers)."""

    queue_name: str
    consumer_name: str
    #: Start of the pause.
    paused: datetime


@dataclass(frozen=True, slots=True)
class EventPlace(_Row):
    """Where an event is: itself (``consumer`` None), or for a consumer (pgq.where_is_event).

    ``since`` is the time of the event, or when the batch was opened, the key parked, the event
    given up; ``due`` when a delayed event or retry is delivered. ``attempt`` is the coming or
    present one. An event that is not read lies ``events`` and ``ticks`` behind the position.
    """

    consumer: str | None
    worker: str | None
    partition: int | None
    state: Literal[
        "stored",
        "delayed",
        "not committed",
        "not kept",
        "absent",
        "no tick yet",
        "not read",
        "in batch",
        "done",
        "retry",
        "parked",
        "dead letter",
        "skipped",
        "registered later",
        "unknown",
    ]
    since: datetime | None
    due: datetime | None
    attempt: int | None
    events: int | None
    ticks: int | None
    batch_id: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class BatchInfo(_Row):
    """An open batch (pgq.get_batch_info): the events between two ticks.

    ``seq_start`` and ``seq_end`` are the event sequence at the ticks; their difference estimates
    the number of events.
    """

    queue_name: str
    consumer_name: str
    batch_start: datetime
    batch_end: datetime
    prev_tick_id: int
    tick_id: int
    lag: timedelta
    seq_start: int
    seq_end: int


@dataclass(frozen=True, slots=True)
class NextBatch(_Row):
    """A batch that was just opened (pgq.next_batch_info and its relatives)."""

    batch_id: int
    cur_tick_id: int
    prev_tick_id: int
    cur_tick_time: datetime
    prev_tick_time: datetime
    cur_tick_event_seq: int
    prev_tick_event_seq: int


@dataclass(frozen=True, slots=True)
class GroupInfo(_Row):
    """A consumer group (pgq.get_group_info).

    ``workers`` counts its members; ``lag`` and ``pending_events`` are those of the slowest
    partition. While it is resized ``resize_to`` is the future number of partitions, and
    ``resize_tick`` the tick that all must reach before.
    """

    queue_name: str
    group_name: str
    partitions: int
    key: str
    lease: timedelta
    park_limit: int
    workers: int
    lag: timedelta | None
    pending_events: int | None
    parked_keys: int
    parked_events: int
    resize_to: int | None
    resize_tick: int | None


@dataclass(frozen=True, slots=True)
class GroupPartition(_Row):
    """A partition of a consumer group (pgq.get_group_partitions).

    ``worker`` is its owner's name, None if it is free; ``last_seen`` the time since the owner's
    last heartbeat. ``pending_events`` estimates the events of all keys behind ``last_tick``. A
    partition that ``is_full`` takes no batches: too many events are parked.
    """

    partition: int
    consumer_name: str
    worker: str | None
    last_seen: timedelta | None
    lag: timedelta | None
    pending_events: int | None
    last_tick: int | None
    current_batch: int | None
    parked_keys: int
    parked_events: int
    is_full: bool


@dataclass(frozen=True, slots=True)
class QueueGrant(_Row):
    """Rights of a role on a queue (pgq.get_queue_grants).

    ``role`` is None for a restricted queue without grants, ``consumer`` for all consumers.
    """

    queue_name: str
    restricted: bool
    role: str | None
    consumer: str | None
    actions: list[str] | None


@dataclass(frozen=True, slots=True)
class ParkedKey(_Row):
    """A key whose events are parked (pgq.get_parked_keys).

    ``first_event`` is the id of the first; it has failed ``attempts`` times, the last time because
    of ``error``, and is retried at ``next_attempt`` (None: when it is unparked).
    """

    key: str
    partition: int
    events: int
    first_event: int | None
    attempts: int
    parked_since: datetime
    next_attempt: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class BatchStats:
    """A batch that a consumer has finished.

    ``events`` counts the events read, ``retried`` the retries, ``dead_letters`` those given up;
    ``seconds`` is the time from opening to commit; ``lag`` the age of the batch's end when it was
    opened.
    """

    queue: str
    consumer: str
    batch_id: int
    tick_id: int
    events: int
    retried: int
    seconds: float
    lag: timedelta
    dead_letters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """A filter for dead letters: all given conditions must apply.

    ``reason`` is a part of the reason, in upper or lower case; ``older_than`` the minimum time
    since they were given up, as an interval or as PostgreSQL writes one (``"30 days"``).
    """

    ids: Collection[int] | None = None
    queue: str | None = None
    consumer: str | None = None
    event_type: str | None = None
    reason: str | None = None
    older_than: timedelta | str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """A dead letter.

    ``consumer`` gave ``event`` up at ``time``, in batch ``batch_id``, after ``attempts`` attempts,
    for ``reason``; ``traceback`` is None if it was given up on purpose.
    """

    id: int
    time: datetime
    queue: str
    consumer: str
    batch_id: int
    attempts: int
    reason: str
    traceback: str | None
    event: Event

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Make it from the columns of pgq.dead_letter."""
        values = list(row.values())
        *names, _ = (field.name for field in fields(cls))
        return cls(**dict(zip(names, values, strict=False)), event=Event(*values[len(names) :]))
