"""Judgement of the readings: stuck consumers, blocked rotation, and the remedies.

Pure functions over `Readings`; the thresholds are stated here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from shlex import quote

from pgqpy.cli._base.output import ago, duration, plural
from pgqpy.cli._status.query import (
    Failing,
    Failure,
    ForeignLock,
    Group,
    Readings,
    Server,
    Transaction,
)
from pgqpy.consumer.progress import BatchProgress
from pgqpy.models import ConsumerInfo, QueueInfo

#: A live ticker ticks an idle queue once in its idle period, one with events within its lag; it
#: may be this much late.
IDLE_GRACE = timedelta(minutes=1)
BUSY_GRACE = timedelta(seconds=5)

#: The operation that the ticker records for maintenance that it does not run.
REFUSED = "pgq.maint_refused"


class ConsumerState(StrEnum):
    """The state of a consumer."""

    OK = "ok"
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


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem that needs attention, and its remedy."""

    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Status:
    """The output of `pgqpy status`; with --json, exactly this."""

    server: Server
    queues: list[QueueStatus]
    old_transactions: list[Transaction]
    foreign_locks: list[ForeignLock]
    failures: list[Failure]
    alerts: list[Alert]


def judge(readings: Readings, patience: timedelta) -> Status:
    """Turn readings into a status. A consumer may lag for `patience` before it is reported."""
    consumers: dict[str, list[ConsumerInfo]] = {info.queue_name: [] for info in readings.queues}
    for each in readings.consumers:
        # One of a queue that was created since the queues were read is left out.
        consumers.get(each.queue_name, []).append(each)
    queues = [
        _queue(readings, info, consumers[info.queue_name], patience) for info in readings.queues
    ]
    alerts = [_failure_alert(failure) for failure in readings.failures]
    alerts += [alert for queue in queues for alert in _alerts(queue, readings.groups, patience)]
    alerts += [_lock_alert(lock) for lock in readings.foreign_locks]
    alerts += [_transaction_alert(old) for old in readings.transactions]
    return Status(
        readings.server,
        queues,
        readings.transactions,
        readings.foreign_locks,
        readings.failures,
        alerts,
    )


def _queue(
    readings: Readings, info: QueueInfo, consumers: list[ConsumerInfo], patience: timedelta
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
        dead_letters=_dead_letters(readings, info.queue_name),
        rotated=now - rotation.rotated_at,
        rotation_due_in=due_in,
        rotation_held_by=held_by,
        consumers=[
            _consumer(readings, consumer, info.ticker_lag or timedelta(), patience)
            for consumer in consumers
        ],
    )


def _dead_letters(readings: Readings, queue: str, consumer: str | None = None) -> int | None:
    """Count a queue's dead letters, of all consumers that were ever registered, or of one."""
    if readings.dead_letters is None:
        return None
    if consumer is not None:
        return readings.dead_letters.get((queue, consumer), 0)
    return sum(number for (name, _), number in readings.dead_letters.items() if name == queue)


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
    if failing is not None:
        state = ConsumerState.FAILING
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
        dead_letters=_dead_letters(readings, info.queue_name, info.consumer_name),
        progress=progress,
        failing=failing,
    )


def _alerts(queue: QueueStatus, groups: list[Group], patience: timedelta) -> Iterator[Alert]:
    if queue.state is QueueState.NO_TICKER:
        last = f"last tick {ago(queue.tick_age)}" if queue.tick_age is not None else "no tick yet"
        yield Alert(
            f"{queue.queue}: no ticker is running ({last}), so its events are not delivered",
            "keep `pgqpy ticker` running",
        )
    failing_ones = [each for each in queue.consumers if each.state is ConsumerState.FAILING]
    stuck_ones = [each for each in queue.consumers if each.state is ConsumerState.STUCK]
    for group in groups:
        if group.queue == queue.queue:
            partitions = [each for each in stuck_ones if each.consumer in group.consumers]
            stuck_ones = [each for each in stuck_ones if each not in partitions]
            yield from _group_alerts(queue, group, partitions)
            partitions = [each for each in failing_ones if each.consumer in group.consumers]
            failing_ones = [each for each in failing_ones if each not in partitions]
            if partitions:
                yield _failing_alert(queue, partitions, patience)
    for consumer in failing_ones:
        yield _failing_alert(queue, [consumer], patience)
    for consumer in stuck_ones:
        batch = f" in batch {consumer.current_batch}" if consumer.current_batch else ""
        yield Alert(
            f"{queue.queue}: {consumer.consumer} is stuck{batch}, {_behind(queue, [consumer])}",
            f"start it again; only if its events are not wanted any more: "
            f"pgqpy consumer unregister {quote(queue.queue)} {quote(consumer.consumer)}",
        )
    told = (ConsumerState.STUCK, ConsumerState.FAILING)
    known = {each.consumer for each in queue.consumers if each.state in told}
    others = [holder for holder in queue.rotation_held_by if holder not in known]
    if others and queue.rotation_due_in is not None:
        yield Alert(
            f"{queue.queue}: rotation is due since {duration(-queue.rotation_due_in)} and waits "
            f"for {', '.join(others)}",
            "it goes on by itself when that has moved on; until then the event tables grow",
        )
    overdue = -queue.rotation_due_in if queue.rotation_due_in is not None else timedelta()
    if overdue > patience and not queue.rotation_held_by:
        yield Alert(
            f"{queue.queue}: rotation is due since {duration(overdue)}, and nothing is known to "
            f"hold it up: maintenance does not run, or fails",
            "keep `pgqpy ticker` running, and see its log",
        )


