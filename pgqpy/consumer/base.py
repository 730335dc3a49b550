# WARNING: generated from pgqpy/consumer/base_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers: the class to subclass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from pgqpy import dsn as dsns
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.batch_connection import BatchConnection
from pgqpy._runtime.checks import (
    COUNT,
    EXCEPTIONS,
    INTERVAL,
    SECONDS,
    SEVERAL,
    check_hooks,
    check_overridden,
    check_policy,
    check_settings,
)
from pgqpy._runtime.error_origin import blame, blamed
from pgqpy._runtime.failure import decide, is_outage, storable
from pgqpy._runtime.listener import Subscription
from pgqpy._runtime.log import logger
from pgqpy._runtime.session import Session
from pgqpy._runtime.stoppable import Stoppable
from pgqpy._wire.statements import next_batch
from pgqpy.admin import Admin
from pgqpy.connection import Connection, connect
from pgqpy.consumer._event_by_event import EventByEvent, RunInPieces
from pgqpy.consumer._lanes import Lanes
from pgqpy.consumer.batch import Batch
from pgqpy.errors import (
    PERMANENT,
    BatchLost,
    ConnectionFailed,
    InvalidConsumer,
    LeaseLost,
    PgqError,
    translate_errors,
)
from pgqpy.event import Event
from pgqpy.models import BatchStats
from pgqpy.retry import DeadLetter, Retry, RetryPolicy, in_short


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

    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    """The isolation level of the transactions in which batches are processed."""

    backoff_first: float = 0.5
    """Seconds before the first retry of a failed batch."""
    backoff_cap: float = 60.0
    """The maximum seconds before a retry of a failed batch."""
    reconnect_cap: float = 5.0
    """The maximum seconds between attempts to reconnect."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue: str | None = None,
        consumer: str | None = None,
        listen_dsn: str | None = None,
        prepare_threshold: int | None = 5,
    ) -> None:
        """``dsn`` is read by `pgqpy.dsn.resolve`; the names here win over the class's.

        Behind a PgBouncer in transaction mode, ``listen_dsn`` goes around it, and
        ``prepare_threshold=None`` if it does not support prepared statements.
        """
        self.dsn = dsns.resolve(dsn)
        self.queue = queue or self.queue
        self.consumer = consumer or self.consumer
        if not (self.queue and self.consumer):
            raise InvalidConsumer(f"{type(self).__name__} needs a queue and a consumer")
        self._listen_dsn = self.dsn if listen_dsn is None else listen_dsn
        self._prepare_threshold = prepare_threshold

    #: Pauses after the loss of the database, and after a failed batch.
    _lost: Backoff
    _failed: Backoff
    #: A failure that lost its connection, to be recorded over the next one.
    _unnoted: tuple[Batch, Exception] | None = None

    # --- to be overridden

    def process_batch(self, conn: Connection, batch: Batch) -> None:
        """Process a batch inside the transaction that ``conn`` begins when it is first used.

        A batch may be empty, if the transactions of its events were rolled back; heartbeats of an
        idle queue are no batches. Leave the transaction open; ``conn.transaction()`` gives
        savepoints. The default calls `process_event` for each event, and applies ``retry_policy``.
        """
        each = EventByEvent(
            conn,
            batch,
            partial(self.process_event, conn),
            self._is_for_policy,
            partial(self.fail_event, batch),
        )
        each.run(self.concurrency)

    def process_event(self, conn: Connection, event: Event) -> None:
        """Process an event inside the batch's transaction.

        Raise `Retry` to retry it later, `DeadLetter` to give it up; for other errors
        ``retry_policy`` decides. Either way the writes for it are rolled back.
        """
        raise NotImplementedError

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
        logger.warning("consumer %s lags %s behind", self.consumer, lag, extra=self._fields(batch))

    # --- the life of a consumer

    def register(self, *, at_tick: int | None = None) -> bool:
        """Register, to get all events after the newest tick, or after ``at_tick``.

        False if it was registered already: without ``at_tick`` it then keeps its position.
        Raises QueueNotFound, TickNotFound, NoTicks, PermissionDenied, ConnectionFailed.
        """
        with connect(self.dsn) as conn:
            admin = Admin(conn)
            if at_tick is None:
                return admin.register_consumer(self.queue, self.consumer)
            return admin.register_consumer_at(self.queue, self.consumer, at_tick)

    def unregister(self) -> bool:
        """Delete the position and the pending retries; False if there was none."""
        with connect(self.dsn) as conn:
            return bool(Admin(conn).unregister_consumer(self.queue, self.consumer))

    def run_once(self) -> bool:
        """Process one batch, if there is one; False if not. Raises any error."""
        with self._running(handle_signals=False), self._session() as session:
            return self._next(session, tolerant=False)

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Process batches until `stop`, or with ``until_empty`` until there are no more.

        Registers the consumer first if it is not: it then gets the events that come from now on.

        Survives errors of `process_batch` and the loss of the database. Raises ConnectionFailed if
        it cannot connect at the start, and QueueNotFound if there is no queue. Later it raises
        only, and at once, errors that waiting does not cure: QueueNotFound if the queue was
        dropped, ConsumerNotRegistered if it was unregistered; with ``until_empty`` any error.

        In the main thread SIGTERM and SIGINT stop it after the batch (a second one, at once),
        unless ``handle_signals`` is false; handlers are as before when it returns.
        """
        with self._running(handle_signals=handle_signals), self._session() as session:
            new = self._join(session.working())
            logger.info(
                "consumer %s %s",
                self.consumer,
                "registered and started" if new else "started",
                extra=self._fields(),
            )
            while not self.stopping:
                if self._next(session, tolerant=not until_empty):
                    continue
                if until_empty:
                    break
                # Ticks before the first LISTEN were not notified: poll once more.
                if not session.listen():
                    self._wait(session)
            self._leave(session)
            logger.info("consumer %s stopped", self.consumer, extra=self._fields())

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
            self._fields(batch) | {"event_id": event.id},
            end="becomes a dead letter",
        )
        self.on_event_failed(event, error, failure.delay)

    # --- helpers

    def _check(self) -> None:
        """Raise InvalidConsumer if the class cannot work."""
        check_overridden(self, Consumer, "process_batch", "process_event")
        check_settings(self, _SETTINGS)
        check_hooks(self)
        Lanes.check(self.concurrency)
        if self.retry_policy is not None:
            check_policy(self.retry_policy)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        self._check()
        session = Session(
            self.dsn,
            Subscription(self._listen_dsn, self.queue) if self.listen else None,
            application_name=f"pgqpy {self.consumer}"[:63],
            prepare_threshold=self._prepare_threshold,
            isolation_level=self.isolation_level,
        )
        self._lost = Backoff(0.1, self.reconnect_cap)
        self._failed = Backoff(self.backoff_first, self.backoff_cap)
        try:
            yield session
        finally:
            session.close()

    def _join(self, conn: Connection) -> bool:
        """Register, when `run` begins; False if it was registered already."""
        return Admin(conn).register_consumer(self.queue, self.consumer)

    def _leave(self, session: Session) -> None:
        """Clean up when `run` ends without an error."""

    def _wait(self, session: Session) -> None:
        """Wait for something to do."""
        assert self._waker is not None
        session.wait(self._waker, self.poll_interval, for_tick=self.min_lag is None)

    def _next(self, session: Session, *, tolerant: bool) -> bool:
        """Process a batch if there is one. False if it is time to wait for the next."""
        try:
            batch = self._open(session)
        except PgqError as error:
            if not tolerant or isinstance(error, PERMANENT):
                raise
            self._database_away(session, error)
            return True
        self._lost.reset()
        if self._unnoted is not None:
            self._note_failure(session, *self._unnoted)
        if batch is None:
            return False
        if self.max_lag is not None and batch.lag > self.max_lag:
            self.on_lag(batch.lag, batch)
        try:
            stats = self._process(session, batch)
        except Exception as error:
            self._note_failure(session, batch, error)
            if not tolerant:
                raise
            self._batch_failed(session, batch, error)
            return True
        self._failed.reset()
        logger.debug(
            "batch %s done: %s events in %.3f s",
            batch.id,
            stats.events,
            stats.seconds,
            extra=self._fields(batch)
            | {
                "events": stats.events,
                "retried": stats.retried,
                "dead_letters": stats.dead_letters,
                "seconds": stats.seconds,
            },
        )
        self.on_batch(stats)
        # A poll in vain is a fifth of the cost of a small batch.
        return not session.up_to_date(batch.tick)

    #: The class of batches that `_open` returns; `_next_batch` is its statement.
    _batch_class: Callable[..., Batch] = Batch

    def _next_batch(self) -> tuple[bytes, list[Any]]:
        return next_batch(
            self.queue, self.consumer, self.batch_size, self.min_lag, self.event_types
        )

    def _open(self, session: Session) -> Batch | None:
        """Open the next batch, or get the one that is still open, and commit."""
        conn = session.asking()
        statement = self._next_batch()
        with translate_errors(), conn.cursor(row_factory=dict_row, binary=True) as cursor:
            cursor.execute(*statement)
            (row,) = cursor.fetchall()
        if row["batch_id"] is None:
            return None
        rows = row["events"]
        return self._batch_class(
            id=row["batch_id"],
            queue=self.queue,
            consumer=self.consumer,
            prev_tick=row["prev_tick_id"],
            tick=row["cur_tick_id"],
            prev_tick_time=row["prev_tick_time"],
            tick_time=row["cur_tick_time"],
            seq_start=row["prev_tick_event_seq"],
            seq_end=row["cur_tick_event_seq"],
            lag=row["lag"],
            sql=row["batch_sql"],
            tick_snapshot=row.get("tick_snapshot"),
            event_types=self.event_types,
            source=session.reading() if rows is None else rows,
        )

    def _process(self, session: Session, batch: Batch) -> BatchStats:
        """Process and finish a batch in one transaction."""
        started = monotonic()
        conn = session.working()
        try:
            try:
                self._transact(conn, batch)
            except RunInPieces:
                batch.start_over(in_pieces=True)
            # Outside of the `except`: the error would be the context of every later one.
            if batch.in_pieces:
                self._transact(conn, batch)
        finally:
            batch.close()
        return BatchStats(
            queue=batch.queue,
            consumer=batch.consumer,
            batch_id=batch.id,
            tick_id=batch.tick,
            events=batch.events_read,
            retried=len(batch.retries),
            dead_letters=batch.retries.dead_letters,
            seconds=monotonic() - started,
            lag=batch.lag,
        )

    def _transact(self, conn: BatchConnection, batch: Batch) -> None:
        with conn.batch():
            self.process_batch(conn, batch)
            if not batch.retries:
                conn.forgo_transaction()
            batch.finish(conn)

    def _is_for_policy(self, error: Exception) -> bool:
        """Whether an error of `process_event` concerns only its event."""
        if isinstance(error, Retry | DeadLetter):
            return True
        return self.retry_policy is not None and not is_outage(error, self.outages)

    def _batch_failed(self, session: Session, batch: Batch, error: Exception) -> None:
        if session.lost:
            self._database_away(session, error, batch)
            return
        pause = self._failed.pause()
        self._log_failure(batch, error, pause)
        self.on_error(error, batch)
        self._sleep(pause)

    def _log_failure(self, batch: Batch, error: Exception, pause: float) -> None:
        event_id = blamed(error)
        fields = self._fields(batch) | {"pause": pause}
        logger.error(
            "batch %s of consumer %s on queue %s failed%s and was rolled back; again in %.1f s: %s",
            batch.id,
            self.consumer,
            self.queue,
            "" if event_id is None else f" at event {event_id}",
            pause,
            in_short(error),
            exc_info=error,
            extra=fields if event_id is None else fields | {"event_id": event_id},
        )

    def _note_failure(self, session: Session, batch: Batch, error: Exception) -> None:
        """Record the failure for ``pgqpy status``, if possible: the batch is rolled back
        already."""
        self._unnoted = None
        if isinstance(error, BatchLost | LeaseLost):
            # Another worker has the batch.
            return
        if session.lost:
            self._unnoted = batch, error
            return
        try:
            conn = session.working()
            encoding = conn.info.parameter_status("server_encoding") or ""
            reason = storable(in_short(error)[:_MOST_OF_AN_ERROR], encoding)
            conn.execute(_NOTE_FAILURE, (batch.id, reason, blamed(error)))
        except (psycopg.Error, PgqError) as impossible:
            # The role lacks the right, or the queue is one of PgQ itself.
            logger.debug(
                "batch %s: its failure cannot be noted: %s",
                batch.id,
                str(impossible).partition("\n")[0],
                extra=self._fields(batch),
            )

    def _database_away(
        self, session: Session, error: Exception, batch: Batch | None = None
    ) -> None:
        """Reconnect, after a pause."""
        away = session.lost or isinstance(error, ConnectionFailed)
        session.close()
        pause = self._lost.pause()
        logger.warning(
            "consumer %s %s: %s; again in %.1f s",
            self.consumer,
            "lost the database" if away else "got no batch",
            str(error).partition("\n")[0],
            pause,
            extra=self._fields(batch) | {"pause": pause},
        )
        self.on_error(error, batch)
        self._sleep(pause)

    def _sleep(self, seconds: float) -> None:
        """Wait, unless stopped."""
        if not self.stopping and self._waker is not None:
            self._waker.wait(seconds)

    def _fields(self, batch: Batch | None = None) -> dict[str, Any]:
        """The fields of every log line."""
        fields: dict[str, Any] = {"queue": self.queue, "consumer": self.consumer}
        if batch is not None:
            fields |= {
                "batch_id": batch.id,
                "tick_id": batch.tick,
                "lag": batch.lag.total_seconds(),
            }
        return fields


_NOTE_FAILURE = b"select pgq.note_failure(%s, %s, %s)"
_MOST_OF_AN_ERROR = 1_000
_SETTINGS = {
    "batch_size": COUNT.or_none(),
    "concurrency": COUNT,
    **dict.fromkeys(("poll_interval", "backoff_first", "backoff_cap", "reconnect_cap"), SECONDS),
    **dict.fromkeys(("min_lag", "max_lag"), INTERVAL.or_none()),
    "event_types": SEVERAL,
    "outages": EXCEPTIONS,
}
