"""Consumers: the class to subclass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import ClassVar, Literal, TypedDict

from pgqpy._runtime.checks import check_returned
from pgqpy._runtime.io import AsyncIo
from pgqpy._runtime.stoppable_async import AsyncStoppable
from pgqpy.admin_async import AsyncAdmin
from pgqpy.connection_async import AsyncConnection, async_connect
from pgqpy.consumer._events_async import AsyncEventByEvent
from pgqpy.consumer._loop import Loop
from pgqpy.consumer._settings import ConsumerSettings
from pgqpy.consumer.batch_async import AsyncBatch
from pgqpy.event import Event, UnreadableEvent
from pgqpy.log import logger
from pgqpy.models import BatchStats, Start
from pgqpy.telemetry import _spans as spans


class ConsumerOptions(TypedDict, total=False):
    """The arguments that all consumers take; see `AsyncConsumer`."""

    queue: str | None
    consumer: str | None
    start: Start | None
    handler: Callable[[AsyncConnection, Event], Awaitable[object]] | None
    batch_size: int | None
    concurrency: int | None
    listen_dsn: str | None
    read_dsn: str | None
    prepare_threshold: int | None


class AsyncConsumer(AsyncStoppable, ConsumerSettings):
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

    _io = AsyncIo()
    _loop_kind: ClassVar[Callable[..., Loop]] = Loop
    _loop: Loop

    def __init__(
        self,
        dsn: str | None = None,
        *,
        queue: str | None = None,
        consumer: str | None = None,
        start: Start | None = None,
        handler: Callable[[AsyncConnection, Event], Awaitable[object]] | None = None,
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
        self._take(
            dsn,
            listen_dsn,
            queue=queue or None,
            consumer=consumer or None,
            start=start,
            batch_size=batch_size,
            concurrency=concurrency,
        )
        self.handler = handler
        self.read_dsn = read_dsn
        self.prepare_threshold = prepare_threshold

    # --- to be overridden

    async def process_batch(self, conn: AsyncConnection, batch: AsyncBatch) -> None:
        """Process a batch inside the transaction that ``conn`` begins when it is first used.

        A batch may be empty, if the transactions of its events were rolled back; heartbeats of an
        idle queue are no batches. Leave the transaction open; ``conn.transaction()`` gives
        savepoints. The default calls `process_event` for each event, and applies ``retry_policy``.
        """
        process = self._traced(batch, partial(self.process_event, conn))
        await self._process_each(conn, batch, process)

    async def process_event(self, conn: AsyncConnection, event: Event) -> None:
        """Process an event inside the batch's transaction.

        Raise `Retry` to retry it later, `DeadLetter` to give it up; for other errors
        ``retry_policy`` decides. Either way the writes for it are rolled back. The default calls
        the handler.
        """
        await self._handle(conn, event)

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
        logger.warning(
            "consumer %s lags %s behind", self.consumer, lag, extra=self.log_fields(batch)
        )

    async def wants_batch(self, conn: AsyncConnection) -> bool:
        """Whether to open a batch now; asked before each, with the connection that opens it.

        If not, `run` waits and asks again, or ends if it is to run until the queue is empty.
        """
        return True

    def around_batch(
        self, batch: AsyncBatch, idle: Callable[[], Awaitable[AsyncConnection]]
    ) -> AbstractAsyncContextManager[None]:
        """Return a block around the processing of a batch and its commit.

        ``idle`` returns the connection that reads events; nothing else uses it if the batch is not
        iterated.
        """
        return nullcontext()

    # --- the life of a consumer

    async def register(self, *, at_tick: int | None = None) -> bool:
        """Register, to get all events from ``start`` on, or after ``at_tick``.

        False if it was registered already: without ``at_tick`` it then keeps its position.
        Raises QueueNotFound, TickNotFound if the queue does not have all these events any more,
        InvalidParameter if ``start`` is in the future, NoTicks, PermissionDenied, ConnectionFailed.
        """
        async with await async_connect(self.dsn) as conn:
            admin = AsyncAdmin(conn)
            if at_tick is None:
                return await admin.register_consumer(self.queue, self.consumer, self.start)
            return await admin.register_consumer_at(self.queue, self.consumer, at_tick)

    async def unregister(self) -> bool:
        """Delete the position and the pending retries; False if there was none."""
        async with await async_connect(self.dsn) as conn:
            return bool(await AsyncAdmin(conn).unregister_consumer(self.queue, self.consumer))

    async def run_once(self) -> bool:
        """Process one batch, if there is one; False if not. Raises any error."""
        async with self._new_loop(handle_signals=False, strict=True, ticker=None) as loop:
            return await self._io.run(loop.step())

    async def run(
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
        async with self._new_loop(
            handle_signals=handle_signals, strict=until_empty, ticker=ticker
        ) as loop:
            await self._io.run(loop.run(until_empty=until_empty))

    async def fail_event(self, batch: AsyncBatch, event: Event, error: Exception) -> None:
        """Apply the error and ``retry_policy`` to an event.

        The batch records a retry or dead letter. Use it in a `process_batch` that catches errors of
        single events itself, and rolls back their writes. Raises ``error`` if there is no policy,
        or if it is an outage.
        """
        failure = self._record(batch, event, error)
        await self.on_event_failed(event, error, failure.delay)

    # --- helpers

    async def _handle(self, conn: AsyncConnection, event: Event) -> None:
        if self.handler is None:
            raise NotImplementedError
        check_returned(await self.handler(conn, event))

    @asynccontextmanager
    async def _new_loop(
        self, *, handle_signals: bool, strict: bool, ticker: Literal["auto"] | None
    ) -> AsyncIterator[Loop]:
        self._check()
        async with (
            self._running(handle_signals=handle_signals) as waker,
            self._ticking(waker, self.listen_dsn, ticker),
        ):
            self._loop = loop = self._loop_kind(self, waker, strict=strict)
            try:
                yield loop
            finally:
                await self._io.run(loop.close())

    def _traced(
        self, batch: AsyncBatch, process: Callable[[Event], Awaitable[object]]
    ) -> Callable[[Event], Awaitable[None]]:
        """Return what processes an event, within a span if telemetry is on."""

        async def processed(event: Event) -> None:
            if (outcome := await process(event)) is not None:
                check_returned(outcome)

        if spans.active is None:
            return processed

        async def in_a_span(event: Event) -> None:
            with spans.processing_event(batch, event):
                await processed(event)

        current = spans.active.one_by_one(batch) if self.concurrency == 1 else None
        if current is None:
            return in_a_span

        async def one_by_one(event: Event) -> None:
            current.event, current.began = event, monotonic()
            try:
                await processed(event)
            except Exception as error:
                current.failed(error)
                raise
            finally:
                current.event = None

        return one_by_one

    async def _process_each(
        self,
        conn: AsyncConnection,
        batch: AsyncBatch,
        process: Callable[[Event], Awaitable[None]],
        *,
        at_once: int | None = None,
    ) -> None:
        """Process a batch event by event in the transaction of ``conn``."""
        fail = partial(self.fail_event, batch)
        validators = batch.validators

        async def checked(event: Event) -> None:
            if validators is not None and not isinstance(event, UnreadableEvent):
                validators.check(event.type, event.data)
            await process(event)

        run = process if validators is None else checked
        each = AsyncEventByEvent(conn, batch, run, self._is_for_policy, fail)
        await each.run(at_once or self.concurrency)
