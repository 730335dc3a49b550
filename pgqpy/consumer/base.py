# WARNING: generated from pgqpy/consumer/base_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Consumers: the class to subclass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import ClassVar, Literal, TypedDict

from pgqpy._runtime.checks import check_returned
from pgqpy._runtime.io import Io
from pgqpy._runtime.stoppable import Stoppable
from pgqpy.admin import Admin
from pgqpy.connection import Connection, connect
from pgqpy.consumer._events import EventByEvent
from pgqpy.consumer._loop import Loop
from pgqpy.consumer._settings import ConsumerSettings
from pgqpy.consumer.batch import Batch
from pgqpy.event import Event, UnreadableEvent
from pgqpy.log import logger
from pgqpy.models import BatchStats, Start
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


class Consumer(Stoppable, ConsumerSettings):
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

    _io = Io()
    _loop_kind: ClassVar[Callable[..., Loop]] = Loop
    _loop: Loop

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
        with self._new_loop(handle_signals=False, strict=True, ticker=None) as loop:
            return self._io.run(loop.step())

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
        with self._new_loop(
            handle_signals=handle_signals, strict=until_empty, ticker=ticker
        ) as loop:
            self._io.run(loop.run(until_empty=until_empty))

    def fail_event(self, batch: Batch, event: Event, error: Exception) -> None:
        """Apply the error and ``retry_policy`` to an event.

        The batch records a retry or dead letter. Use it in a `process_batch` that catches errors of
        single events itself, and rolls back their writes. Raises ``error`` if there is no policy,
        or if it is an outage.
        """
        failure = self._record(batch, event, error)
        self.on_event_failed(event, error, failure.delay)

    # --- helpers

    def _handle(self, conn: Connection, event: Event) -> None:
        if self.handler is None:
            raise NotImplementedError
        check_returned(self.handler(conn, event))

    @contextmanager
    def _new_loop(
        self, *, handle_signals: bool, strict: bool, ticker: Literal["auto"] | None
    ) -> Iterator[Loop]:
        self._check()
        with (
            self._running(handle_signals=handle_signals) as waker,
            self._ticking(waker, self.listen_dsn, ticker),
        ):
            self._loop = loop = self._loop_kind(self, waker, strict=strict)
            try:
                yield loop
            finally:
                self._io.run(loop.close())

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
