# WARNING: generated from pgqpy/consumer/base_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers: the class to subclass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Literal, TypedDict

from psycopg import IsolationLevel

from pgqpy import dsn as dsns
from pgqpy._runtime.checks import (
    COUNT,
    EXCEPTIONS,
    INTERVAL,
    SECONDS,
    SEVERAL,
    START,
    check_handler,
    check_hooks,
    check_overridden,
    check_policy,
    check_returned,
    check_settings,
)
from pgqpy._runtime.failure import blame, decide, is_outage
from pgqpy._runtime.listener import Subscription
from pgqpy._runtime.session import Session
from pgqpy._runtime.stoppable import Stoppable
from pgqpy.admin import Admin
from pgqpy.connection import Connection, connect
from pgqpy.consumer._concurrency import concurrency
from pgqpy.consumer._events import EventByEvent
from pgqpy.consumer._loop import Batches, Loop
from pgqpy.consumer._standby import Standby
from pgqpy.consumer.batch import Batch
from pgqpy.consumer.progress import session_name
from pgqpy.errors import InvalidConsumer
from pgqpy.event import Event, UnreadableEvent
from pgqpy.log import logger
from pgqpy.models import BatchStats, Start
from pgqpy.retry import DeadLetter, Retry, RetryPolicy
from pgqpy.telemetry import _spans as spans


class ConsumerOptions(TypedDict, total=False):
    """The arguments that all consumers take; see `Consumer`."""

    queue: str | None
    consumer: str | None
    start: Start | None
    handler: Callable[[Connection, Event], object] | None
    batch_size: int | None
    concurrency: int | None
    listen_dsn: str | None
    read_dsn: str | None
    prepare_threshold: int | None


class RunOptions(TypedDict, total=False):
    """The arguments of `run`, for classes that override it; see `Consumer.run`."""

    until_empty: bool
    handle_signals: bool
    ticker: Literal["auto"] | None


