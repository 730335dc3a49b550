"""The states of queues and consumers: pure functions of the readings.

The thresholds are stated here and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pgqpy.consumer.progress import BatchProgress
from pgqpy.doctor._readings import Failing, Readings
from pgqpy.models import ConsumerInfo, QueueInfo

#: A live ticker ticks an idle queue once in its idle period, one with events within its lag; it
#: may be this much late.
IDLE_GRACE = timedelta(minutes=1)
BUSY_GRACE = timedelta(seconds=5)


class ConsumerState(StrEnum):
    """The state of a consumer."""

    OK = "ok"
    PAUSED = "paused"  # it opens no batches until it is resumed
    BEHIND = "behind"  # it works, and its position is old
    FAILING = "failing"  # its open batch failed, and is retried
    STUCK = "stuck"  # its position is old, and it has not been seen since


class QueueState(StrEnum):
    """The state of a queue."""

    TICKING = "ticking"
    PAUSED = "paused"
    EXTERNAL = "external"  # another program makes its ticks
    NO_TICKER = "no ticker"


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """One consumer of one queue."""

    consumer: str
    state: ConsumerState
    lag: timedelta | None
    last_seen: timedelta | None
    pending_events: int | None
    last_tick: int | None
    current_batch: int | None
    dead_letters: int | None
    progress: BatchProgress | None
    failing: Failing | None
    #: Start of its pause.
    paused: datetime | None = None


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue, its rates, its rotation, and its consumers."""

    queue: str
    state: QueueState
    last_tick: int | None
    tick_age: timedelta | None
    events_per_second: float | None
    unticked_events: int | None
    retry_events: int | None
    delayed_events: int | None
    next_due_in: timedelta | None
    dead_letters: int | None
    rotated: timedelta
    rotation_due_in: timedelta | None
    rotation_held_by: list[str]
    consumers: list[ConsumerStatus]

    @property
    def lag(self) -> timedelta | None:
        """The age of the position of the consumer that is farthest behind."""
        return max((each.lag for each in self.consumers if each.lag is not None), default=None)

    def unread_by(self, consumer: ConsumerStatus) -> int | None:
        """Return the events that a consumer has not read, also those that no tick covers yet."""
        if consumer.pending_events is None:
            return None
        return consumer.pending_events + (self.unticked_events or 0)

    @property
    def unread(self) -> int | None:
        """The events that this consumer, or another one, has not read."""
        found = [each for each in map(self.unread_by, self.consumers) if each is not None]
        return max(found, default=None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The states of queues and consumers, and the readings from which they follow."""

    readings: Readings
    queues: list[QueueStatus]
    patience: timedelta

    def consumers(self, *states: ConsumerState) -> Iterator[tuple[QueueStatus, ConsumerStatus]]:
        """Return the consumers in these states, with their queues."""
        for queue in self.queues:
            for consumer in queue.consumers:
                if consumer.state in states:
                    yield queue, consumer


def judge(readings: Readings, patience: timedelta) -> Judgement:
    """Judge readings. A consumer may lag for `patience` before it is behind."""
    consumers: dict[str, list[ConsumerInfo]] = {info.queue_name: [] for info in readings.queues}
    for each in readings.consumers:
        # One of a queue that was created since the queues were read is left out.
        consumers.get(each.queue_name, []).append(each)
    letters: Counter[str] = Counter()
    for (queue, _), number in (readings.dead_letters or {}).items():
        # Of all consumers that were ever registered.
        letters[queue] += number
    queues = [
        _queue(readings, info, consumers[info.queue_name], letters[info.queue_name], patience)
        for info in readings.queues
    ]
    return Judgement(readings, queues, patience)


def _queue(
    readings: Readings,
    info: QueueInfo,
    consumers: list[ConsumerInfo],
    dead_letters: int,
    patience: timedelta,
) -> QueueStatus:
    rotation = readings.rotations[info.queue_name]
    now = readings.server.time
    delayed = readings.delayed.get(info.queue_name)
    due_in = rotation.rotation_due_at - now if rotation.rotation_due_at else None
    if due_in is None or due_in > timedelta():
        held_by = []
    elif rotation.held_by_transaction:
        held_by = ["an open transaction"]
    else:
        held_by = rotation.consumers_before_switch
    return QueueStatus(
        queue=info.queue_name,
        state=_queue_state(info),
        last_tick=info.last_tick_id,
        tick_age=info.ticker_lag,
        events_per_second=info.ev_per_sec,
        unticked_events=info.ev_new,
        retry_events=delayed.retry_events if delayed else None,
        delayed_events=delayed.delayed_events if delayed else None,
        next_due_in=delayed.next_due - now if delayed and delayed.next_due else None,
        dead_letters=None if readings.dead_letters is None else dead_letters,
        rotated=now - rotation.rotated_at,
        rotation_due_in=due_in,
        rotation_held_by=held_by,
        consumers=[
            _consumer(readings, consumer, info.ticker_lag or timedelta(), patience)
            for consumer in consumers
        ],
    )


def _queue_state(info: QueueInfo) -> QueueState:
    if info.queue_ticker_paused:
        return QueueState.PAUSED
    if info.queue_external_ticker:
        return QueueState.EXTERNAL
    allowed = (
        info.queue_ticker_max_lag + BUSY_GRACE
        if info.ev_new
        else info.queue_ticker_idle_period + IDLE_GRACE
    )
    # A tick in the future was made before the clock was set back: a ticker makes another at once.
    late = info.ticker_lag is None or not -BUSY_GRACE <= info.ticker_lag <= allowed
    return QueueState.NO_TICKER if late else QueueState.TICKING


def _consumer(
    readings: Readings, info: ConsumerInfo, tick_age: timedelta, patience: timedelta
) -> ConsumerStatus:
    progress = readings.batches.get(info.current_batch or 0)
    failing = readings.failing.get((info.queue_name, info.consumer_name))
    # Without a ticker all positions get older; that is not the consumers' fault.
    behind = (info.lag or timedelta()) - tick_age > patience
    # A consumer is seen when it opens or finishes a batch; a batch may take longer than that.
    away = info.last_seen is not None and info.last_seen > patience and progress is None
    state = ConsumerState.OK
    paused = readings.paused.get((info.queue_name, info.consumer_name))
    if failing is not None:
        state = ConsumerState.FAILING
    elif paused is not None:
        state = ConsumerState.PAUSED
    elif behind:
        state = ConsumerState.STUCK if away else ConsumerState.BEHIND
    return ConsumerStatus(
        consumer=info.consumer_name,
        state=state,
        lag=info.lag,
        last_seen=info.last_seen,
        pending_events=info.pending_events,
        last_tick=info.last_tick,
        current_batch=info.current_batch,
        dead_letters=(
            None
            if readings.dead_letters is None
            else readings.dead_letters.get((info.queue_name, info.consumer_name), 0)
        ),
        progress=progress,
        failing=failing,
        paused=paused,
    )