def _group_alerts(queue: QueueStatus, group: Group, stuck: list[ConsumerStatus]) -> Iterator[Alert]:
    if stuck:
        which = f"{len(stuck)} of {plural(group.partitions, 'partition')} of group {group.name}"
        yield Alert(
            f"{queue.queue}: {which} {'is' if len(stuck) == 1 else 'are'} stuck, "
            f"{_behind(queue, stuck)}",
            f"start a worker; only if its events are not wanted any more: "
            f"pgqpy group drop {quote(queue.queue)} {quote(group.name)}",
        )
    if number := group.keys_given_up:
        yield Alert(
            f"{queue.queue}: {plural(number, 'key')} of group {group.name} failed too often: "
            f"{'it is' if number == 1 else 'they are'} not retried",
            f"see why: pgqpy group parked {quote(queue.queue)} {quote(group.name)}; then unpark",
        )


def _failing_alert(
    queue: QueueStatus, consumers: list[ConsumerStatus], patience: timedelta
) -> Alert:
    """Describe what is wrong with a consumer, or with the group's partition that failed last."""
    failures = [(each, each.failing) for each in consumers if each.failing is not None]
    consumer, failing = min(failures, key=lambda pair: pair[1].last_attempt)
    others = len(consumers) - 1
    also = f" (and {plural(others, 'other partition')})" if others else ""
    event = f" at event {failing.event_id}" if failing.event_id is not None else ""
    again = "its batch comes again by itself, nothing is left out"
    if failing.last_attempt > patience:
        again = f"it was last tried {ago(failing.last_attempt)}: start it again"
    return Alert(
        f"{queue.queue}: {consumer.consumer}{also} fails in batch {failing.batch_id}{event}, "
        f"{plural(failing.attempts, 'time')} since {duration(failing.age)}, "
        f"{_behind(queue, consumers)}: {failing.error}",
        f"remove the cause; {again}",
    )


def _behind(queue: QueueStatus, consumers: list[ConsumerStatus]) -> str:
    """Describe when they were last seen, and how far the last of them is behind."""
    seen = min((each.last_seen for each in consumers if each.last_seen is not None), default=None)
    events = max((each.pending_events or 0 for each in consumers), default=0)
    holds = any(each.consumer in queue.rotation_held_by for each in consumers)
    waits = f"; rotation waits for {'it' if len(consumers) == 1 else 'them'}" if holds else ""
    return f"last seen {ago(seen)}, {plural(events, 'event')} behind{waits}"


def _failure_alert(failure: Failure) -> Alert:
    if failure.operation == REFUSED:
        return Alert(
            f"{failure.error} (since {duration(failure.age)})",
            "drop it if it is not yours; what maintenance runs must belong to the ticker's role, "
            "to pgq_owner or to a superuser, and so must its schema",
        )
    argument = f" of {failure.argument}" if failure.argument is not None else ""
    return Alert(
        f"the ticker fails in {failure.operation}{argument} since {duration(failure.age)}: "
        f"{failure.error}",
        "remove the cause; the ticker tries again by itself, and does everything else meanwhile",
    )


def _lock_alert(lock: ForeignLock) -> Alert:
    if lock.pid is None:
        gid = "'" + lock.holder.replace("'", "''") + "'"
        return Alert(
            f"prepared transaction {lock.holder} of {lock.username}, which has no role of pgq, "
            f"holds up {lock.lock}",
            f"rollback prepared {gid}",
        )
    return Alert(
        f"session {lock.pid} of {lock.username} ({lock.holder or 'no name'}), which has no role "
        f"of pgq, holds up {lock.lock}",
        f"select pg_terminate_backend({lock.pid}), and see to it that it does not come back",
    )


def _transaction_alert(old: Transaction) -> Alert:
    if old.kind == "prepared":
        gid = "'" + old.name.replace("'", "''") + "'"
        return Alert(
            f"prepared transaction {old.name} of {old.username} is {duration(old.age)} old",
            f"commit prepared {gid}, or rollback prepared {gid}",
        )
    return Alert(
        f"session {old.name} of {old.username} ({old.application or 'no name'}, {old.state}) "
        f"has had a transaction open for {duration(old.age)}",
        f"end it, or: select pg_terminate_backend({old.name})",
    )