# Long: a setting each, which subclasses override.
class Consumer(Stoppable):
    """Takes a queue's events in batches and stores its position.

    Subclass it, name the queue and the consumer, and process events::

        class DelayCounter(Consumer):
            queue = "flights"
            consumer = "delay_counter"

            def process_event(self, conn, event):
                ...

    Each batch is processed and finished in one transaction: the writes of ``process_batch`` on
    ``conn`` commit exactly when the batch is finished, so effects in this database happen exactly
    once. If it raises, all is rolled back and the same batch is retried, after pauses that double
    up to ``backoff_cap``. Effects elsewhere happen at least once.

    With a ``retry_policy`` an event for which ``process_event`` raises does not block the others:
    its writes are rolled back, and it is scheduled for a retry, or becomes a dead letter, in the
    transaction that commits the others' effects.

    The batch is opened in a transaction of its own, so that it stays the same batch, with the same
    id, across failures. Until ``process_batch`` uses ``conn``, its transaction holds no snapshot.
    """

    queue: str = ""
    """The queue to read."""
    consumer: str = ""
    """The name under which the queue stores its position."""
    start: Start = "now"
    """Where its events begin, when it is registered for the first time. "now": events from before
    that are not delivered. "first": with the oldest that the queue still has (its setting ``keep``
    says for how long). A datetime with a time zone: with those of then, and some from just before,
    since positions are ticks."""

    batch_size: int | None = 10_000
    """Take ticks together as one batch up to about this many events. None: one tick at a time."""
    event_types: Collection[str] | None = None
    """Only events of these types; the server does not send the others. None: all."""
    min_lag: timedelta | None = None
    """The minimum age of events: younger ones wait. None: no minimum."""
    max_lag: timedelta | None = None
    """The age of a batch, when it is opened, above which `on_lag` is called."""

    listen: bool = True
    """Whether to be notified of new ticks by LISTEN, if that is possible."""
    poll_interval: float = 1.0
    """Seconds between polls for a batch; a hundred times that while LISTEN is known to work."""
    read_patience: float | None = 10.0
    """Seconds to wait for the standby of ``read_dsn``, before batches are read on the primary.
    None: they never are; a batch that the standby lacks is retried."""

    retry_policy: RetryPolicy | None = None
    """The action for an event for which `process_event` raises: a `FixedDelay`, an
    `ExponentialBackoff`, or any function of the attempt (1 for the first) and the error that
    returns the seconds until the retry, or None for a dead letter; in a class, a method or a
    staticmethod. None: the whole batch is retried until the event succeeds."""
    outages: tuple[type[Exception], ...] = ()
    """Errors of `process_event` that are not the event's fault: the whole batch waits and is
    retried. Lost connections, deadlocks, serialization failures, unavailable locks and full disks
    of PostgreSQL always count as such."""
    concurrency: int = 1
    """With asyncio only: the number of events of a batch to process concurrently, in no order. On
    ``conn`` each event is alone from its first statement until it returns, so use it late."""

    check_contracts: bool = False
    """Whether an event that does not fit the queue's contract fails with ContractViolation,
    instead of `process_event` being called. It needs the extra ``contracts``."""

    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """The isolation level of the transactions in which batches are processed."""

    backoff_first: float = 0.5
    """Seconds before the first retry of a failed batch."""
    backoff_cap: float = 60.0
    """The maximum seconds before a retry of a failed batch."""
    reconnect_cap: float = 5.0
    """The maximum seconds between attempts to reconnect; a quarter of a second while no server
    listens, so that an outage ends when the server is back."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue: str | None = None,
        consumer: str | None = None,
        start: Start | None = None,
        handler: Callable[[Connection, Event], object] | None = None,
        batch_size: int | None = None,
        concurrency: int | None = None,
        listen_dsn: str | None = None,
        read_dsn: str | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """``dsn`` is read by `pgqpy.dsn.resolve`; names and settings here win over the class's.

        The ``handler`` is called like `process_event`, which need not be overridden then.
        Behind a PgBouncer in transaction mode, ``listen_dsn`` goes around it, and
        ``prepare_threshold=None`` if it does not support prepared statements. With ``read_dsn``
        events are read there, on a standby of the queue's server, as soon as it has replayed them.
        """
        self.dsn = dsns.resolve(dsn)
        self.queue = queue or self.queue
        self.consumer = consumer or self.consumer
        if not (self.queue and self.consumer):
            raise InvalidConsumer(f"{type(self).__name__} needs a queue and a consumer")
        self.start = self.start if start is None else start
        self.batch_size = self.batch_size if batch_size is None else batch_size
        self.concurrency = self.concurrency if concurrency is None else concurrency
        self.handler = handler
        self.listen_dsn = self.dsn if listen_dsn is None else listen_dsn
        self.read_dsn = read_dsn
        self.prepare_threshold = prepare_threshold

    # --- to be overridden: processing

    def process_batch(self, conn: Connection, batch: Batch) -> None:
        """Process a batch inside the transaction that ``conn`` begins when it is first used.

        A batch may be empty, if the transactions of its events were rolled back; heartbeats of an
        idle queue are no batches. Leave the transaction open; ``conn.transaction()`` gives
        savepoints. The default calls `process_event` for each event, and applies ``retry_policy``.
        """
        process = self._traced(batch, partial(self.process_event, conn))
        self._process_each(conn, batch, process)

    def process_event(self, conn: Connection, event: Event) -> None:
        """Process an event inside the batch's transaction.

        Raise `Retry` to retry it later, `DeadLetter` to give it up; for other errors
        ``retry_policy`` decides. Either way the writes for it are rolled back. The default calls
        the handler.
        """
        self._handle(conn, event)

    # --- to be overridden: reports

    def on_batch(self, stats: BatchStats) -> None:
        """Called when a batch is committed: the place for metrics."""

    def on_error(self, error: Exception, batch: Batch | None) -> None:
        """Called when a batch was rolled back, or (without a batch) when the database is away.

        It will be retried; raise here to leave `run` instead. The error is logged already.
        """

    def on_event_failed(self, event: Event, error: Exception, delay: timedelta | None) -> None:
        """Called when an event failed; it is retried after ``delay``, None: it is a dead letter.

        Both happen when the batch is finished. The error is logged already. Raise here to retry the
        whole batch instead.
        """

    def on_lag(self, lag: timedelta, batch: Batch) -> None:
        """Called for a batch older than ``max_lag``. It logs a warning; raise to leave `run`."""
        logger.warning(
            "consumer %s lags %s behind", self.consumer, lag, extra=self.log_fields(batch)
        )

    # --- to be overridden: what surrounds a batch

    def wants_batch(self, conn: Connection) -> bool:
        """Whether to open a batch now; asked before each, with the connection that opens it.

        If not, `run` waits and asks again, or ends if it is to run until the queue is empty.
        """
        return True

    def around_batch(
        self, batch: Batch, idle: Callable[[], Connection]
    ) -> AbstractContextManager[None]:
        """Return a block around the processing of a batch and its commit.

        ``idle`` returns the connection that reads events; nothing else uses it if the batch is not
        iterated.
        """
        return nullcontext()

    # --- the life of a consumer

    def register(self, *, at_tick: int | None = None) -> bool:
        """Register, to get all events from ``start`` on, or after ``at_tick``.

        False if it was registered already: without ``at_tick`` it then keeps its position.
        Raises QueueNotFound, TickNotFound if the queue does not have all these events any more,
        InvalidParameter if ``start`` is in the future, NoTicks, PermissionDenied, ConnectionFailed.
        """
        with connect(self.dsn) as conn:
            admin = Admin(conn)
            if at_tick is None:
                return admin.register_consumer(self.queue, self.consumer, self.start)
            return admin.register_consumer_at(self.queue, self.consumer, at_tick)

    def unregister(self) -> bool:
        """Delete the position and the pending retries; False if there was none."""
        with connect(self.dsn) as conn:
            return bool(Admin(conn).unregister_consumer(self.queue, self.consumer))

    def run_once(self) -> bool:
        """Process one batch, if there is one; False if not. Raises any error."""
        with self._loop(handle_signals=False, strict=True, ticker=None) as loop:
            return loop.step()

    def run(
        self,
        *,
        until_empty: bool = False,
        handle_signals: bool = True,
        ticker: Literal["auto"] | None = None,
    ) -> None:
        """Process batches until `stop`, or with ``until_empty`` until there are no more.

        Registers the consumer first if it is not: it then gets the events from ``start`` on, by
        default those that come from now on.

        Survives errors of `process_batch` and the loss of the database. Raises ConnectionFailed if
        it cannot connect at the start, and QueueNotFound if there is no queue. Later it raises
        only, and at once, errors that waiting does not cure: QueueNotFound if the queue was
        dropped, ConsumerNotRegistered if it was unregistered; with ``until_empty`` any error.

        In the main thread SIGTERM and SIGINT stop it after the batch (a second one, at once),
        unless ``handle_signals`` is false; handlers are as before when it returns.

        With ``ticker="auto"`` this process makes the ticks while no other ticker does: a thread
        beside the consumer leads the database's tickers, or stands by. It needs the role
        pgq_admin, and begins by raising PermissionDenied if that is missing.
        """
        with self._loop(handle_signals=handle_signals, strict=until_empty, ticker=ticker) as loop:
            loop.run(until_empty=until_empty)

    def fail_event(self, batch: Batch, event: Event, error: Exception) -> None:
        """Apply the error and ``retry_policy`` to an event.

        The batch records a retry or dead letter. Use it in a `process_batch` that catches errors of
        single events itself, and rolls back their writes. Raises ``error`` if there is no policy,
        or if it is an outage.
        """
        if not self._is_for_policy(error):
            blame(event.id, error)
            raise error
        attempt = event.retry_count + 1
        failure = decide(error, attempt, self.retry_policy)
        if failure.delay is None:
            batch.retries.give_up(event.id, failure.reason, failure.cause)
        else:
            batch.retries.add(event.id, failure.delay)
        failure.log(
            f"event {event.id}",
            attempt,
            self.log_fields(batch) | {"event_id": event.id} | spans.trace_fields(event),
            end="becomes a dead letter",
        )
        self.on_event_failed(event, error, failure.delay)

    def session_name(self) -> str:
        """Return the name of its sessions, which ``pg_stat_activity`` shows to all; cut at 63
        bytes."""
        return session_name(self.consumer)

    def log_fields(self, batch: Batch | None = None) -> dict[str, Any]:
        """Return the fields of every log line, and those of a batch."""
        fields: dict[str, Any] = {"queue": self.queue, "consumer": self.consumer}
        if batch is not None:
            fields |= {
                "batch_id": batch.id,
                "tick_id": batch.tick,
                "lag": batch.lag.total_seconds(),
            }
        return fields

    # --- helpers

    def _check(self) -> None:
        """Raise InvalidConsumer if the class cannot work."""
        self._check_way(Consumer, "process_batch", "process_event")
        check_settings(self, _SETTINGS)
        check_hooks(self)
        if self.retry_policy is not None:
            check_policy(self.retry_policy)

    def _check_way(self, base: type, *names: str) -> None:
        """Raise InvalidConsumer unless it has a handler, or overrides one of these methods."""
        if self.handler is None:
            check_overridden(self, base, *names)
            return
        check_handler(self, self.handler, "conn", "event")
        for name in dir(type(self)):
            method = getattr(type(self), name)
            if name.startswith("process_") and not method.__module__.startswith("pgqpy."):
                raise InvalidConsumer(f"{type(self).__name__} has a handler and {name}: give one")

    def _handle(self, conn: Connection, event: Event) -> None:
        if self.handler is None:
            raise NotImplementedError
        check_returned(self.handler(conn, event))

    def _batches(self) -> Batches:
        """Return the batches of one run."""
        return Batches(self)

    @contextmanager
    def _loop(
        self, *, handle_signals: bool, strict: bool, ticker: Literal["auto"] | None
    ) -> Iterator[Loop]:
        self._check()
        with (
            self._running(handle_signals=handle_signals) as waker,
            self._ticking(waker, self.listen_dsn, ticker),
        ):
            session = Session(
                self.dsn,
                Subscription(self.listen_dsn, self.queue) if self.listen else None,
                application_name=self.session_name(),
                prepare_threshold=self.prepare_threshold,
                isolation_level=self.isolation_level,
            )
            batches = self._batches()
            if self.read_dsn is not None:
                connect = partial(session.connect_to_read, self.read_dsn)
                batches.standby = Standby(self, waker, connect)
            try:
                yield Loop(self, batches, session, waker, strict=strict)
            finally:
                batches.close(session)
                session.close()
                if batches.standby is not None:
                    batches.standby.close()

    def _traced(self, batch: Batch, process: Callable[[Event], object]) -> Callable[[Event], None]:
        """Return what processes an event, within a span if telemetry is on."""

        def processed(event: Event) -> None:
            if (outcome := process(event)) is not None:
                check_returned(outcome)

        if spans.active is None:
            return processed

        def in_a_span(event: Event) -> None:
            with spans.processing_event(batch, event):
                processed(event)

        current = spans.active.one_by_one(batch) if self.concurrency == 1 else None
        if current is None:
            return in_a_span

        def one_by_one(event: Event) -> None:
            current.event, current.began = event, monotonic()
            try:
                processed(event)
            except Exception as error:
                current.failed(error)
                raise
            finally:
                current.event = None

        return one_by_one

    def _process_each(
        self,
        conn: Connection,
        batch: Batch,
        process: Callable[[Event], None],
        *,
        at_once: int | None = None,
    ) -> None:
        """Process a batch event by event in the transaction of ``conn``."""
        fail = partial(self.fail_event, batch)
        validators = batch.validators

        def checked(event: Event) -> None:
            if validators is not None and not isinstance(event, UnreadableEvent):
                validators.check(event.type, event.data)
            process(event)

        run = process if validators is None else checked
        each = EventByEvent(conn, batch, run, self._is_for_policy, fail)
        each.run(at_once or self.concurrency)

    def _is_for_policy(self, error: Exception) -> bool:
        """Whether an error of `process_event` concerns only its event."""
        if isinstance(error, Retry | DeadLetter):
            return True
        return self.retry_policy is not None and not is_outage(error, self.outages)


_SETTINGS = {
    "batch_size": COUNT.or_none(),
    "concurrency": concurrency,
    "read_patience": SECONDS.or_none(),
    **dict.fromkeys(("poll_interval", "backoff_first", "backoff_cap", "reconnect_cap"), SECONDS),
    **dict.fromkeys(("min_lag", "max_lag"), INTERVAL.or_none()),
    "event_types": SEVERAL,
    "outages": EXCEPTIONS,
    "start": START,
}
