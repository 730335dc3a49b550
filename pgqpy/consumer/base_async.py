"""Consumers: the class to subclass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from pgqpy import dsn as dsns
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.batch_connection_async import AsyncBatchConnection
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
from pgqpy._runtime.listener_async import AsyncSubscription
from pgqpy._runtime.log import logger
from pgqpy._runtime.session_async import AsyncSession
from pgqpy._runtime.stoppable_async import AsyncStoppable
from pgqpy._wire.statements import next_batch
from pgqpy.admin_async import AsyncAdmin
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer._event_by_event_async import AsyncEventByEvent, RunInPieces
from pgqpy.consumer._lanes import AsyncLanes
from pgqpy.consumer.batch_async import AsyncBatch
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


class AsyncConsumer(AsyncStoppable):
    """Takes a queue's events in batches and stores its position.

    Subclass it, name the queue and the consumer, and process events::

        class DelayCounter(AsyncConsumer):
            queue = "flights"
            consumer = "delay_counter"

            async def process_event(self, conn, event):
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
    _unnoted: tuple[AsyncBatch, Exception] | None = None

    # --- to be overridden

    async def process_batch(self, conn: AsyncConnection, batch: AsyncBatch) -> None:
        """Process a batch inside the transaction that ``conn`` begins when it is first used.

        A batch may be empty, if the transactions of its events were rolled back; heartbeats of an
        idle queue are no batches. Leave the transaction open; ``conn.transaction()`` gives
        savepoints. The default calls `process_event` for each event, and applies ``retry_policy``.
        """
        each = AsyncEventByEvent(
            conn,
            batch,
            partial(self.process_event, conn),
            self._is_for_policy,
            partial(self.fail_event, batch),
        )
        await each.run(self.concurrency)

    async def process_event(self, conn: AsyncConnection, event: Event) -> None:
        """Process an event inside the batch's transaction.

        Raise `Retry` to retry it later, `DeadLetter` to give it up; for other errors
        ``retry_policy`` decides. Either way the writes for it are rolled back.
        """
        raise NotImplementedError

    async def on_batch(self, stats: BatchStats) -> None:
        """Called when a batch is committed: the place for metrics."""

    async def on_error(self, error: Exception, batch: AsyncBatch | None) -> None:
        """Called when a batch was rolled back, or (without a batch) when the database is away.

        It will be retried; raise here to leave `run` instead. The error is logged already.
        """

    async def on_event_failed(
        self, event: Event, error: Exception, delay: timedelta | None
    ) -> None:
        """Called when an event failed; it is retried after ``delay``, None: it is a dead letter.

        Both happen when the batch is finished. The error is logged already. Raise here to retry the
        whole batch instead.
        """

    async def on_lag(self, lag: timedelta, batch: AsyncBatch) -> None:
        """Called for a batch older than ``max_lag``. It logs a warning; raise to leave `run`."""
        logger.warning("consumer %s lags %s behind", self.consumer, lag, extra=self._fields(batch))

    # --- the life of a consumer

    async def register(self, *, at_tick: int | None = None) -> bool:
        """Register, to get all events after the newest tick, or after ``at_tick``.

        False if it was registered already: without ``at_tick`` it then keeps its position.
        Raises QueueNotFound, TickNotFound, NoTicks, PermissionDenied, ConnectionFailed.
        """
        async with await async_connect(self.dsn) as conn:
            admin = AsyncAdmin(conn)
            if at_tick is None:
                return await admin.register_consumer(self.queue, self.consumer)
            return await admin.register_consumer_at(self.queue, self.consumer, at_tick)

    async def unregister(self) -> bool:
        """Delete the position and the pending retries; False if there was none."""
        async with await async_connect(self.dsn) as conn:
            return bool(await AsyncAdmin(conn).unregister_consumer(self.queue, self.consumer))

    async def run_once(self) -> bool:
        """Process one batch, if there is one; False if not. Raises any error."""
        async with self._running(handle_signals=False), self._session() as session:
            return await self._next(session, tolerant=False)

    async def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Process batches until `stop`, or with ``until_empty`` until there are no more.

        Registers the consumer first if it is not: it then gets the events that come from now on.

        Survives errors of `process_batch` and the loss of the database. Raises ConnectionFailed if
        it cannot connect at the start, and QueueNotFound if there is no queue. Later it raises
        only, and at once, errors that waiting does not cure: QueueNotFound if the queue was
        dropped, ConsumerNotRegistered if it was unregistered; with ``until_empty`` any error.

        In the main thread SIGTERM and SIGINT stop it after the batch (a second one, at once),
        unless ``handle_signals`` is false; handlers are as before when it returns.
        """
        async with self._running(handle_signals=handle_signals), self._session() as session:
            new = await self._join(await session.working())
            logger.info(
                "consumer %s %s",
                self.consumer,
                "registered and started" if new else "started",
                extra=self._fields(),
            )
            while not self.stopping:
                if await self._next(session, tolerant=not until_empty):
                    continue
                if until_empty:
                    break
                # Ticks before the first LISTEN were not notified: poll once more.
                if not await session.listen():
                    await self._wait(session)
            await self._leave(session)
            logger.info("consumer %s stopped", self.consumer, extra=self._fields())

    async def fail_event(self, batch: AsyncBatch, event: Event, error: Exception) -> None:
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
        await self.on_event_failed(event, error, failure.delay)

    # --- helpers

    def _check(self) -> None:
        """Raise InvalidConsumer if the class cannot work."""
        check_overridden(self, AsyncConsumer, "process_batch", "process_event")
        check_settings(self, _SETTINGS)
        check_hooks(self)
        AsyncLanes.check(self.concurrency)
        if self.retry_policy is not None:
            check_policy(self.retry_policy)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncSession]:
        self._check()
        session = AsyncSession(
            self.dsn,
            AsyncSubscription(self._listen_dsn, self.queue) if self.listen else None,
            application_name=f"pgqpy {self.consumer}"[:63],
            prepare_threshold=self._prepare_threshold,
            isolation_level=self.isolation_level,
        )
        self._lost = Backoff(0.1, self.reconnect_cap)
        self._failed = Backoff(self.backoff_first, self.backoff_cap)
        try:
            yield session
        finally:
            await session.close()

    async def _join(self, conn: AsyncConnection) -> bool:
        """Register, when `run` begins; False if it was registered already."""
        return await AsyncAdmin(conn).register_consumer(self.queue, self.consumer)

    async def _leave(self, session: AsyncSession) -> None:
        """Clean up when `run` ends without an error."""

    async def _wait(self, session: AsyncSession) -> None:
        """Wait for something to do."""
        assert self._waker is not None
        await session.wait(self._waker, self.poll_interval, for_tick=self.min_lag is None)

    async def _next(self, session: AsyncSession, *, tolerant: bool) -> bool:
        """Process a batch if there is one. False if it is time to wait for the next."""
        try:
            batch = await self._open(session)
        except PgqError as error:
            if not tolerant or isinstance(error, PERMANENT):
                raise
            await self._database_away(session, error)
            return True
        self._lost.reset()
        if self._unnoted is not None:
            await self._note_failure(session, *self._unnoted)
        if batch is None:
            return False
        if self.max_lag is not None and batch.lag > self.max_lag:
            await self.on_lag(batch.lag, batch)
        try:
            stats = await self._process(session, batch)
        except Exception as error:
            await self._note_failure(session, batch, error)
            if not tolerant:
                raise
            await self._batch_failed(session, batch, error)
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
        await self.on_batch(stats)
        # A poll in vain is a fifth of the cost of a small batch.
        return not session.up_to_date(batch.tick)

    #: The class of batches that `_open` returns; `_next_batch` is its statement.
    _batch_class: Callable[..., AsyncBatch] = AsyncBatch

    def _next_batch(self) -> tuple[bytes, list[Any]]:
        return next_batch(
            self.queue, self.consumer, self.batch_size, self.min_lag, self.event_types
        )

    async def _open(self, session: AsyncSession) -> AsyncBatch | None:
        """Open the next batch, or get the one that is still open, and commit."""
        conn = await session.asking()
        statement = self._next_batch()
        with translate_errors():
            async with conn.cursor(row_factory=dict_row, binary=True) as cursor:
                await cursor.execute(*statement)
                (row,) = await cursor.fetchall()
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
            source=await session.reading() if rows is None else rows,
        )

    async def _process(self, session: AsyncSession, batch: AsyncBatch) -> BatchStats:
        """Process and finish a batch in one transaction."""
        started = monotonic()
        conn = await session.working()
        try:
            try:
                await self._transact(conn, batch)
            except RunInPieces:
                await batch.start_over(in_pieces=True)
            # Outside of the `except`: the error would be the context of every later one.
            if batch.in_pieces:
                await self._transact(conn, batch)
        finally:
            await batch.close()
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

    async def _transact(self, conn: AsyncBatchConnection, batch: AsyncBatch) -> None:
        async with conn.batch():
            await self.process_batch(conn, batch)
            if not batch.retries:
                await conn.forgo_transaction()
            await batch.finish(conn)

    def _is_for_policy(self, error: Exception) -> bool:
        """Whether an error of `process_event` concerns only its event."""
        if isinstance(error, Retry | DeadLetter):
            return True
        return self.retry_policy is not None and not is_outage(error, self.outages)

    async def _batch_failed(
        self, session: AsyncSession, batch: AsyncBatch, error: Exception
    ) -> None:
        if session.lost:
            await self._database_away(session, error, batch)
            return
        pause = self._failed.pause()
        self._log_failure(batch, error, pause)
        await self.on_error(error, batch)
        await self._sleep(pause)

    def _log_failure(self, batch: AsyncBatch, error: Exception, pause: float) -> None:
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

    async def _note_failure(
        self, session: AsyncSession, batch: AsyncBatch, error: Exception
    ) -> None:
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
            conn = await session.working()
            encoding = conn.info.parameter_status("server_encoding") or ""
            reason = storable(in_short(error)[:_MOST_OF_AN_ERROR], encoding)
            await conn.execute(_NOTE_FAILURE, (batch.id, reason, blamed(error)))
        except (psycopg.Error, PgqError) as impossible:
            # The role lacks the right, or the queue is one of PgQ itself.
            logger.debug(
                "batch %s: its failure cannot be noted: %s",
                batch.id,
                str(impossible).partition("\n")[0],
                extra=self._fields(batch),
            )

    async def _database_away(
        self, session: AsyncSession, error: Exception, batch: AsyncBatch | None = None
    ) -> None:
        """Reconnect, after a pause."""
        away = session.lost or isinstance(error, ConnectionFailed)
        await session.close()
        pause = self._lost.pause()
        logger.warning(
            "consumer %s %s: %s; again in %.1f s",
            self.consumer,
            "lost the database" if away else "got no batch",
            str(error).partition("\n")[0],
            pause,
            extra=self._fields(batch) | {"pause": pause},
        )
        await self.on_error(error, batch)
        await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        """Wait, unless stopped."""
        if not self.stopping and self._waker is not None:
            await self._waker.wait(seconds)

    def _fields(self, batch: AsyncBatch | None = None) -> dict[str, Any]:
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
